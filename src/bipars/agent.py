"""`BiPaRS`: the agent most users meet. Thin over `program` (training) and `runs` (files)."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bipars.config import Config, PPOConfig, UpperConfig, WeightConfig
from bipars.envs.base import BoxActions
from bipars.errors import UsageError
from bipars.lower.policies import Policy
from bipars.program import build, complete
from bipars.progress import training_bar
from bipars.runs.checkpoint import save_checkpoint
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import load_state, stop_requests
from bipars.runs.files import sha256
from bipars.shaping.terms import RewardTerm, make_term
from bipars.signals import check_finite, summarise


class BiPaRS:
    """Learns a policy and, at the same time, how much each reward term should count, and where.

        agent = BiPaRS("cartpole", terms=["harmful"], method="mgl", seed=0)
        agent.learn(400_000)
        agent.weights(obs, action)      # one weight per term

    `env` is an environment's name; `terms` are `RewardTerm`s or names of built-in ones; `method` a row of the
    methods table; `ppo`, `weight_function` and `upper` change the settings of one level.
    """

    def __init__(
        self,
        env: str,
        terms: Sequence[RewardTerm | str] = (),
        method: str = "mgl",
        seed: int = 0,
        *,
        env_options: dict[str, Any] | None = None,
        ppo: PPOConfig | None = None,
        weight_function: WeightConfig | None = None,
        upper: UpperConfig | None = None,
    ) -> None:
        config = Config(
            env=env,
            env_options=env_options or {},
            method=method,
            seed=seed,
            ppo=ppo or PPOConfig(),
            weights=weight_function or WeightConfig(),
            upper=upper or UpperConfig(),
        )
        self.terms = tuple(make_term(term) if isinstance(term, str) else term for term in terms)
        self.config = complete(config, self.terms)
        self._program = build(self.config, self.terms)
        self._state = self._program.init(seed)
        self._rounds = 0
        self._calls = 0
        self.metrics: list[dict[str, Any]] = []
        """One row per update since this object was made."""

    def learn(self, total_timesteps: int, progress_bar: bool = False) -> "BiPaRS":
        """Trains for at least so many more environment steps, in whole updates. Ctrl-C ends it after the update."""
        period = self.config.ppo.update_period
        if total_timesteps < 1:
            raise UsageError(f"total_timesteps is {total_timesteps}; expected at least 1")
        end = self._rounds + -(-total_timesteps // period)
        with stop_requests() as stop, training_bar((end - self._rounds) * period, progress_bar) as show:
            while self._rounds < end and not stop():
                state, signals = self._program.iterate(self._state, self.config.seed)
                check_finite(signals, self._program.term_names, self._rounds * period)
                self._state = state
                self._rounds += 1
                row = {"round": self._rounds, "step": self._program.steps_after(self._rounds)}
                self.metrics.append(row | summarise(signals, self._program.term_names))
                show(period, self.metrics[-1])
        return self

    @property
    def num_timesteps(self) -> int:
        return self._program.steps_after(self._rounds)

    @property
    def policy(self) -> Policy:
        return self._program.algorithm.acting(self._state.learner.policy, self._state.weights)

    def predict(
        self,
        observation: Any,
        state: None = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, None]:
        """The action for one observation or a batch; `state` and `episode_start` are what other libraries pass."""
        obs = self._observation(observation)
        if deterministic:
            action = self.policy.mode(obs)
        else:
            key = jax.random.fold_in(jax.random.key(self.config.seed), 2**30 + self._calls)
            self._calls += 1
            action = self.policy.sample(obs, self.policy.draw_noise(key, obs.shape[:-1]))
        box = isinstance(self._program.algorithm.env.actions, BoxActions)
        return (np.clip(action, -1.0, 1.0) if box else np.asarray(action)), None

    def weights(self, observation: Any, action: Any) -> np.ndarray:
        """z(s, a): one column per reward term."""
        obs = self._observation(observation)
        box = isinstance(self._program.algorithm.env.actions, BoxActions)
        chosen = jnp.asarray(action, jnp.float32 if box else jnp.int32)
        return np.asarray(self._state.weights(obs, chosen))

    def evaluate(self, seed: int = 0) -> tuple[float, float]:
        """Mean true return and mean length of greedy episodes."""
        result = self._program.algorithm.evaluate(self._state.learner.policy, self._state.weights, jax.random.key(seed))
        return float(np.mean(result.true_return)), float(np.mean(result.length))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes a directory from which `load` restores everything, optimisers included."""
        run = RunDirectory.create(path, self.config)
        with run.owned():
            run.metrics_file.touch()
            save_checkpoint(run.checkpoints, self._rounds, self._state, (0, sha256(b"")))
        return run.path

    @staticmethod
    def load(
        path: str | os.PathLike[str], env: str | None = None, terms: Sequence[RewardTerm | str] | None = None
    ) -> "BiPaRS":
        """An agent saved by `save`, or the newest checkpoint of a training run.

        Terms of your own are functions, which are not stored: pass them again. `env` may only confirm what is stored.
        """
        config = RunDirectory(path).config
        if env is not None and complete(replace(config, env=env, terms=(), method="ppo")).env != config.env:
            raise UsageError(f"{path} was trained on '{config.env}', not on '{env}'")
        given = None if terms is None else tuple(make_term(t) if isinstance(t, str) else t for t in terms)
        program, state, rounds = load_state(path, given)
        agent = BiPaRS.__new__(BiPaRS)
        agent.terms, agent.config, agent._program = program.algorithm.terms, config, program
        agent._state, agent._rounds, agent._calls, agent.metrics = state, rounds, 0, []
        return agent

    def _observation(self, observation: Any) -> Array:
        obs = jnp.asarray(observation, jnp.float32)
        size = self._program.algorithm.env.observation_size
        if obs.shape[-1:] != (size,):
            raise UsageError(f"observation has shape {obs.shape}; expected ({size},) or (batch, {size})")
        return obs
