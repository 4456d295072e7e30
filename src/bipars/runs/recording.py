"""One greedy episode, step by step: what the agent earned, and what every term was and counted."""

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from bipars.nets.mlp import to_numpy
from bipars.nets.policies import Policy
from bipars.nets.running import RunningMoments
from bipars.nets.weights import WeightFunction
from bipars.rollout.host_sampler import HostSampler
from bipars.rollout.jax_sampler import EnvState, JaxSampler, effort
from bipars.train import BiLevel, TrainState

LONGEST = 2_000
"""Steps after which a recording ends, whether the episode has or not."""


class Episode(NamedTuple):
    """Axes are (time, ...)."""

    reward: np.ndarray
    """The true reward."""
    terms: np.ndarray
    weights: np.ndarray
    """z of every term."""
    effort: np.ndarray
    """Mean absolute action, as the environment takes it; 0 for discrete actions."""

    @staticmethod
    def none(terms: int) -> "Episode":
        nothing, columns = np.zeros(0, np.float32), np.zeros((0, terms), np.float32)
        return Episode(nothing, columns, columns, nothing)


def record_episode(algorithm: BiLevel, state: TrainState, key: PRNGKeyArray) -> Episode:
    """The same episode for the same state and key; none where environments only come many at a time."""
    sampler, policy, params = algorithm.sampler, algorithm.acting(state), state.env.term_params
    if isinstance(sampler, JaxSampler):
        obs, action, reward, terms, size = _record_compiled(sampler, policy, params, key)
    else:
        assert isinstance(sampler, HostSampler)
        recorded = sampler.record(policy, params, key, LONGEST)
        if recorded is None:
            return Episode.none(len(sampler.terms))
        obs, action, reward, terms, size = recorded
    weights = weigh(state.weights, state.observations, obs, action)
    return Episode(*(np.asarray(x, np.float32) for x in (reward, terms, weights, size)))


def weigh(weights: WeightFunction, moments: RunningMoments | None, obs: Any, action: Any) -> np.ndarray:
    """z of transitions as the environment's own observations show them."""
    moments = to_numpy(moments)
    seen = np.asarray(obs) if moments is None else moments.normalise(np.asarray(obs))  # type: ignore[arg-type]
    return np.asarray(to_numpy(weights)(seen, np.asarray(action)))  # type: ignore[arg-type]


def _record_compiled(sampler: JaxSampler, policy: Policy, params: Any, key: PRNGKeyArray) -> tuple[Any, ...]:
    alone = replace(sampler, num_envs=1, steps=min(sampler.env.max_steps, LONGEST))
    batch = jax.tree.map(lambda x: np.asarray(x)[:, 0], _run(alone, policy, params, key))
    end = int(np.argmax(batch.done)) + 1 if batch.done.any() else len(batch.done)
    size = np.asarray(effort(sampler.actions, batch.action))
    return tuple(x[:end] for x in (batch.obs, batch.action, batch.reward, batch.terms, size))


@functools.partial(jax.jit, static_argnums=0)
def _run(sampler: JaxSampler, policy: Policy, params: Any, key: PRNGKeyArray) -> Any:
    reset_key, run_key = jax.random.split(key)
    physics = jax.vmap(sampler.env.reset)(jax.random.split(reset_key, 1))
    start = EnvState(physics, jnp.zeros(1, jnp.int32), params)
    batch = sampler.run(policy, start, run_key, greedy=True)[1]
    return batch._replace(restarted=batch.done)
