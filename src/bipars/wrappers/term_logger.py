"""`TermLogger`: looks at every term and the true reward, in whatever trainer, and learns nothing.

One name for three kinds of environment: a Gymnasium environment, a Gymnasium vector environment, and a `VecEnv` of
Stable-Baselines3. What comes back is of the same kind, so the trainer does not notice.
"""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from bipars.envs.host_batch import StepInfo
from bipars.errors import UsageError
from bipars.runs.objects import Terms, as_terms
from bipars.terms.builtin import make_term, task_term
from bipars.terms.call import pick
from bipars.terms.steps import StepSpaces, StepTerms
from bipars.terms.term import RewardTerm, TermFunction
from bipars.terms.true_reward import TrueReward
from bipars.wrappers.log import TermLog, terms_table

ENDED = "episode_terms"
"""Key of `info` that holds the sums of an episode, at its last step."""
WeightsOfSteps = Callable[[Any, Any], np.ndarray]
"""From observations and actions to one weight per term: z(s, a)."""


class TermLogger:
    """Evaluates reward terms at every step of an environment and logs them, and the true reward, apart.

        env = TermLogger(env, terms=[RewardTerm("upright", upright), RewardTerm.from_info("reward_ctrl")])

    The reward that the trainer sees stays as it is. `info` has `true_reward` and `term/NAME` at every step, and at the
    last one of an episode their sums under `episode_terms`; `episodes` has those of all episodes so far, `path` is a
    file that gets a row of JSON for each, and `print(env.summary())` shows a table. A table of the terms is printed at
    the start, unless `verbose` is False. `true_reward` is as in `bipars.BiPaRS`.
    """

    log: TermLog
    evaluator: StepTerms
    weight_function: WeightsOfSteps | None = None
    """Where there is one, the trainer gets the true reward plus every term times its weight."""

    def __new__(cls, env: Any, *arguments: Any, **settings: Any) -> "TermLogger":
        return object.__new__(logger_for(env) if cls is TermLogger else cls)

    def __init__(
        self,
        env: Any,
        terms: Terms = (),
        true_reward: str | TermFunction = "env",
        path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
    ) -> None:
        self._wrap(env, terms=terms, true_reward=true_reward, path=path, verbose=verbose)
        self._log_by(make_evaluator(env, terms, true_reward), env, None if path is None else Path(path))
        if verbose:
            print(terms_table(self.terms, f"Reward terms of {environment_title(env)}"))

    @classmethod
    def around(cls, env: Any, evaluator: StepTerms, weight_function: WeightsOfSteps | None = None) -> Self:
        """The same with terms that are made already, in silence."""
        logger = object.__new__(cls)
        logger._wrap(env)
        logger._log_by(evaluator, env)
        logger.weight_function = weight_function
        return logger

    def _wrap(self, env: Any, **arguments: Any) -> None:
        raise NotImplementedError("each kind of environment has a logger of its own")

    def _log_by(self, evaluator: StepTerms, env: Any, path: Path | None = None) -> None:
        self.evaluator, self.log = evaluator, TermLog(evaluator.names, getattr(env, "num_envs", 1), path)

    @property
    def terms(self) -> tuple[RewardTerm, ...]:
        return self.evaluator.terms

    @property
    def episodes(self) -> list[dict[str, Any]]:
        """One row per finished episode: its length, its true return, and the sum of every term."""
        return self.log.episodes

    def summary(self) -> str:
        """A table of what was seen so far."""
        return self.log.summary()

    def _columns(self, kind: str, values: np.ndarray) -> dict[str, Any]:
        """(..., term), by the keys that `info` has for them."""
        return {f"{kind}/{name}": values[..., k] for k, name in enumerate(self.evaluator.names)}

    def _shape(
        self, reward: Any, true: np.ndarray, values: np.ndarray, obs: Any, actions: Any
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """The rewards that the trainer gets of several environments, and the columns of `info`."""
        columns = {"true_reward": true} | self._columns("term", values)
        if self.weight_function is None:
            return reward, columns
        weights = self.weight_function(obs, actions)
        kind = np.result_type(np.asarray(reward), np.float32)  # integers would cut off the weighted terms
        shaped = (true + np.sum(weights * values, axis=-1)).astype(kind)
        return shaped, columns | self._columns("weight", weights)


class EnvTermLogger(TermLogger, gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Of one Gymnasium environment."""

    def _wrap(self, env: gymnasium.Env[Any, Any], **arguments: Any) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, **arguments)
        gymnasium.Wrapper.__init__(self, env)
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._obs = copy.deepcopy(obs)  # environments may write into what they returned
        self.log.restart()
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        next_obs, reward, terminated, truncated, info = self.env.step(action)
        values, true = self.evaluator.one(self._obs, action, next_obs, float(reward), info, self.np_random)
        self._obs = copy.deepcopy(next_obs)
        ended = self.log.add(np.array([true]), values[None], np.array([terminated or truncated]))
        info = {**info, "true_reward": true, **{key: float(x) for key, x in self._columns("term", values).items()}}
        if 0 in ended:
            info[ENDED] = ended[0]
        return next_obs, reward, terminated, truncated, info


class VectorTermLogger(TermLogger, VectorWrapper):
    """Of a Gymnasium vector environment."""

    def _wrap(self, env: VectorEnv[Any, Any, Any], **arguments: Any) -> None:
        VectorWrapper.__init__(self, env)
        self._obs: Any = None
        self._ended = np.zeros(env.num_envs, bool)
        self._mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        mask = (options or {}).get("reset_mask")
        self._obs = copy.deepcopy(obs)
        for env in range(self.num_envs):
            if mask is None or mask[env]:
                self.log.restart(env)
                self._ended[env] = False
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        done = np.asarray(terminated) | np.asarray(truncated)
        # With the next step's reset, the step after an episode's last one takes no action and means nothing.
        taken = ~self._ended if self._mode == AutoresetMode.NEXT_STEP else np.ones(self.num_envs, bool)
        values, true = self._evaluate(actions, obs, reward, info, taken)
        ended = self.log.add(true, values, done, taken)
        shaped, columns = self._shape(reward, true, values, self._obs, actions)
        self._ended = done if self._mode == AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        self._obs = copy.deepcopy(obs)
        return obs, shaped, terminated, truncated, self._report(info, columns, taken, ended)

    def _evaluate(
        self, actions: Any, obs: Any, reward: Any, info: Mapping[str, Any], taken: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(env, term) and (env,); 0 where no step was taken."""
        which = np.flatnonzero(taken)
        values, true = np.zeros((self.num_envs, len(self.terms))), np.zeros(self.num_envs)
        if len(which):
            over = np.asarray(info.get("_final_obs", np.zeros(self.num_envs, bool)))  # where an episode has begun anew
            final = info.get("final_info", info)
            infos = [StepInfo(final if over[env] else info, int(env)) for env in which]
            reached = [info["final_obs"][env] if over[env] else pick(obs, int(env)) for env in which]
            steps = pick(self._obs, which), pick(np.asarray(actions), which), stack(reached)
            values[which], true[which] = self.evaluator.several(*steps, np.asarray(reward)[which], infos)
        return values, true

    def _report(
        self,
        info: dict[str, Any],
        columns: Mapping[str, np.ndarray],
        taken: np.ndarray,
        ended: Mapping[int, Mapping[str, Any]],
    ) -> dict[str, Any]:
        info = dict(info)
        for key, column in columns.items():
            info |= {key: column, f"_{key}": taken.copy()}
        if ended:
            rows, mask = np.full(self.num_envs, None, object), np.zeros(self.num_envs, bool)
            for env, row in ended.items():
                rows[env], mask[env] = row, True
            info |= {ENDED: rows, f"_{ENDED}": mask}
        return info


class ShapedVectorEnv(VectorTermLogger):
    """A Gymnasium vector environment whose reward is the true reward plus every term times its frozen weight."""


def stack(observations: Sequence[Any]) -> Any:
    """Several observations on one leading axis; of dicts and tuples, each part."""
    first = observations[0]
    if isinstance(first, Mapping):
        return {key: stack([each[key] for each in observations]) for key in first}
    if isinstance(first, tuple):
        return tuple(stack([each[i] for each in observations]) for i in range(len(first)))
    return np.stack([np.asarray(each) for each in observations])


def make_evaluator(env: Any, terms: Terms, true_reward: str | TermFunction, seed: int = 0) -> StepTerms:
    """Of an environment of whatever kind."""
    given = make_terms(terms, environment_title(env))
    if not given:
        raise UsageError("terms is empty; give at least one, such as RewardTerm('upright', fn)")
    reward = TrueReward(true_reward) if isinstance(true_reward, str) else TrueReward("function", true_reward)
    return StepTerms(given, reward, single_spaces(env), seed=seed)


def single_spaces(env: Any) -> StepSpaces:
    """Of one of the environments."""
    return StepSpaces(
        getattr(env, "single_observation_space", env.observation_space),
        getattr(env, "single_action_space", env.action_space),
    )


def make_terms(terms: Terms, env: str) -> tuple[RewardTerm, ...]:
    """Term objects: those given, and built-in ones by name."""
    return tuple(make_term(task_term(t, env)) if isinstance(t, str) else t for t in as_terms(terms))


def environment_title(env: Any) -> str:
    spec = env.get_attr("spec", 0)[0] if is_vec_env(env) else getattr(env, "spec", None)
    if spec is not None:
        return str(spec.id)
    inner = env.get_attr("unwrapped", 0)[0] if is_vec_env(env) else getattr(env, "unwrapped", env)
    return type(inner).__name__


def logger_for(env: Any) -> type[TermLogger]:
    if isinstance(env, gymnasium.Env):
        return EnvTermLogger
    if isinstance(env, VectorEnv):
        return VectorTermLogger
    if is_vec_env(env):
        from bipars.wrappers.vec_env import VecEnvTermLogger

        return VecEnvTermLogger
    raise UsageError(
        f"env is {env!r:.80}; expected a gymnasium.Env, a Gymnasium VectorEnv, or a VecEnv of Stable-Baselines3"
    )


def is_vec_env(env: Any) -> bool:
    """Whether it is one of Stable-Baselines3, which need not be installed."""
    kinds = [kind for kind in type(env).__mro__ if kind.__name__ == "VecEnv"]
    return any(kind.__module__.startswith("stable_baselines3.") for kind in kinds)
