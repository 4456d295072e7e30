"""Figures over seeds and tasks: interquartile mean, bootstrap intervals, probability of improvement, curves on a grid.

Seeds lie along the first axis. Several tasks are a list with one array each: seeds are drawn anew within each task
(stratified), never across tasks, and tasks may differ in their number of seeds.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import comb

import numpy as np

Statistic = Callable[..., np.ndarray]
"""Takes values and the axis to go over, such as `np.mean`."""
SAMPLES = 10_000
CHUNK = 2**22
"""Numbers held at once while resampling."""


def interquartile_mean(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """The mean without the lowest and the highest quarter: steadier than the mean, and no single seed decides it."""
    ordered = np.sort(np.asarray(values, float), axis=axis)
    axis = 0 if axis is None else axis
    count = ordered.shape[axis]
    cut = count // 4
    return np.take(ordered, range(cut, count - cut), axis).mean(axis)


def interval(
    values: np.ndarray,
    statistic: Statistic = interquartile_mean,
    level: float = 0.95,
    samples: int = SAMPLES,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Low and high end of the percentile bootstrap over seeds; further axes, such as steps, are kept."""
    return stratified_interval([values], statistic, level, samples, seed)


def stratified_interval(
    tasks: Sequence[np.ndarray],
    statistic: Statistic = interquartile_mean,
    level: float = 0.95,
    samples: int = SAMPLES,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of a statistic over all seeds of all tasks, seeds drawn within each task."""
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(task, float) for task in tasks]
    if all(len(task) == 1 for task in arrays):  # nothing to draw from
        only = statistic(np.concatenate(arrays), axis=0)
        return only, only
    chosen = [rng.integers(len(task), size=(samples, len(task))) for task in arrays]
    shape = arrays[0].shape[1:]
    columns = [task.reshape(len(task), -1) for task in arrays]
    draws = [
        statistic(
            np.concatenate([task[:, i][rows] for task, rows in zip(columns, chosen, strict=True)], axis=1), axis=1
        )
        for i in range(columns[0].shape[1])
    ]
    low, high = _percentiles(np.array(draws).T, level)
    return low.reshape(shape)[()], high.reshape(shape)[()]


def difference_interval(
    x: np.ndarray,
    y: np.ndarray,
    statistic: Statistic = interquartile_mean,
    level: float = 0.95,
    samples: int = SAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """The bootstrap interval of the statistic of X minus that of Y, whose seeds are drawn apart."""
    rng = np.random.default_rng(seed)
    draws = [statistic(rng.choice(np.asarray(values, float), (samples, len(values))), axis=1) for values in (x, y)]
    low, high = _percentiles(draws[0] - draws[1], level)
    return float(low), float(high)


def probability_of_improvement(x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> float:
    """How often a seed of X beats a seed of Y on the same task, averaged over tasks; a tie counts half (Mann-Whitney).

    `x` and `y` hold one array of seeds per task, in the same order.
    """
    pairs = zip(x, y, strict=True)
    return float(np.mean([_wins(np.asarray(a, float)[None], np.asarray(b, float)[None])[0] for a, b in pairs]))


def improvement_interval(
    x: Sequence[np.ndarray], y: Sequence[np.ndarray], level: float = 0.95, samples: int = SAMPLES, seed: int = 0
) -> tuple[float, float]:
    """The stratified bootstrap interval of `probability_of_improvement`."""
    rng = np.random.default_rng(seed)
    total = np.zeros(samples)
    for a, b in zip(x, y, strict=True):
        step = max(1, CHUNK // (len(a) * len(b)))
        for start in range(0, samples, step):
            size = min(step, samples - start)
            total[start : start + size] += _wins(
                rng.choice(np.asarray(a, float), (size, len(a))), rng.choice(np.asarray(b, float), (size, len(b)))
            )
    low, high = _percentiles(total / len(x), level)
    return float(low), float(high)


def permutation_p(x: np.ndarray, y: np.ndarray, samples: int = SAMPLES, seed: int = 0) -> float:
    """How often seeds dealt out at random differ as much as X and Y do, by `probability_of_improvement`, either way.

    All ways to deal them out are counted, where there are at most `samples`. Bootstrap intervals of a few seeds are too
    narrow: of three against three without any difference, one in five would exclude a half.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    both, count = np.concatenate([x, y]), len(x) + len(y)
    exact = comb(count, len(x)) <= samples
    if exact:
        first = np.array(list(combinations(range(count), len(x))))
    else:
        first = np.random.default_rng(seed).permuted(np.tile(np.arange(count), (samples, 1)), axis=1)[:, : len(x)]
    dealt = np.zeros((len(first), count), bool)
    np.put_along_axis(dealt, first, True, axis=1)
    # Mann-Whitney by ranks: the share of wins is a linear function of X's sum of ranks, ties at their mean.
    ranks = (both[:, None] > both[None]).sum(axis=1) + (both[:, None] == both[None]).sum(axis=1) / 2
    expected = len(x) * ranks.mean()
    found, drawn = abs(ranks[: len(x)].sum() - expected), np.abs(dealt @ ranks - expected)
    as_far = np.sum(drawn >= found - 1e-9)
    return float(as_far / len(first)) if exact else float((as_far + 1) / (len(first) + 1))


def _wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Per row: the share of pairs in which X is larger, ties half."""
    difference = x[:, :, None] - y[:, None, :]
    return ((difference > 0) + 0.5 * (difference == 0)).mean(axis=(1, 2))


def _percentiles(draws: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.quantile(draws, ((1 - level) / 2, (1 + level) / 2), axis=0)
    return low, high


def area_under_curve(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The area divided by its width, so in the units of the values: the higher, the earlier it learned.

    `values` has the steps along its last axis.
    """
    steps, values = np.asarray(steps, float), np.asarray(values, float)
    if len(steps) == 1:
        return values[..., 0]
    return np.trapezoid(values, steps) / (steps[-1] - steps[0])


def time_to_threshold(steps: np.ndarray, values: np.ndarray, threshold: float) -> np.ndarray:
    """The first step at which the curve is at or above the threshold; nan where it never is."""
    reached = np.asarray(values, float) >= threshold
    first = np.asarray(steps, float)[np.argmax(reached, axis=-1)]
    return np.where(reached.any(axis=-1), first, np.nan)


def on_grid(steps: np.ndarray, values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A curve on other steps: at each the newest value, since a policy acts until the next; nan before the first."""
    newest = newest_on_grid(steps, grid)
    return np.where(newest >= 0, np.asarray(values, float)[np.maximum(newest, 0)], np.nan)


def newest_on_grid(steps: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """For each step of the grid, the index of the newest of `steps` by then; -1 before the first."""
    return np.searchsorted(steps, grid, side="right") - 1


def evaluation_grid(last: int, every: int = 4_000) -> np.ndarray:
    """The steps at which the paper evaluates: every 4,000."""
    return np.arange(every, last + 1, every)


def align(curves: Sequence[tuple[np.ndarray, np.ndarray]], grid: np.ndarray) -> np.ndarray:
    """Curves of (steps, values), one per seed, as one array of seed by grid step."""
    return np.array([on_grid(steps, values, grid) for steps, values in curves])
