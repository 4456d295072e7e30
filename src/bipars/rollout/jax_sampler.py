"""Environments written in JAX: the whole loop over time is one compiled program."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import Space, spaces
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.envs.base import Environment
from bipars.nets.policies import Policy
from bipars.nets.spaces import ActionSpace, BoxActions
from bipars.rollout.batch import Batch, Evaluation
from bipars.terms.term import RewardTerm, Transition


class EnvState(NamedTuple):
    """All environments between two updates: episodes run on across batches."""

    physics: Float[Array, "env state"]
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
        return spaces.Discrete(self.actions.n)

    def reset(self, key: PRNGKeyArray) -> EnvState:
        env_key, *term_keys = jax.random.split(key, 1 + len(self.terms))
        noise = jax.random.uniform(env_key, (self.num_envs, self.env.noise_size))
        params = tuple(term.init(k, self.env) for term, k in zip(self.terms, term_keys, strict=True))
        return EnvState(jax.vmap(self.env.reset)(noise), jnp.zeros(self.num_envs, jnp.int32), params)

    def run(self, policy: Policy, start: EnvState, key: PRNGKeyArray) -> tuple[EnvState, Batch]:
        """`steps` steps in each environment, with resets inside."""
        action_key, reset_key, term_key = jax.random.split(key, 3)
        env, lead = self.env, (self.steps, self.num_envs)
        action_noise = policy.draw_noise(action_key, lead)
        reset_noise = jax.random.uniform(reset_key, (*lead, env.noise_size))

        def step(state: tuple[Array, Array], noise: tuple[Array, Array]) -> tuple[Any, tuple[Array, ...]]:
            physics, time = state
            obs = env.observe(physics)
            action = policy.sample(obs, noise[0])
            physics, reward, terminated = jax.vmap(env.step)(physics, action)
            time = time + 1
            done = terminated | (time >= env.max_steps)
            following = jnp.where(done[:, None], jax.vmap(env.reset)(noise[1]), physics), jnp.where(done, 0, time)
            return following, (obs, action, env.observe(physics), reward, terminated, done)

        end, (obs, action, next_obs, reward, terminated, done) = jax.lax.scan(
            step, (start.physics, start.time), (action_noise, reset_noise)
        )
        terms = self._evaluate_terms(start.term_params, obs, action, next_obs, term_key)
        log_prob = policy.log_prob(obs, action)
        batch = Batch(obs, action, log_prob, next_obs, reward, terminated, done, terms, jnp.zeros((), bool))
        return EnvState(*end, start.term_params), batch

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
        physics = jax.vmap(env.reset)(jax.random.uniform(key, (episodes, env.noise_size)))

        class Progress(NamedTuple):
            physics: Array
            alive: Bool[Array, " episode"]
            true_return: Array
            length: Array
            effort: Array
            time: Array

        def step(now: Progress) -> Progress:
            action = policy.mode(env.observe(now.physics))
            physics, reward, terminated = jax.vmap(env.step)(now.physics, action)
            return Progress(
                physics,
                now.alive & ~terminated,
                now.true_return + jnp.where(now.alive, reward, 0.0),
                now.length + now.alive,
                now.effort + jnp.where(now.alive, effort(self.actions, action), 0.0),
                now.time + 1,
            )

        zeros, none = jnp.zeros(episodes), jnp.zeros((), jnp.int32)
        start = Progress(physics, jnp.ones(episodes, bool), zeros, jnp.zeros(episodes, jnp.int32), zeros, none)
        end = jax.lax.while_loop(lambda now: now.alive.any() & (now.time < env.max_steps), step, start)
        return Evaluation(end.true_return, end.length, end.effort.sum() / end.length.sum())

    def evaluate_if(self, due: Bool[Array, ""], policy: Policy, key: PRNGKeyArray, newest: Evaluation) -> Evaluation:
        return jax.lax.cond(due, lambda: self.evaluate(policy, key), lambda: newest)


def effort(actions: ActionSpace, action: Array) -> Float[Array, "..."]:
    """Mean absolute action over its dimensions; 0 where actions have no size."""
    if isinstance(actions, BoxActions):
        return jnp.abs(jnp.clip(action, -1.0, 1.0)).mean(axis=-1)
    return jnp.zeros(action.shape)
