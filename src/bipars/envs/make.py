"""From a configuration to the world it trains in."""

from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import numpy as np

from bipars.config import Config
from bipars.envs import find_compiled, make_compiled
from bipars.envs.base import BoxActions, Spaces
from bipars.envs.compiled import CompiledWorld
from bipars.envs.gym import Factory, GymnasiumEnvironment
from bipars.envs.gym import factory as gymnasium_factory
from bipars.envs.host import HostEnvironment
from bipars.envs.stepped import SteppedWorld
from bipars.envs.world import World
from bipars.errors import UsageError
from bipars.presets import TORQUE_WEIGHTS
from bipars.shaping.experience import Experience
from bipars.shaping.terms import CompiledTerm, RewardTerm, check_names, check_terms, evaluate_terms
from bipars.shaping.true_reward import TrueReward

Env = gymnasium.Env[Any, Any] | Factory
"""An environment as an object: an instance, or a function that makes one."""


def environment_name(env: "str | Env") -> str:
    """What a configuration calls the environment."""
    return env if isinstance(env, str) else gymnasium_factory(env, {})[0]


def make_world(
    config: Config,
    terms: tuple[RewardTerm, ...],
    true_reward: TrueReward,
    env: Env | None = None,
    batches_ahead: int = 0,
) -> World:
    """The world of a configuration. `env` is the environment itself where its name is not enough to make it."""
    ppo = config.ppo
    steps = ppo.update_period // ppo.num_envs
    if is_compiled(config, env):
        compiled = make_compiled(config.env, config.env_options)
        return CompiledWorld(compiled, terms, ppo.num_envs, steps, config.evaluation_episodes)
    make = host_maker(config, env)
    return SteppedWorld(
        make,
        terms,
        true_reward,
        ppo.num_envs,
        steps,
        config.evaluation_episodes,
        config.checkpoint_every,
        batches_ahead,
    )


def is_compiled(config: Config, env: Env | None) -> bool:
    return env is None and config.vector == "auto" and find_compiled(config.env) is not None


def host_maker(config: Config, env: Env | None) -> Callable[[int], HostEnvironment]:
    """A function that makes so many environments side by side."""
    if env is None and config.vector == "auto" and config.env in TORQUE_WEIGHTS:
        from bipars.envs.mujoco import MujocoEnvironment

        return lambda num_envs: MujocoEnvironment(config.env, num_envs, **config.env_options)
    _, make = gymnasium_factory(config.env if env is None else env, config.env_options)
    mode = "async" if config.vector == "async" else "sync"
    return lambda num_envs: GymnasiumEnvironment(make, num_envs, mode)  # type: ignore[arg-type]


def check_world(
    config: Config, terms: tuple[RewardTerm, ...], true_reward: TrueReward, env: Env | None = None
) -> Spaces:
    """Tries environment, terms and true reward on one step, so that what does not work is found before training."""
    check_names(terms)
    if is_compiled(config, env):
        if true_reward.kind != "env":
            raise UsageError(
                f"environment '{config.env}' is written in JAX and has its own true reward; reward is "
                f"'{config.reward}'. Use 'env', or step it through Gymnasium with vector 'sync' and its id "
                "bipars/CartPole-v0 or bipars/CartPoleContinuous-v0"
            )
        compiled = make_compiled(config.env, config.env_options)
        check_terms(terms, compiled)
        return Spaces(compiled.observation_size, compiled.actions)
    if true_reward.kind == "env-minus-terms":
        drawn = [term.name for term in terms if isinstance(term, CompiledTerm)]
        if drawn:
            raise UsageError(f"reward 'env-minus-terms': the environment's reward does not contain term '{drawn[0]}'")
    trial = host_maker(config, env)(1)
    try:
        _try_one_step(trial, terms, true_reward)
        return Spaces(trial.observation_size, trial.actions)
    finally:
        trial.close()


def _try_one_step(env: HostEnvironment, terms: tuple[RewardTerm, ...], true_reward: TrueReward) -> None:
    key = jax.random.key(0)
    params = [term.init(key, env) for term in terms]
    action = np.zeros((1, env.actions.size), np.float32) if isinstance(env.actions, BoxActions) else np.zeros(1, int)
    experience = Experience(env, 1)
    experience.step(env.reset(0), action)
    true_reward.evaluate(experience, evaluate_terms(terms, params, experience, key))
