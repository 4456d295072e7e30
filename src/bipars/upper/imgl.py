"""Incremental meta-gradient learning (section 4.3): theta depends on phi through every step so far.

    h  <-  (I + alpha H) h + alpha M,      H = Hessian of the modified objective, M = sum_i grad ratio_i (x) dA~_i/dphi

with h = d theta/d phi, n x m. Three readings of H (appendix A.1): exact, outer product of gradients, or zero.

Ours: h may forget, by a factor per step. The noise of old minibatches else pushes phi the same way for good.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bipars.lower.ppo import Samples, surrogate, unclipped
from bipars.nets.mlp import count_parameters
from bipars.nets.weights import WeightFunction
from bipars.upper.base import (
    LowerStep,
    Theta,
    hessian_product,
    modified_gradient,
    penalise_noise,
    ravel,
    true_gradient,
    unravel_like,
)

SecondOrder = Literal["exact", "opg", "none"]


def log_prob_gradients(policy: Theta, samples: Samples) -> tuple[Float[Array, " sample"], Float[Array, "sample theta"]]:
    """Each sample's log-probability and its gradient g."""
    log_prob, gradients = jax.vmap(jax.value_and_grad(lambda theta, s, a: theta.log_prob(s, a)), (None, 0, 0))(
        policy, samples.obs, samples.action
    )
    flat = [leaf.reshape(log_prob.size, -1) for leaf in jax.tree.leaves(gradients)]
    return log_prob, jnp.concatenate(flat, axis=-1)


def exact_hessian_product(
    policy: Theta, samples: Samples, clip: float, h: Float[Array, "theta phi"]
) -> Float[Array, "theta phi"]:
    """H h with H the Hessian of the batch's objective: no per-sample Hessian is ever built."""
    return hessian_product(lambda theta: surrogate(theta, samples, samples.modified_advantage, clip), policy, h)


def first_and_outer_product(
    g: Float[Array, "sample theta"],
    first: Float[Array, "sample phi"],
    factor: Float[Array, " sample"],
    h: Float[Array, "theta phi"],
) -> Float[Array, "theta phi"]:
    """sum_i g_i (x) first_i - (sum_i factor_i g_i g_i^T) h, without the n x n matrix where that is the larger way."""
    samples, n = g.shape
    phi = h.shape[1]
    if n * (samples + phi) < samples * phi:
        return g.T @ first - (g.T @ (factor[:, None] * g)) @ h
    return g.T @ (first - factor[:, None] * (g @ h))


class Trace(NamedTuple):
    """What is remembered of the steps so far."""

    h: Float[Array, "theta phi"]
    move: Theta
    """Their gradients summed, forgotten as h forgets them: what h is the derivative of, up to alpha and H."""


@dataclass(frozen=True)
class IncrementalMetaGradient:
    clip: float
    learning_rate: float
    """alpha of the lower level; unlike MGL's, h is not free of scale."""
    second_order: SecondOrder
    noise_penalty: float = 0.0
    memory: float = 1.0
    """The share of h that is kept from one step to the next: 1 is the paper's, at 0 only the newest step counts."""
    needs_credit: bool = True
    restarts: bool = False

    def init(self, policy: Theta, weights: WeightFunction, minibatch: Samples) -> Trace:
        h = jnp.zeros((count_parameters(policy), count_parameters(weights)))
        return Trace(h, jax.tree.map(jnp.zeros_like, policy))

    def follow(self, h: Float[Array, "theta phi"], step: LowerStep) -> Float[Array, "theta phi"]:
        """h after the step (lines 12-14 of Algorithm 1)."""
        samples, h = step.samples, self.memory * h
        assert samples.credit is not None
        log_prob, g = log_prob_gradients(step.policy, samples)
        ratio = jnp.exp(log_prob - samples.log_prob)
        factor = ratio * unclipped(ratio, samples.modified_advantage, self.clip) / ratio.size
        first = factor[:, None] * samples.credit
        if self.second_order == "opg":
            change = first_and_outer_product(g, first, factor * samples.modified_advantage, h)
        else:
            change = g.T @ first
        if self.second_order == "exact":
            change += exact_hessian_product(step.policy, samples, self.clip, h)
        return h + self.learning_rate * change

    def update(
        self, trace: Trace, step: LowerStep, policy: Theta, weights: WeightFunction, samples: Samples
    ) -> tuple[WeightFunction, Trace]:
        h, move = self.follow(trace.h, step), trace.move
        v = true_gradient(policy, samples, self.clip)
        if self.noise_penalty:
            move = jax.tree.map(lambda old, new: self.memory * old + new, move, modified_gradient(step, self.clip))
            v = penalise_noise(v, move, self.noise_penalty)
        return unravel_like(weights, ravel(v) @ h), Trace(h, move)
