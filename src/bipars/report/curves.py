"""Learning curves as PNG: every seed faint, the mean on top."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bipars.runs.directory import RunDirectory

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which survives colour blindness."""


def plot_curves(cells: Mapping[str, Sequence[RunDirectory]], title: str, path: Path) -> None:
    """Steps per episode on the left; on the right, the weight of every term where a method has one of its own."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for colour, (name, runs) in zip(COLOURS, cells.items(), strict=False):
        metrics = [run.metrics for run in runs]
        _lines(left, metrics, "evaluation_length", colour, name)
        for key in [key for key in metrics[0][0] if key.startswith("weight/")]:
            _lines(right, metrics, key, colour, f"{name}: {key[7:]}")
    left.set(title=title, xlabel="environment steps", ylabel="steps per episode (greedy)", ylim=(0, None))
    right.set(title="weight of the term", xlabel="environment steps", ylabel="mean z over visited states")
    right.axhline(0.0, color="grey", linewidth=0.8)
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _lines(axes: Any, metrics: Sequence[list[dict[str, Any]]], key: str, colour: str, label: str) -> None:
    steps = np.array([row["step"] for row in metrics[0]])
    values = np.array([[row[key] for row in rows] for rows in metrics])
    axes.plot(steps, values.T, color=colour, alpha=0.2, linewidth=0.8)
    axes.plot(steps, values.mean(axis=0), color=colour, linewidth=2, label=label)
