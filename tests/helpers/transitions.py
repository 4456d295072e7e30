"""Random transitions of cart-pole's shape, for the tests of potentials."""

import jax
import jax.numpy as jnp

from bipars.nets.spaces import BoxActions, DiscreteActions
from bipars.rollout.batch import Batch
from bipars.settings.config import PPOConfig

GAMMA = 0.9
ACTIONS = {False: DiscreteActions(2), True: BoxActions(1)}
TINY = PPOConfig(update_period=200, num_envs=4, gradient_steps=3, batch_size=32)


def make_batch(continuous, time=6, envs=3, seed=0):
    """Random transitions of cart-pole's shape; some end, by either cause."""
    keys = jax.random.split(jax.random.key(seed), 6)
    obs = jax.random.normal(keys[0], (time + 1, envs, 4))
    shape = (time, envs, 1) if continuous else (time, envs)
    action = jax.random.normal(keys[1], shape) if continuous else jax.random.randint(keys[1], shape, 0, 2)
    terminated = jnp.zeros((time, envs), bool).at[1, 0].set(True).at[3, 1].set(True)
    done = terminated.at[2, 2].set(True)
    reward, zeros = jax.random.normal(keys[2], (time, envs)), jnp.zeros((time, envs))
    terms = jax.random.normal(keys[3], (time, envs, 2))
    return Batch(obs[:-1], action, zeros, obs[1:], reward, terminated, done, terms, jnp.zeros((), bool))
