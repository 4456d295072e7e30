"""Any Gymnasium environment: an id, an instance or a factory, stepped by Gymnasium's own vector environments."""

import copy
import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from bipars.envs import spaces
from bipars.envs.host import Step, SteppedFromPython
from bipars.envs.registry import ANY, EnvironmentFamily, known_names, register, take_options
from bipars.envs.vector import Async, Checked, Sync
from bipars.errors import EnvError, UsageError
from bipars.runtime import allowed_cores
from bipars.settings.importing import import_from_here

Factory = Callable[[], gymnasium.Env[Any, Any]]
VectorFactory = Callable[..., "VectorEnv[Any, Any, Any]"]
"""Makes many environments at once: as many as it is told, if it takes `num_envs`."""


def _checked(make: Factory, timeout: float | None, dropped: list[str], in_words: bool = False) -> Factory:
    """Its environments name what they do wrong. `dropped` is told which observations are left out."""

    def checked() -> gymnasium.Env[Any, Any]:
        env = make()
        if not isinstance(env, gymnasium.Env):
            raise UsageError(f"the function given as env returned {env!r:.80}; expected a gymnasium.Env")
        made = Checked(env, timeout, in_words)
        dropped[:] = made.dropped
        return made

    return checked


def _on_any_core(make: Factory) -> Factory:
    """For a process of its own, which would inherit the one core of a worker."""
    allowed = allowed_cores()

    def unpinned() -> gymnasium.Env[Any, Any]:
        if allowed:
            os.sched_setaffinity(0, allowed)
        return make()

    return unpinned


class GymnasiumEnvironment(SteppedFromPython):
    """Copies of one environment. Episodes restart by an explicit reset, so there are no ghost steps to mask."""

    def __init__(
        self,
        make: Factory,
        num_envs: int,
        mode: Literal["sync", "async"] = "sync",
        timeout: float | None = None,
        first: gymnasium.Env[Any, Any] | None = None,
    ) -> None:
        """`timeout`: seconds that a step or reset may take. `first`: one that is made already, for `sync`."""
        self.num_envs = num_envs
        self.dropped: list[str] = []
        self.vector: Sync | Async
        disabled = AutoresetMode.DISABLED
        if mode == "sync":
            makers = [make] * num_envs if first is None else [lambda: first, *[make] * (num_envs - 1)]
            checks = [_checked(make, timeout, self.dropped) for make in makers]
            self.vector = Sync(checks, autoreset_mode=disabled)
        else:  # never forked: JAX has threads
            make = _on_any_core(_checked(make, None, self.dropped, in_words=True))
            try:
                self.vector = Async([make] * num_envs, autoreset_mode=disabled, context="forkserver")
            except (EOFError, ConnectionError) as error:
                raise EnvError("an environment process ended while its environment was made") from error
            self.vector.timeout = timeout
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space
        try:
            _ = self.observation_size, self.actions
        except UsageError:
            self.close()
            raise

    def reset(self, seed: int) -> np.ndarray:
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs).tolist()
        self.vector.action_space.seed(seed)
        obs, _ = self.vector.reset(seed=seeds)
        return self._flat(obs)

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.vector.step(action)
        next_obs = self._flat(obs)
        done = terminated | truncated
        following = next_obs
        if done.any():
            fresh, _ = self.vector.reset(options={"reset_mask": done})
            following = self._flat(fresh)
        return Step(following, next_obs, np.array(reward, float), terminated.copy(), truncated.copy(), info)

    def close(self) -> None:
        self.vector.close()

    def _flat(self, obs: Any) -> np.ndarray:
        return spaces.flatten(self.observation_space, obs)


def factory(
    env: "str | gymnasium.Env[Any, Any] | Factory | VectorFactory", options: Mapping[str, Any]
) -> tuple[str, Callable[..., Any]]:
    """A name for the environment, and a function that makes one more of it."""
    if isinstance(env, str):
        return env, _by_id(env, options)
    if options:
        raise UsageError(f"env_options {dict(options)} belong to an environment given by its id; yours is an object")
    if isinstance(env, gymnasium.Env):
        if env.spec is not None:
            spec = env.spec
            return spec.id, lambda: gymnasium.make(spec)
        return type(env.unwrapped).__name__, lambda: _copy(env)
    if callable(env):
        name = getattr(env, "__qualname__", type(env).__name__).rpartition("<locals>.")[2]
        return "environment" if name == "<lambda>" else name, env
    known = {"step_env": "from_gymnax(env, params)", "action_size": "from_brax(env)"}
    hint = next((f". Written in JAX: pass bipars.envs.{how}" for name, how in known.items() if hasattr(env, name)), "")
    raise UsageError(f"env is {env!r:.80}; expected an id, a gymnasium.Env, or a function that makes one{hint}")


def _copy(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise UsageError(
            f"environment {type(env).__name__} cannot be copied ({error}); give a function that makes one instead: "
            f"env=lambda: {type(env).__name__}(...)"
        ) from error


def _by_id(name: str, options: Mapping[str, Any]) -> Factory:
    module, _, plain = name.rpartition(":")
    try:
        if module:
            import_from_here(module, name)
        spec = gymnasium.spec(plain)
    except ImportError as error:
        raise UsageError(f"environment '{name}': the module before the colon cannot be imported: {error}") from error
    except gymnasium.error.Error as error:
        known = known_names()
        if plain in known:
            raise UsageError(f"environment '{name}' is not made by Gymnasium; leave vector at 'auto'") from error
        close = difflib.get_close_matches(name, dict.fromkeys([*known, *gymnasium.registry]), 3)
        hint = f"Did you mean {' or '.join(repr(one) for one in close)}? " if close else ""
        raise UsageError(
            f"unknown environment '{name}'. {hint}Known are {', '.join(known)} and every id of Gymnasium "
            f"(python -c 'import gymnasium; gymnasium.pprint_registry()'); for one of your own, write module:id"
        ) from error

    def make() -> gymnasium.Env[Any, Any]:
        try:
            return take_options(name, lambda **given: gymnasium.make(name, **given), options)
        except gymnasium.error.DependencyNotInstalled as error:
            extra = "pip install 'bipars[mujoco]'" if "mujoco" in str(error) else str(error)
            raise UsageError(f"environment '{name}' needs a package that is not installed: {extra}") from error

    if spec.entry_point is None:
        raise UsageError(f"environment '{name}' has no entry point, so it cannot be made")
    return make


GYMNASIUM = EnvironmentFamily(ANY)
register(GYMNASIUM)
for name, observations in {
    "Pendulum-v1": ("cos(angle)", "sin(angle)", "angular velocity"),
    "Acrobot-v1": ("cos(angle 1)", "sin(angle 1)", "cos(angle 2)", "sin(angle 2)", "speed 1", "speed 2"),
    "MountainCar-v0": ("position", "velocity"),
    "MountainCarContinuous-v0": ("position", "velocity"),
}.items():
    register(replace(GYMNASIUM, name=name, observations=observations))
