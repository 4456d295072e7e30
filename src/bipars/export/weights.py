"""Away with the result: the learned weights as a plain callable, one small file, and a Gymnasium wrapper.

Nothing here computes in JAX: other libraries call it at every step.
"""

import copy
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import jax
import numpy as np
from gymnasium import Space

from bipars.envs import spaces
from bipars.errors import CheckpointError, UsageError
from bipars.nets.mlp import to_numpy
from bipars.nets.running import RunningMoments
from bipars.nets.spaces import Spaces
from bipars.nets.weights import WeightFunction, make_weights
from bipars.runs.checkpoint import decode_tree, encode_tree, read_about
from bipars.runs.files import read_file, write_atomically
from bipars.settings.resolved import ResolvedWeights
from bipars.terms.steps import StepSpaces, StepTerms
from bipars.terms.term import RewardTerm
from bipars.terms.true_reward import TrueReward
from bipars.wrappers.term_logger import ShapedVectorEnv, VectorTermLogger, logger_for, single_spaces

FORMAT = "bipars weight function 1"


class LearnedWeightFunction:
    """z(s, a), frozen: `weight_function(obs, action)` gives one weight per term, in the order of `terms`.

    Observations and actions are the environment's own, one or a batch of them.
    """

    def __init__(
        self,
        weights: WeightFunction,
        moments: RunningMoments | None,
        config: ResolvedWeights,
        terms: Sequence[str],
        observation_space: Space[Any],
        action_space: Space[Any],
    ) -> None:
        self.weights, self.moments, self._config = to_numpy(weights), to_numpy(moments), config
        self.terms = tuple(terms)
        self.observation_space, self.action_space = observation_space, action_space

    def __call__(self, observation: Any, action: Any) -> np.ndarray:
        many = spaces.batched(self.observation_space, observation)
        if spaces.batched(self.action_space, action, "action") != many:
            raise UsageError("observation and action must both be single, or both be batches")
        obs = spaces.flatten(self.observation_space, observation, lead=int(many))
        chosen = spaces.policy_action(self.action_space, np.asarray(action))
        if self.moments is not None:
            obs = self.moments.normalise(obs)
        return np.asarray(self.weights(obs, chosen))  # type: ignore[arg-type]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One file, to be read by `load`."""
        about = {
            "format": FORMAT,
            "terms": json.dumps(self.terms),
            "config": json.dumps(asdict(self._config)),
            "normalised": json.dumps(self.moments is not None),
            "observation_space": json.dumps(spaces.describe(self.observation_space)),
            "action_space": json.dumps(spaces.describe(self.action_space)),
        }
        path = Path(path)
        write_atomically(path, encode_tree((self.weights, self.moments), about))
        return path

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "LearnedWeightFunction":
        try:
            return LearnedWeightFunction._read(read_file(Path(path)), str(path))
        except CheckpointError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path} cannot be read as a weight function: {error!r:.200}") from error

    @staticmethod
    def _read(content: bytes, path: str) -> "LearnedWeightFunction":
        about = read_about(content)
        if about.get("format") != FORMAT:
            raise CheckpointError(f"{path} is no weight function of this version (format {about.get('format')!r:.40})")
        data, normalised = json.loads(about["config"]), json.loads(about["normalised"])
        config = ResolvedWeights(**data | {"hidden": tuple(data["hidden"])})
        terms = json.loads(about["terms"])
        observation_space, action_space = (
            spaces.from_description(json.loads(about[name])) for name in ("observation_space", "action_space")
        )
        sizes = Spaces(spaces.observation_size(observation_space), spaces.action_space(action_space))
        moments = RunningMoments.fresh((sizes.observation_size,)) if normalised else None
        like = jax.eval_shape(lambda: (make_weights(jax.random.key(0), config, sizes, len(terms)), moments))
        weights, moments = decode_tree(content, like, path)
        return LearnedWeightFunction(weights, moments, config, terms, observation_space, action_space)


class FrozenWeights(Protocol):
    """A weight function as environments use it."""

    observation_space: Space[Any]
    action_space: Space[Any]

    def __call__(self, observation: Any, action: Any) -> np.ndarray: ...


class ShapedEnv(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """An environment whose reward is the true reward plus every term times its learned, frozen weight.

    `info` reports the true reward, each term and each weight of the step.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        weight_function: FrozenWeights,
        terms: Sequence[RewardTerm],
        true_reward: TrueReward,
        term_params: Sequence[Any] = (),
    ) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(
            self, weight_function=weight_function, terms=terms, true_reward=true_reward, term_params=term_params
        )
        gymnasium.Wrapper.__init__(self, env)
        self.evaluator = frozen_evaluator(env, weight_function, terms, true_reward, term_params)
        self.weight_function, self.terms = weight_function, tuple(terms)
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._obs = copy.deepcopy(obs)  # environments may write into what they returned
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        next_obs, reward, terminated, truncated, info = self.env.step(action)
        values, true = self.evaluator.one(self._obs, action, next_obs, float(reward), info, self.np_random)
        weights = self.weight_function(self._obs, action)
        info = {**info, "true_reward": true}
        for term, value, weight in zip(self.terms, values, weights, strict=True):
            info |= {f"term/{term.name}": float(value), f"weight/{term.name}": float(weight)}
        self._obs = copy.deepcopy(next_obs)
        return next_obs, true + float(weights @ values), terminated, truncated, info


def shape(
    env: Any, weight_function: FrozenWeights, terms: Sequence[RewardTerm], true_reward: TrueReward, params: Any
) -> Any:
    """An environment of whatever kind with the true reward plus every term times its frozen weight."""
    if isinstance(env, gymnasium.Env):
        return ShapedEnv(env, weight_function, terms, true_reward, params)
    kind = logger_for(env)  # or an error that says what would do
    evaluator = frozen_evaluator(env, weight_function, terms, true_reward, params)
    if kind is VectorTermLogger:
        return ShapedVectorEnv.around(env, evaluator, weight_function)
    from bipars.wrappers.vec_env import ShapedVecEnv

    return ShapedVecEnv.around(env, evaluator, weight_function)


def frozen_evaluator(
    env: Any, weight_function: FrozenWeights, terms: Sequence[RewardTerm], true_reward: TrueReward, params: Any
) -> StepTerms:
    single = single_spaces(env)
    check_spaces(weight_function, single)
    single = StepSpaces(weight_function.observation_space, single.action_space)
    return StepTerms(terms, true_reward, single, tuple(params) or ((),) * len(terms))


def check_spaces(weight_function: FrozenWeights, env: Any) -> None:
    """Refuses environments that the weights were not learned for."""
    for name in ("observation_space", "action_space"):
        expected, found = getattr(weight_function, name), spaces.without_unusable(getattr(env, name))[0]
        if _sizes(expected) != _sizes(found):
            raise UsageError(f"the weights were learned with {name} {expected}; this environment has {found}")


def _sizes(space: Space[Any]) -> Any:
    """What must agree for a weight function to fit; bounds may differ."""
    data = spaces.describe(space)
    return {key: value for key, value in data.items() if key not in ("low", "high", "dtype")}
