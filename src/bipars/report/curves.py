"""Learning curves as PNG: every seed faint, the mean on top."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bipars.envs import find_compiled
from bipars.report.summary import short_name
from bipars.runs.directory import RunDirectory

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which survives colour blindness."""
STYLES = ("-", "--", ":")
"""Taken in turn when there are more lines than colours."""


def plot_curves(cells: Mapping[str, Sequence[RunDirectory]], title: str, path: Path) -> None:
    """Performance; the weight of every term where a method moves it; effort where actions have a size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter

    metrics = {name: [run.metrics for run in runs] for name, runs in cells.items()}
    poles = all(find_compiled(run.config.env) for runs in cells.values() for run in runs)
    effort = any(row["evaluation_action_size"] for runs in metrics.values() for row in runs[0]) and not poles
    figure, axes = plt.subplots(1, 2 + effort, figsize=(11 + 5 * effort, 4.5), layout="constrained")
    for i, (name, runs) in enumerate(metrics.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i // len(COLOURS) % len(STYLES)]}
        _lines(axes[0], runs, "evaluation_length" if poles else "evaluation_return", style, name)
        terms = [key for key in runs[0][0] if key.startswith("weight/")]
        moved = len({row[key] for key in terms for row in runs[0]}) > 1
        for k, key in enumerate(terms if moved else ()):
            line = style if len(terms) == 1 else style | {"linestyle": STYLES[k % len(STYLES)]}
            _lines(axes[1], runs, key, line, name if len(terms) == 1 else f"{name}: {short_name(key[7:])}")
        if effort:
            _lines(axes[2], runs, "evaluation_action_size", style, name)
    performance = "steps per episode (greedy)" if poles else "true return (greedy)"
    figure.suptitle(title)
    axes[0].set(title="performance", xlabel="environment steps", ylabel=performance)
    if poles:
        axes[0].set_ylim(0, None)
    axes[1].set(title="weight of the term", xlabel="environment steps", ylabel="mean z over visited states")
    axes[1].axhline(0.0, color="grey", linewidth=0.8)
    if effort:
        axes[2].set(title="effort", xlabel="environment steps", ylabel="mean |a| (greedy)")
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _lines(axes: Any, metrics: Sequence[list[dict[str, Any]]], key: str, style: dict[str, str], label: str) -> None:
    steps = np.array([row["step"] for row in metrics[0]])
    values = np.array([[row[key] for row in rows] for rows in metrics], float)  # None, not evaluated yet, becomes nan
    axes.plot(steps, values.T, **style, alpha=0.15, linewidth=0.7)
    axes.plot(steps, values.mean(axis=0), **style, linewidth=2, label=label)
