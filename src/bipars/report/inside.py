"""A look inside single agents: their weight function at every snapshot, where they were, and one of their episodes."""

import base64
import json
from typing import Any

import numpy as np

from bipars.report.heatmap import visited_inputs
from bipars.results.dimensions import input_names
from bipars.results.panels import Cell, Panel, Record
from bipars.results.where import deciding
from bipars.runs.snapshots import Snapshot, load_snapshots

ROWS = 512
"""Visited states shown per snapshot, where there is room."""


def look_inside(panel: Panel, budget: float, damaged: list[str]) -> list[dict[str, Any]]:
    """The middle seed of each method, then more seeds of the learners while there is room.

    `budget` is a number of characters of the page. Methods that do not learn show their last episode alone. Snapshots
    that cannot be shown are named in `damaged`.
    """
    learners = panel.learners
    chosen, used = [], 0
    for i in range(max((len(cell.evaluated) for cell in learners), default=0)):
        for cell in learners:
            records = _middle_first(cell)[i : i + 1]
            if not records or (i and used > budget):
                continue
            agent = _agent(panel, cell, records[0], int(budget / len(learners)), damaged)
            if agent is not None:
                chosen.append(agent)
                used += len(json.dumps(agent))
    for cell in panel.cells:
        if cell.role != "learner" and cell.evaluated:
            agent = _agent(panel, cell, _middle_first(cell)[0], 0, damaged)
            if agent is not None:
                chosen.append(agent)
    order = [cell.label for cell in learners + list(panel.cells)]
    return sorted(chosen, key=lambda agent: order.index(agent["cell"]))


def _middle_first(cell: Cell) -> list[Record]:
    """Seeds by their distance from the middle of the ranking: neither luck nor bad luck comes first."""
    ranked = sorted(cell.evaluated, key=lambda r: r.evaluations[-1]["evaluation_return"])
    return [ranked[i] for i in sorted(range(len(ranked)), key=lambda i: abs(i - (len(ranked) - 1) / 2))]


def _agent(panel: Panel, cell: Cell, record: Record, budget: int, damaged: list[str]) -> dict[str, Any] | None:
    """Without a budget, its last episode and nothing of its weights."""
    snapshots = load_snapshots(record.run, damaged)[0 if budget else -1 :]
    if not snapshots:
        return None
    config, period = record.config, record.config.lower.update_period
    observations, action = snapshots[0].visited.obs.shape[-1], snapshots[0].visited.action
    continuous = action.shape[-1] if action.ndim > 1 else 0
    weights = config.weights
    room = 0.7 * budget / (len(snapshots) * (observations + max(1, continuous)) * 16 / 3)
    rows = min(ROWS, max(ROWS // 8, int(room))) if budget else 0
    return {
        "cell": cell.label,
        "title": cell.title,
        "seed": config.seed,
        "form": weights.form,
        "inputs": input_names(panel.env, observations, max(1, continuous)),
        "observations": observations,
        "continuous": continuous,
        "range": {"initial": weights.initial, "low": weights.low, "high": weights.high, "simplex": weights.simplex},
        "snapshots": [_snapshot(s, s.round * period, rows) for s in snapshots],
    }


def _snapshot(snapshot: Snapshot, step: int, rows: int) -> dict[str, Any]:
    moments, episode = snapshot.moments, snapshot.episode
    states, z = visited_inputs(snapshot), snapshot.visited_weights
    return {
        "step": step,
        "layers": [{"weight": _matrix(weight), "bias": _matrix(bias)} for weight, bias in snapshot.layers if rows],
        "scalar": None if snapshot.scalar is None else snapshot.scalar.tolist(),
        "base": None if snapshot.base is None else snapshot.base.tolist(),
        "unit": None if snapshot.unit is None else snapshot.unit.tolist(),
        "moments": None if moments is None else {name: _matrix(moments[name]) for name in ("mean", "var")},
        "visited": _matrix(states[:: -(-len(states) // rows)] if rows else states[:0]),
        "ranking": [deciding(states, z[:, k]) for k in range(z.shape[-1])] if rows else [],
        "episode": {
            "reward": _plain(episode.reward),
            "parts": [_plain(episode.weights[:, k] * episode.terms[:, k]) for k in range(episode.terms.shape[-1])],
            "weights": [_plain(episode.weights[:, k]) for k in range(episode.weights.shape[-1])],
            "effort": _plain(episode.effort),
        },
    }


def _matrix(values: Any) -> dict[str, Any]:
    """Single precision, four bytes each, little-endian."""
    array = np.ascontiguousarray(values, "<f4")
    return {"shape": list(array.shape), "values": base64.b64encode(array.tobytes()).decode()}


def _plain(values: np.ndarray) -> list[float]:
    return [float(f"{v:.4g}") for v in values.tolist()]
