"""What the training loop needs from an environment written in JAX.

An environment is a frozen description; its state is a pytree that the caller keeps. Randomness comes by keys.
"""

from typing import Any, NamedTuple, Protocol

from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bipars.nets.spaces import ActionSpace


class StepResult(NamedTuple):
    """What an action leads to."""

    state: Any
    reward: Float[Array, ""]
    """The true reward."""
    terminated: Bool[Array, ""]
    """The episode is over: nothing more is to be had."""
    truncated: Bool[Array, ""] | bool = False
    """It was cut off, though it could have gone on. The time limit, `max_steps`, is kept by the sampler."""


class Environment(Protocol):
    """Pure functions on one environment; the sampler vectorises them, and starts episodes anew."""

    @property
    def observation_size(self) -> int: ...
    @property
    def actions(self) -> ActionSpace: ...
    @property
    def max_steps(self) -> int:
        """Length at which an episode is truncated (not terminated)."""
        ...

    def reset(self, key: PRNGKeyArray) -> Any:
        """The state at the start of an episode."""
        ...

    def observe(self, state: Any) -> Float[Array, " obs"]: ...
    def step(self, key: PRNGKeyArray, state: Any, action: Array) -> StepResult: ...
