"""Runs gathered into cells (same settings, different seeds) and their figures over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bipars.errors import CheckpointError
from bipars.results.formats import csv_text, text_table
from bipars.results.statistics import interval
from bipars.runs.directory import RunDirectory
from bipars.runs.metrics import evaluated


@dataclass(frozen=True)
class CellSummary:
    """One row of a results table."""

    name: str
    seeds: tuple[int, ...]
    final: np.ndarray
    """Per seed, mean episode length of the last evaluations."""
    whole: np.ndarray
    """Per seed, mean episode length over all evaluations: how early it learned."""
    returns: np.ndarray
    """Per seed, mean true return of the last evaluations."""
    weights: dict[str, np.ndarray]
    """Per term and seed, the mean weight at the end."""


def summarise_runs(runs: Sequence[RunDirectory], root: Path) -> list[CellSummary]:
    """Finished runs by the directory that holds their seeds, in order of appearance."""
    cells: dict[str, list[RunDirectory]] = {}
    for run in runs:
        if run.finished:
            name = str(run.path.parent.relative_to(root)) if run.path != root else "."
            cells.setdefault(name, []).append(run)
    return [_summarise(name, members) for name, members in cells.items()]


def _summarise(name: str, runs: list[RunDirectory]) -> CellSummary:
    results = [run.result for run in runs]
    return CellSummary(
        name,
        tuple(run.config.seed for run in runs),
        np.array([result["evaluation_length"] for result in results]),
        np.array([np.mean([row["evaluation_length"] for row in evaluations(run)]) for run in runs]),
        np.array([result["evaluation_return"] for result in results]),
        {term: np.array([result["weights"][term] for result in results]) for term in results[0]["weights"]},
    )


def evaluations(run: RunDirectory) -> list[dict[str, Any]]:
    """The rows of every evaluation of a finished run, whose metrics must be those it was finished with."""
    rows = run.metrics
    if rows[-1]["step"] != run.result["steps"]:
        raise CheckpointError(
            f"{run.metrics_file} was altered after the run was finished: its last row is not of step "
            f"{run.result['steps']}. Restore it, or delete {run.path} and train again"
        )
    return evaluated(rows, run.config.evaluation_every)


def short_name(term: str) -> str:
    """The function of an imported term, without its module."""
    return term.rpartition(".")[2] if term.startswith("import:") else term


ABOUT = "Per run the mean of its last five evaluations; over seeds the mean, with its 95 % bootstrap interval."


def table(cells: Sequence[CellSummary]) -> str:
    """Markdown: means, which is what the paper's figures show."""
    head = ["run", "seeds", "steps per episode (95 %)", "worst", "over all", "true return", "mean weight"]
    return text_table(head, [_row(cell) for cell in cells])


def _row(cell: CellSummary) -> list[str]:
    low, high = interval(cell.final, np.mean)
    weights = ", ".join(f"{short_name(term)} {values.mean():+.2f}" for term, values in cell.weights.items())
    return [
        cell.name,
        str(len(cell.seeds)),
        f"{cell.final.mean():.1f} ({low:.0f} to {high:.0f})",
        f"{cell.final.min():.0f}",
        f"{cell.whole.mean():.1f}",
        f"{cell.returns.mean():.3f}",
        weights or "-",
    ]


def to_csv(cells: Sequence[CellSummary]) -> str:
    """Every seed of every cell."""
    terms = sorted({term for cell in cells for term in cell.weights})
    head = ["run", "seed", "steps_per_episode", "steps_per_episode_over_all", "true_return"]
    rows = (
        [
            *(cell.name, seed, *(round(float(x[i]), 4) for x in (cell.final, cell.whole, cell.returns))),
            *(round(float(cell.weights[t][i]), 4) if t in cell.weights else "" for t in terms),
        ]
        for cell in cells
        for i, seed in enumerate(cell.seeds)
    )
    return csv_text([*head, *(f"weight_{term}" for term in terms)], rows)
