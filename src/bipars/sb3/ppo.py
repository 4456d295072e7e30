"""`ShapedPPO`: Stable-Baselines3's PPO, which learns at the same time how much each reward term should count."""

import io
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Literal, Self

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from bipars.errors import UsageError
from bipars.export import LearnedWeightFunction, shape
from bipars.report.report import Report
from bipars.rollout.finite import check_rewards
from bipars.runs.checkpoint import decode_tree
from bipars.runs.objects import Terms
from bipars.sb3.archive import read_archive, write_archive
from bipars.sb3.critics import Critics, as_tensors
from bipars.sb3.meta_gradient import LogProbability
from bipars.sb3.record import Record, absolute
from bipars.sb3.rollout import Recorder, Rollout
from bipars.sb3.settings import Asked, check_policy, resolve
from bipars.sb3.upper import Advantages, Round, UpperLevel, normalised
from bipars.settings.config import WeightConfig
from bipars.terms.steps import StepSpaces, StepTerms
from bipars.terms.term import RewardTerm, TermFunction
from bipars.terms.true_reward import TrueReward
from bipars.terms.values import odd_terms
from bipars.wrappers.log import terms_table
from bipars.wrappers.term_logger import environment_title, make_evaluator, make_terms
from bipars.wrappers.vec_env import VecEnvTermLogger

Horizon = Literal["gamma", "gamma-lambda"]
LONGEST_KEY = 30
"""Characters of a name in Stable-Baselines3's printed table."""


class Attached(VecEnvTermLogger):
    """The logger that a model puts around the environments themselves, below every other wrapper."""


class ShapedPPO(PPO):
    """PPO of Stable-Baselines3 with reward terms, whose weights are learned while it trains.

        model = ShapedPPO("MlpPolicy", "Pendulum-v1", terms=[RewardTerm("still", still)], n_steps=1024)
        model.learn(100_000)
        print(model.report("report.html"))

    It takes every argument of PPO, and in addition: `terms`, `RewardTerm`s or names of built-in ones; `true_reward`, as
    in `bipars.BiPaRS`; `method`, "mgl" (weights by state and action), "single" (one number per term), or "ns" and
    "ppo", whose weights stay 1 and 0, to compare with; `weights`, settings of the weight function; and `out`, a
    directory for the record that `bipars report` reads. Without `by_evidence`, weights follow the meta-gradient alone,
    as in the paper; `horizon` is the discount of later terms in it.
    """

    shaping: UpperLevel
    record: Record

    def __init__(
        self,
        policy: Any,
        env: Any,
        *arguments: Any,
        terms: Terms = (),
        true_reward: str | TermFunction = "env",
        method: str = "mgl",
        by_evidence: bool = True,
        weights: WeightConfig | Mapping[str, Any] | None = None,
        horizon: Horizon = "gamma-lambda",
        out: str | os.PathLike[str] | None = None,
        _init_setup_model: bool = True,
        **settings: Any,
    ) -> None:
        check_policy(policy)
        check_env(env)
        self._evaluator: StepTerms | None = None
        self._attached: Attached | None = None
        self._out = absolute(out)
        kind = true_reward if isinstance(true_reward, str) else "function"
        given = asdict(weights) if isinstance(weights, WeightConfig) else dict(weights or {})
        self._asked = Asked(method, kind, by_evidence, horizon, given)
        self._asked.check()
        super().__init__(policy, env, *arguments, **settings | {"_init_setup_model": False})
        self._recorder = Recorder(lambda: self.attached)
        if _init_setup_model:
            assert self.env is not None
            inner = innermost(self.env)
            self._evaluator = make_evaluator(inner, terms, true_reward, (self.seed or 0) % 2**32)
            self._single = self._evaluator.spaces
            names = self._evaluator.names
            self._asked = Asked(method, kind, by_evidence, horizon, given, environment_title(inner), names)
            self._attach()
            self._setup_model()
            if self.verbose >= 1:
                first = [self.shaping.config.weights.initial] * len(names)
                print(terms_table(self._evaluator.terms, f"Reward terms of {self._asked.env}", first))

    def _setup_model(self) -> None:
        super()._setup_model()
        config = resolve(self._asked, self, self._single)

        def make_policy() -> Any:
            return self.policy_class(self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs)

        critics = Critics(make_policy, len(config.terms) + 3)
        self.shaping = UpperLevel(config, self._single, critics, self.device)
        objects = {
            "env": True,
            "terms": list(config.terms),
            "true_reward": config.true_reward == "function",
            "trainer": f"stable-baselines3 {version('stable-baselines3')}",
        }
        self.record = Record(config, objects, self._out)

    # Environments

    @property
    def terms(self) -> tuple[RewardTerm, ...]:
        return () if self._evaluator is None else self._evaluator.terms

    @property
    def attached(self) -> Attached:
        """The logger of terms around the environments."""
        if self._attached is None:
            missing = "env" if self.env is None else "terms"
            raise UsageError(f"this model was loaded without {missing}; to learn, pass {missing}=... to load")
        return self._attached

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        super().set_env(env, force_reset)
        self._attach()

    def _attach(self) -> None:
        """Puts the terms around the environments, and tries one step."""
        if self.env is None or self._evaluator is None:
            return
        self.env, self._attached = attach(self.env, self._evaluator)
        self._attached.reset()
        self._attached.step(np.array([self.action_space.sample() for _ in range(self.n_envs)]))
        self.env, self._attached = attach(self.env, self._evaluator)  # without what was logged of the trial

    def _init_callback(self, callback: Any, progress_bar: bool = False) -> BaseCallback:
        if isinstance(callback, list):
            callback = CallbackList(callback)
        users = callback if isinstance(callback, BaseCallback) else ConvertCallback(callback)
        return super()._init_callback([self._recorder, users], progress_bar)

    # Training

    def learn(self, total_timesteps: int, *arguments: Any, **settings: Any) -> Self:
        """As `PPO.learn`."""
        _ = self.attached
        with self.record.open(int(total_timesteps)):
            return super().learn(int(total_timesteps), *arguments, **settings)

    def train(self) -> None:
        """The steps of one round: theta's are Stable-Baselines3's own, and phi is taken along."""
        rollout, restarted = self._recorder.take(), bool(self.rollout_buffer.episode_starts[0].all())
        names, upper = self.shaping.config.terms, self.shaping
        check_rewards(rollout.reward, rollout.terms, names, self.record.rounds * self.shaping.config.ppo.update_period)
        if not self.record.rounds:
            for line in odd_terms(rollout.terms, names, rollout.reward):
                warnings.warn(line, stacklevel=2)
        seen = upper.flat(rollout)
        weight_obs, weight_action, z = upper.weigh(*seen)
        obs = as_tensors(self._flat_observations(), self.device)
        advantages = upper.advantages(rollout, obs, self._last_obs, z, restarted)
        round = self._round(rollout, obs, (weight_obs, weight_action), advantages)
        log_prob = LogProbability(self.policy)
        log = upper.hear(log_prob, round, advantages.by_term, 1 - self._current_progress_remaining)
        self._take_steps(log_prob, round)
        upper.critics.fit(
            upper.critics_optimizer, obs, round.targets, self.n_epochs, self.batch_size, self.max_grad_norm
        )
        upper.update_moments(seen[0])
        upper.finish(self.policy)
        log |= self._log_of_round(float(advantages.true_explained_variance))
        row = self.record.add(rollout, z, seen, restarted, log, lambda: upper.knowledge)
        self._show(row)

    def _flat_observations(self) -> Any:
        """As the policy sees them, time and environment on one axis."""
        found = self.rollout_buffer.observations
        if isinstance(found, dict):
            return {key: x.reshape(-1, *x.shape[2:]) for key, x in found.items()}
        return found.reshape(-1, *found.shape[2:])

    def _round(
        self, rollout: Rollout, obs: Any, weight_inputs: tuple[torch.Tensor, torch.Tensor], advantages: Advantages
    ) -> Round:
        """Modified advantages take the place of those in Stable-Baselines3's buffer; and what phi learns from."""
        buffer, size = self.rollout_buffer, reward_scale(self._vec_normalize_env)
        modified, scale = size * np.asarray(advantages.modified, np.float32), 1 / size
        if self.normalize_advantage:
            flat, scale = normalised(advantages.modified)
            modified = flat.reshape(modified.shape)
        buffer.advantages, buffer.returns = modified, size * np.asarray(advantages.modified_target, np.float32)
        actions = self._tensor(buffer.actions.reshape(-1, *buffer.actions.shape[2:]))
        if isinstance(self.action_space, Discrete):
            actions = actions.long().flatten()
        terms = self._tensor(rollout.terms) * self.shaping.weights.unit / scale
        return Round(
            obs,
            actions,
            self._tensor(buffer.log_probs.reshape(-1)),
            self._tensor(modified.reshape(-1)),
            self._tensor(normalised(advantages.true)[0]),
            np.array(advantages.targets),
            *weight_inputs,
            terms,
            self._tensor(rollout.done),
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=self.device)

    def _take_steps(self, log_prob: LogProbability, round: Round) -> None:
        """A hook on the policy's optimiser counts its steps: after each pass over the batch, phi takes one."""
        upper, clip = self.shaping, float(self.clip_range(self._current_progress_remaining))  # type: ignore[operator]
        steps, of_a_pass = 0, -(-len(round.log_prob) // self.batch_size)

        def after_step(*_: Any) -> None:
            nonlocal steps
            steps += 1
            if steps % of_a_pass == 0:
                upper.step(log_prob, round, clip)

        upper.begin(self.policy, log_prob)
        hook = self.policy.optimizer.register_step_post_hook(after_step)
        try:
            super().train()
        finally:
            hook.remove()

    def _log_of_round(self, explained: float) -> dict[str, float]:
        """What Stable-Baselines3 says of its steps, under our names."""
        said, norms = self.logger.name_to_value, self.shaping.gradient_norms
        named = {
            "approx_kl": said.get("train/approx_kl"),
            "clip_fraction": said.get("train/clip_fraction"),
            "modified_critic_loss": said.get("train/value_loss"),
            "modified_explained_variance": said.get("train/explained_variance"),
            "policy_std": said.get("train/std"),
            "weight_gradient_norm": np.mean(norms) if norms else None,
            "true_explained_variance": explained,
        }
        if "train/entropy_loss" in said:
            named["entropy"] = -said["train/entropy_loss"]
        return {name: float(value) for name, value in named.items() if value is not None}

    def _show(self, row: Mapping[str, Any]) -> None:
        """The round's numbers about terms, in Stable-Baselines3's own log."""
        for key, value in row.items():
            kind = key.partition("/")[0]
            if kind in ("weight", "term", "agreement_t", "true_gradient_t", "true_return") and np.isfinite(value):
                shown = key if "/" in key else f"terms/{key}"
                self.logger.record(shown, value, exclude=None if len(shown) < LONGEST_KEY else ("stdout", "log"))

    # What comes out

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row per update."""
        return self.record.metrics

    def weight_function(self) -> LearnedWeightFunction:
        """The weights as they are now, frozen, as a plain callable that can be saved to one small file."""
        upper, known = self.shaping, self.shaping.knowledge
        return LearnedWeightFunction(
            known.weights,
            known.observations,
            upper.config.weights,
            upper.config.terms,
            self._single.observation_space,
            self._single.action_space,
        )

    def weights(self, observation: Any, action: Any) -> np.ndarray:
        """z(s, a): one column per reward term. Observations are the environment's own, before any `VecNormalize`."""
        return self.weight_function()(observation, action)

    def shaped_env(self, env: Any) -> Any:
        """`env` with the true reward plus every term times its learned weight, for any other library."""
        if self._evaluator is None:
            raise UsageError("this model was loaded without terms; pass terms=... to load")
        reward = self._evaluator.true_reward
        return shape(env, self.weight_function(), self._evaluator.terms, reward, self._evaluator.params)

    def report(self, path: str | os.PathLike[str] | None = None) -> Report:
        """What to do with each term, and why; with a `path` such as "report.html", also as a page there."""
        if not self.metrics:
            raise UsageError(
                "this model has not learned yet, so there is nothing to report: call model.learn(...) first"
            )
        return self.record.report(path)

    # Files

    def _excluded_save_params(self) -> list[str]:
        own = ["_asked", "_single", "_evaluator", "_attached", "_recorder", "_out", "record", "shaping"]
        return [*super()._excluded_save_params(), *own]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        names, variables = super()._get_torch_save_params()
        return [*names, "shaping.critics", "shaping.critics_optimizer", "shaping.weights_optimizer"], variables

    def save(self, path: Any, exclude: Any = None, include: Any = None) -> None:
        """One archive, as `PPO.save` writes it. The weight function in it is no pickle; functions are not stored."""
        content = io.BytesIO()
        super().save(content, exclude, include)
        write_archive(
            path, content, self._asked, self._single, self.shaping.knowledge, self.metrics, self.record.snapshots
        )

    @classmethod
    def load(
        cls,
        path: Any,
        env: Any = None,
        *arguments: Any,
        terms: Terms | None = None,
        true_reward: TermFunction | None = None,
        out: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> Self:
        """As `PPO.load`. Functions are not stored: to learn further, pass `terms` (and a `true_reward`) again."""
        held = read_archive(path)
        env = gymnasium.make(env) if isinstance(env, str) else env
        asked, single = held.asked, held.single
        model = super().load(path, env, *arguments, _asked=asked, _single=single, _out=absolute(out), **settings)
        model.shaping.take(decode_tree(held.knowledge, model.shaping.knowledge, f"{path}"))
        model.record.metrics, model.record.snapshots = held.metrics, held.snapshots
        if terms is not None:
            model._evaluator = evaluator_again(asked, single, terms, true_reward, model.seed)
            model._attach()
        return model


def evaluator_again(
    asked: Asked, single: StepSpaces, terms: Terms, true_reward: TermFunction | None, seed: int | None
) -> StepTerms:
    """The terms of a model that is loaded: those that it was trained with."""
    given = make_terms(terms, asked.env)
    names = tuple(term.name for term in given)
    if names != asked.terms:
        raise UsageError(f"the terms given are {list(names)}; expected {list(asked.terms)}, in that order")
    if (asked.true_reward == "function") != (true_reward is not None):
        raise UsageError(f"this model was trained with the true reward '{asked.true_reward}'; pass true_reward=...")
    reward = TrueReward(asked.true_reward, true_reward)
    return StepTerms(given, reward, single, seed=(seed or 0) % 2**32)


def check_env(env: Any) -> None:
    """`None` is what loading without an environment gives."""
    if isinstance(env, VectorEnv):
        raise UsageError(
            f"env is {env!r:.80}, a vector environment of Gymnasium; Stable-Baselines3 has its own: "
            "make_vec_env(lambda: ..., n_envs=8)"
        )
    if env is not None and not isinstance(env, (str, gymnasium.Env, VecEnv)):
        raise UsageError(
            f"env is {env!r:.80}; expected a Gymnasium id, a gymnasium.Env, or a VecEnv of Stable-Baselines3"
        )


def innermost(env: VecEnv) -> VecEnv:
    """The environments below all wrappers but loggers that somebody has put there."""
    return innermost(env.venv) if isinstance(env, VecEnvWrapper) else env


def attach(env: VecEnv, evaluator: StepTerms) -> tuple[VecEnv, Attached]:
    """The same stack of wrappers with a logger of terms at its bottom, in place of one that was put there before."""
    if isinstance(env, Attached):
        return attach(env.venv, evaluator)
    if isinstance(env, VecEnvWrapper):
        env.venv, attached = attach(env.venv, evaluator)
        return env, attached
    attached = Attached.around(env, evaluator)
    return attached, attached


def reward_scale(normalised_env: VecNormalize | None) -> float:
    """What rewards are multiplied by before Stable-Baselines3 learns from them."""
    if normalised_env is None or not normalised_env.norm_reward:
        return 1.0
    return float(1 / np.sqrt(normalised_env.ret_rms.var + normalised_env.epsilon))
