"""Learning curves as PNG: every seed faint, the mean on top."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bipars.runs.directory import RunDirectory

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which survives colour blindness."""
STYLES = ("-", "--", ":")
"""Taken in turn when there are more lines than colours."""


def plot_curves(cells: Mapping[str, Sequence[RunDirectory]], title: str, path: Path) -> None:
    """Steps per episode on the left; on the right, the weight of every term where a method has one of its own."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for i, (name, runs) in enumerate(cells.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i // len(COLOURS) % len(STYLES)]}
        metrics = [run.metrics for run in runs]
        _lines(left, metrics, "evaluation_length", style, name)
        terms = [key for key in metrics[0][0] if key.startswith("weight/")]
        for key in terms:
            _lines(right, metrics, key, style, name if len(terms) == 1 else f"{name}: {key[7:]}")
    left.set(title=title, xlabel="environment steps", ylabel="steps per episode (greedy)", ylim=(0, None))
    right.set(title="weight of the term", xlabel="environment steps", ylabel="mean z over visited states")
    right.axhline(0.0, color="grey", linewidth=0.8)
    for axes in (left, right):
        axes.grid(alpha=0.25)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _lines(axes: Any, metrics: Sequence[list[dict[str, Any]]], key: str, style: dict[str, str], label: str) -> None:
    steps = np.array([row["step"] for row in metrics[0]])
    values = np.array([[row[key] for row in rows] for rows in metrics])
    axes.plot(steps, values.T, **style, alpha=0.15, linewidth=0.7)
    axes.plot(steps, values.mean(axis=0), **style, linewidth=2, label=label)
