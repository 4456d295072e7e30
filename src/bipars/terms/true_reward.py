"""The true reward r: what the policy should really earn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bipars.envs.host_batch import HostBatch, info_number, info_numbers
from bipars.errors import TermError, UsageError
from bipars.terms.call import call_on_batch, single_number
from bipars.terms.term import RewardTerm, TermFunction

CHOICES = ("env", "env-minus-terms", "info:KEY")


@dataclass(frozen=True)
class TrueReward:
    """`env`: the environment's reward. `env-minus-terms`: without the terms it already contains. `info:KEY`: a key of
    info, such as info:is_success. `function`: a function of (obs, action, next_obs, info).
    """

    kind: str = "env"
    fn: TermFunction | None = None

    def __post_init__(self) -> None:
        known = self.kind in ("env", "env-minus-terms", "function") or self.kind.startswith("info:")
        if not known or self.kind == "info:":
            raise UsageError(
                f"true_reward is '{self.kind}'; expected one of {', '.join(CHOICES)}, or a function in Python",
                ["true_reward"],
            )
        if (self.kind == "function") != (self.fn is not None):
            raise UsageError("reward 'function' needs the function itself: pass true_reward=... in Python")

    def evaluate(self, host_batch: HostBatch, terms: np.ndarray) -> np.ndarray:
        """(time, env), from the host_batch and the terms evaluated on it."""
        if self.kind == "env":
            return host_batch.env_reward
        if self.kind == "env-minus-terms":
            return host_batch.env_reward - terms.sum(axis=-1)
        if self.fn is not None:
            return call_on_batch("the true reward", self.fn, False, host_batch)
        try:
            return info_numbers(host_batch, self.kind.removeprefix("info:"))
        except TermError as error:
            raise TermError(f"the true reward is '{self.kind}', but {error}") from None

    def evaluate_alone(self, host_batch: HostBatch, terms: Sequence[RewardTerm]) -> np.ndarray:
        """The same where the terms have not been evaluated yet."""
        values = np.zeros((*host_batch.shape, 0))
        if self.kind == "env-minus-terms":
            values = np.stack([term.on_host((), host_batch, None) for term in terms], axis=-1)
        return self.evaluate(host_batch, values)

    def on_step(
        self, env_reward: float, obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any], terms: np.ndarray
    ) -> float:
        """Of one transition of one environment."""
        if self.kind == "env":
            return env_reward
        if self.kind == "env-minus-terms":
            return env_reward - float(terms.sum())
        if self.fn is not None:
            return single_number("the true reward", self.fn(obs, action, next_obs, info))
        return info_number("the true reward", info, self.kind.removeprefix("info:"))
