"""How good the policy is at the true reward, acting greedily."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.envs.base import Environment
from bipars.lower.policies import Policy


class Evaluation(NamedTuple):
    true_return: Float[Array, " episode"]
    length: Int[Array, " episode"]


def evaluate(env: Environment, policy: Policy, key: PRNGKeyArray, episodes: int) -> Evaluation:
    """One greedy episode in each of `episodes` fresh environments; stops when the last one has ended."""
    physics = jax.vmap(env.reset)(jax.random.uniform(key, (episodes, env.noise_size)))

    class Progress(NamedTuple):
        physics: Array
        alive: Bool[Array, " episode"]
        result: Evaluation
        time: Array

    def step(now: Progress) -> Progress:
        physics, reward, terminated = jax.vmap(env.step)(now.physics, policy.mode(env.observe(now.physics)))
        result = Evaluation(now.result.true_return + jnp.where(now.alive, reward, 0.0), now.result.length + now.alive)
        return Progress(physics, now.alive & ~terminated, result, now.time + 1)

    start = Progress(
        physics,
        jnp.ones(episodes, bool),
        Evaluation(jnp.zeros(episodes), jnp.zeros(episodes, jnp.int32)),
        jnp.zeros((), jnp.int32),
    )
    return jax.lax.while_loop(lambda now: now.alive.any() & (now.time < env.max_steps), step, start).result
