"""The true reward r: what the policy should really earn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from bipars.envs.base import Environment
from bipars.envs.host_batch import HostBatch, info_number, info_numbers
from bipars.errors import TermError, UsageError
from bipars.settings.importing import IMPORT, WithheldError
from bipars.terms.builtin import import_function
from bipars.terms.call import TRANSITION, call_on_batch, call_on_step, check_arguments
from bipars.terms.in_jax import Transition, call_in_jax, check_in_jax, first_step, info_in_jax
from bipars.terms.term import RewardTerm, TermFunction

CHOICES = ("env", "env-minus-terms", "info:KEY", "import:MODULE.FUNCTION")


@dataclass(frozen=True)
class TrueReward:
    """`env`: the environment's reward. `env-minus-terms`: without the terms it already contains. `info:KEY`: a key of
    info, such as info:is_success. `function`: a function of (obs, action, next_obs, info). `import:MODULE.FUNCTION`:
    one by its place in a module.
    """

    kind: str = "env"
    fn: TermFunction | None = None

    def __post_init__(self) -> None:
        by_name = self.kind.startswith(("info:", IMPORT))
        known = self.kind in ("env", "env-minus-terms", "function") or by_name
        if not known or self.kind in ("info:", IMPORT):
            raise UsageError(
                f"true_reward is '{self.kind}'; expected one of {', '.join(CHOICES)}, or a function in Python",
                ["true_reward"],
            )
        if (self.kind == "function") != (self.fn is not None):
            raise UsageError("reward 'function' needs the function itself: pass true_reward=... in Python")
        if self.kind.startswith(IMPORT):
            object.__setattr__(self, "fn", _imported(self.kind))
        if callable(self.fn):
            check_arguments("the true reward", self.fn)

    @property
    def vectorised(self) -> bool:
        """Whether the function takes many transitions at once."""
        return getattr(self.fn, "vectorised", False)

    def evaluate(self, host_batch: HostBatch, terms: np.ndarray) -> np.ndarray:
        """(time, env), from the host_batch and the terms evaluated on it."""
        if self.kind == "env":
            return host_batch.env_reward
        if self.kind == "env-minus-terms":
            return host_batch.env_reward - terms.sum(axis=-1)
        if self.fn is not None:
            return call_on_batch("the true reward", self.fn, self.vectorised, host_batch)
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

    def in_jax(
        self, env_reward: Float[Array, "time env"], step: Transition, terms: Float[Array, "time env term"]
    ) -> Float[Array, "time env"]:
        """Of transitions of an environment written in JAX, in its own form, and the terms evaluated on them."""
        if self.kind == "env":
            return env_reward
        if self.kind == "env-minus-terms":
            return env_reward - terms.sum(axis=-1)
        if self.fn is not None:
            return call_in_jax(self.fn, self.vectorised, step)
        return info_in_jax(f"the true reward is '{self.kind}', but ", step, self.kind.removeprefix("info:"))

    def on_step(
        self, env_reward: float, obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any], terms: np.ndarray
    ) -> float:
        """Of one transition of one environment."""
        if self.kind == "env":
            return env_reward
        if self.kind == "env-minus-terms":
            return env_reward - float(terms.sum())
        if self.fn is not None:
            return call_on_step("the true reward", self.fn, self.vectorised, obs, action, next_obs, info)
        return info_number("the true reward", info, self.kind.removeprefix("info:"))


def _imported(spec: str) -> TermFunction:
    try:
        found = import_function(spec.removeprefix(IMPORT))
    except WithheldError:
        raise
    except ValueError as error:
        raise UsageError(f"true_reward '{spec}' cannot be imported: {error}", ["true_reward"]) from error
    if not callable(found):
        raise UsageError(
            f"true_reward '{spec}' is {found!r:.80}; expected a function of {TRANSITION}",
            ["true_reward"],
        )
    return found


def check_true_reward(true_reward: TrueReward, env: Environment) -> None:
    """Traces it once, for an environment written in JAX."""
    reward, forms = jax.eval_shape(lambda: first_step(env))
    if true_reward.kind == "env-minus-terms":
        return  # the terms have been traced
    none = jax.ShapeDtypeStruct((*reward.shape, 0), reward.dtype)
    check_in_jax("the true reward", lambda forms: true_reward.in_jax(reward, forms[1], none), forms)  # type: ignore
