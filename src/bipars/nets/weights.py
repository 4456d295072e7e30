"""Weight functions z_phi: how much each reward term counts, and where.

All return one weight per term on the last axis.
"""

import math
from dataclasses import replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bipars.nets.mlp import MLP, encode_action, make_mlp, module, namespace, one_hot, static, uniform
from bipars.nets.spaces import ActionSpace, DiscreteActions, HasSpaces
from bipars.settings.resolved import ResolvedWeights


class WeightFunction(Protocol):
    """A pytree of parameters phi that maps a state and an action to one weight per term."""

    def __call__(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "... term"]: ...

    def inputs(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "... inputs"]:
        """What its network is given, where it has one."""
        ...

    def at_state(self, obs: Float[Array, "... obs"]) -> Float[Array, "... output"]:
        """z before an action is chosen: what explicit mapping shows the policy."""
        ...


class OfStates:
    """A weight function that is given the state alone."""

    def inputs(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "... obs"]:
        return obs


@module
class Range:
    """Where weights start and which interval they must stay in."""

    initial: float = static()
    low: float | None = static()
    high: float | None = static()
    unit: Float[Array, " term"] | None = None
    """The weight at which a term is as large as the reward: smaller weights move by steps of the same size, larger ones
    by steps of the same proportion, up to where they started. None: all by steps of the same size."""

    def __call__(self, output: Float[Array, "..."]) -> Float[Array, "..."]:
        raw = output + self.initial if self.unit is None else self._in_units(output)
        if self.low is None and self.high is None:
            return raw
        clipped = namespace(raw).clip(raw, self.low, self.high)
        # Straight through: weights start on the bound, where the derivative of a hard clip would be zero.
        return clipped if isinstance(raw, np.ndarray) else raw + jax.lax.stop_gradient(clipped - raw)

    def _in_units(self, output: Float[Array, "..."]) -> Float[Array, "..."]:
        xp = namespace(output)
        unit: Any = self.unit if xp is np else jax.lax.stop_gradient(self.unit)  # measured, not learned
        top = xp.maximum(abs(self.initial), unit)
        end = 1 + xp.log(top / unit)
        x = output + xp.where(abs(self.initial) > unit, math.copysign(1.0, self.initial) * end, self.initial / unit)
        size = xp.abs(x)
        in_proportion = unit * xp.exp(xp.where(size < end, size, end) - 1)
        beyond = xp.sign(x) * xp.where(size < end, in_proportion, top * (1 + size - end))
        return xp.where(size < 1, unit * x, beyond)


@module
class Simplex:
    """Weights that are positive and sum to one over the terms, for every action by itself; equal at the start."""

    num_terms: int = static()

    def __call__(self, output: Float[Array, "..."]) -> Float[Array, "..."]:
        xp = namespace(output)
        each = output.reshape(*output.shape[:-1], -1, self.num_terms)
        powers = xp.exp(each - each.max(axis=-1, keepdims=True))
        return (powers / powers.sum(axis=-1, keepdims=True)).reshape(output.shape)


def make_range(config: ResolvedWeights, num_terms: int) -> Range | Simplex:
    if config.simplex:
        return Simplex(num_terms)
    return Range(config.initial, config.low, config.high, jnp.ones(num_terms) if config.in_units else None)


def with_unit(weights: WeightFunction, unit: Float[Array, " term"]) -> WeightFunction:
    """The weight function with the unit that was measured, if it asks for one."""
    span = weights.range  # type: ignore[attr-defined]
    if isinstance(span, Simplex) or span.unit is None:
        return weights
    return replace(weights, range=replace(span, unit=unit))  # type: ignore[type-var]


@module
class ScalarWeights(OfStates):
    """One number per term, the same everywhere."""

    value: Float[Array, " term"]
    range: Range | Simplex

    def __call__(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "... term"]:
        return self.at_state(obs)

    def at_state(self, obs: Float[Array, "... obs"]) -> Float[Array, "... term"]:
        return namespace(obs).broadcast_to(self.range(self.value), (*obs.shape[:-1], self.value.shape[-1]))


@module
class StateWeights(OfStates):
    """z(s)."""

    net: MLP
    range: Range | Simplex

    def __call__(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "... term"]:
        return self.at_state(obs)

    def at_state(self, obs: Float[Array, "... obs"]) -> Float[Array, "... term"]:
        return self.range(self.net(obs))


@module
class StateActionWeights:
    """z(s, a), the action an input of the network (one-hot where it is discrete)."""

    net: MLP
    range: Range | Simplex
    actions: ActionSpace = static()

    def __call__(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "... term"]:
        return self.range(self.net(self.inputs(obs, action)))

    def at_state(self, obs: Float[Array, "... obs"]) -> Float[Array, "... term"]:
        raise NotImplementedError("z(s, a) is not known before an action is chosen; `resolve_form` refuses it")

    def inputs(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "... obs_and_action"]:
        return namespace(obs).concatenate([obs, encode_action(self.actions, action, obs.dtype)], axis=-1)


@module
class PerActionWeights(OfStates):
    """z(s, a) for discrete actions, one output per action and term."""

    net: MLP
    range: Range | Simplex
    num_actions: int = static()

    def __call__(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "... term"]:
        every = self.at_state(obs).reshape(*obs.shape[:-1], self.num_actions, -1)
        chosen = one_hot(action, self.num_actions, obs.dtype)
        return namespace(obs).einsum("...a,...ak->...k", chosen, every)

    def at_state(self, obs: Float[Array, "... obs"]) -> Float[Array, "... action_term"]:
        return self.range(self.net(obs))


@module
class DeviatingWeights:
    """One number per term, and what is added to it in some states and actions."""

    base: Float[Array, " term"]
    deviation: WeightFunction
    unit: Float[Array, " term"]
    """The weight at which a term counts as much as the true reward; deviations are in units of it."""
    range: Range

    def __call__(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "... term"]:
        return self.range(self.base + self.unit * self.deviation(obs, action))

    def at_state(self, obs: Float[Array, "... obs"]) -> Float[Array, "... output"]:
        raise NotImplementedError("explicit mapping has weights of its own")

    def inputs(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "... inputs"]:
        return self.deviation.inputs(obs, action)


def no_weights(num_terms: int) -> WeightFunction:
    return ScalarWeights(jnp.zeros(num_terms), Range(0.0, None, None))


def make_weights(key: PRNGKeyArray, config: ResolvedWeights, env: HasSpaces, num_terms: int) -> WeightFunction:
    """The weight function of `config.form`, its weights near `config.initial` everywhere (appendix D.1)."""
    if config.by_evidence:
        around_zero = replace(config, by_evidence=False, initial=0.0, low=None, high=None)
        deviation = make_weights(key, around_zero, env, num_terms)
        base = jnp.full(num_terms, config.initial, float)
        return DeviatingWeights(base, deviation, jnp.ones(num_terms), Range(0.0, config.low, config.high))
    span = make_range(config, num_terms)
    actions, size = env.actions, env.observation_size

    def net(inputs: int, outputs: int) -> MLP:
        return make_mlp(key, (inputs, *config.hidden, outputs), "tanh", uniform(0.125), uniform(1e-3))

    match config.form:
        case "scalar":
            return ScalarWeights(jnp.zeros(num_terms), span)
        case "state":
            return StateWeights(net(size, num_terms), span)
        case "state-action":
            return StateActionWeights(net(size + actions.width, num_terms), span, actions)
        case "per-action":
            assert isinstance(actions, DiscreteActions)  # `resolve_form` has refused all others
            return PerActionWeights(net(size, actions.n * num_terms), span, actions.n)
