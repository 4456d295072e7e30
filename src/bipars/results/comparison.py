"""One method against another on the true return, and how a method weighs its terms at the end."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bipars.results.panels import Cell, Status, differences
from bipars.results.statistics import (
    area_under_curve,
    interquartile_mean,
    interval,
    permutation_p,
    probability_of_improvement,
)

IGNORED_BELOW = 0.2
"""A weight smaller than this, either way, counts as none: the term then has less than a fifth of its written size."""
IGNORED_WHERE_IT_MATTERS = 0.05
"""The same where the weighted term is still a large part of the reward: beside a rare true reward, little is a lot."""
MATTERS_SHARE = 0.1
IGNORED_SHARE = 0.02
"""A weighted term that is a smaller part of the reward than this cannot matter."""
SAME_WITHIN = 0.02
"""Returns closer than this part of the range of all returns of a panel are the same, however sure the difference is."""
FEWEST_SEEDS = 4
"""With fewer on either side no difference is called clear: by chance alone, 3 against 3 are apart one time in ten."""
BY_CHANCE = 0.05
"""How often a difference may be called clear where there is none."""

Use = Literal["used", "reversed", "off", "mixed", "unsure"]
"""What the weights say: as written, sign flipped, not at all, both (it depends on the state), or seeds disagree."""
Outcome = Literal["better", "same", "worse", "unclear"]


@dataclass(frozen=True)
class Estimate:
    """A figure over seeds with its 95 % interval."""

    value: float
    low: float
    high: float
    seeds: int

    def text(self, digits: int | None = None) -> str:
        digits = digits_for(self.low, self.high, self.value) if digits is None else digits
        if self.seeds == 1:  # an interval would say nothing
            return shown(self.value, digits)
        return f"{shown(self.value, digits)} ({shown(self.low, digits)} to {shown(self.high, digits)})"


def shown(value: float, digits: int) -> str:
    """Without a minus before zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def digits_for(*values: float) -> int:
    """Decimals that show three figures of the largest."""
    size = max(abs(v) for v in values)
    return 0 if size >= 100 else 1 if size >= 10 else 2


def estimate(values: np.ndarray, mean: bool = False) -> Estimate | None:
    """The interquartile mean over seeds (or the mean), with its bootstrap interval."""
    if not len(values):
        return None
    statistic = np.mean if mean else interquartile_mean
    low, high = interval(values, statistic, samples=2_000)
    return Estimate(float(statistic(values)), float(low), float(high), len(values))


@dataclass(frozen=True)
class Comparison:
    """One method against another on the true return."""

    outcome: Outcome
    faster: bool
    """The same at the end, but clearly more over the whole of training."""
    leans: int
    """Which way it looks where nothing is clear: 1 more, -1 less, 0 the same."""

    @property
    def gain(self) -> bool:
        return self.outcome == "better" or self.faster


def compare(x: Cell, y: Cell, step: int, scale: float) -> Comparison:
    """Clear only if a permutation test says so, and the difference is worth speaking of."""
    ours, theirs = (cell.at_end("evaluation_return", step) for cell in (x, y))
    sign, enough = _clear(ours, theirs, scale), min(len(ours), len(theirs)) >= FEWEST_SEEDS
    outcome: Outcome = "unclear"
    if enough:
        outcome = {1: "better", -1: "worse", 0: "same"}[sign]  # type: ignore[assignment]
    faster = enough and sign == 0 and _clear(_areas(x, step), _areas(y, step), scale) == 1
    difference = float(interquartile_mean(ours) - interquartile_mean(theirs))
    leans = 0 if _same(difference, scale) else 1 if difference > 0 else -1
    return Comparison(outcome, faster, leans)


def _clear(x: np.ndarray, y: np.ndarray, scale: float) -> int:
    difference = float(interquartile_mean(x) - interquartile_mean(y))
    if not len(x) or not len(y) or _same(difference, scale) or permutation_p(x, y) >= BY_CHANCE:
        return 0
    wins = probability_of_improvement([x], [y])
    return 1 if wins > 0.5 and difference > 0 else -1 if wins < 0.5 and difference < 0 else 0


def _same(difference: float, scale: float) -> bool:
    """Where no return ever differed the scale is zero, and so is what counts as the same."""
    return abs(difference) <= SAME_WITHIN * scale


def _areas(cell: Cell, step: int) -> np.ndarray:
    areas = []
    for record in cell.evaluated:
        rows = [row for row in record.evaluations if row["step"] <= step]
        if rows:
            areas.append(area_under_curve([r["step"] for r in rows], [r["evaluation_return"] for r in rows]))  # type: ignore[arg-type]
    return np.array(areas)


@dataclass(frozen=True)
class Weights:
    """How a method weighs a term at the end."""

    mean: Estimate
    p10: float
    p90: float
    share: float | None
    """Of the size of the modified reward; none where it was not recorded."""
    use: Use


def weigh(cell: Cell, term: str, step: int) -> Weights | None:
    means = cell.rows_at_end(f"weight/{term}", step)
    mean = estimate(means, mean=True)
    if mean is None:
        return None
    low, high = (cell.rows_at_end(f"weight_{p}/{term}", step) for p in ("p10", "p90"))
    shares = cell.rows_at_end(f"share/{term}", step)
    share = float(shares.mean()) if len(shares) else None
    p10, p90 = float(low.mean()), float(high.mean())
    return Weights(mean, p10, p90, share, judge_use((mean.low, mean.high), (p10, p90), share))


def judge_use(mean: tuple[float, float], states: tuple[float, float], share: float | None) -> Use:
    """From the interval of the mean weight over seeds, and its 10th and 90th percentile over states."""
    (low, high), (p10, p90) = mean, states
    if share is not None and share < IGNORED_SHARE:
        return "off"
    if p10 < -IGNORED_BELOW and p90 > IGNORED_BELOW:
        return "mixed"
    small = IGNORED_WHERE_IT_MATTERS if share is not None and share >= MATTERS_SHARE else IGNORED_BELOW
    if low > small:
        return "used"
    if high < -small:
        return "reversed"
    if low > -IGNORED_BELOW and high < IGNORED_BELOW:
        return "off"
    return "unsure"


def still_rising(cell: Cell) -> bool:
    """Whether the last quarter of training earned more than the one before: by 5 % of all that was ever gained, and by
    two standard errors."""
    curve = np.nanmean(cell.curves("evaluation_return")[1], axis=0)
    quarter = max(1, len(curve) // 4)
    before, after = curve[-2 * quarter : -quarter], curve[-quarter:]
    if not len(before):
        return False
    error = np.sqrt((before.var() + after.var()) / quarter)
    return bool(after.mean() - before.mean() > max(0.05 * np.ptp(curve), 2 * error))


def return_range(cells: list[Cell]) -> float:
    values = [row["evaluation_return"] for c in cells for r in c.evaluated for row in r.evaluations]
    return max(values) - min(values)


LEFT_OUT: dict[str, tuple[Status, ...]] = {
    "are unfinished": ("running", "stopped", "waiting"),
    "failed": ("failed",),
    "are missing, since their metrics cannot be read": ("unreadable",),
}


def find_notes(cell: Cell, present: dict[str, Cell], step: int) -> list[str]:
    """What makes the comparison less than perfect."""
    early = step < cell.config.steps
    notes = [f"As things stood at step {step:,} of {cell.config.steps:,}"] if early else []
    for other in present.values():
        for setting, (theirs, ours) in differences(other.config, cell.config).items():
            notes.append(f"{other.title} was trained with {setting} {theirs}, {cell.title} with {ours}")
        for words, states in LEFT_OUT.items():
            seeds = [str(r.config.seed) for r in other.records if r.status in states]
            if seeds:
                named = f" (seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)})" if len(seeds) < 10 else ""
                notes.append(f"{len(seeds)} of {len(other.records)} seeds of {other.title} {words}{named}")
    fewest = min(len(other.evaluated) for other in present.values())
    if fewest < FEWEST_SEEDS and len(present) > 1:
        notes.append(f"A clear answer needs {FEWEST_SEEDS} seeds on each side; the fewest here is {fewest}")
    elif len(cell.records) == 1 and not cell.records[0].run.in_python:  # of agents, the report says it at its end
        notes.append("One seed tells which way a term points, not what it gains: train several, such as 0 to 4")
    return notes
