"""What an environment that is stepped from Python must offer; `stepped` runs a policy in it."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import Space

from bipars.envs.spaces import HasGymnasiumSpaces
from bipars.nets.network import Networks
from bipars.nets.spaces import ActionSpace


class Step(NamedTuple):
    """One step of all environments."""

    obs: np.ndarray
    """(env, obs): what the policy acts on next, the first observation of a new episode where one ended."""
    next_obs: np.ndarray
    """(env, obs): the state reached, also where the episode ended there."""
    reward: np.ndarray
    """(env,)"""
    terminated: np.ndarray
    """(env,)"""
    truncated: np.ndarray
    """(env,)"""
    info: Mapping[str, Any]
    """One entry per environment under each key."""
    ghost: np.ndarray | None = None
    """(env,): where it was no step, but the start of the next episode. None: nowhere."""


class Steps(NamedTuple):
    """Many steps of all environments, (time, env, ...)."""

    obs: np.ndarray
    """What the policy acted on."""
    action: np.ndarray
    """As the policy chose it."""
    next_obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: list[Mapping[str, Any]]
    """Of every step."""
    last: np.ndarray
    """(env, obs): what the policy acts on next."""


class HostEnvironment(Protocol):
    """A fixed number of environments, side by side. Observations are flat vectors."""

    num_envs: int
    observation_space: Space[Any]
    """Of one environment."""
    action_space: Space[Any]

    @property
    def observation_size(self) -> int: ...
    @property
    def actions(self) -> ActionSpace: ...

    def reset(self, seed: int) -> np.ndarray:
        """All environments start a new episode, the same one for the same seed."""
        ...

    def step(self, action: Any) -> Step:
        """`action` has one entry per environment, as the environment itself takes it."""
        ...

    @property
    def can_run(self) -> bool:
        """Whether there is `run`."""
        ...

    def run(self, networks: Networks, noise: np.ndarray) -> Steps:
        """As many steps as there is noise, (time, env, action), all at once."""
        ...

    def snapshot(self) -> dict[str, np.ndarray] | None:
        """All that is needed to go on from here; none where an environment cannot tell."""
        ...

    def restore(self, snapshot: dict[str, np.ndarray]) -> np.ndarray:
        """Goes back to a snapshot and returns the observations there."""
        ...

    def close(self) -> None: ...


class SteppedFromPython(HasGymnasiumSpaces):
    """An environment that takes one step at a time, and cannot tell where it stands."""

    can_run = False

    def run(self, networks: Networks, noise: np.ndarray) -> Steps:
        raise NotImplementedError

    def snapshot(self) -> None:
        return None

    def restore(self, snapshot: dict[str, np.ndarray]) -> np.ndarray:
        raise NotImplementedError
