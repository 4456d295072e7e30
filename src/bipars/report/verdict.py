"""What was learned about a term, in words."""

import numpy as np

from bipars.report.summary import CellSummary
from bipars.statistics import interval

IGNORED_BELOW = 0.2
"""A mean weight smaller than this, either way, counts as ignored."""


def judge(weights: tuple[float, float]) -> str:
    """From the interval of the mean weight over seeds."""
    low, high = weights
    if low > IGNORED_BELOW:
        return "used"
    if high < -IGNORED_BELOW:
        return "reversed"
    if low > -IGNORED_BELOW and high < IGNORED_BELOW:
        return "ignored"
    return "undecided"


def verdict(term: str, learned: CellSummary, naive: CellSummary, plain: CellSummary, limit: int) -> str:
    """One sentence on one term, with the comparison it rests on."""
    weights = learned.weights[term]
    low, high = interval(weights, np.mean)
    judged = judge((float(low), float(high)))
    meaning = {
        "used": "was used: it helps as written",
        "reversed": "was reversed: what it rewards is what should be punished, and the other way round",
        "ignored": "was ignored: it neither helps nor harms",
        "undecided": "stays undecided: the seeds do not agree",
    }[judged]
    return (
        f"The term '{term}' {meaning}. Its mean weight went from +1.00 to {weights.mean():+.2f} "
        f"({low:+.2f} to {high:+.2f} over {len(weights)} seeds). "
        f"The pole stays up for {naive.final.mean():.0f} of {limit} steps when the term counts fully, "
        f"{plain.final.mean():.0f} without it, and {learned.final.mean():.0f} with the learned weights."
    )
