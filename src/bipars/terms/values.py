"""What the values of the terms say by themselves: which are zero, constant, another one again, or in the reward."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SAME = 0.98
"""Correlation, either way, from which on two terms say the same."""
FEWEST = 64
"""Transitions without which nothing is said."""
SELDOM = 0.5
"""Share of the transitions in which a term has another value than its median, below which that is rare."""
SPIKES = 0.1
"""Share of the transitions that carry a term's variance, below which it is in a few of them: 0.33 for a Gaussian."""
OFFSET = 3.0
"""Standard deviations of a term from 0, beyond which it pays for the length of episodes above all."""
REWARD = 0.999
"""Correlation from which on a term is the true reward again."""
REST = 1e-3
"""What may be left of the reward, in its standard deviations, where it is a sum of the terms."""
FEWEST_REWARDS = 16
"""Transitions with another reward than usual, without which nothing is said of it: rare ones agree by chance."""


@dataclass(frozen=True)
class Twin:
    term: int
    opposite: bool


@dataclass(frozen=True)
class Values:
    """Of one term, over the transitions that were looked at."""

    count: int
    constant: float | None
    """Its value, where it has but one."""
    twins: tuple[Twin, ...]
    mean: float
    std: float
    hidden: bool
    """Noise in its values may hide what it rewards: it is seldom unlike its usual value, or pays for the length of
    episodes above all. Also where too little of it was seen to say."""


def look_at(terms: np.ndarray) -> list[Values]:
    """By term; `terms` has one column each."""
    count = len(terms)
    size = np.abs(terms).max(axis=0) if count else np.zeros(terms.shape[1])
    varies = np.ptp(terms, axis=0) > 1e-6 * size if count else size > 0
    unusual = np.abs(terms - np.median(terms, axis=0)) > 1e-6 * size if count else np.zeros_like(terms)
    found = []
    for k in range(terms.shape[1]):
        twins = [
            Twin(j, r < 0)
            for j in range(terms.shape[1])
            if j != k and count >= FEWEST and varies[j] and varies[k]
            for r in [np.corrcoef(terms[:, j], terms[:, k])[0, 1]]
            if abs(r) > SAME
        ]
        constant = float(terms[0, k]) if count >= FEWEST and not varies[k] else None
        hidden = count < FEWEST or unusual[:, k].mean() < SELDOM or _hides(terms[:, k].astype(float))
        mean, std = (float(f(terms[:, k])) if count else 0.0 for f in (np.mean, np.std))
        found.append(Values(count, constant, tuple(twins), mean, std, bool(hidden)))
    return found


def _hides(x: np.ndarray) -> bool:
    spread = x - np.median(x)
    few = np.sum(spread**2) ** 2 < SPIKES * len(x) * np.sum(spread**4)
    return bool(few or abs(x.mean()) > OFFSET * x.std())


def parts_of(reward: np.ndarray, terms: np.ndarray) -> list[int]:
    """The terms that the reward is made of: one that is the reward again, or several that add up to it, if any do.

    One against the reward is no part of it: its verdict says enough.
    """
    usual = np.median(reward) if len(reward) else 0.0
    varies = np.flatnonzero(np.ptp(terms, axis=0) > 0) if len(terms) else np.zeros(0, int)
    if np.sum(np.abs(reward - usual) > 1e-6 * np.abs(reward).max(initial=0)) < FEWEST_REWARDS or not len(varies):
        return []

    def standard(x: np.ndarray) -> np.ndarray:
        return (x - x.mean(axis=0)) / x.std(axis=0)

    target, columns = standard(reward.astype(float)), standard(terms[:, varies].astype(float))
    alone = columns.T @ target / len(target) > REWARD
    if alone.any():
        return varies[alone].tolist()
    shares = np.linalg.lstsq(columns, target)[0]
    made = np.std(target - columns @ shares) < REST and shares.min() > -REST
    return varies[shares > REST].tolist() if made else []


def odd_terms(terms: np.ndarray, names: Sequence[str], reward: np.ndarray) -> list[str]:
    """A sentence for every term that is zero, constant, or the same as one before it, and for terms that the true
    reward contains; empty where all is well.

    `terms` has one column each, after any number of axes, which are those of `reward`.
    """
    lines = []
    flat = terms.reshape(math.prod(terms.shape[:-1]), len(names))  # with no term at all, -1 would tell nothing
    parts = [f"'{names[k]}'" for k in parts_of(reward.reshape(-1), flat)]
    if parts:
        several = f"the sum of terms {', '.join(parts[:-1])} and {parts[-1]}", "they count", "them"
        what, count, them = (f"term {parts[0]} again", "it counts", "it") if len(parts) == 1 else several
        lines.append(
            f"the true reward is {what}, up to scale, in all {len(flat):,} steps looked at: {count} twice. "
            f"Leave {them} out, or set true_reward to what you really want"
        )
    for k, (name, values) in enumerate(zip(names, look_at(flat), strict=True)):
        seen = f"in all {values.count:,} steps looked at"
        if values.constant == 0:
            lines.append(
                f"term '{name}' is 0 {seen}: it changes nothing. Is it computed from what the environment gives?"
            )
        elif values.constant is not None:
            lines.append(
                f"term '{name}' is {values.constant:.4g} {seen}: a constant only rewards longer or shorter episodes"
            )
        for twin in values.twins:
            if twin.term < k:
                what = "the opposite of" if twin.opposite else "the same as"
                lines.append(f"term '{name}' is {what} term '{names[twin.term]}', up to its scale: keep one of them")
    return lines
