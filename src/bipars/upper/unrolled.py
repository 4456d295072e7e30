"""Unrolled differentiation: theta' depends on phi through the last K steps as they were really taken, Adam included.

    m'     = b1 m + (1 - b1) g~(theta, phi)          the step's own gradient, remembered
    theta' = theta + rate * m'                       rate = alpha / ((1 - b1^t) (sqrt(v^) + eps)), held constant

Backwards through these lines, newest step first, two slopes are carried: of J with respect to theta and to m. Each step
adds its pull-back to the gradient of phi. Only K steps are kept, nothing of size n x m.

The noise penalty measures the whole move over these K steps: that is what depends on phi here. Where terms must earn
the policy's trust, it is the move that full trust would have made of the same steps.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from bipars.lower.ppo import ADAM, Samples
from bipars.nets.weights import WeightFunction
from bipars.upper.base import (
    LowerStep,
    Theta,
    modified_gradient,
    penalise_noise,
    true_gradient,
    unravel_like,
)
from bipars.upper.mgl import pull_back


class Past(NamedTuple):
    """The last K steps as a ring.

    A place that is not filled yet holds the first policy and samples of zeros, with rate 0: it has no effect.
    """

    steps: LowerStep
    rate: Theta
    """d theta'/d m' of each."""
    missed: Theta | None
    """What full trust would have added to m' in each, where the policy need not have had it."""
    newest: Int[Array, ""]


@dataclass(frozen=True)
class Unrolled:
    clip: float
    learning_rate: float
    max_grad_norm: float | None
    length: int
    """K."""
    noise_penalty: float = 0.0
    earned_trust: bool = False
    """Whether steps may have been taken with less than full trust."""
    needs_credit: bool = True
    restarts: bool = False

    def init(self, policy: Theta, weights: WeightFunction, minibatch: Samples) -> Past:
        nothing = optax.tree.zeros_like(needed(minibatch))
        steps = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.length, *x.shape)), LowerStep(policy, nothing))
        zeros = optax.tree.zeros_like(steps.policy)
        return Past(steps, zeros, zeros if self.earned_trust else None, jnp.zeros((), jnp.int32))

    def update(
        self, h: Past, step: LowerStep, policy: Theta, weights: WeightFunction, samples: Samples
    ) -> tuple[WeightFunction, Past]:
        h = self.remember(h, step)
        v = true_gradient(policy, samples, self.clip)
        if self.noise_penalty:
            oldest = jax.tree.map(lambda ring: ring[(h.newest + 1) % self.length], h.steps.policy)
            move = optax.tree.add(optax.tree.sub(policy, oldest), self.missed_move(h))
            v = penalise_noise(v, move, self.noise_penalty)

        def back(slopes: tuple[Theta, Theta], age: Int[Array, ""]) -> tuple[tuple[Theta, Theta], Float[Array, " phi"]]:
            theta, m = slopes
            past, rate = jax.tree.map(lambda ring: ring[(h.newest - age) % self.length], (h.steps, h.rate))
            m = jax.tree.map(lambda m, rate, theta: m + rate * theta, m, rate, theta)
            gradient, hessian_product = jax.linearize(
                lambda theta: modified_gradient(past._replace(policy=theta), self.clip), past.policy
            )
            g = optax.tree.scale((1 - ADAM["b1"]) * self.kept_by_clipping(gradient), m)
            theta = optax.tree.add(theta, hessian_product(g))
            return (theta, optax.tree.scale(ADAM["b1"], m)), pull_back(g, past, self.clip)

        _, per_step = jax.lax.scan(back, (v, optax.tree.zeros_like(v)), jnp.arange(self.length))
        return unravel_like(weights, per_step.sum(axis=0)), h

    def remember(self, h: Past, step: LowerStep) -> Past:
        place = (h.newest + 1) % self.length
        missed = None
        if self.earned_trust:
            assert step.taken is not None
            missed = optax.tree.sub(self.shortened(modified_gradient(step, self.clip)), self.shortened(step.taken))
        kept = LowerStep(step.policy, needed(step.samples)), self.rate(step.optimiser), missed
        steps, rate, missed = jax.tree.map(lambda ring, new: ring.at[place].set(new), (h.steps, h.rate, h.missed), kept)
        return Past(steps, rate, missed, place)

    def missed_move(self, h: Past) -> Theta:
        """What full trust would have added to the move over these K steps, by way of Adam's first moment."""
        nothing = jax.tree.map(lambda ring: jnp.zeros_like(ring[0]), h.rate)
        if h.missed is None:
            return nothing

        def onward(carry: tuple[Theta, Theta], age: Int[Array, ""]) -> tuple[tuple[Theta, Theta], None]:
            m, move = carry
            rate, missed = jax.tree.map(lambda ring: ring[(h.newest - age) % self.length], (h.rate, h.missed))
            m = jax.tree.map(lambda m, g: ADAM["b1"] * m + (1 - ADAM["b1"]) * g, m, missed)
            return (m, jax.tree.map(lambda move, rate, m: move + rate * m, move, rate, m)), None

        return jax.lax.scan(onward, (nothing, nothing), jnp.arange(self.length)[::-1])[0][1]

    def rate(self, optimiser: optax.OptState) -> Theta:
        """d theta'/d m' of Adam's step, its second moment held constant; 0 where no gradient has ever arrived."""
        time, second = optax.tree.get(optimiser, "count"), optax.tree.get(optimiser, "nu")
        unbiased = self.learning_rate / (1 - ADAM["b1"] ** time)

        def one(nu: Array) -> Array:
            return jnp.where(nu > 0, unbiased / (jnp.sqrt(nu / (1 - ADAM["b2"] ** time)) + ADAM["eps"]), 0.0)

        return jax.tree.map(one, second)

    def shortened(self, gradient: Theta) -> Theta:
        return optax.tree.scale(self.kept_by_clipping(gradient), gradient)

    def kept_by_clipping(self, gradient: Theta) -> Float[Array, ""]:
        """The factor by which the step's gradient was shortened, held constant."""
        norm = optax.tree.norm(gradient)
        return jnp.ones(()) if self.max_grad_norm is None else jnp.minimum(1.0, self.max_grad_norm / norm)


def needed(samples: Samples) -> Samples:
    """What a step must be remembered with."""
    return samples._replace(true_advantage=None, value_targets=(), scores=None)
