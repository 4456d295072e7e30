"""Unrolled differentiation: theta' depends on phi through the last K steps as they were really taken, Adam included.

    m'     = b1 m + (1 - b1) g~(theta, phi)          the step's own gradient, remembered
    theta' = theta + rate * m'                       rate = alpha / ((1 - b1^t) (sqrt(v^) + eps)), held constant

Going backwards, newest step first, we carry two gradients: of J with respect to theta and to m. Each
step adds its pull-back to the gradient of phi. Only K steps are kept, nothing of size n x m.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from bipars.lower.base import After, LowerStep
from bipars.nets.optimiser import ADAM
from bipars.nets.policies import Theta
from bipars.nets.weights import WeightFunction
from bipars.objective import Objective, Samples, surrogate
from bipars.upper.base import unravel_like
from bipars.upper.mgl import pull_back


class Past(NamedTuple):
    """The last K steps as a ring.

    A place that is not filled yet holds the first policy and samples of zeros, with rate 0: it has no effect.
    """

    steps: LowerStep
    rate: Theta
    """d theta'/d m' of each."""
    newest: Int[Array, ""]


@dataclass(frozen=True)
class Unrolled:
    objective: Objective
    learning_rate: float
    max_grad_norm: float | None
    length: int
    """K."""
    epsilon: float = ADAM["eps"]
    needs_jacobian: bool = True

    def init(self, policy: Theta, weights: WeightFunction, minibatch: Samples) -> Past:
        zeros = optax.tree.zeros_like(needed(minibatch))
        steps = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.length, *x.shape)), LowerStep(policy, zeros))
        return Past(steps, optax.tree.zeros_like(steps.policy), jnp.zeros((), jnp.int32))

    def update(self, past: Past, step: LowerStep, after: After, weights: WeightFunction) -> tuple[WeightFunction, Past]:
        past = self.remember(past, step)

        def back(slopes: tuple[Theta, Theta], age: Int[Array, ""]) -> tuple[tuple[Theta, Theta], Float[Array, " phi"]]:
            theta, m = slopes
            place = (past.newest - age) % self.length
            then, rate = jax.tree.map(lambda ring: ring[place], (past.steps, past.rate))
            m = jax.tree.map(lambda m, rate, theta: m + rate * theta, m, rate, theta)
            gradient, hessian_product = jax.linearize(jax.grad(lambda theta: self.climbed(theta, then)), then.policy)
            g = optax.tree.scale((1 - ADAM["b1"]) * self.kept_by_clipping(gradient), m)
            theta = optax.tree.add(theta, hessian_product(g))
            return (theta, optax.tree.scale(ADAM["b1"], m)), pull_back(g, then, self.objective)

        v = after.gradient
        _, per_step = jax.lax.scan(back, (v, optax.tree.zeros_like(v)), jnp.arange(self.length))
        return unravel_like(weights, per_step.sum(axis=0)), past

    def climbed(self, theta: Theta, step: LowerStep) -> Float[Array, ""]:
        return surrogate(theta, step.samples, step.samples.modified_advantage, self.objective)

    def remember(self, past: Past, step: LowerStep) -> Past:
        place = (past.newest + 1) % self.length
        times = 1.0 if step.times is None else step.times
        kept = LowerStep(step.policy, needed(step.samples)), optax.tree.scale(times, self.rate(step.optimiser))
        steps, rate = jax.tree.map(lambda ring, new: ring.at[place].set(new), (past.steps, past.rate), kept)
        return Past(steps, rate, place)

    def rate(self, optimiser: optax.OptState) -> Theta:
        """d theta'/d m' of Adam's step, its second moment held constant; 0 where no gradient has ever arrived."""
        time, second = optax.tree.get(optimiser, "count"), optax.tree.get(optimiser, "nu")
        unbiased = self.learning_rate / (1 - ADAM["b1"] ** time)

        def one(nu: Array) -> Array:
            return jnp.where(nu > 0, unbiased / (jnp.sqrt(nu / (1 - ADAM["b2"] ** time)) + self.epsilon), 0.0)

        return jax.tree.map(one, second)

    def kept_by_clipping(self, gradient: Theta) -> Float[Array, ""]:
        """The factor by which the step's gradient was shortened, held constant."""
        norm = optax.tree.norm(gradient)
        return jnp.ones(()) if self.max_grad_norm is None else jnp.minimum(1.0, self.max_grad_norm / norm)


def needed(samples: Samples) -> Samples:
    """What a step must be remembered with."""
    return samples._replace(true_advantage=None, log_prob_gradients=None)
