"""Monks and gruel, the M + 1-agent game of the paper's appendix: the rules, without anyone who plays.

Gruel is handed out to monks 1, 2, ..., M in this order. At step t the *system* names a monk, any of them, and that monk
decides how much of what is left monk t gets. Monks want gruel, the system wants equal bowls. Nothing of it is random.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bipars.errors import UsageError
from bipars.nets.mlp import namespace

MONKS, GRUEL = "num_monks (--monks)", "gruel (--gruel)"
"""As messages name them: the setting in Python, and its flag."""
SMALLEST, LARGEST = 1e-300, 1e300
"""Gruel whose parts, and sums of them, are still ordinary numbers."""


@dataclass(frozen=True)
class Game:
    """How many monks there are, and how much gruel."""

    num_monks: int = 3
    gruel: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.num_monks, bool) or not isinstance(self.num_monks, (int, np.integer)) or self.num_monks < 1:
            raise UsageError(f"{MONKS} is {self.num_monks!r}; expected a whole number of at least 1")
        if isinstance(self.gruel, bool) or not isinstance(self.gruel, (int, float, np.integer, np.floating)):
            raise UsageError(f"{GRUEL} is {self.gruel!r}; expected a positive number")
        if not SMALLEST <= self.gruel <= LARGEST:
            raise UsageError(f"{GRUEL} is {self.gruel!r}; expected a positive number, from {SMALLEST} to {LARGEST}")

    @property
    def unit(self) -> "Game":
        """The same game with a gruel of 1: everything in it is a part of the gruel."""
        return Game(self.num_monks)

    @property
    def fair(self) -> float:
        """L / M."""
        return self.gruel / self.num_monks

    def amount(self, left: Any, share: Any) -> Any:
        """l_t: a share, from 0 to 1, of the gruel that is left. Every share is a legal amount."""
        return left * share

    def system_reward(self, amount: Any) -> Any:
        """R_0 = -|L / M - l_t|."""
        return -abs(self.fair - amount)

    def monk_rewards(self, step: int, amount: Any) -> Any:
        """R_i: l_t for monk t, whoever decided on it, and 0 for the others; monks on the last axis."""
        xp = namespace(amount)
        return xp.where(np.arange(self.num_monks) == step, xp.asarray(amount)[..., None], 0.0)
