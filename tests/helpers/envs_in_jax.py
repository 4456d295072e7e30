"""Tiny environments of Gymnax's and of Brax's protocol, with known answers. Neither package is needed."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

tree = jax.tree_util.register_dataclass


@dataclasses.dataclass(frozen=True)
class Params:
    max_steps_in_episode: int = 9


@tree
@dataclasses.dataclass(frozen=True)
class LineState:
    position: Any
    time: Any


class Space:
    def __init__(self, **about):
        vars(self).update(about)


class OldLine:
    """Before Gymnax 1.0. Walks right or left by the two actions; falls off at 3. `done` is that, or the time limit."""

    name = "Line"
    default_params = Params()

    def observation_space(self, params):
        box = Space(low=-10.0, high=10.0, shape=(1, 1), dtype=jnp.float32)
        return Space(spaces={"position": box, "parity": Space(n=2)})

    def action_space(self, params):
        return Space(n=2)

    def _obs(self, state):
        return {"position": state.position.reshape(1, 1), "parity": jnp.asarray(state.time % 2)}

    def reset_env(self, key, params):
        state = LineState(jax.random.uniform(key, (), minval=-0.5, maxval=0.5), 0)
        return self._obs(state), state

    def step_env(self, key, state, action, params):
        state = LineState(state.position + 2.0 * action - 1.0, state.time + 1)
        info = {"discount": 1.0, "height": state.position, "pair": jnp.zeros(2)}
        return self._obs(state), state, 1.0, self.is_terminal(state, params), info

    def is_terminal(self, state, params):
        return (state.position > 3) | (state.time >= params.max_steps_in_episode)


class Line(OldLine):
    """Since Gymnax 1.0: ends by falling alone are told apart by the environment."""

    def step_env(self, key, state, action, params):
        obs, state, reward, _, info = super().step_env(key, state, action, params)
        return obs, state, reward, state.position > 3, info

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode


@tree
@dataclasses.dataclass
class State:
    """As Brax's, and MuJoCo Playground's."""

    pipeline_state: Any
    obs: Any
    reward: Any
    done: Any
    metrics: dict
    info: dict


class Slider:
    """Brax's protocol: pushed by one number; done where it is further than 1 from the middle."""

    action_size = 1
    episode_length = None
    two_observations = False

    def __init__(self, episode_length=None, two_observations=False):
        self.episode_length, self.two_observations = episode_length, two_observations

    def _obs(self, x):
        return {"state": x, "privileged_state": jnp.stack([x[0]] * 3)} if self.two_observations else x

    def reset(self, rng):
        rng, draw = jax.random.split(rng)
        x = jax.random.uniform(draw, (1,), minval=-0.1, maxval=0.1)
        metrics = {"reward/middle": jnp.zeros(()), "reward/effort": jnp.zeros(()), "distance": jnp.zeros(())}
        return State(x, self._obs(x), jnp.zeros(()), jnp.zeros(()), metrics, {"rng": rng, "steps": 0})

    def step(self, state, action):
        x = state.pipeline_state + 0.5 * action
        middle, effort = 1.0 - jnp.abs(x[0]), -0.1 * action[0] ** 2
        metrics = {"reward/middle": middle, "reward/effort": effort, "distance": jnp.abs(x[0])}
        info = state.info | {"steps": state.info["steps"] + 1}
        done = (jnp.abs(x[0]) > 1).astype(float)
        return State(x, self._obs(x), middle + effort, done, metrics, info)


class Truncating(Slider):
    """As Brax's wrapper does: `done` at the time limit, too, and a flag in `info` that tells."""

    def reset(self, rng):
        state = super().reset(rng)
        return dataclasses.replace(state, info=state.info | {"truncation": jnp.zeros(())})

    def step(self, state, action):
        after = super().step(state, action)
        late = after.info["steps"] >= 4
        info = after.info | {"truncation": jnp.where(late, 1 - after.done, 0.0)}
        return dataclasses.replace(after, done=jnp.where(late, 1.0, after.done), info=info)


class Restarting(Slider):
    """Wrapped to start anew by itself."""

    def reset(self, rng):
        state = super().reset(rng)
        return dataclasses.replace(state, info=state.info | {"first_obs": state.obs})


class Vectorised(Slider):
    def reset(self, rng):
        return jax.vmap(super().reset)(rng)
