"""The noise penalty: a term that only makes theta's move longer, or noisier, is no gain.

An estimator climbs <v, d>, the product of the true gradient with the move d of theta that it differentiates. That has
no scale. With v - kappa (<v, d> / |d|^2) d in place of v it climbs <v, d> / |d|^kappa: at kappa 1, the alignment of v
with the *direction* of the move.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from bipars.lower.base import After, LowerStep
from bipars.nets.policies import Theta
from bipars.nets.weights import WeightFunction

TINY = 1e-30
"""Below the square of any length that means something."""


def penalise_noise(v: Theta, move: Theta, penalty: float) -> Theta:
    """v - kappa d, with kappa = penalty * <v, d> / |d|^2. At penalty 1 it stands at right angles to d."""
    kappa = penalty * optax.tree.vdot(v, move) / jnp.maximum(optax.tree.vdot(move, move), TINY)
    return jax.tree.map(lambda a, b: a - kappa * b, v, move)


class PenaltyState(NamedTuple):
    estimator: Any
    move: Any
    """The gradients of the steps so far, summed and forgotten as the estimator forgets them."""


@dataclass(frozen=True)
class NoisePenalty:
    """An estimator that is given what the penalty leaves of v."""

    estimator: Any
    penalty: float
    memory: float = 0.0
    """The share of the move that is kept from one step to the next: what of the past the estimator differentiates."""

    @property
    def needs_jacobian(self) -> bool:
        return self.estimator.needs_jacobian

    def init(self, policy: Theta, weights: WeightFunction, minibatch: Any) -> PenaltyState:
        move = jax.tree.map(jnp.zeros_like, policy) if self.memory else ()
        return PenaltyState(self.estimator.init(policy, weights, minibatch), move)

    def update(
        self, state: PenaltyState, step: LowerStep, after: After, weights: WeightFunction
    ) -> tuple[WeightFunction, PenaltyState]:
        move = self.move(state, step)
        gradient, inner = self.estimator.update(state.estimator, step, self.penalised(after, move), weights)
        return gradient, PenaltyState(inner, move if self.memory else ())

    def advantage_cotangent(self, step: LowerStep, after: After) -> Float[Array, " sample"]:
        """Where the estimator has one: it then remembers nothing."""
        return self.estimator.advantage_cotangent(step, self.penalised(after, step.gradient))

    def move(self, state: PenaltyState, step: LowerStep) -> Theta:
        gradient = step.gradient
        if not self.memory:
            return gradient
        return jax.tree.map(lambda old, new: self.memory * old + new, state.move, gradient)

    def penalised(self, after: After, move: Theta) -> After:
        return after._replace(gradient=penalise_noise(after.gradient, move, self.penalty))
