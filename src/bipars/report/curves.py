"""Learning curves as PNG: every seed faint, the mean on top."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bipars.envs.registry import find_family
from bipars.metrics import labels
from bipars.results.summary import short_name
from bipars.runs.directory import RunDirectory
from bipars.runs.files import write_atomically

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
    shown = [find_family(run.config.env).measures for runs in cells.values() for run in runs]
    lengths = all(measures[0] == "evaluation_length" for measures in shown)
    performance = "evaluation_length" if lengths else "evaluation_return"
    sizes = any("evaluation_action_size" in measures for measures in shown)
    effort = sizes and any(row.get("evaluation_action_size") for runs in metrics.values() for row in runs[0])
    moved = {name: _moved_weights(runs[0]) for name, runs in metrics.items()}
    views = ["performance", *["weights of the terms"] * any(moved.values()), *["effort"] * effort]
    figure, drawn = plt.subplots(1, len(views), figsize=(1 + 5 * len(views), 4.5), layout="constrained", squeeze=False)
    axes = dict(zip(views, drawn[0], strict=True))
    for i, (name, runs) in enumerate(metrics.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i // len(COLOURS) % len(STYLES)]}
        _lines(axes["performance"], runs, performance, style, name)
        terms = moved[name]
        for k, key in enumerate(terms):
            line = style if len(terms) == 1 else style | {"linestyle": STYLES[k % len(STYLES)]}
            label = name if len(terms) == 1 else f"{name}: {short_name(key[7:])}"
            _lines(axes["weights of the terms"], runs, key, line, label)
        if effort:
            _lines(axes["effort"], runs, "evaluation_action_size", style, name)
    known = labels("evaluation")
    says = {
        "performance": f"{known[performance]} (greedy)",
        "weights of the terms": "mean z over visited states",
        "effort": f"{known['evaluation_action_size']} (greedy)",
    }
    figure.suptitle(title)
    for view, axis in axes.items():
        axis.set(title=view, xlabel="environment steps", ylabel=says[view])
        axis.grid(alpha=0.25)
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.legend(frameon=False, fontsize=8)
    if lengths:
        axes["performance"].set_ylim(0, None)
    if any(moved.values()):
        axes["weights of the terms"].axhline(0.0, color="grey", linewidth=0.8)
    out = io.BytesIO()
    figure.savefig(out, dpi=130)
    plt.close(figure)
    write_atomically(path, out.getvalue())


def _moved_weights(rows: list[dict[str, Any]]) -> list[str]:
    """The weights of all terms, if the method moved one of them."""
    keys = [key for key in (rows[0] if rows else ()) if key.startswith("weight/")]
    return keys if len({row.get(key) for key in keys for row in rows}) > 1 else []


def _lines(axes: Any, metrics: Sequence[list[dict[str, Any]]], key: str, style: dict[str, str], label: str) -> None:
    steps = np.array([row["step"] for row in metrics[0]])
    values = np.array(
        [[row.get(key) for row in rows] for rows in metrics], float
    )  # None, not evaluated yet, becomes nan
    axes.plot(steps, values.T, **style, alpha=0.15, linewidth=0.7)
    axes.plot(steps, values.mean(axis=0), **style, linewidth=2, label=label)
