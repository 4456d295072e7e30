"""Running the policy: lines 5-6 of Algorithm 1, compiled as one loop over time."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.envs.base import Environment
from bipars.lower.policies import Policy


class EnvState(NamedTuple):
    """All environments between two updates: episodes run on across batches."""

    physics: Float[Array, "env state"]
    time: Int[Array, " env"]


class Batch(NamedTuple):
    """The transitions of one update. `next_obs` is the state reached, also where the episode ended there."""

    obs: Float[Array, "time env obs"]
    action: Array
    log_prob: Float[Array, "time env"]
    next_obs: Float[Array, "time env obs"]
    reward: Float[Array, "time env"]
    terminated: Bool[Array, "time env"]
    done: Bool[Array, "time env"]


def reset(env: Environment, key: PRNGKeyArray, num_envs: int) -> EnvState:
    noise = jax.random.uniform(key, (num_envs, env.noise_size))
    return EnvState(jax.vmap(env.reset)(noise), jnp.zeros(num_envs, jnp.int32))


def rollout(
    env: Environment, policy: Policy, start: EnvState, key: PRNGKeyArray, num_steps: int
) -> tuple[EnvState, Batch]:
    """`num_steps` steps in each environment, with resets inside."""
    action_key, reset_key = jax.random.split(key)
    num_envs = start.time.size
    action_noise = policy.draw_noise(action_key, (num_steps, num_envs))
    reset_noise = jax.random.uniform(reset_key, (num_steps, num_envs, env.noise_size))

    def step(state: EnvState, noise: tuple[Array, Array]) -> tuple[EnvState, tuple[Array, ...]]:
        obs = env.observe(state.physics)
        action = policy.sample(obs, noise[0])
        physics, reward, terminated = jax.vmap(env.step)(state.physics, action)
        time = state.time + 1
        done = terminated | (time >= env.max_steps)
        following = EnvState(jnp.where(done[:, None], jax.vmap(env.reset)(noise[1]), physics), jnp.where(done, 0, time))
        return following, (obs, action, env.observe(physics), reward, terminated, done)

    end, (obs, action, next_obs, reward, terminated, done) = jax.lax.scan(step, start, (action_noise, reset_noise))
    return end, Batch(obs, action, policy.log_prob(obs, action), next_obs, reward, terminated, done)
