"""The paper next to us: what it says of a panel, what came out here, and whether the two agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bipars.errors import BiparsError
from bipars.results.panels import Collection
from bipars.results.statistics import area_under_curve, difference_interval, interval
from bipars.results.summary import evaluations
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import LAST_EVALUATIONS
from bipars.suite.manifest import Manifest, is_suite, read_manifest
from bipars.suite.panels import MEASURES, Panel, Statement


@dataclass(frozen=True)
class Finding:
    """One cell beside one statement."""

    panel: str
    says: str
    cell: str
    measure: str
    seeds: int
    value: float
    """Mean over seeds, as the paper's."""
    low: float
    high: float
    """95 % bootstrap interval of that mean."""
    expected: str
    """What the statement makes of it, such as 'above 165.2'."""
    verdict: str
    """yes, no or undecided; where a value is stated: as stated, higher or lower."""


def findings(manifest: Manifest, root: Path) -> list[Finding]:
    """Every statement beside every cell it speaks of that has finished runs."""
    runs = manifest.finished_runs(root)

    @cache
    def values(cell: str, measure: str) -> np.ndarray:
        return np.array([MEASURING[measure](run) for run in runs[cell]])

    found = []
    for panel in manifest.suite.panels:
        for statement in panel.statements:
            needed = {name for name in (statement.above, statement.below) if isinstance(name, str)}
            if needed <= runs.keys():
                found += [
                    _compare(panel, statement, cell, values(cell, statement.measure), values)
                    for cell in statement.of
                    if cell in runs
                ]
    return found


def _compare(panel: Panel, statement: Statement, cell: str, here: np.ndarray, values: Any) -> Finding:
    low, high = interval(here, np.mean)
    if statement.about is not None:
        expected = f"about {statement.about:g}"
        if low > statement.about + statement.within:
            verdict = "higher"
        else:
            verdict = "lower" if high < statement.about - statement.within else "as stated"
    else:
        word = "above" if statement.above is not None else "below"
        other = statement.above if statement.above is not None else statement.below
        if isinstance(other, str):
            there = values(other, statement.measure)
            expected = f"{word} {other.rpartition('/')[2]} ({there.mean():.1f})"
            ends = difference_interval(here, there, np.mean)
        else:
            assert other is not None
            expected, ends = f"{word} {other:g}", (float(low) - other, float(high) - other)
        sign = 1 if word == "above" else -1
        agrees, contradicts = min(sign * end for end in ends) > 0, max(sign * end for end in ends) < 0
        verdict = "yes" if agrees else "no" if contradicts else "undecided"
    return Finding(
        panel.name, statement.says, cell, statement.measure, len(here),
        float(here.mean()), float(low), float(high), expected, verdict,
    )  # fmt: skip


def _torque(run: RunDirectory) -> float:
    rows = evaluations(run)[-LAST_EVALUATIONS:]
    return float(np.mean([row["evaluation_action_size"] for row in rows]))


def _area(run: RunDirectory) -> float:
    steps, lengths = zip(*((row["step"], row["evaluation_length"]) for row in evaluations(run)), strict=True)
    return float(area_under_curve(np.array(steps), np.array(lengths)))


MEASURING = {
    "steps": lambda run: run.result["evaluation_length"],
    "return": lambda run: run.result["evaluation_return"],
    "weight": lambda run: float(np.mean(list(run.result["weights"].values()))),
    "torque": _torque,
    "area": _area,
}


def as_markdown(found: Sequence[Finding], titles: Mapping[str, str]) -> str:
    """One section per panel, one row per cell that a statement speaks of."""
    lines = ["# The paper next to us", ""]
    lines += ["Means over seeds with 95 % bootstrap intervals. The statements are the paper's facts in our words.", ""]
    panel = None
    for finding in found:
        if finding.panel != panel:
            panel = finding.panel
            lines += ["", f"## {panel}: {titles[panel]}", ""]
            lines += ["| the paper says | cell | seeds | what | here | expected | agrees |", "| --- " * 7 + "|"]
        lines.append(
            f"| {finding.says} | {finding.cell} | {finding.seeds} | {MEASURES[finding.measure]} "
            f"| {finding.value:.2f} ({finding.low:.2f} to {finding.high:.2f}) "
            f"| {finding.expected} | {finding.verdict} |"
        )
    return "\n".join(lines) + "\n"


def paper_beside(collection: Collection) -> list[dict[str, Any]]:
    """Per panel that the paper speaks of: its statements, each with what came out here."""
    if not is_suite(collection.root):
        return []
    try:
        found = findings(read_manifest(collection.root), collection.root)
    except BiparsError:
        return []  # the runs themselves say what is damaged
    sections = []
    for i, panel in enumerate(collection.panels):
        places = {r.run.path.parent.relative_to(collection.root).as_posix() for c in panel.cells for r in c.records}
        rows = [
            [
                f.says,
                f.cell.rpartition("/")[2],
                MEASURES[f.measure],
                f.expected,
                f"{f.value:.2f} ({f.low:.2f} to {f.high:.2f}), {f.seeds} seed{'s' if f.seeds != 1 else ''}",
                f.verdict,
            ]
            for f in found
            if f.cell in places
        ]
        if rows:
            sections.append({"panel": i, "rows": rows})
    return sections
