"""The paper's figures and statements beside recorded results, as a page of the documentation.

    python -m bipars.report.reproduction results/paper docs/reproduction.md

writes the tables of every `paper.json` in the folder and below it into the page.
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from bipars.metrics import with_tables
from bipars.report.paper import Finding
from bipars.results.formats import text_table
from bipars.suite.panels import MEASURES, Panel
from bipars.suite.plan import load_suite

FIGURES = {
    "fig1": "Figure 1: cart-pole with a beneficial term",
    "fig2": "Figure 2: MuJoCo with the torque term",
    "fig3": "Figure 3: cart-pole with a harmful term",
    "fig4": "Figure 4: learned weights reused, and a random term",
    "fig5": "Figure 5: one weight per term, and weights by state",
}
STATUS = {
    "yes": "reproduced",
    "as stated": "reproduced",
    "higher": "more than stated",
    "lower": "less than stated",
    "undecided": "not clear",
    "no": "not reproduced",
}
NOT_RUN = "not run"


def documented(folder: Path) -> list[str]:
    """All figures: a table of their statements' status, then each panel with its picture and its statements."""
    found = [Finding(**row) for file in sorted(folder.rglob("paper.json")) for row in json.loads(file.read_text())]
    panels = {name: load_suite(f"paper/{name}").panels for name in FIGURES}
    lines = ["", _overview(panels, found)]
    for name, title in FIGURES.items():
        lines += ["", f"## {title}", "", f"    bipars suite run paper/{name} --out runs/{name}"]
        for panel in panels[name]:
            lines += _section(panel, [f for f in found if f.panel == panel.name], folder)
    return [f"{line}\n" for line in [*lines, ""]]


def _overview(panels: Mapping[str, Sequence[Panel]], found: Sequence[Finding]) -> str:
    columns = [*dict.fromkeys(STATUS.values()), NOT_RUN]
    rows, total = [], Counter[str]()
    for name, of_figure in panels.items():
        stated = sum(len(statement.of) for panel in of_figure for statement in panel.statements)
        counts = Counter(STATUS[f.verdict] for f in found if f.panel.partition("-")[0] == name)
        counts[NOT_RUN] = stated - counts.total()
        total += counts
        rows.append([FIGURES[name], *(str(counts[column] or "") for column in columns)])
    rows.append(["all", *(str(total[column] or "") for column in columns)])
    return text_table(["statements, by method", *columns], rows)


def _section(panel: Panel, found: Sequence[Finding], folder: Path) -> list[str]:
    lines = ["", f"### {panel.title}", ""]
    picture = next(folder.rglob(f"figures/{panel.name}.png"), None)
    if picture is not None:
        lines += [f"![{panel.title}](../{picture.as_posix()})", ""]
    rows = [
        [
            f.says,
            f.cell.rpartition("/")[2],
            MEASURES[f.measure],
            f.expected,
            f"{f.value:.4g} ({f.low:.4g} to {f.high:.4g}), {f.seeds} seeds",
            STATUS[f.verdict],
        ]
        for f in found
    ]
    there = {(f.says, f.cell) for f in found}
    missing = [(s.says, cell) for s in panel.statements for cell in s.of if (s.says, cell) not in there]
    rows += [[says, cell.rpartition("/")[2], "", "", "", NOT_RUN] for says, cell in missing]
    if not rows:
        return lines
    return [*lines, text_table(["the paper says", "method", "measure", "expected", "here (95 %)", "status"], rows)]


if __name__ == "__main__":
    results, page = map(Path, sys.argv[1:])
    page.write_text(with_tables(page.read_text(), documented(results)))
