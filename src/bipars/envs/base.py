"""What the training loop needs from an environment written in JAX.

An environment is a frozen description; its state is a pytree that the caller keeps. Randomness comes by keys.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from gymnasium import Space, spaces
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bipars.envs.spaces import native_action, unflatten
from bipars.nets.spaces import ActionSpace, BoxActions, HasSpaces, MultiDiscreteActions


class StepResult(NamedTuple):
    """What an action leads to."""

    state: Any
    reward: Float[Array, ""]
    """The true reward."""
    terminated: Bool[Array, ""]
    """The episode is over: nothing more is to be had."""
    truncated: Bool[Array, ""] | bool = False
    """It was cut off, though it could have gone on. The time limit, `max_steps`, is kept by the sampler."""
    info: Mapping[str, Any] = {}
    """Arrays by name: what reward terms may ask for besides observations and the action."""


@runtime_checkable
class Environment(Protocol):
    """Pure functions on one environment; the sampler vectorises them, and starts episodes anew.

    Where its users know observations and actions in another form than the learner, it declares both as
    `observation_space` and `action_space`, spaces of Gymnasium.
    """

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


def observation_space(env: HasSpaces) -> Space[Any]:
    """As Gymnasium describes it."""
    return getattr(env, "observation_space", None) or spaces.Box(-np.inf, np.inf, (env.observation_size,))


def action_space(env: HasSpaces) -> Space[Any]:
    declared = getattr(env, "action_space", None)
    if declared is not None:
        return declared
    match env.actions:
        case BoxActions(size):
            return spaces.Box(-1.0, 1.0, (size,))
        case MultiDiscreteActions(sizes):
            return spaces.MultiDiscrete(list(sizes))
        case discrete:
            return spaces.Discrete(discrete.n)


def native_observation(env: HasSpaces, obs: Float[Array, "... obs"]) -> Any:
    """Observations in the environment's own form."""
    import jax.numpy as jnp

    return unflatten(observation_space(env), obs, jnp)


def native_actions(env: HasSpaces, action: Array) -> Any:
    """The policy's actions as the environment takes them."""
    import jax.numpy as jnp

    inside = jnp.clip(action, -1.0, 1.0) if isinstance(env.actions, BoxActions) else action
    return native_action(action_space(env), inside)
