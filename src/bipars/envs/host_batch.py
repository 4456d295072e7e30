"""What happened in environments that are stepped from Python, kept as reward terms and the true reward need it."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bipars.envs import spaces
from bipars.envs.host import HostEnvironment, Step, Steps
from bipars.errors import EnvError, NonFiniteError, TermError
from bipars.nets.mlp import clip
from bipars.nets.spaces import BoxActions


class HostBatch:
    """Steps of all environments, in order. Axes are (time, env, ...)."""

    def __init__(self, env: HostEnvironment, steps: int, first_step: int = 0, evaluation: bool = False) -> None:
        self.env, self.time, self.first_step, self.evaluation = env, 0, first_step, evaluation
        lead = (steps, env.num_envs)
        size = env.observation_size
        self.flat_obs = np.empty((*lead, size), np.float32)
        self.flat_next_obs = np.empty((*lead, size), np.float32)
        self.action: np.ndarray = np.empty((*lead, *env.actions.shape), env.actions.dtype)
        self.env_reward = np.empty(lead)
        self.terminated, self.truncated = np.empty(lead, bool), np.empty(lead, bool)
        self.infos: list[Mapping[str, Any]] = []
        self.ghosts: list[np.ndarray | None] = []
        self.origin: np.ndarray | None = None
        """(time, env): in which step of the environments each transition took place; None: each row in its own."""
        self._filled = np.zeros(env.num_envs, int)
        self._box, self._to_native = isinstance(env.actions, BoxActions), spaces.native_actions(env.action_space)

    def step(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Acts in all environments and returns what to act on next."""
        t, self.time = self.time, self.time + 1
        if t == 0:
            self._check_finite(obs, t)
        if self.origin is None:  # before the environment may write into them
            self.flat_obs[t], self.action[t] = obs, action
        try:
            step = self.env.step(self._native(action))
        except EnvError as error:
            first, count = t * self.env.num_envs, self.env.num_envs
            steps = f"step {self._number(first)}" if count == 1 else f"the {count} steps from {self._number(first)} on"
            raise EnvError(f"{error}, in {steps}. Mend the environment") from None
        self._check_finite(step.next_obs, t)
        if step.obs is not step.next_obs:  # somewhere a new episode begins
            self._check_finite(step.obs, t)
        self.infos.append(step.info)
        self.ghosts.append(step.ghost)
        if self.origin is None and (step.ghost is None or self.evaluation):
            self.flat_next_obs[t] = step.next_obs
            self.env_reward[t], self.terminated[t], self.truncated[t] = step.reward, step.terminated, step.truncated
        else:
            self._keep_real(t, obs, action, step)
        return step.obs

    def _keep_real(self, t: int, obs: np.ndarray, action: np.ndarray, step: Step) -> None:
        """Adds a step to each environment for which it was one: from now on, rows are filled at their own pace."""
        if self.origin is None:
            self._filled[:] = t
            self.origin = np.repeat(np.arange(len(self.action))[:, None], self.env.num_envs, axis=1)
        real = (
            self._filled < len(self.action) if step.ghost is None else (self._filled < len(self.action)) & ~step.ghost
        )
        envs = np.flatnonzero(real)
        at = self._filled[envs], envs
        self.origin[at] = t
        self.flat_obs[at], self.action[at], self.flat_next_obs[at] = obs[envs], action[envs], step.next_obs[envs]
        self.env_reward[at], self.terminated[at] = step.reward[envs], step.terminated[envs]
        self.truncated[at] = step.truncated[envs]
        self._filled[envs] += 1

    @property
    def complete(self) -> bool:
        """Whether every environment has taken as many steps as were asked for."""
        if self.origin is None:
            return self.time >= len(self.action)
        return bool((self._filled >= len(self.action)).all())

    def in_rows(self, values: np.ndarray) -> np.ndarray:
        """(time, env, ...) of transitions, from (step, env, ...) of the environments' steps."""
        return values if self.origin is None else values[self.origin, np.arange(self.env.num_envs)]

    def take(self, steps: Steps) -> np.ndarray:
        """All steps at once, where the environment has taken them so; returns what to act on next."""
        self.time = len(steps.obs)
        for obs in (steps.obs, steps.next_obs, steps.last[None]):
            if not np.isfinite(obs).all():
                time = int(np.argwhere(~np.isfinite(obs))[0][0])
                self._check_finite(obs[time], time)
        self.flat_obs, self.action, self.flat_next_obs = steps.obs, steps.action, steps.next_obs
        self.env_reward, self.terminated, self.truncated = steps.reward, steps.terminated, steps.truncated
        self.infos = steps.infos
        return steps.last

    def _check_finite(self, obs: np.ndarray, t: int) -> None:
        # One number tells of all, unless squares are too large for it, and takes half the time.
        if not np.isfinite(np.vdot(obs, obs)) and not np.isfinite(obs).all():
            env, i = np.argwhere(~np.isfinite(obs))[0]
            where = self.describe(t * self.env.num_envs + int(env))
            raise NonFiniteError(f"observation[{i}] is {obs[env, i]} at {where}. Mend the environment")

    def cut(self) -> None:
        """Forgets the steps that were planned and not taken."""
        for name in ("flat_obs", "flat_next_obs", "action", "env_reward", "terminated", "truncated"):
            setattr(self, name, getattr(self, name)[: self.time])

    @property
    def shape(self) -> tuple[int, int]:
        return self.env_reward.shape

    def describe(self, index: int) -> str:
        """Which transition of the run the flat index stands for, in an error's words."""
        return f"step {self._number(index)} (environment {index % self.env.num_envs})"

    def _number(self, index: int) -> str:
        return f"{self.first_step + index}{' of an evaluation' if self.evaluation else ''}"

    @property
    def obs(self) -> Any:
        """As the environment gives them."""
        return spaces.unflatten(self.env.observation_space, self.flat_obs)

    @property
    def next_obs(self) -> Any:
        return spaces.unflatten(self.env.observation_space, self.flat_next_obs)

    @property
    def native_action(self) -> Any:
        """As the environment takes them."""
        return self._native(self.action)

    def _native(self, action: np.ndarray) -> Any:
        return self._to_native(clip(action, -1.0, 1.0) if self._box else action)  # type: ignore[arg-type]

    def info(self, key: str) -> np.ndarray:
        """One key of `info` at every step of every environment."""
        if all(ghost is None for ghost in self.ghosts):
            return np.stack([info_values(info, key, self.env.num_envs) for info in self.infos])
        return self.in_rows(self._info_around_ghosts(key))

    def _info_around_ghosts(self, key: str) -> np.ndarray:
        """(step, env): the same where some steps were none; their values are any others."""
        rows: list[np.ndarray | None] = []
        for info, ghost in zip(self.infos, self.ghosts, strict=True):
            real = np.ones(self.env.num_envs, bool) if ghost is None else ~ghost
            rows.append(info_values(info, key, self.env.num_envs, real) if real.any() else None)
        known = next((row for row in rows if row is not None), np.zeros(self.env.num_envs))
        return np.stack([known if row is None else row for row in rows])


class StepInfo(Mapping[str, Any]):
    """`info` of one environment at one step, read when asked for."""

    def __init__(self, info: Mapping[str, Any], env: int) -> None:
        self._info, self._env = info, env

    def __getitem__(self, key: str) -> Any:
        if key not in self._info or not _present(self._info, key, self._env):
            raise KeyError(key)
        return self._info[key][self._env]

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._info if not key.startswith("_") and _present(self._info, key, self._env))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class BatchInfo(Mapping[str, np.ndarray]):
    """`info` of all steps of all environments, on one leading axis, read when asked for."""

    def __init__(self, experience: HostBatch) -> None:
        self._experience = experience

    def __getitem__(self, key: str) -> np.ndarray:
        values = self._experience.info(key)
        return values.reshape(-1, *values.shape[2:])

    def __iter__(self) -> Iterator[str]:
        return iter(info_keys(self._experience.infos[0]))

    def __len__(self) -> int:
        return len(info_keys(self._experience.infos[0]))

    def at(self, index: int) -> StepInfo:
        """Of one step of one environment."""
        time, env = divmod(index, self._experience.env.num_envs)
        origin = self._experience.origin
        return StepInfo(self._experience.infos[time if origin is None else origin[time, env]], env)

    def numeric(self) -> dict[str, np.ndarray]:
        """The keys that hold numbers at every step, as a function written in JAX can take them."""
        found = {}
        for key in self:
            try:
                values = self[key]
            except TermError:
                continue
            if values.dtype.kind in spaces.NUMBERS:
                found[key] = values
        return found


def info_keys(info: Mapping[str, Any]) -> list[str]:
    """Keys that environments reported; vector environments add a mask `_key` to each."""
    return [key for key in info if not key.startswith("_")]


def info_values(info: Mapping[str, Any], key: str, num_envs: int, real: np.ndarray | None = None) -> np.ndarray:
    """One number per environment; where it took no `real` step, that of another."""
    if key not in info:
        raise TermError(f"info has no key '{key}'; its keys are {info_keys(info) or 'none'}")
    asked = range(num_envs) if real is None else np.flatnonzero(real).tolist()
    missing = [env for env in asked if not _present(info, key, env)] if f"_{key}" in info else []
    if missing:
        raise TermError(f"info of environment {missing[0]} has no key '{key}'; others have it. Report it at every step")
    values = info[key]
    if real is not None and not real.all():
        values = values[np.where(real, np.arange(num_envs), asked[0])]
    return np.array(list(values)) if values.dtype == object else values


def info_numbers(experience: HostBatch, key: str) -> np.ndarray:
    """(time, env): a key of `info` that holds one number."""
    values = experience.info(key)
    if values.shape != experience.shape or values.dtype.kind not in spaces.NUMBERS:
        example = values[0, 0] if values.ndim > 1 else values[0]
        raise TermError(f"info['{key}'] is {example!r}; expected a single number")
    return values.astype(float)


def info_number(what: str, info: Mapping[str, Any], key: str) -> float:
    """The same of one step of one environment."""
    if key not in info:
        raise TermError(f"{what}: info has no key '{key}'; its keys are {list(info) or 'none'}")
    if not spaces.is_number(info[key]):
        raise TermError(f"{what}: info['{key}'] is {info[key]!r}; expected a single number")
    return float(info[key])


def _present(info: Mapping[str, Any], key: str, env: int) -> bool:
    mask = info.get(f"_{key}")
    return mask is None or bool(mask[env])
