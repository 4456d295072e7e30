"""What a configuration comes to: as `Config`, with nothing left to be filled in. `resolve.resolve` makes it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from bipars.settings.base import merge
from bipars.settings.config import Config, DDPGConfig, UpperConfig, WeightConfig

Form = Literal["state", "state-action", "per-action", "scalar"]


@dataclass(frozen=True)
class ResolvedWeights(WeightConfig):
    form: Form = "scalar"
    learning_rate: float = 5e-4
    by_evidence: bool = False
    """One number per term by evidence, and a network only for where weights deviate from it."""
    in_units: bool = False
    """Weights move in units of the weight at which a term is as large as the reward (deterministic methods)."""


@dataclass(frozen=True)
class ResolvedUpper(UpperConfig):
    follow_weights: bool = False


@dataclass(frozen=True)
class ResolvedDDPG(DDPGConfig):
    replay_capacity: int = 1_000


@dataclass(frozen=True)
class ResolvedConfig(Config):
    weights: ResolvedWeights = field(default_factory=ResolvedWeights)
    upper: ResolvedUpper = field(default_factory=ResolvedUpper)
    ddpg: ResolvedDDPG = field(default_factory=ResolvedDDPG)
    learns_weights: bool = False
    """Whether the method moves phi; a run that reuses learned weights (`weights_from`) does not, all the same."""

    @staticmethod
    def read(data: dict[str, Any]) -> "ResolvedConfig":
        """From the file of a run."""
        return merge(ResolvedConfig(), data, "config")
