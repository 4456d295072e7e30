"""From a configuration to the sampler it trains in."""

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import VectorEnv

from bipars.envs import spaces
from bipars.envs.adapters import TERM_PREFIXES
from bipars.envs.base import Environment, observation_space
from bipars.envs.gym import Factory, GymnasiumEnvironment, VectorFactory
from bipars.envs.gym import factory as gymnasium_factory
from bipars.envs.host import HostEnvironment
from bipars.envs.host_batch import BatchInfo, HostBatch
from bipars.envs.registry import ANY, EnvironmentFamily, find_family, make_environment, take_options
from bipars.envs.vector_env import VectorEnvironment
from bipars.errors import UsageError
from bipars.nets.spaces import HasSpaces, Spaces
from bipars.rollout.batch import Sampler
from bipars.rollout.finite import check_rewards
from bipars.rollout.host_sampler import HostSampler
from bipars.rollout.jax_sampler import JaxSampler
from bipars.settings.config import Config
from bipars.terms.term import CompiledTerm, InfoTerm, RewardTerm, check_names, check_terms, evaluate_terms
from bipars.terms.true_reward import TrueReward, check_true_reward

Env = gymnasium.Env[Any, Any] | Factory | VectorEnv[Any, Any, Any] | VectorFactory | Environment
"""An environment as an object: an instance, a function that makes one, many of them at once, or one written in JAX."""


def environment_name(env: "str | Env") -> str:
    """What a configuration calls the environment."""
    if isinstance(env, Environment):
        return getattr(env, "name", type(env).__name__)
    if isinstance(env, VectorEnv):
        return type(env.unwrapped).__name__ if env.spec is None else env.spec.id
    return env if isinstance(env, str) else gymnasium_factory(env, {})[0]


def make_sampler(
    config: Config,
    terms: tuple[RewardTerm, ...],
    true_reward: TrueReward,
    env: Env | None = None,
) -> Sampler:
    """The sampler of a configuration. `env` is the environment itself where its name is not enough to make it."""
    lower = config.lower
    steps = lower.update_period // lower.num_envs
    if is_compiled(config, env):
        return JaxSampler(
            jax_environment(config, env), terms, lower.num_envs, steps, config.evaluation_episodes, true_reward
        )
    make = host_maker(config, env)
    return HostSampler(
        make,
        terms,
        true_reward,
        lower.num_envs,
        steps,
        config.evaluation_episodes,
        config.checkpoint_every,
    )


def is_compiled(config: Config, env: Env | None) -> bool:
    return isinstance(env, Environment) or _maker(config, env).make_jax is not None


def jax_environment(config: Config, env: Env | None) -> Environment:
    """The environment written in JAX: the object itself, or the one of the configuration's name."""
    if not isinstance(env, Environment):
        return make_environment(config.env, config.env_options)
    _refuse_unused(config, "is an object written in JAX", ("env_options", "vector", "env_timeout"))
    return env


def _maker(config: Config, env: Env | None) -> EnvironmentFamily:
    """The family that makes the environment: its own, unless it is an object or Gymnasium is asked for."""
    return find_family(config.env if env is None and config.vector == "auto" else ANY)


def check_threads(config: Config, env: Env | None) -> None:
    """Cores that would have nothing to do are a mistake."""
    if is_compiled(config, env):
        most, why = 1, "is written in JAX: its training is one program"
    elif _maker(config, env).make_host is not None:
        most, why = config.lower.num_envs, f"is stepped in C, {config.lower.num_envs} at a time"
    else:
        most, why = 1, "is stepped by Python, one after the other"
    if config.lower is config.ppo and not is_compiled(config, env):
        most, why = max(most, 2), f"{why}, and PPO's critics learn beside the policy"
    if config.threads > most:
        raise UsageError(
            f"config.threads is {config.threads}; '{config.env}' with method '{config.method}' has work for {most} at "
            f"most (the environment {why}). Use more cores by training several seeds at once",
            ["config.threads"],
        )


def host_maker(config: Config, env: Env | None) -> Callable[[int], HostEnvironment]:
    """A function that makes so many environments side by side."""
    many = _maker(config, env).make_host
    if many is not None:
        return lambda num_envs: take_options(config.env, partial(many, num_envs, config.threads), config.env_options)
    assert not isinstance(env, Environment)
    if isinstance(env, VectorEnv):
        _refuse_unused(config, "is a vector environment already", ("env_options", "vector", "env_timeout"))
        theirs = VectorEnvironment(env, owned=False)
        return lambda num_envs: theirs
    _, make = gymnasium_factory(config.env if env is None else env, config.env_options)
    if env is None or isinstance(env, gymnasium.Env) or config.vector == "async":
        mode = "async" if config.vector == "async" else "sync"
        return lambda num_envs: GymnasiumEnvironment(make, num_envs, mode, config.env_timeout)  # type: ignore[arg-type]
    return partial(_call_maker, config, make)


def _call_maker(config: Config, make: Callable[..., Any], num_envs: int) -> HostEnvironment:
    """What a person's function makes: one environment, of which there will be more, or many at once."""
    first = make(num_envs=num_envs) if _takes_count(make) else make()
    if not isinstance(first, VectorEnv):
        return GymnasiumEnvironment(make, num_envs, "sync", config.env_timeout, first)
    _refuse_unused(config, "makes vector environments", ("vector", "env_timeout"))
    return VectorEnvironment(first)


def _takes_count(make: Callable[..., Any]) -> bool:
    try:
        return "num_envs" in inspect.signature(make).parameters
    except (TypeError, ValueError):  # a built-in function does not tell
        return False


def _refuse_unused(config: Config, why: str, names: tuple[str, ...]) -> None:
    """Settings that would do nothing are a mistake."""
    for name in names:
        value = getattr(config, name)
        if value != getattr(Config(), name):
            raise UsageError(f"{name} is {value!r}, but environment '{config.env}' {why}. Leave {name} out", [name])


def check_sampler(
    config: Config,
    terms: tuple[RewardTerm, ...],
    true_reward: TrueReward,
    env: Env | None = None,
    potential: Any = None,
) -> Spaces:
    """Tries all of them, and a `GivenPotential`, on one step: what does not work is found before training."""
    check_names(terms)
    if true_reward.kind == "env-minus-terms":
        drawn = [term.name for term in terms if isinstance(term, CompiledTerm)]
        if drawn:
            raise UsageError(
                f"true_reward 'env-minus-terms': the environment's reward does not contain term '{drawn[0]}'",
                ["true_reward"],
            )
    if is_compiled(config, env):
        compiled = jax_environment(config, env)
        _warn_of_images(observation_space(compiled))
        check_terms(terms, compiled)
        check_true_reward(true_reward, compiled)
        if potential is not None:
            keys = jax.random.split(jax.random.key(0), 2)
            first = jax.vmap(lambda key: compiled.observe(compiled.reset(key)))(keys)
            potential.check_compiled(compiled, first[None], jnp.asarray(zero_action(compiled, 2))[None])
        return Spaces(compiled.observation_size, compiled.actions)
    trial = host_maker(config, env)(1)
    if dropped := getattr(trial, "dropped", []):
        warnings.warn(
            f"{', '.join(dropped)}: no numbers, so neither the policy nor terms see them. Report in info what a "
            "term needs",
            stacklevel=2,
        )
    _warn_of_images(trial.observation_space)
    try:
        obs = _try_one_step(trial, terms, true_reward)
        if potential is not None:
            potential.check_host(trial, obs[:1], zero_action(trial, 1))
        return Spaces(trial.observation_size, trial.actions)
    finally:
        trial.close()


def _warn_of_images(space: gymnasium.Space[Any]) -> None:
    for where, size in spaces.images(space):
        policy = "CnnPolicy" if isinstance(space, gymnasium.spaces.Box) else "MultiInputPolicy"
        warnings.warn(
            f"{where} is an image: {size:,} inputs, no convolution: use bipars.sb3.ShapedPPO with {policy}",
            stacklevel=3,
        )


def _try_one_step(env: HostEnvironment, terms: tuple[RewardTerm, ...], true_reward: TrueReward) -> np.ndarray:
    """The first observations, after a step that worked."""
    key = jax.random.key(0)
    params = [term.init(key, env) for term in terms]
    host_batch = HostBatch(env, 1)
    host_batch.step(env.reset(0), zero_action(env, env.num_envs))
    values = evaluate_terms(terms, params, host_batch, key)
    reward = true_reward.evaluate(host_batch, values)
    check_rewards(reward, values, [term.name for term in terms], 0, "It was tried before training.")
    if true_reward.kind == "env":
        _warn_of_parts(host_batch, terms)
    return host_batch.flat_obs[0]


def _warn_of_parts(host_batch: HostBatch, terms: tuple[RewardTerm, ...]) -> None:
    """Names terms that are parts of the environment's reward, where `info` has all parts, as in Gymnasium's MuJoCo."""
    info = BatchInfo(host_batch).numeric()
    parts = {key: values for key, values in info.items() if key.startswith(TERM_PREFIXES)}
    twice = [term.name for term in terms if isinstance(term, InfoTerm) and term.key in parts]
    if twice and np.allclose(sum(parts.values()), host_batch.env_reward.reshape(-1)):
        warnings.warn(
            f"term '{twice[0]}' counts twice: the environment's reward is already the sum of {', '.join(parts)}. "
            "true_reward 'env-minus-terms' takes it out of the reward",
            stacklevel=3,
        )


def zero_action(env: HasSpaces, count: int) -> np.ndarray:
    """The middle of a box, or the first of the discrete actions."""
    return np.zeros((count, *env.actions.shape), env.actions.dtype)
