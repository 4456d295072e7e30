"""Environments written in JAX: the whole loop over time is one compiled program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import Space
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.envs.base import Environment, action_space, observation_space
from bipars.nets.policies import Policy
from bipars.nets.spaces import ActionSpace, BoxActions
from bipars.rollout.batch import Batch, Evaluation
from bipars.terms.in_jax import in_both_forms
from bipars.terms.term import RewardTerm, evaluate_in_jax
from bipars.terms.true_reward import TrueReward

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
    true_reward: TrueReward = field(default_factory=TrueReward)
    compiled: ClassVar[bool] = True

    @property
    def observation_size(self) -> int:
        return self.env.observation_size

    @property
    def actions(self) -> ActionSpace:
        return self.env.actions

    @property
    def observation_space(self) -> Space[Any]:
        return observation_space(self.env)

    @property
    def action_space(self) -> Space[Any]:
        return action_space(self.env)

    def reset(self, key: PRNGKeyArray) -> EnvState:
        env_key, *term_keys = jax.random.split(key, 1 + len(self.terms))
        params = tuple(term.init(k, self.env) for term, k in zip(self.terms, term_keys, strict=True))
        physics = jax.vmap(self.env.reset)(jax.random.split(env_key, self.num_envs))
        return EnvState(physics, jnp.zeros(self.num_envs, jnp.int32), params)

    def run(self, policy: Policy, start: EnvState, key: PRNGKeyArray, greedy: bool = False) -> tuple[EnvState, Batch]:
        """`steps` steps in each environment, with resets inside."""
        action_key, reset_key, term_key = jax.random.split(key, 3)
        env, lead = self.env, (self.steps, self.num_envs)
        observe = jax.vmap(env.observe)
        noise = policy.draw_noise(action_key, lead)
        keys = jax.random.split(jax.random.fold_in(reset_key, 2**31), lead)
        starts, restart = self._starts(reset_key)

        def step(state: tuple[Any, Array], now: tuple[Array, Array, Any]) -> tuple[Any, tuple[Any, ...]]:
            (physics, time), (noise, key, start) = state, now
            obs = observe(physics)
            action = policy.mode(obs) if greedy else policy.sample(obs, noise)
            physics, reward, terminated, truncated, info = jax.vmap(env.step)(key, physics, action)
            time = time + 1
            done = terminated | truncated | (time >= env.max_steps)
            following = restart(done, physics, start), jnp.where(done, 0, time)
            return following, (obs, action, observe(physics), reward, terminated, done, info)

        end, (obs, action, next_obs, reward, terminated, done, info) = jax.lax.scan(
            step, (start.physics, start.time), (noise, keys, starts)
        )
        forms = in_both_forms(env, obs, action, next_obs, info)
        terms = evaluate_in_jax(self.terms, start.term_params, forms, term_key)
        reward = self.true_reward.in_jax(reward, forms[1], terms)
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

    def _true_reward(
        self, obs: Array, action: Array, next_obs: Array, reward: Array, info: Mapping[str, Any]
    ) -> Float[Array, " env"]:
        """Of one step; terms are evaluated where it is the reward without them."""
        if self.true_reward.kind == "env":
            return reward
        forms = in_both_forms(self.env, *jax.tree.map(lambda x: x[None], (obs, action, next_obs, info)))
        contained = self.terms if self.true_reward.kind == "env-minus-terms" else ()
        terms = evaluate_in_jax(contained, ((),) * len(contained), forms, jax.random.key(0))
        return self.true_reward.in_jax(reward[None], forms[1], terms)[0]

    def evaluate(self, policy: Policy, key: PRNGKeyArray) -> Evaluation:
        """One greedy episode in each of `episodes` fresh environments; stops when the last one has ended."""
        env, episodes, observe = self.env, self.episodes, jax.vmap(self.env.observe)
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
            obs = observe(now.physics)
            action = policy.mode(obs)
            keys = jax.random.split(jax.random.fold_in(step_key, now.time), episodes)
            physics, reward, terminated, truncated, info = jax.vmap(env.step)(keys, now.physics, action)
            reward = self._true_reward(obs, action, observe(physics), reward, info)
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
