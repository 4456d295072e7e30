"""A vector environment of the user's own, stepped as it is: Gymnasium's, or that of a simulator on a GPU."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from bipars.envs import spaces
from bipars.envs.host import Step, SteppedFromPython
from bipars.errors import EnvError

SEEDS = 2**31
"""Simulators take seeds below this."""


class VectorEnvironment(SteppedFromPython):
    """Whatever it does after the end of an episode, the learner sees no step between two of them.

    | mode | |
    | --- | --- |
    | next step | the step after the end starts the next episode, whatever the action: a ghost, which is marked |
    | same step | the step that ends an episode returns the first observation of the next; `info` has the last one |
    | disabled | environments are reset by a mask |
    """

    def __init__(self, vector: "VectorEnv[Any, Any, Any]", owned: bool = True) -> None:
        """`owned`: it is closed with this object; one that a person made stays open."""
        self.vector, self.owned, self.num_envs = vector, owned, vector.num_envs
        self._mode = AutoresetMode(vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._name = f"environment {type(vector.unwrapped).__name__}"
        self.observation_space, self.dropped = spaces.without_unusable(vector.single_observation_space)
        self.action_space = vector.single_action_space
        _ = self.observation_size, self.actions  # or an error that says which is not supported
        self._ended = np.zeros(self.num_envs, bool)

    def reset(self, seed: int) -> np.ndarray:
        self._ended = np.zeros(self.num_envs, bool)
        obs, _ = self.vector.reset(seed=seed % SEEDS)
        return self._flat(obs, "reset()")

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.vector.step(action)
        terminated, truncated = self._each("terminated", terminated, bool), self._each("truncated", truncated, bool)
        following = next_obs = self._flat(obs, "step()")
        done, ghost = terminated | truncated, None
        if self._mode is AutoresetMode.NEXT_STEP:
            ghost, self._ended = self._ended, done
        elif done.any() and self._mode is AutoresetMode.SAME_STEP:
            next_obs, info = self._last(next_obs, done, info)
        elif done.any():
            following = self._flat(self.vector.reset(options={"reset_mask": done})[0], "reset()")
        return Step(
            following,
            next_obs,
            self._each("reward", reward, float),
            terminated,
            truncated,
            self._numbered(info),
            ghost if ghost is not None and ghost.any() else None,
        )

    def _last(self, first: np.ndarray, done: np.ndarray, info: Mapping[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        """The observations and `info` in which episodes ended, where others have begun."""
        if "final_obs" not in info:
            raise EnvError(
                f"{self._name} starts episodes in the step that ends one, but its info has no 'final_obs', the "
                f"observation in which it ended; its keys are {list(info) or 'none'}. Report it there"
            )
        reached = first.copy()
        for env in np.flatnonzero(done).tolist():
            reached[env] = spaces.flatten(self.observation_space, _of(info["final_obs"], env), lead=0)
        merged = {key: value for key, value in info.items() if not key.removeprefix("_").startswith("final_")}
        for key, value in info.get("final_info", {}).items():
            own = merged.get(key)
            started = np.asarray(value) if own is None else np.asarray(own)
            if isinstance(value, Mapping) or started.shape != np.shape(value):
                continue
            chosen = done.reshape(-1, *(1,) * (started.ndim - 1))
            merged[key] = np.where(chosen, value, started)
        return reached, merged

    def _numbered(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """What has one entry per environment; all else is about none of them."""
        arrays = {key: np.asarray(value) for key, value in info.items() if not isinstance(value, (Mapping, str))}
        return {key: value for key, value in arrays.items() if value.shape[:1] == (self.num_envs,)}

    def _each(self, what: str, values: Any, kind: type) -> np.ndarray:
        array = np.array(values)
        if array.shape != (self.num_envs,) or array.dtype.kind not in ("b" if kind is bool else spaces.NUMBERS):
            raise EnvError(
                f"{self._name}: step() returned {what} {array!r:.80}; expected one {kind.__name__} for each of "
                f"{self.num_envs} environments, as a NumPy array"
            )
        return array.astype(kind)

    def _flat(self, obs: Any, where: str) -> np.ndarray:
        flat = np.array(spaces.flatten(self.observation_space, obs))  # its own memory: some write into what they gave
        if flat.shape != (self.num_envs, self.observation_size):
            raise EnvError(
                f"{self._name}: {where} breaks its observation space: it returned {flat.shape} numbers, expected "
                f"{(self.num_envs, self.observation_size)}"
            )
        return flat

    def close(self) -> None:
        if self.owned:
            self.vector.close()


def _of(values: Any, env: int) -> Any:
    """One environment's part of what may be nested."""
    return {key: _of(value, env) for key, value in values.items()} if isinstance(values, Mapping) else values[env]
