"""The game solved exactly, backwards from the last bowl, for few monks.

A monk chooses the share that brings it most gruel. Where all shares are alike to it (it has been served, so whatever is
left is nothing to it) it chooses among them at random. The system knows that, and names the monk that costs it least.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from bipars.errors import UsageError
from bipars.monks.rules import Game

MOST = 4
"""Monks up to which the tree of all amounts is small enough."""
CLOSE = 1e-9


@dataclass(frozen=True)
class Plan:
    """Best play of everybody from one step on, with so much left."""

    value: float
    """What the system can expect."""
    bowls: tuple[float, ...]
    """What the monks that are still to be served can expect."""
    assigners: tuple[int, ...]
    """The monks that cost the system least at this step; several where it does not matter."""


def solve(game: Game, portions: int) -> Plan:
    """The plan from the start, where shares are 0, 1 / (portions - 1), ..., 1."""
    if game.num_monks > MOST:
        raise UsageError(f"num_monks is {game.num_monks}; the game is solved exactly for {MOST} at most")
    shares = np.linspace(0.0, 1.0, portions)
    monks = game.num_monks

    @cache
    def plan(step: int, left: float) -> Plan:
        if step == monks:
            return Plan(0.0, (), ())
        amounts = game.amount(left, shares)
        after = [plan(step + 1, round(left - amount, 12)) for amount in amounts]
        bowls = np.array([(amount, *later.bowls) for amount, later in zip(amounts, after, strict=True)])
        values = np.array(
            [game.system_reward(amount) + later.value for amount, later in zip(amounts, after, strict=True)]
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

    return plan(0, float(game.gruel))
