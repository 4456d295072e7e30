"""Settings of the learners that play monks and gruel. Messages name the flags, which say what they belong to."""

from dataclasses import dataclass

from bipars.settings.base import (
    Settings,
    check_types,
    require,
    require_hidden,
    require_not_negative,
    require_positive,
)


@dataclass(frozen=True)
class MonksConfig(Settings):
    """How the learners learn."""

    rounds: int = 300
    """Rounds of play, each followed by learning."""
    games: int = 512
    """Games per round, played side by side."""
    portions: int = 11
    """Shares of what is left among which a monk chooses, evenly from nothing to all."""
    hidden: tuple[int, ...] = (16,)
    """Hidden layers of every policy (tanh)."""
    gradient_steps: int = 5
    """Steps of every policy per round, each on all games."""
    learning_rate: float = 1e-2
    """Adam's step size."""
    clip: float = 0.2
    """How far the probability ratio may leave 1."""
    entropy: float = 0.2
    """Entropy bonus: keeps players trying moves that look bad."""

    def check(self) -> None:
        check_types(self, "--learn.")
        require_positive("--learn", self, "rounds", "games", "gradient_steps", "learning_rate", "clip")
        require_hidden("--learn", self, "hidden")
        require(self.portions >= 2, "--learn.portions", self.portions, "at least 2: nothing and all")
        require_not_negative("--learn", self, "entropy")
