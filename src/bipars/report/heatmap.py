"""The weight of a term over two of its inputs, as the page's first view of it, for the picture beside the page."""

from dataclasses import dataclass, replace

import numpy as np

from bipars.nets.mlp import MLP, Linear
from bipars.nets.running import RunningMoments
from bipars.nets.spaces import BoxActions, DiscreteActions
from bipars.nets.weights import (
    DeviatingWeights,
    PerActionWeights,
    Range,
    StateActionWeights,
    StateWeights,
    WeightFunction,
    make_range,
)
from bipars.runs.snapshots import Snapshot
from bipars.settings.resolved import ResolvedWeights

GRID = 28
AVERAGED = 48
AVERAGED_LARGE = 16
"""States over which other inputs are averaged; fewer where there are more than 50 inputs."""


@dataclass(frozen=True)
class HeatMap:
    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    """(y, x); nan where no visited state is near."""


def weight_function(config: ResolvedWeights, snapshot: Snapshot, discrete: bool) -> WeightFunction | None:
    """The weight function of a snapshot, in NumPy; none where it is the same everywhere."""
    if not snapshot.layers:
        return None
    base, unit = snapshot.base, snapshot.unit
    if config.by_evidence and base is not None and unit is not None:
        around_zero = replace(config, by_evidence=False, initial=0.0, low=None, high=None)
        deviation = _network(around_zero, snapshot, discrete)
        return DeviatingWeights(base, deviation, unit, Range(0.0, config.low, config.high))  # type: ignore[arg-type]
    return _network(config, snapshot, discrete)


def _network(config: ResolvedWeights, snapshot: Snapshot, discrete: bool) -> WeightFunction:
    net = MLP(tuple(Linear(w, b) for w, b in snapshot.layers), "tanh")  # type: ignore[arg-type]
    span = make_range(config, snapshot.visited_weights.shape[-1])
    if isinstance(span, Range) and snapshot.base is None:
        span = replace(span, unit=snapshot.unit)  # type: ignore[arg-type]
    match config.form:
        case "state":
            return StateWeights(net, span)
        case "per-action":
            return PerActionWeights(net, span, snapshot.layers[-1][1].size // snapshot.visited_weights.shape[-1])
    width = snapshot.layers[0][0].shape[0] - snapshot.visited.obs.shape[-1]
    return StateActionWeights(net, span, DiscreteActions(width) if discrete else BoxActions(width))


def visited_inputs(snapshot: Snapshot) -> np.ndarray:
    """Observations, and the actions as they acted: a policy may ask for more than the action space has."""
    inputs, action = snapshot.visited_inputs, np.asarray(snapshot.visited.action)
    if action.dtype.kind == "f":
        inputs[:, -action.shape[-1] :] = np.clip(action, -1.0, 1.0)
    return inputs


def heat_map(config: ResolvedWeights, snapshots: list[Snapshot], term: int, x: int, y: int) -> HeatMap | None:
    """At the last snapshot, other inputs averaged over visited states."""
    if not snapshots:
        return None
    last = snapshots[-1]
    action = np.asarray(last.visited.action)
    weights = weight_function(config, last, discrete=action.ndim == 1)
    if weights is None:
        return None
    states = [visited_inputs(snapshot) for snapshot in snapshots]
    xs, ys = (_ticks(np.concatenate([s[:, i] for s in states])) for i in (x, y))
    rows, width = states[-1].shape
    take = min(rows, AVERAGED_LARGE if width > 50 else AVERAGED)
    bases = states[-1][np.arange(take) * rows // take]
    inputs = np.broadcast_to(bases, (GRID, GRID, *bases.shape)).copy()
    inputs[..., x] = xs[None, :, None]
    inputs[..., y] = ys[:, None, None]
    observations = last.visited.obs.shape[-1]
    obs, acted = inputs[..., :observations], inputs[..., observations:]
    if last.moments is not None:
        obs = RunningMoments(**last.moments).normalise(obs)  # type: ignore[arg-type, assignment]
    chosen = acted if action.ndim > 1 else acted[..., 0].astype(int)
    z = np.asarray(weights(obs, chosen))[..., term].mean(axis=-1)  # type: ignore[arg-type]
    return HeatMap(xs, ys, np.where(_visited(xs, ys, states[-1][:, [x, y]]), z, np.nan))


def _ticks(values: np.ndarray) -> np.ndarray:
    ordered = np.sort(values)
    low, high = (float(ordered[int(q * (len(ordered) - 1) + 0.5)]) for q in (0.005, 0.995))
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    return low + (np.arange(GRID) + 0.5) * (high - low) / GRID


def _visited(xs: np.ndarray, ys: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Cells with a sampled state in them or beside them: the sample is small."""
    seen = np.zeros((GRID + 2, GRID + 2), bool)
    col, row = (np.floor((v - t[0]) / (t[1] - t[0]) + 0.5).astype(int) for v, t in zip(states.T, (xs, ys), strict=True))
    for a in (-1, 0, 1):
        for b in (-1, 0, 1):
            r, c = row + a, col + b
            inside = (r >= 0) & (r < GRID) & (c >= 0) & (c < GRID)
            seen[r[inside], c[inside]] = True
    return seen[:GRID, :GRID]
