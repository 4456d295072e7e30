"""Terms and the true reward of single steps, for environments that somebody else's trainer steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from gymnasium import Space

from bipars.envs import spaces
from bipars.errors import BiparsError, TermError
from bipars.nets.mlp import to_numpy
from bipars.terms.call import explain, pick
from bipars.terms.term import CompiledTerm, InfoTerm, RewardTerm, check_names
from bipars.terms.true_reward import TrueReward


@dataclass(frozen=True)
class StepSpaces(spaces.HasGymnasiumSpaces):
    """An environment's spaces, as terms ask for them."""

    observation_space: Space[Any]
    action_space: Space[Any]


class StepTerms:
    """Every term and the true reward, of one step of one environment or of several side by side."""

    def __init__(
        self,
        terms: Sequence[RewardTerm],
        true_reward: TrueReward,
        spaces: StepSpaces,
        params: Sequence[Any] | None = None,
        seed: int = 0,
    ) -> None:
        """`params` are what the terms drew in an earlier run; without them they draw anew, by the seed."""
        check_names(terms)
        self.terms, self.true_reward, self.spaces = tuple(terms), true_reward, spaces
        if params is None:
            keys = jax.random.split(jax.random.key(np.uint32(seed)), max(1, len(self.terms)))
            params = [term.init(key, spaces) for term, key in zip(self.terms, keys, strict=False)]
        self.params = to_numpy(tuple(params)) or ((),) * len(self.terms)
        self.rng = np.random.default_rng(seed)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(term.name for term in self.terms)

    def one(
        self, obs: Any, action: Any, next_obs: Any, reward: float, info: Mapping[str, Any], rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        """Of one environment: a number per term, and the true reward."""
        step = (obs, action, next_obs, info)
        values = np.array([self._term(k, *step, rng) for k in range(len(self.terms))])
        return values, self.true_reward.on_step(float(reward), *step, values)

    def several(
        self, obs: Any, action: Any, next_obs: Any, reward: np.ndarray, infos: Sequence[Mapping[str, Any]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of environments on a leading axis: (env, term), and (env,)."""
        count = len(infos)
        steps = [(pick(obs, i), pick(action, i), pick(next_obs, i), infos[i]) for i in range(count)]
        values = np.empty((count, len(self.terms)))
        for k, term in enumerate(self.terms):
            if term.vectorised and count > 1:
                values[:, k] = self._vectorised(term, obs, action, next_obs, infos)
            else:
                values[:, k] = [self._term(k, *step, self.rng) for step in steps]
        if self.true_reward.kind == "env":
            return values, np.asarray(reward, float)
        pairs = zip(steps, reward, values, strict=True)
        return values, np.array([self.true_reward.on_step(float(r), *step, f) for step, r, f in pairs])

    def _term(self, k: int, obs: Any, action: Any, next_obs: Any, info: Any, rng: np.random.Generator) -> float:
        term = self.terms[k]
        if isinstance(term, CompiledTerm):
            # Terms of ours see flat observations and the policy's actions, terms of yours what the environment has.
            space = self.spaces.observation_space
            obs, next_obs = (spaces.flatten(space, x, lead=0) for x in (obs, next_obs))
            action = spaces.policy_action(self.spaces.action_space, np.asarray(action))
        try:
            return term.on_step(self.params[k], obs, action, next_obs, info, rng)
        except BiparsError:
            raise
        except Exception as error:
            raise self._failed(term, error, info) from error

    def _vectorised(
        self, term: RewardTerm, obs: Any, action: Any, next_obs: Any, infos: Sequence[Mapping[str, Any]]
    ) -> np.ndarray:
        try:
            values = np.asarray(term.fn(obs, action, next_obs, SeveralInfos(infos)))
        except Exception as error:
            raise self._failed(term, error, infos[0]) from error
        if values.shape != (len(infos),):
            raise TermError(
                f"{term.what} returned shape {values.shape} for {len(infos)} environments; return ({len(infos)},)"
            )
        return values

    def _failed(self, term: RewardTerm, error: Exception, info: Mapping[str, Any]) -> TermError:
        if isinstance(error, KeyError) and error.args[:1] and error.args[0] not in info:
            return TermError(f"{term.what} asked for the key {error}; info has the keys {list(info) or 'none'}")
        return TermError(f"{term.what} failed: {explain(error)}")


class SeveralInfos(Mapping[str, np.ndarray]):
    """`info` of several environments, on a leading axis, read when asked for."""

    def __init__(self, infos: Sequence[Mapping[str, Any]]) -> None:
        self._infos = infos

    def __getitem__(self, key: str) -> np.ndarray:
        return np.asarray([info[key] for info in self._infos])

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos[0])

    def __len__(self) -> int:
        return len(self._infos[0])


def source(term: RewardTerm) -> str:
    """Where a term's number comes from, in words for a table."""
    if isinstance(term, InfoTerm):
        return f"info[{term.key!r}]"
    if isinstance(term, CompiledTerm):
        return "built in"
    name = getattr(term.fn, "__qualname__", type(term.fn).__name__)
    return f"{getattr(term.fn, '__module__', '') or ''}.{name}".removeprefix("__main__.").removeprefix(".")
