"""Environments written in JAX: the whole loop over time is one compiled program."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import Space, spaces
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.envs.base import Environment
from bipars.nets.policies import Policy
from bipars.nets.spaces import ActionSpace, BoxActions, MultiDiscreteActions
from bipars.rollout.batch import Batch, Evaluation
from bipars.terms.term import RewardTerm, Transition

DRAWN_BEFOREHAND = 2**22
"""Numbers of states from which episodes may start that are drawn before an update."""


class EnvState(NamedTuple):
    """All environments between two updates: episodes run on across batches."""

    physics: Any
    """The state of each, on a leading axis."""
    time: Int[Array, " env"]
    term_params: tuple[Any, ...]


@dataclass(frozen=True)
class JaxSampler:
    env: Environment
    terms: tuple[RewardTerm, ...]
    num_envs: int
    steps: int
    """Steps of each environment per update."""
    episodes: int
    """Episodes per evaluation."""
    compiled: bool = True

    @property
    def observation_size(self) -> int:
        return self.env.observation_size

    @property
    def actions(self) -> ActionSpace:
        return self.env.actions

    @property
    def observation_space(self) -> Space[Any]:
        return spaces.Box(-np.inf, np.inf, (self.observation_size,))

    @property
    def action_space(self) -> Space[Any]:
        if isinstance(self.actions, BoxActions):
            return spaces.Box(-1.0, 1.0, (self.actions.size,))
        if isinstance(self.actions, MultiDiscreteActions):
            return spaces.MultiDiscrete(list(self.actions.sizes))
        return spaces.Discrete(self.actions.n)

    def reset(self, key: PRNGKeyArray) -> EnvState:
        env_key, *term_keys = jax.random.split(key, 1 + len(self.terms))
        params = tuple(term.init(k, self.env) for term, k in zip(self.terms, term_keys, strict=True))
        physics = jax.vmap(self.env.reset)(jax.random.split(env_key, self.num_envs))
        return EnvState(physics, jnp.zeros(self.num_envs, jnp.int32), params)

    def run(self, policy: Policy, start: EnvState, key: PRNGKeyArray) -> tuple[EnvState, Batch]:
        """`steps` steps in each environment, with resets inside."""
        action_key, reset_key, term_key = jax.random.split(key, 3)
        env, lead = self.env, (self.steps, self.num_envs)
        observe = jax.vmap(env.observe)
        noise = policy.draw_noise(action_key, lead)
        keys = jax.random.split(jax.random.fold_in(reset_key, 2**31), lead)
        starts, restart = self._starts(reset_key)

        def step(state: tuple[Any, Array], now: tuple[Array, Array, Any]) -> tuple[Any, tuple[Array, ...]]:
            (physics, time), (noise, key, start) = state, now
            obs = observe(physics)
            action = policy.sample(obs, noise)
            physics, reward, terminated, truncated = jax.vmap(env.step)(key, physics, action)
            time = time + 1
            done = terminated | truncated | (time >= env.max_steps)
            following = restart(done, physics, start), jnp.where(done, 0, time)
            return following, (obs, action, observe(physics), reward, terminated, done)

        end, (obs, action, next_obs, reward, terminated, done) = jax.lax.scan(
            step, (start.physics, start.time), (noise, keys, starts)
        )
        terms = self._evaluate_terms(start.term_params, obs, action, next_obs, term_key)
        log_prob = policy.log_prob(obs, action)
        batch = Batch(obs, action, log_prob, next_obs, reward, terminated, done, terms, jnp.zeros((), bool))
        return EnvState(*end, start.term_params), batch

    def _starts(self, key: PRNGKeyArray) -> tuple[Any, Callable[[Array, Any, Any], Any]]:
        """What every step may start an episode from, and how it does.

        Small states are all drawn beforehand: in the loop, drawing them costs more than the physics. For large ones it
        is the keys alone, and a reset takes place where an episode has ended.
        """
        lead = (self.steps, self.num_envs)
        keys = jax.random.split(key, self.steps * self.num_envs)

        def choose(done: Array, physics: Any, fresh: Any) -> Any:
            return jax.tree.map(
                lambda old, new: jnp.where(done.reshape(-1, *(1,) * (old.ndim - 1)), new, old), physics, fresh
            )

        def reset(done: Array, physics: Any, keys: Array) -> Any:
            return jax.lax.cond(
                done.any(), lambda: choose(done, physics, jax.vmap(self.env.reset)(keys)), lambda: physics
            )

        size = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.env.reset, keys[0])))
        if size * keys.size > DRAWN_BEFOREHAND:
            return keys.reshape(lead), reset
        # All on one axis: on two it takes three times as long.
        return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), jax.vmap(self.env.reset)(keys)), choose

    def _evaluate_terms(
        self, params: tuple[Any, ...], obs: Array, action: Array, next_obs: Array, key: PRNGKeyArray
    ) -> Float[Array, "time env term"]:
        if not self.terms:
            return jnp.zeros((self.steps, self.num_envs, 0))
        acted = jnp.clip(action, -1.0, 1.0) if isinstance(self.actions, BoxActions) else action
        step = Transition(obs, acted, next_obs)
        keys = jax.random.split(key, len(self.terms))
        return jnp.stack([t.evaluate(p, step, k) for t, p, k in zip(self.terms, params, keys, strict=True)], axis=-1)

    def evaluate(self, policy: Policy, key: PRNGKeyArray) -> Evaluation:
        """One greedy episode in each of `episodes` fresh environments; stops when the last one has ended."""
        env, episodes = self.env, self.episodes
        reset_key, step_key = jax.random.split(key)
        physics = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))

        class Progress(NamedTuple):
            physics: Any
            alive: Bool[Array, " episode"]
            true_return: Array
            length: Array
            effort: Array
            time: Array

        def step(now: Progress) -> Progress:
            action = policy.mode(jax.vmap(env.observe)(now.physics))
            keys = jax.random.split(jax.random.fold_in(step_key, now.time), episodes)
            physics, reward, terminated, truncated = jax.vmap(env.step)(keys, now.physics, action)
            return Progress(
                physics,
                now.alive & ~(terminated | truncated),
                now.true_return + jnp.where(now.alive, reward, 0.0),
                now.length + now.alive,
                now.effort + jnp.where(now.alive, effort(self.actions, action), 0.0),
                now.time + 1,
            )

        zeros, none = jnp.zeros(episodes), jnp.zeros((), jnp.int32)
        start = Progress(physics, jnp.ones(episodes, bool), zeros, jnp.zeros(episodes, jnp.int32), zeros, none)
        end = jax.lax.while_loop(lambda now: now.alive.any() & (now.time < env.max_steps), step, start)
        return Evaluation(end.true_return, end.length, end.effort.sum() / end.length.sum())

    def evaluate_if(
        self, due: Bool[Array, ""] | bool, policy: Policy, key: PRNGKeyArray, newest: Evaluation
    ) -> Evaluation:
        if due is True:
            return self.evaluate(policy, key)
        return jax.lax.cond(due, lambda: self.evaluate(policy, key), lambda: newest)


def effort(actions: ActionSpace, action: Array) -> Float[Array, "..."]:
    """Mean absolute action over its dimensions; 0 where actions have no size."""
    if isinstance(actions, BoxActions):
        return jnp.abs(jnp.clip(action, -1.0, 1.0)).mean(axis=-1)
    return jnp.zeros(action.shape[: action.ndim - len(actions.shape)])
