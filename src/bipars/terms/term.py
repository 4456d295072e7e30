"""Reward terms f(s, a): what a person wrote down, before anyone knows what it is worth.

A term of your own is a name and a function of one transition, in NumPy or JAX:

    RewardTerm("upright", lambda obs, action, next_obs, info: 1.0 - abs(obs[2]))
    RewardTerm("torque", lambda obs, action, next_obs, info: -abs(action).mean(axis=-1), vectorised=True)
    RewardTerm.from_info("reward_ctrl")

Observations and actions arrive as the environment itself gives and takes them. `vectorised` functions get many
transitions at once, on a leading axis, and return one number for each.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bipars.envs.base import Environment
from bipars.envs.host_batch import HostBatch, info_number, info_numbers
from bipars.errors import TermError, UsageError
from bipars.nets.spaces import BoxActions
from bipars.terms.call import TRANSITION, call_on_batch, call_on_step, check_arguments, check_named
from bipars.terms.in_jax import Transition, call_in_jax, check_in_jax, first_step, info_in_jax

TermFunction = Callable[[Any, Any, Any, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class RewardTerm:
    """A named reward term; `fn(obs, action, next_obs, info)` returns one number per transition."""

    name: str
    fn: TermFunction
    vectorised: bool = False
    """`fn` takes many transitions at once, on a leading axis."""

    def __post_init__(self) -> None:
        check_named("reward term", self.name, self.fn, TRANSITION)
        check_arguments(self.what, self.fn)

    @property
    def what(self) -> str:
        return f"term '{self.name}'"

    @staticmethod
    def from_info(key: str, name: str | None = None) -> "RewardTerm":
        """A number that the environment already reports in `info`."""
        return InfoTerm(name or key, key=key)

    def init(self, key: PRNGKeyArray, env: Any) -> Any:
        """What the term draws once per run and keeps (nothing, for most)."""
        return ()

    def evaluate(self, params: Any, step: Transition, key: PRNGKeyArray) -> Float[Array, "time env"]:
        """The term on transitions of an environment written in JAX."""
        return call_in_jax(self.fn, self.vectorised, step)

    def on_host(self, params: Any, host_batch: HostBatch, key: PRNGKeyArray | None) -> np.ndarray:
        """(time, env): the term on what happened in environments that are stepped from Python."""
        return call_on_batch(self.what, self.fn, self.vectorised, host_batch)

    def on_step(
        self, params: Any, obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any], rng: np.random.Generator
    ) -> float:
        """The term on one transition of one environment."""
        return call_on_step(self.what, self.fn, self.vectorised, obs, action, next_obs, info)


@dataclass(frozen=True)
class InfoTerm(RewardTerm):
    """A key of `info`."""

    fn: TermFunction = lambda *_: 0.0
    key: str = ""

    def evaluate(self, params: Any, step: Transition, key: PRNGKeyArray) -> Float[Array, "time env"]:
        return info_in_jax(f"{self.what}: ", step, self.key)

    def on_host(self, params: Any, host_batch: HostBatch, key: PRNGKeyArray | None) -> np.ndarray:
        try:
            return info_numbers(host_batch, self.key)
        except TermError as error:
            raise TermError(f"{self.what}: {error}") from None

    def on_step(
        self, params: Any, obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any], rng: np.random.Generator
    ) -> float:
        return info_number(self.what, info, self.key)


@dataclass(frozen=True)
class CompiledTerm(RewardTerm):
    """A term that is computed in JAX on a whole batch, wherever the batch comes from."""

    fn: TermFunction = lambda *_: 0.0

    def on_host(self, params: Any, host_batch: HostBatch, key: PRNGKeyArray | None) -> np.ndarray:
        assert key is not None
        action = host_batch.action
        acted = np.clip(action, -1.0, 1.0) if isinstance(host_batch.env.actions, BoxActions) else action
        step = Transition(*(jnp.asarray(x) for x in (host_batch.flat_obs, acted, host_batch.flat_next_obs)))
        return np.asarray(self.evaluate(params, step, key))


def check_names(terms: Sequence[RewardTerm]) -> None:
    names = [term.name for term in terms]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two reward terms are called '{name}'; leave one of them out, or give each its own name")


def evaluate_in_jax(
    terms: Sequence[RewardTerm],
    params: Sequence[Any],
    forms: tuple[Transition, Transition],
    key: PRNGKeyArray,
) -> Float[Array, "time env term"]:
    """All terms on transitions of an environment written in JAX."""
    learners, native = forms
    if not terms:
        return jnp.zeros((*learners.obs.shape[:2], 0))
    keys = jax.random.split(key, len(terms))
    values = [
        term.evaluate(each, learners if isinstance(term, CompiledTerm) else native, k)
        for term, each, k in zip(terms, params, keys, strict=True)
    ]
    return jnp.stack(values, axis=-1)


def check_terms(terms: Sequence[RewardTerm], env: Environment) -> None:
    """Traces every term once, so that a wrong shape or signature is found before training."""
    key = jax.random.key(0)
    _, forms = jax.eval_shape(functools.partial(first_step, env))

    def evaluate(term: RewardTerm, forms: tuple[Transition, Transition]) -> Array:
        return evaluate_in_jax([term], [term.init(key, env)], forms, key)[..., 0]

    for term in terms:
        check_in_jax(term.what, functools.partial(evaluate, term), forms)


def evaluate_terms(
    terms: Sequence[RewardTerm], params: Sequence[Any], host_batch: HostBatch, key: PRNGKeyArray
) -> np.ndarray:
    """(time, env, term) of environments that are stepped from Python."""
    if not terms:
        return np.zeros((*host_batch.shape, 0))
    keys = jax.random.split(key, len(terms))
    return np.stack([t.on_host(p, host_batch, k) for t, p, k in zip(terms, params, keys, strict=True)], axis=-1)
