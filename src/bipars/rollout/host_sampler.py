"""Environments outside of JAX: the policy acts in NumPy, and reward terms may be any function.

Dispatching a small compiled policy at every step would cost more than computing it, so acting never enters JAX. Some
environments take many steps at once, policy included.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import Space
from jaxtyping import PRNGKeyArray

from bipars.envs.host import HostEnvironment
from bipars.envs.host_batch import HostBatch
from bipars.errors import NonFiniteError, UsageError
from bipars.nets.mlp import to_numpy
from bipars.nets.network import Networks
from bipars.nets.policies import Policy, as_networks, log_prob_of_sample
from bipars.nets.spaces import ActionSpace, BoxActions
from bipars.rollout.batch import Batch, Evaluation
from bipars.rollout.finite import check_rewards
from bipars.terms.term import RewardTerm, evaluate_terms
from bipars.terms.true_reward import TrueReward

STRIDE = 50
"""Steps of an evaluation between two looks at whether its episodes have ended, where many can be taken at once."""
LONGEST = 10_000
"""Steps after which an evaluation stops waiting for the end of an episode."""


class HostState(NamedTuple):
    """What is known of the environments between two updates."""

    obs: np.ndarray
    """What the policy acts on next."""
    updates: np.ndarray
    snapshot: dict[str, np.ndarray]
    """All of their state, where they can tell; else nothing."""
    term_params: tuple[Any, ...]


class HostSampler:
    """A batch of environments for training, and another for evaluation, made when first needed.

    Most environments cannot be saved in mid-episode. They start new episodes after every `restart_every` updates, which
    is when checkpoints are written: a run that is resumed there is the run that was never interrupted.
    """

    compiled = False

    def __init__(
        self,
        make: Callable[[int], HostEnvironment],
        terms: tuple[RewardTerm, ...],
        true_reward: TrueReward,
        num_envs: int,
        steps: int,
        episodes: int,
        restart_every: int,
    ) -> None:
        self.terms, self.true_reward = terms, true_reward
        self.num_envs, self.steps, self.episodes = num_envs, steps, episodes
        self.restart_every = restart_every
        self._make = make
        self._env = make(num_envs)
        if self._env.num_envs != num_envs:
            raise UsageError(
                f"the vector environment has {self._env.num_envs} environments; num_envs is {num_envs}. Set it: "
                f"ppo={{'num_envs': {self._env.num_envs}}} (or ddpg=...), or give a function that takes num_envs"
            )
        self._evaluation_env: HostEnvironment | None = None
        self._here: np.ndarray | None = None
        """The observations where the training environments stand now; a state that holds others is from elsewhere."""

    @property
    def observation_size(self) -> int:
        return self._env.observation_size

    @property
    def actions(self) -> ActionSpace:
        return self._env.actions

    @property
    def observation_space(self) -> Space[Any]:
        return self._env.observation_space

    @property
    def action_space(self) -> Space[Any]:
        return self._env.action_space

    def reset(self, key: PRNGKeyArray) -> HostState:
        env_key, *term_keys = jax.random.split(key, 1 + len(self.terms))
        params = tuple(term.init(k, self._env) for term, k in zip(self.terms, term_keys, strict=True))
        obs = self._env.reset(seed_from(env_key))
        return self._leave(obs, 0, params)

    def run(self, policy: Policy, state: HostState, key: PRNGKeyArray) -> tuple[HostState, Batch]:
        action_key, restart_key, term_key = jax.random.split(key, 3)
        obs, restarted = self._enter(state, restart_key)
        self._here = None  # until this batch is complete: what fails in its middle cannot be gone on from
        noise = np.asarray(policy.draw_noise(action_key, (self.steps, self.num_envs)))
        acting = in_numpy(policy)
        host_batch = HostBatch(self._env, self.steps, int(state.updates) * self.steps * self.num_envs)
        networks = runnable(self._env, acting)
        if networks is not None:
            obs = host_batch.take(self._env.run(networks, noise))
        else:
            while not host_batch.complete:
                if host_batch.time == len(noise):  # some steps were none
                    again = jax.random.fold_in(action_key, host_batch.time)
                    noise = np.concatenate([noise, policy.draw_noise(again, (self.steps, self.num_envs))])
                action = acting.sample(obs, noise[host_batch.time])  # type: ignore[arg-type]
                obs = host_batch.step(obs, action)  # type: ignore[arg-type]
        terms = evaluate_terms(self.terms, state.term_params, host_batch, term_key)
        reward = self.true_reward.evaluate(host_batch, terms)
        check_rewards(reward, terms, [term.name for term in self.terms], host_batch.first_step)
        log_prob = _log_prob(policy, host_batch.flat_obs, host_batch.action, host_batch.in_rows(noise))
        batch = Batch(
            obs=jnp.asarray(host_batch.flat_obs),
            action=jnp.asarray(host_batch.action),
            log_prob=log_prob,
            next_obs=jnp.asarray(host_batch.flat_next_obs),
            reward=jnp.asarray(reward, jnp.float32),
            terminated=jnp.asarray(host_batch.terminated),
            done=jnp.asarray(host_batch.terminated | host_batch.truncated),
            terms=jnp.asarray(terms, jnp.float32),
            restarted=jnp.asarray(restarted),
        )
        return self._leave(obs, int(state.updates) + 1, state.term_params), batch

    def evaluate(self, policy: Policy, key: PRNGKeyArray) -> Evaluation:
        """As many greedy episodes as were asked for, in turns where there are fewer environments."""
        if self._evaluation_env is None:
            self._evaluation_env = self._make(self.episodes)
        env, acting = self._evaluation_env, in_numpy(policy)
        if env is self._env:  # there are no others: the episodes of training are given up
            self._here = None
        turns = [
            self._evaluate_once(env, acting, seed_from(jax.random.fold_in(key, first) if first else key), first)
            for first in range(0, self.episodes, env.num_envs)
        ]
        true_return, length, effort = (np.concatenate(parts) for parts in zip(*turns, strict=True))
        return Evaluation(
            jnp.asarray(true_return, jnp.float32),
            jnp.asarray(length),
            jnp.asarray(effort.sum() / length.sum(), jnp.float32),
        )

    def _evaluate_once(
        self, env: HostEnvironment, acting: Policy, seed: int, first: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """True return, length and effort of the first episodes. The true reward may be asked of later steps, too."""
        obs = env.reset(seed)
        wanted = min(env.num_envs, self.episodes - first)
        alive = np.arange(env.num_envs) < wanted
        true_return, effort = np.zeros((2, env.num_envs))
        length = np.zeros(env.num_envs, np.int32)
        networks, size = runnable(env, acting), getattr(self.actions, "size", 0)
        still = np.zeros((1 if networks is None else STRIDE, env.num_envs, size), np.float32)
        while alive.any() and length.max() < LONGEST:
            host_batch = HostBatch(env, len(still), int(length.max()) * env.num_envs, evaluation=True)
            if networks is not None:
                obs = host_batch.take(env.run(networks, still))
            else:
                obs = host_batch.step(obs, np.asarray(acting.mode(obs)))  # type: ignore[arg-type]
            # Whatever follows the end of an episode is no longer part of it.
            going = alive & ~np.cumsum(host_batch.terminated | host_batch.truncated, axis=0, dtype=bool)
            counted = np.concatenate((alive[None], going[:-1]))
            reward = self.true_reward.evaluate_alone(host_batch, self.terms)
            effort += np.where(counted, self._effort(host_batch), 0.0).sum(axis=0)
            true_return += np.where(counted, reward, 0.0).sum(axis=0)
            length += counted.sum(axis=0)
            alive = going[-1]
        return true_return[:wanted], length[:wanted], effort[:wanted]

    def _effort(self, host_batch: HostBatch) -> np.ndarray:
        """(time, env): mean absolute action, as the environment takes it; 0 for discrete actions."""
        if not isinstance(self.actions, BoxActions):
            return np.zeros(host_batch.shape)
        return np.abs(host_batch.native_action).reshape(*host_batch.shape, -1).mean(axis=-1)

    def evaluate_if(self, due: Any, policy: Policy, key: PRNGKeyArray, newest: Evaluation) -> Evaluation:
        return self.evaluate(policy, key) if due else newest

    def record(
        self, policy: Policy, params: tuple[Any, ...], key: PRNGKeyArray, longest: int
    ) -> tuple[Any, ...] | None:
        """(time, ...): observations, actions, true rewards, terms and effort of one greedy episode by itself.

        None of a vector environment of the user's, which has no environment to spare.
        """
        reset_key, term_key = jax.random.split(key)
        env, acting = self._make(1), in_numpy(policy)
        if env is self._env:
            return None
        try:
            obs, host_batch = env.reset(seed_from(reset_key)), HostBatch(env, longest, evaluation=True)
            ended = False
            while not ended and host_batch.time < longest:
                obs = host_batch.step(obs, np.asarray(acting.mode(obs)))  # type: ignore[arg-type]
                ended = bool((host_batch.terminated | host_batch.truncated)[host_batch.time - 1, 0])
            host_batch.cut()
            terms = evaluate_terms(self.terms, params, host_batch, term_key)
            reward = self.true_reward.evaluate(host_batch, terms)
        finally:
            env.close()
        size = self._effort(host_batch)
        return tuple(x[:, 0] for x in (host_batch.flat_obs, host_batch.action, reward, terms, size))

    def close(self) -> None:
        self._env.close()
        if self._evaluation_env is not None:
            self._evaluation_env.close()

    def _enter(self, state: HostState, key: PRNGKeyArray) -> tuple[np.ndarray, bool]:
        """Makes the environments stand where `state` says; true where they had to start new episodes instead."""
        if state.snapshot:
            return state.obs if state.obs is self._here else self._env.restore(state.snapshot), False
        updates = int(state.updates)
        if state.obs is self._here and (updates == 0 or updates % self.restart_every):
            return state.obs, False
        return self._env.reset(seed_from(key)), True

    def _leave(self, obs: np.ndarray, updates: int, params: tuple[Any, ...]) -> HostState:
        self._here = obs
        return HostState(obs, np.asarray(updates, np.int32), self._env.snapshot() or {}, params)


_log_prob = jax.jit(log_prob_of_sample)


def in_numpy(policy: Policy) -> Policy:
    """The policy for acting; an environment must never be given actions that are not numbers."""
    acting = to_numpy(policy)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(acting)):
        raise NonFiniteError(
            "the policy's parameters are no longer finite. A smaller learning rate, or ppo.max_grad_norm, usually helps"
        )
    return acting


def runnable(env: HostEnvironment, acting: Policy) -> Networks | None:
    """The policy as `env` runs it by itself, where it can."""
    return as_networks(acting, env.num_envs) if env.can_run else None


def seed_from(key: PRNGKeyArray) -> int:
    return int(jax.random.bits(key))
