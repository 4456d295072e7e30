"""The game solved exactly, backwards from the last bowl, for few monks.

A monk chooses the share that brings it most gruel. Where all shares are alike to it (it has been served, so whatever is
left is nothing to it) it chooses among them at random. The system knows that, and names the monk that costs it least.
"""

from dataclasses import dataclass
from functools import cache
from math import log

import numpy as np

from bipars.monks.rules import Game

LARGEST_TREE = 200_000
"""Ways to share out, portions ** monks, up to which all of them are looked at: a second or two."""
CLOSE = 1e-9
"""Parts of the gruel that are one and the same."""


@dataclass(frozen=True)
class Plan:
    """Best play of everybody from one step on, with so much left."""

    value: float
    """What the system can expect."""
    bowls: tuple[float, ...]
    """What the monks that are still to be served can expect."""
    assigners: tuple[int, ...]
    """The monks that cost the system least at this step; several where it does not matter."""


def most_monks(portions: int) -> int:
    return int(log(LARGEST_TREE) / log(portions))


def solve(game: Game, portions: int) -> Plan:
    """The plan from the start, where shares are 0, 1 / (portions - 1), ..., 1.

    It is made for a gruel of 1: what is alike, and what is not, must not hang on how much there is.
    """
    monks, unit, shares = game.num_monks, game.unit, np.linspace(0.0, 1.0, portions)

    @cache
    def plan(step: int, left: float) -> Plan:
        if step == monks:
            return Plan(0.0, (), ())
        amounts = unit.amount(left, shares)
        after = [plan(step + 1, round(left - amount, 12)) for amount in amounts]
        bowls = np.array([(amount, *later.bowls) for amount, later in zip(amounts, after, strict=True)])
        values = np.array(
            [unit.system_reward(amount) + later.value for amount, later in zip(amounts, after, strict=True)]
        )
        outcomes = []
        for monk in range(monks):
            own = bowls[:, monk - step] if monk >= step else np.zeros(portions)
            best = own > own.max() - CLOSE
            outcomes.append((values[best].mean(), bowls[best].mean(axis=0)))
        highest = max(value for value, _ in outcomes)
        chosen = tuple(monk for monk, (value, _) in enumerate(outcomes) if value > highest - CLOSE)
        expected = np.mean([outcomes[monk][1] for monk in chosen], axis=0)
        return Plan(float(highest), tuple(map(float, expected)), chosen)

    start = plan(0, 1.0)
    return Plan(start.value * game.gruel, tuple(bowl * game.gruel for bowl in start.bowls), start.assigners)
