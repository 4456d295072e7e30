"""An environment in JAX, of Gymnax's protocol: compiled with the training as one program. Under a minute.

    python examples/jax_environment.py

A lander above the ground is to touch down softly. Which of three guesses help: to fall slowly, to be high up, to use
fuel? With Gymnax installed, its environments are given the same way:
`bipars.envs.from_gymnax(*gymnax.make("CartPole-v1"))`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from gymnasium.spaces import Box, Discrete

import bipars


class State(NamedTuple):
    height: jax.Array
    speed: jax.Array
    time: jax.Array


class Params(NamedTuple):
    gravity: float = 0.02
    thrust: float = 0.05
    max_steps_in_episode: int = 60


class Lander:
    """`reset_env`, `step_env` and two spaces are all that is asked for."""

    name = "Lander"
    default_params = Params()

    def observation_space(self, params):
        return Box(-5.0, 5.0, (2,))

    def action_space(self, params):
        return Discrete(2)  # engine off, engine on

    def reset_env(self, key, params):
        state = State(jax.random.uniform(key, (), minval=1.0, maxval=2.0), jnp.zeros(()), jnp.zeros((), int))
        return self.look(state), state

    def step_env(self, key, state, action, params):
        speed = state.speed - params.gravity + params.thrust * action
        state = State(jnp.clip(state.height + speed, 0.0, 4.0), jnp.clip(speed, -1.0, 1.0), state.time + 1)
        landed = state.height <= 0.0
        soft = landed & (state.speed > -0.1)
        done = landed | (state.time >= params.max_steps_in_episode)
        return self.look(state), state, soft.astype(float), done, {"fuel": 1.0 * action}

    def look(self, state):
        return jnp.stack([state.height, state.speed])


def gentle(obs, action, next_obs, info):
    """Terms are functions in JAX, and compiled along: jnp.where in place of if."""
    return -jnp.where(next_obs[1] < 0.0, -next_obs[1], 0.0)


def high(obs, action, next_obs, info):
    return next_obs[0]


def main(steps=300_000):
    terms = [bipars.RewardTerm("gentle", gentle), bipars.RewardTerm("high", high), bipars.RewardTerm.from_info("fuel")]
    agent = bipars.BiPaRS(bipars.envs.from_gymnax(Lander()), terms=terms)
    agent.learn(steps, progress_bar=True)
    print(agent.report())
    print(f"\nSoft landings: {100 * agent.evaluate()[0]:.0f} %")


if __name__ == "__main__":
    main()
