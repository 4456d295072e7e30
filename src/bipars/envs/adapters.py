"""Environments that others wrote in JAX, compiled whole with the training: Gymnax's protocol, and Brax's.

    env = bipars.envs.from_gymnax(*gymnax.make("CartPole-v1"))
    env = bipars.envs.from_brax(mujoco_playground.registry.load("Go1JoystickFlatTerrain"))

Neither package is imported: what has the methods of a protocol is an environment of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bipars.envs import spaces
from bipars.envs.base import StepResult, native_actions
from bipars.errors import UsageError

LONGEST = 10_000
"""Steps of an episode where the environment has no limit of its own."""
BRAX_STEPS = 1_000
"""Those of Brax's, where it does not say: its own training has this default."""
TERM_PREFIXES = ("reward/", "reward_")
"""How the names of reward terms begin among metrics: MuJoCo Playground's, and Brax's."""


class AdaptedState(NamedTuple):
    inner: Any
    """The environment's own."""
    obs: Float[Array, " obs"]


class Outcome(NamedTuple):
    """What an action leads to, in the environment's own form."""

    inner: Any
    obs: Any
    reward: Array
    terminated: Array
    truncated: Array | bool
    info: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class AdaptedEnvironment(spaces.HasGymnasiumSpaces):
    """An environment of another protocol, as `bipars.envs.base.Environment`."""

    name: str
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    max_steps: int
    start: Callable[[Array], tuple[Any, Any]]
    """start(key): its own state and observation at the beginning of an episode."""
    advance: Callable[[Array, Any, Any], Outcome]
    """advance(key, state, action)"""

    @cached_property
    def term_keys(self) -> tuple[str, ...]:
        """Numbers in `info` that are called reward terms."""
        info = self._trial[1].info
        return tuple(k for k, v in info.items() if k.startswith(TERM_PREFIXES) and getattr(v, "shape", None) == ())

    def reset(self, key: PRNGKeyArray) -> AdaptedState:
        inner, obs = self.start(jax.random.key_data(key))
        return jax.tree.map(_strong, AdaptedState(inner, self._flat(obs)))

    def observe(self, state: AdaptedState) -> Float[Array, " obs"]:
        return state.obs

    def step(self, key: PRNGKeyArray, state: AdaptedState, action: Array) -> StepResult:
        after = self.advance(jax.random.key_data(key), state.inner, native_actions(self, action))
        following = AdaptedState(after.inner, self._flat(after.obs))
        return StepResult(
            jax.tree.map(lambda old, new: _strong(new, old.dtype), state, following),
            jnp.asarray(after.reward, float),
            jnp.asarray(after.terminated, bool),
            jnp.asarray(after.truncated, bool),
            dict(after.info),
        )

    def _flat(self, obs: Any) -> Float[Array, " obs"]:
        return spaces.flatten(self.observation_space, obs, 0, jnp)

    @cached_property
    def _trial(self) -> tuple[Any, StepResult]:
        """The shapes of a first state, and of a step from there."""
        key = jax.random.key(0)
        state = jax.eval_shape(self.reset, key)
        return state, jax.eval_shape(self.step, key, state, jnp.zeros(self.actions.shape, self.actions.dtype))

    def check(self) -> "AdaptedEnvironment":
        """Itself, if it can be compiled and returns what its protocol promises."""
        try:
            state, step = self._trial
        except UsageError:
            raise
        except Exception as error:
            first_line = str(error).partition("\n")[0]
            raise UsageError(
                f"environment '{self.name}' failed on its first step: {type(error).__name__}: {first_line:.200}. It is "
                "vectorised and restarted here: give it without wrappers that do so"
            ) from error
        if state.obs.shape != (self.observation_size,):
            raise UsageError(
                f"environment '{self.name}' observes {state.obs.shape[0]} numbers; its observation space "
                f"{self.observation_space} has {self.observation_size}"
            )
        for name in ("reward", "terminated", "truncated"):
            if (shape := getattr(step, name).shape) != ():
                raise UsageError(
                    f"environment '{self.name}' returned {'done' if name != 'reward' else name} of shape {shape}; "
                    "expected a single number. Give it without a wrapper that vectorises it"
                )
        several = jax.eval_shape(jax.vmap(self.reset), jax.random.split(jax.random.key(0), 2))
        for path, leaf in jax.tree_util.tree_leaves_with_path(several):
            if leaf.shape[:1] != (2,):
                place = jax.tree_util.keystr(path)
                raise UsageError(
                    f"environment '{self.name}' has a state that jax.vmap does not batch ({place:.80}). "
                    "If it is one of MuJoCo Playground, load it with config_overrides={'impl': 'jax'}"
                )
        return self


def _strong(x: Any, dtype: Any = None) -> Array:
    """With its type fixed: one that JAX may still change would be compiled anew in the second update."""
    array = jnp.asarray(x)
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):  # a random key
        return array
    return jax.lax.convert_element_type(array, array.dtype if dtype is None else dtype)


def from_gymnax(env: Any, params: Any = None) -> AdaptedEnvironment:
    """An environment of Gymnax's protocol, with its parameters, by default those of the environment.

    Its time limit (`params.max_steps_in_episode`) truncates episodes, and the critic is asked for what comes after it.
    """
    _require("from_gymnax", env, ("reset_env", "step_env", "observation_space", "action_space"), "Gymnax")
    if hasattr(env, "_env"):
        raise UsageError(
            f"from_gymnax: {type(env).__name__} is a wrapper; give the environment in it. Observations are flattened, "
            "episodes restarted and returns logged here"
        )
    params = env.default_params if params is None else params
    limit = getattr(params, "max_steps_in_episode", None)

    def advance(key: Array, state: Any, action: Any) -> Outcome:
        obs, state, reward, done, info = env.step_env(key, state, action, params)
        return Outcome(state, obs, reward, *_gymnax_ends(env, params, state, done), info)

    return AdaptedEnvironment(
        str(getattr(env, "name", type(env).__name__)),
        _space(env.observation_space(params), "observation space"),
        _space(env.action_space(params), "action space"),
        LONGEST if limit is None else int(limit),
        lambda key: env.reset_env(key, params)[::-1],
        advance,
    ).check()


def _gymnax_ends(env: Any, params: Any, state: Any, done: Array) -> tuple[Array, Array | bool]:
    """Whether the episode terminated, and whether it was truncated. Before Gymnax 1.0, `done` is either."""
    if hasattr(env, "is_truncated"):
        return done, env.is_truncated(state, params)
    if not is_dataclass(params) or not hasattr(params, "max_steps_in_episode"):
        return done, False
    endless = replace(params, max_steps_in_episode=np.iinfo(np.int32).max)  # type: ignore[type-var]
    terminated = jnp.asarray(done, bool) & env.is_terminal(state, endless)
    return terminated, jnp.asarray(done, bool) & ~terminated


def from_brax(env: Any, max_steps: int | None = None, observation: str | None = None) -> AdaptedEnvironment:
    """An environment of Brax's protocol, which MuJoCo Playground shares: `State` with reward, done, metrics and info.

    Terms find `metrics` and `info` of a step under their keys. Episodes are truncated after `max_steps`, by default
    what the environment itself says, or 1000. Of several observations, the policy sees the one called `observation`,
    by default "state".
    """
    _require("from_brax", env, ("reset", "step", "action_size"), "Brax")
    name = type(getattr(env, "unwrapped", env)).__name__
    if max_steps is not None and max_steps < 1:
        raise UsageError(f"from_brax: max_steps is {max_steps}; expected at least 1")
    seen, shape = _brax_observation(env, name, observation)

    def observe(state: Any) -> Any:
        return state.obs if seen is None else state.obs[seen]

    def start(key: Array) -> tuple[Any, Any]:
        state = env.reset(key)
        return state, observe(state)

    def advance(key: Array, state: Any, action: Any) -> Outcome:
        state = env.step(state, action)
        truncated = jnp.asarray(state.info.get("truncation", 0)) > 0.5
        done = jnp.asarray(state.done) > 0.5
        return Outcome(state, observe(state), state.reward, done & ~truncated, truncated, state.info | state.metrics)

    return AdaptedEnvironment(
        name,
        gymnasium.spaces.Box(-np.inf, np.inf, shape),
        gymnasium.spaces.Box(-1.0, 1.0, (int(env.action_size),)),
        max_steps or _brax_steps(env),
        start,
        advance,
    ).check()


def _brax_steps(env: Any) -> int:
    found = getattr(env, "episode_length", None) or getattr(getattr(env, "_config", None), "episode_length", None)
    return BRAX_STEPS if found is None else int(found)


def _brax_observation(env: Any, name: str, wanted: str | None) -> tuple[str | None, tuple[int, ...]]:
    """Which of several observations is the policy's, and its shape."""
    try:
        state = jax.eval_shape(env.reset, jax.random.key_data(jax.random.key(0)))
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise UsageError(
            f"environment '{name}' failed on reset: {type(error).__name__}: {first_line:.200}. It is vectorised here: "
            "give it without a wrapper that does so"
        ) from error
    missing = [part for part in ("obs", "reward", "done", "metrics", "info") if not hasattr(state, part)]
    if missing:
        raise UsageError(
            f"from_brax: reset() of {name} returned {type(state).__name__} without {', '.join(missing)}; expected a "
            "State of Brax or MuJoCo Playground"
        )
    if any("first_obs" in key for key in state.info):
        raise UsageError(
            f"from_brax: {name} is wrapped to start episodes anew by itself; give it without that wrapper. Episodes "
            "are restarted here, and the state they ended in is kept for the critic"
        )
    if not isinstance(state.obs, Mapping):
        if wanted is not None:
            raise UsageError(f"from_brax: observation is '{wanted}', but {name} has only one")
        return None, state.obs.shape
    chosen = "state" if wanted is None else wanted
    if chosen not in state.obs:
        raise UsageError(
            f"from_brax: {name} has the observations {list(state.obs)}; got {wanted!r}. Name the one that the policy "
            "is to see: from_brax(env, observation=...)"
        )
    return chosen, state.obs[chosen].shape


def _require(function: str, env: Any, methods: tuple[str, ...], protocol: str) -> None:
    missing = [method for method in methods if not hasattr(env, method)]
    if missing:
        others = {"Gymnax": "from_brax, or the Gymnasium environment itself", "Brax": "from_gymnax"}
        raise UsageError(
            f"{function}: {env!r:.80} has no {' and no '.join(missing)}, so it is no environment of {protocol}'s "
            f"protocol. For others: {others[protocol]}"
        )


def _space(space: Any, where: str) -> gymnasium.Space[Any]:
    """Gymnax's spaces as Gymnasium's."""
    parts = getattr(space, "spaces", None)
    if isinstance(space, gymnasium.Space):
        return space
    if isinstance(parts, Mapping):
        inside = {key: _space(part, f"{where}[{key!r}]") for key, part in parts.items()}
        return gymnasium.spaces.Dict(inside, sort_keys=False)
    if parts is not None:
        return gymnasium.spaces.Tuple([_space(part, f"{where}[{i}]") for i, part in enumerate(parts)])
    if hasattr(space, "n"):
        return gymnasium.spaces.Discrete(int(space.n))
    if hasattr(space, "low"):
        dtype = np.dtype(space.dtype)
        kind = np.dtype(np.int8) if dtype.kind == "b" else dtype
        low, high = (np.broadcast_to(np.asarray(end, kind), space.shape) for end in (space.low, space.high))
        return gymnasium.spaces.Box(low, high, dtype=kind.type)
    raise UsageError(f"{where} is {space!r:.80}; expected Gymnax's Box, Discrete, Dict or Tuple")
