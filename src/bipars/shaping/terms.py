"""Reward terms f(s, a): what a person wrote down, before anyone knows what it is worth.

A term of your own is a name and a function of one transition:

    RewardTerm("upright", lambda obs, action, next_obs, info: 1.0 - abs(obs[2]))
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bipars.envs.base import BoxActions, DiscreteActions, Environment
from bipars.errors import UsageError, unknown

TermFunction = Callable[[Array, Array, Array, dict[str, Any]], Any]


class Transition(NamedTuple):
    """One step as a term sees it; any number of leading axes."""

    obs: Float[Array, "... obs"]
    action: Array
    next_obs: Float[Array, "... obs"]


@dataclass(frozen=True)
class RewardTerm:
    """A named reward term; `fn(obs, action, next_obs, info)` returns one number per transition."""

    name: str
    fn: TermFunction

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError("a reward term needs a name; got an empty string")
        if not callable(self.fn):
            raise UsageError(f"term '{self.name}': fn is {self.fn!r}; expected a function of 4 arguments")

    def init(self, key: PRNGKeyArray, env: Environment) -> Any:
        """What the term draws once per run and keeps (nothing, for most)."""
        return ()

    def evaluate(self, params: Any, step: Transition, key: PRNGKeyArray) -> Float[Array, "time env"]:
        """The term on a batch of transitions."""

        def one(obs: Array, action: Array, next_obs: Array) -> Array:
            return jnp.asarray(self.fn(obs, action, next_obs, {}))

        return jax.vmap(jax.vmap(one))(*step).astype(step.obs.dtype)


class RandomTable(NamedTuple):
    low: Float[Array, " obs"]
    width: Float[Array, " obs"]
    table: Float[Array, " cells"]


@dataclass(frozen=True)
class RandomTerm(RewardTerm):
    """A fixed random function: a table over cells of state and action, drawn from U[-1, 1] once per seed."""

    name: str = "random"
    fn: TermFunction = lambda *_: 0.0
    cells: int = 4
    """Cells per state dimension; a continuous action has two cells per dimension, one per sign."""

    def __post_init__(self) -> None:
        if self.cells < 1:
            raise ValueError(f"a table needs at least 1 cell per dimension, not {self.cells}")

    def init(self, key: PRNGKeyArray, env: Environment) -> RandomTable:
        try:
            low, high = jnp.asarray(env.observation_low), jnp.asarray(env.observation_high)  # type: ignore[attr-defined]
        except AttributeError:
            raise UsageError(
                "term 'random' needs an environment that declares observation_low and observation_high"
            ) from None
        action_cells = env.actions.n if isinstance(env.actions, DiscreteActions) else 2**env.actions.size
        shape = (self.cells**env.observation_size * action_cells,)
        return RandomTable(low, (high - low) / self.cells, jax.random.uniform(key, shape, minval=-1.0, maxval=1.0))

    def evaluate(self, params: RandomTable, step: Transition, key: PRNGKeyArray) -> Float[Array, "time env"]:
        cells = jnp.clip((step.obs - params.low) / params.width, 0, self.cells - 1).astype(jnp.int32)
        index = jnp.zeros(cells.shape[:-1], jnp.int32)
        for dimension in range(cells.shape[-1]):
            index = index * self.cells + cells[..., dimension]
        if jnp.issubdtype(step.action.dtype, jnp.integer):
            action_cells = params.table.size // self.cells ** cells.shape[-1]
            index = index * action_cells + step.action
        else:
            for dimension in range(step.action.shape[-1]):
                index = index * 2 + (step.action[..., dimension] > 0)
        return params.table[index]


@dataclass(frozen=True)
class NoiseTerm(RewardTerm):
    """Independent U[-1, 1] at every step: carries no information at all."""

    name: str = "noise"
    fn: TermFunction = lambda *_: 0.0

    def evaluate(self, params: Any, step: Transition, key: PRNGKeyArray) -> Float[Array, "time env"]:
        return jax.random.uniform(key, step.obs.shape[:-1], minval=-1.0, maxval=1.0)


def reduces_angle(obs: Array, action: Array) -> Array:
    """Cart-pole: the force points to the side the pole leans to, which makes the angle smaller."""
    force = action[0] if action.ndim else 2 * action - 1
    return force * obs[2] > 0


def beneficial(obs: Array, action: Array, next_obs: Array, info: dict[str, Any]) -> Array:
    return jnp.where(reduces_angle(obs, action), 0.1, 0.0)


def harmful(obs: Array, action: Array, next_obs: Array, info: dict[str, Any]) -> Array:
    return jnp.where(reduces_angle(obs, action), -0.1, 0.0)


def half(obs: Array, action: Array, next_obs: Array, info: dict[str, Any]) -> Array:
    """Helpful when the pole leans right, harmful when it leans left."""
    return jnp.where(reduces_angle(obs, action), 0.1 * jnp.sign(obs[2]), 0.0)


TERMS: dict[str, Callable[..., RewardTerm]] = {
    "beneficial": lambda: RewardTerm("beneficial", beneficial),
    "harmful": lambda: RewardTerm("harmful", harmful),
    "half": lambda: RewardTerm("half", half),
    "random": lambda cells: RandomTerm(f"random:{cells}", cells=int(cells)) if cells else RandomTerm(),
    "noise": lambda: NoiseTerm(),
}


def make_term(spec: str) -> RewardTerm:
    """A built-in term from its name, with an argument after a colon where it takes one: `harmful`, `random:8`."""
    name, colon, argument = spec.partition(":")
    if name not in TERMS:
        raise unknown("term", name, TERMS)
    takes_argument = bool(inspect.signature(TERMS[name]).parameters)
    if colon and not takes_argument:
        raise UsageError(f"term '{name}' takes no argument; got '{spec}'. Write '{name}'")
    try:
        return TERMS[name](argument) if takes_argument else TERMS[name]()
    except ValueError as error:
        raise UsageError(f"term '{spec}': cannot read '{argument}': {error}") from error


def check_terms(terms: Sequence[RewardTerm], env: Environment) -> None:
    """Traces every term once, so that a wrong shape or signature is found before training."""
    names = [term.name for term in terms]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two reward terms are called '{name}'; give each its own name")
    obs = jax.ShapeDtypeStruct((1, 2, env.observation_size), jnp.float32)
    action = (
        jax.ShapeDtypeStruct((1, 2, env.actions.size), jnp.float32)
        if isinstance(env.actions, BoxActions)
        else jax.ShapeDtypeStruct((1, 2), jnp.int32)
    )

    def evaluate(term: RewardTerm, step: Transition) -> Array:
        key = jax.random.key(0)
        return term.evaluate(term.init(key, env), step, key)

    for term in terms:
        try:
            value = jax.eval_shape(functools.partial(evaluate, term), Transition(obs, action, obs))  # type: ignore[arg-type]
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"term '{term.name}' failed on one transition: {error!r}") from error
        if value.shape != (1, 2):
            raise UsageError(
                f"term '{term.name}' returned shape {value.shape[2:]} for one transition; return a single number"
            )
