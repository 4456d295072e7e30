"""Reward terms that come with the library: the paper's, and keys of `info`. On the command line, `name:argument`."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bipars.envs.registry import find_family
from bipars.errors import UsageError, unknown
from bipars.nets.mlp import namespace
from bipars.nets.spaces import ActionSpace, BoxActions, DiscreteActions, HasSpaces, MultiDiscreteActions
from bipars.settings.importing import WithheldError, import_from_here
from bipars.terms.in_jax import Transition
from bipars.terms.term import CompiledTerm, InfoTerm, RewardTerm, TermFunction


class RandomTable(NamedTuple):
    low: Float[Array, " obs"]
    width: Float[Array, " obs"]
    table: Float[Array, "state ..."]


MAX_CELLS = 10_000_000


@dataclass(frozen=True)
class RandomTerm(CompiledTerm):
    """A fixed random function: a table over cells of state and action, drawn from U[-1, 1] once per seed."""

    name: str = "random"
    cells: int = 4
    """Cells per state dimension; a continuous action has two cells per dimension, one per sign."""

    def __post_init__(self) -> None:
        if self.cells < 1:
            raise ValueError(f"a table needs at least 1 cell per dimension, not {self.cells}")

    def init(self, key: PRNGKeyArray, env: Any) -> RandomTable:
        low, high = getattr(env, "observation_low", None), getattr(env, "observation_high", None)
        if low is None or high is None or not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise UsageError(f"term '{self.name}' needs an environment whose observations have finite bounds")
        shape = (self.cells**env.observation_size, *_action_cells(env.actions))
        cells = math.prod(shape)
        if cells > MAX_CELLS:
            raise UsageError(
                f"term '{self.name}' would need {cells} cells; at most {MAX_CELLS}. Use fewer per dimension"
            )
        low, high = jnp.asarray(low), jnp.asarray(high)
        table = jax.random.uniform(key, (cells,), minval=-1.0, maxval=1.0)
        return RandomTable(low, (high - low) / self.cells, table.reshape(shape))

    def evaluate(self, params: RandomTable, step: Transition, key: PRNGKeyArray) -> Float[Array, "time env"]:
        xp = namespace(step.obs)
        cells = xp.clip((step.obs - params.low) / params.width, 0, self.cells - 1).astype(xp.int32)
        index = xp.zeros(cells.shape[:-1], xp.int32)
        for dimension in range(cells.shape[-1]):
            index = index * self.cells + cells[..., dimension]
        action = step.action if step.action.dtype.kind in "iu" else (step.action > 0).astype(xp.int32)
        parts = action.reshape(*index.shape, params.table.ndim - 1)
        return params.table[(index, *(parts[..., i] for i in range(parts.shape[-1])))]

    def on_step(
        self, params: Any, obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any], rng: np.random.Generator
    ) -> float:
        step = Transition(*(np.asarray(x) for x in (obs, action, next_obs)))
        return float(self.evaluate(params, step, None))  # type: ignore[arg-type]


def _action_cells(actions: ActionSpace) -> tuple[int, ...]:
    match actions:
        case DiscreteActions():
            return (actions.n,)
        case MultiDiscreteActions():
            return actions.sizes
        case BoxActions():
            return (2,) * actions.size


@dataclass(frozen=True)
class NoiseTerm(CompiledTerm):
    """Independent U[-size, size] at every step: carries no information at all."""

    name: str = "noise"
    size: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.size) and self.size > 0):
            raise ValueError(f"size is {self.size}; it must be a positive number")

    def on_step(
        self, params: Any, obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any], rng: np.random.Generator
    ) -> float:
        return float(rng.uniform(-self.size, self.size))

    def evaluate(self, params: Any, step: Transition, key: PRNGKeyArray) -> Float[Array, "time env"]:
        return jax.random.uniform(key, step.obs.shape[:-1], minval=-self.size, maxval=self.size)


TORQUE_LIMIT = 0.25
"""Mean absolute torque above which the paper's term punishes, and RCPO's constraint."""


@dataclass(frozen=True)
class TorqueTerm(RewardTerm):
    """w (0.25 - mean |a|): the term of the paper's MuJoCo tasks. RCPO constrains mean |a| itself."""

    name: str = "torque"
    fn: TermFunction = field(default=lambda *_: 0.0, compare=False)
    vectorised: bool = True
    w: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.w) and self.w > 0):
            raise ValueError(f"w is {self.w}; it must be a positive number")
        object.__setattr__(self, "fn", lambda obs, action, next_obs, info: self.w * (TORQUE_LIMIT - effort(action)))

    def init(self, key: PRNGKeyArray, env: Any) -> Any:
        if not isinstance(env.actions, BoxActions):
            raise UsageError(f"term '{self.name}' measures torque; the actions of this environment are discrete")
        return ()

    def as_cost(self) -> RewardTerm:
        """-mean |a|, whose weight is RCPO's Lagrange multiplier."""
        return RewardTerm(self.name, negative_effort, vectorised=True)


def negative_effort(obs: Any, action: Any, next_obs: Any, info: Any) -> Any:
    return -effort(action)


def effort(action: Any) -> Any:
    """Mean absolute action over its dimensions, in NumPy or JAX."""
    return abs(action).mean(axis=-1)


@dataclass(frozen=True)
class CartPoleTerm(RewardTerm):
    """A term that knows what the four numbers of cart-pole mean."""

    def init(self, key: PRNGKeyArray, env: Any) -> Any:
        check_cart_pole(f"term '{self.name}'", env)
        return ()


def check_cart_pole(what: str, env: HasSpaces, how: str = "") -> None:
    """Refuses environments that cannot be a cart-pole."""
    if env.observation_size != 4 or env.actions not in (DiscreteActions(2), BoxActions(1)):
        raise UsageError(f"{what} is written for cart-pole; write one for this environment{how}")


def reduces_angle(obs: Any, action: Any) -> Any:
    """Cart-pole: the force points to the side the pole leans to, which makes the angle smaller."""
    force = action[0] if np.ndim(action) else 2 * action - 1
    return force * obs[2] > 0


def upright(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """The smaller the angle that the action leads to, the more."""
    return 0.1 - abs(next_obs[2])


def beneficial(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    return namespace(obs).where(reduces_angle(obs, action), 0.1, 0.0)


def harmful(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    return namespace(obs).where(reduces_angle(obs, action), -0.1, 0.0)


def half(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Helpful when the pole leans right, harmful when it leans left."""
    xp = namespace(obs)
    return xp.where(reduces_angle(obs, action), 0.1 * xp.sign(obs[2]), 0.0)


TERMS: dict[str, Callable[..., RewardTerm]] = {
    "upright": lambda: CartPoleTerm("upright", upright),
    "beneficial": lambda: CartPoleTerm("beneficial", beneficial),
    "harmful": lambda: CartPoleTerm("harmful", harmful),
    "half": lambda: CartPoleTerm("half", half),
    "random": lambda cells: RandomTerm(f"random:{cells}", cells=int(cells)) if cells else RandomTerm(),
    "noise": lambda size: NoiseTerm(f"noise:{size}", size=float(size)) if size else NoiseTerm(),
    "torque": lambda w: TorqueTerm(f"torque:{w}", w=float(w)) if w else TorqueTerm(),
    "info": lambda key: _info_term(key),
    "import": lambda path: _imported_term(path),
}


def _info_term(key: str) -> RewardTerm:
    if not key:
        raise ValueError("write the key after the colon, as in info:reward_ctrl")
    return InfoTerm(f"info:{key}", key=key)


def _imported_term(path: str) -> RewardTerm:
    """A function of (obs, action, next_obs, info) by its place in a module, as in import:my_terms.upright."""
    fn = import_function(path)
    return RewardTerm(f"import:{path}", fn, vectorised=getattr(fn, "vectorised", False))


def import_function(path: str) -> Any:
    """What stands at module.function."""
    module, _, function = path.rpartition(".")
    if not module:
        raise ValueError("write module.function after the colon, as in import:my_terms.upright")
    try:
        return getattr(import_from_here(module, path), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(str(error)) from error


def task_term(spec: str, env: str) -> str:
    """A term without an argument takes the environment's, as torque takes the paper's w of its task."""
    scale = find_family(env).term_scales.get(spec)
    return spec if scale is None else f"{spec}:{scale}"


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
    except WithheldError:
        raise
    except ValueError as error:
        raise UsageError(f"term '{spec}': cannot read '{argument}': {error}") from error
