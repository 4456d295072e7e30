"""What the values of the terms say by themselves: which are zero, constant, or another one again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SAME = 0.98
"""Correlation, either way, from which on two terms say the same."""
FEWEST = 64
"""Transitions without which nothing is said."""


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


def look_at(terms: np.ndarray) -> list[Values]:
    """By term; `terms` has one column each."""
    count = len(terms)
    size = np.abs(terms).max(axis=0) if count else np.zeros(terms.shape[1])
    varies = np.ptp(terms, axis=0) > 1e-6 * size if count else size > 0
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
        found.append(Values(count, constant, tuple(twins)))
    return found


def odd_terms(terms: np.ndarray, names: Sequence[str]) -> list[str]:
    """A sentence for every term that is zero, constant, or the same as one before it; empty where all is well.

    `terms` has one column each, after any number of axes.
    """
    lines = []
    flat = terms.reshape(math.prod(terms.shape[:-1]), len(names))  # with no term at all, -1 would tell nothing
    for k, (name, values) in enumerate(zip(names, look_at(flat), strict=True)):
        seen = f"in all {values.count:,} steps looked at"
        if values.constant == 0:
            lines.append(
                f"term '{name}' is 0 {seen}: it changes nothing. Is it computed from what the environment gives?"
            )
        elif values.constant is not None:
            lines.append(
                f"term '{name}' is {values.constant:.4g} {seen}: a constant pays for longer or shorter episodes alone"
            )
        for twin in values.twins:
            if twin.term < k:
                what = "the opposite of" if twin.opposite else "the same as"
                lines.append(f"term '{name}' is {what} term '{names[twin.term]}', up to its scale: keep one of them")
    return lines
