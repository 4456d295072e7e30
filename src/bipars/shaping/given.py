"""Potentials that a person wrote down: PBRS, potential-based advice (PBA) and dynamic PBRS.

    Potential("upright", lambda obs: -abs(obs[2]))                      # method pbrs
    Potential("lean", lambda obs, action: 0.1 * obs[2] * action[0])     # method pba
    Potential("fade", lambda obs, step: -abs(obs[2]) * 0.5 ** (step / 1e5))     # method dynamic-pbrs

Observations and actions arrive as the environment itself gives and takes them; `step` counts the environment steps of
the run. `vectorised` functions get many of each at once, on a leading axis, and return one number for each.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bipars.envs import spaces
from bipars.envs.base import native_actions, native_observation
from bipars.envs.cartpole import ANGLE_LIMIT
from bipars.envs.registry import find_family
from bipars.errors import NonFiniteError, UsageError, unknown
from bipars.nets.mlp import namespace
from bipars.nets.spaces import BoxActions, HasSpaces
from bipars.rollout.batch import Batch, PotentialReward, Sampler
from bipars.settings.config import PPOConfig
from bipars.settings.importing import WithheldError
from bipars.shaping.potential_based import ShapingContext, next_actions, potential_difference
from bipars.terms.builtin import check_cart_pole, import_function, reduces_angle
from bipars.terms.call import UserFunction, check_named, explain, flatten_lead

Second = Literal["nothing", "action", "step"]
"""What a potential is given besides the observation."""


@dataclass(frozen=True)
class Potential:
    """A named potential; `fn(obs)`, `fn(obs, action)` or `fn(obs, step)`, as the method has it, returns one number."""

    name: str
    fn: Callable[..., Any]
    vectorised: bool = False
    """`fn` takes many states at once, on a leading axis."""

    def __post_init__(self) -> None:
        check_named("potential", self.name, self.fn, "the observation")

    def check_spaces(self, env: HasSpaces) -> None:
        """Raises where it cannot be used with such an environment."""


@dataclass(frozen=True)
class CartPolePotential(Potential):
    """A potential that knows what the four numbers of cart-pole mean."""

    def check_spaces(self, env: HasSpaces) -> None:
        how = " and give it as --potential import:module.function, or potential=bipars.Potential(...) in Python"
        check_cart_pole(f"potential '{self.name}'", env, how)


SWING = 4.0
"""Speed by which a pole swings out, per second: its angle in the near future is angle + velocity / SWING."""
TRIED = 5
"""How often a first observation is shown to a potential: one that takes many at once must answer for each."""
HALF_LIFE = 200_000
"""Steps after which the fading potential counts half."""


def upright(obs: Any) -> Any:
    """0.1 where the pole stands still, 0 where it falls or is about to.

    Ten times as much ruins the learning: until the critic knows it, a potential is noise in the advantages.
    """
    heading = (obs[2] + obs[3] / SWING) / ANGLE_LIMIT
    return 0.1 - 0.1 * namespace(obs).minimum(heading**2, 1.0)


def push(obs: Any, action: Any) -> Any:
    """0.1 for a push to the side the pole leans to."""
    return namespace(obs).where(reduces_angle(obs, action), 0.1, 0.0)


def fading(obs: Any, step: Any) -> Any:
    return upright(obs) * 0.5 ** (step / HALF_LIFE)


POTENTIALS: dict[str, Callable[..., Any]] = {"upright": upright, "push": push, "fading": fading}


def make_potential(spec: str) -> Potential:
    """A built-in potential by its name, or a function of yours by its place, as in import:my_terms.height."""
    kind, colon, path = spec.partition(":")
    if kind == "import" and colon:
        try:
            fn = import_function(path)
        except WithheldError:
            raise
        except ValueError as error:
            raise UsageError(f"potential '{spec}': cannot read '{path}': {error}") from error
        return Potential(spec, fn, vectorised=getattr(fn, "vectorised", False))
    if spec not in POTENTIALS:
        raise unknown("potential", spec, (*POTENTIALS, "import:MODULE.FUNCTION"))
    return CartPolePotential(spec, POTENTIALS[spec])


def usual_potential(env: str, second: Second) -> str | None:
    """The environment's own potential that takes this."""
    return find_family(env).potentials.get(second)


@dataclass(frozen=True)
class GivenPotential:
    """Shaping by a potential that does not learn."""

    shapes: ClassVar[bool] = True
    method: str
    potential: Potential
    second: Second
    ppo: PPOConfig
    correct: bool = False
    """Add Phi(s, a) to the advantage again: Wiewiora's rule that actions are chosen by Q~ + Phi."""

    def __post_init__(self) -> None:
        wanted = ("obs",) if self.second == "nothing" else ("obs", self.second)
        try:
            signature = inspect.signature(self.potential.fn)
        except ValueError:
            return  # a built-in function does not tell its arguments
        try:
            signature.bind(*wanted)
            takes = list(signature.parameters)[:2]
            if self.second != "nothing" and takes[1:] in (["action"], ["step"]) and takes[1] != self.second:
                raise TypeError(f"its second argument is called '{takes[1]}'")
        except TypeError as error:
            raise UsageError(
                f"{self.what} cannot be called with ({', '.join(wanted)}), as method '{self.method}' does: {error}. "
                "pbrs passes (obs), pba (obs, action), dynamic-pbrs (obs, step)"
            ) from error

    @property
    def what(self) -> str:
        return f"potential '{self.potential.name}'"

    def init(self, key: PRNGKeyArray, sampler: Sampler) -> tuple[()]:
        return ()

    def shape(
        self, state: tuple[()], batch: Batch, context: ShapingContext, key: PRNGKeyArray
    ) -> tuple[tuple[()], PotentialReward]:
        time, envs = batch.done.shape
        rows = context.round * self.ppo.update_period + envs * np.arange(time + 1)
        steps = jnp.broadcast_to(jnp.asarray(rows)[:, None], (time + 1, envs))
        next_action = next_actions(context.policy, batch, key) if self.second == "action" else batch.action
        if context.sampler.compiled:
            now = self.in_jax(context.sampler, batch.obs, batch.action, steps[:-1])
            following = self.in_jax(context.sampler, batch.next_obs, next_action, steps[1:])
        else:
            now, following = self._on_host(context.sampler, batch, np.asarray(next_action), np.asarray(steps))
        shaping = potential_difference(now, following, batch.terminated, self.ppo.gamma)
        return (), PotentialReward(shaping, now if self.correct else None, {"potential": now.mean()})

    def in_jax(self, env: HasSpaces, obs: Array, action: Array, steps: Array) -> Float[Array, "time env"]:
        arguments = self._arguments(native_observation(env, obs), native_actions(env, action), steps)

        def one(*given: Array) -> Array:
            return jnp.asarray(self.potential.fn(*given))

        if self.potential.vectorised:
            values = one(*map(flatten_lead, arguments))
            if values.shape != (steps.size,):
                raise UsageError(f"{self.what} returned shape {values.shape}; return ({steps.size},)")
        else:
            values = jax.vmap(jax.vmap(one))(*arguments)
            if values.shape != steps.shape:
                raise UsageError(f"{self.what} returned shape {values.shape[2:]}; return a single number")
        return values.reshape(steps.shape).astype(float)

    def _on_host(
        self, sampler: Sampler, batch: Batch, next_action: np.ndarray, steps: np.ndarray
    ) -> tuple[Float[Array, "time env"], Float[Array, "time env"]]:
        """The state reached is the next row's, so Phi is asked again only where the episode or the batch ended."""
        obs, next_obs, action, done = map(np.asarray, (batch.obs, batch.next_obs, batch.action, batch.done))
        ended = done.copy()
        ended[-1] = True
        first = int(steps[0, 0])
        now = self.on_host(sampler, obs, action, steps[:-1], first)
        following = np.roll(now, -1, axis=0)
        at = np.nonzero(ended)
        last = self.on_host(sampler, next_obs[at][None], next_action[at][None], steps[1:][at][None], first)
        following[at] = last[0]
        return jnp.asarray(now, jnp.float32), jnp.asarray(following, jnp.float32)

    def on_host(
        self, sampler: Any, obs: np.ndarray, action: np.ndarray, steps: np.ndarray, first_step: int
    ) -> np.ndarray:
        """Phi on two leading axes, of an environment that is stepped from Python."""
        acted = np.clip(action, -1.0, 1.0) if isinstance(sampler.actions, BoxActions) else action
        native = spaces.unflatten(sampler.observation_space, obs), spaces.native_action(sampler.action_space, acted)
        arguments = tuple(map(flatten_lead, self._arguments(*native, steps)))

        def describe(index: int) -> str:
            return f"step {first_step + index}"

        function = UserFunction(self.what, self.potential.fn, self.potential.vectorised)
        values = function.on_host(arguments, steps.size, describe)
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise NonFiniteError(f"{self.what} is {values[bad[0]]} at {describe(bad[0])}. Mend the function")
        return values.reshape(steps.shape)

    def _arguments(self, obs: Any, action: Any, steps: Any) -> Sequence[Any]:
        return {"nothing": (obs,), "action": (obs, action), "step": (obs, steps)}[self.second]

    def check_compiled(self, env: HasSpaces, obs: Float[Array, "1 env obs"], action: Array) -> None:
        """Tries it on first observations, so that what does not work is found before training."""
        self.potential.check_spaces(env)
        obs, action = (jnp.repeat(x, TRIED, axis=1) for x in (obs, action))
        try:
            values = np.asarray(self.in_jax(env, obs, action, jnp.zeros(obs.shape[:-1], jnp.int32)))
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"{self.what} failed on a first observation: {explain(error)}") from error
        if not np.isfinite(values).all():
            raise UsageError(f"{self.what} is {values[0, 0]} on a first observation; expected a finite number")

    def check_host(self, env: Any, obs: np.ndarray, action: np.ndarray) -> None:
        self.potential.check_spaces(env)
        obs, action = np.repeat(obs, TRIED, axis=0)[None], np.repeat(action, TRIED, axis=0)[None]
        self.on_host(env, obs, action, np.zeros(obs.shape[:2], int), 0)
