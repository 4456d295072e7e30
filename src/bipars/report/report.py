"""A report in Python: the verdicts as objects, as text, in a notebook, and as the page on disk."""

import html
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bipars.errors import UsageError
from bipars.report.build import write_report
from bipars.report.text import verdict_text
from bipars.results.panels import Collection, collect
from bipars.results.summary import short_name
from bipars.results.verdict import judgements
from bipars.results.wording import STRENGTHS, Verdict
from bipars.runs.directory import Kind, RunDirectory
from bipars.runs.record import write_record
from bipars.settings.resolved import ResolvedConfig

COLOURS = {"keep": "#00734f", "drop": "#5b6570", "reverse": "#8a3d8f", "unsure": "#8a5a00"}
MARK = b'<meta name="generator" content="bipars report">'
"""How every page of ours begins: it stands in the first bytes of page.html."""
HEAD = 1024


@dataclass(frozen=True)
class Report:
    """What was learned of every term. `print(report)` shows it; in a notebook it shows itself."""

    verdicts: tuple[Verdict, ...]
    """One per term: `v.term`, `v.advice` ("keep", "drop", "reverse" or "unsure"), `v.strength`, `v.evidence`."""
    together: str
    """What all terms gave together, in a few sentences."""
    text: str
    """All of it, as in a terminal."""
    path: Path | None = None
    """The page, if one was written."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Report({', '.join(f'{short_name(v.term)}: {v.advice}' for v in self.verdicts)})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><b>{html.escape(short_name(v.term))}</b></td>"
            f'<td><b style="color:{COLOURS[v.advice]}">{v.advice}</b><br>{STRENGTHS[v.strength]}</td>'
            f'<td style="text-align:left">{html.escape(v.evidence)}</td></tr>'
            for v in self.verdicts
        )
        page = "" if self.path is None else f"<p>The page with all figures: {html.escape(str(self.path))}</p>"
        head = "<tr><th>term</th><th>advice</th><th>evidence</th></tr>"
        return f"<p>{html.escape(self.together)}</p><table>{head}{rows}</table>{page}"


def make_report(collection: Collection, path: str | os.PathLike[str] | None = None) -> Report:
    """Of the first task, and of the method that comes first there; the text has all of them."""
    page = None
    if path is not None:
        check_page(Path(path), "path")
        page = write_report(collection, Path(path))
    found = [judgement for panel in collection.panels for judgement in judgements(panel)[:1]]
    return Report(
        tuple(verdict for judgement in found[:1] for verdict in judgement.verdicts),
        " ".join(sentence for judgement in found[:1] for sentence in judgement.together.sentences),
        verdict_text(collection),
        page,
    )


def report_record(
    config: ResolvedConfig,
    kind: Kind,
    objects: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    snapshots: Mapping[int, bytes],
    path: str | os.PathLike[str] | None,
) -> Report:
    """Of an agent in memory."""
    with tempfile.TemporaryDirectory() as place:
        run = RunDirectory.create(Path(place) / "agent", config, kind, objects)
        write_record(run, metrics, snapshots)
        return make_report(collect(run.path), path)


def check_page(path: Path, name: str = "--out") -> None:
    """Refuses what is no name of a page, and to replace a page of somebody else."""
    if path.is_dir() or path.suffix.lower() not in (".html", ".htm"):
        what = "a directory" if path.is_dir() else "no name of a page"
        raise UsageError(f"{name} is {path}, {what}; expected one such as {path.with_suffix('')}/report.html")
    if path.exists():
        with open(path, "rb") as file:
            if MARK not in file.read(HEAD):
                raise UsageError(
                    f"{name} is {path}, which is no page of `bipars report`. Choose another name, or delete it"
                )
