"""Incremental meta-gradient learning (section 4.3): theta depends on phi through every step so far.

    h  <-  (I + alpha H) h + alpha M,      H = Hessian of the modified objective, M as in `mgl.py`

with h = d theta/d phi, n x m. Three readings of H (appendix A.1): exact, outer product of gradients, or zero.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bipars.lower.base import After, LowerStep
from bipars.nets.mlp import count_parameters, ravel
from bipars.nets.policies import Theta
from bipars.nets.weights import WeightFunction
from bipars.objective import Objective, Samples, mixed_derivatives, slopes, surrogate
from bipars.upper.base import hessian_product, unravel_like

SecondOrder = Literal["exact", "opg", "none"]


def gradient_rows(policy: Theta, samples: Samples) -> tuple[Float[Array, " sample"], Float[Array, "sample theta"]]:
    """Each sample's log ratio and its gradient g, n numbers each."""
    log_prob, gradients = jax.vmap(jax.value_and_grad(lambda theta, s, a: theta.log_prob(s, a)), (None, 0, 0))(
        policy, samples.obs, samples.action
    )
    flat = [leaf.reshape(log_prob.size, -1) for leaf in jax.tree.leaves(gradients)]
    return log_prob - samples.log_prob, jnp.concatenate(flat, axis=-1)


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


@dataclass(frozen=True)
class IncrementalMetaGradient:
    objective: Objective
    learning_rate: float
    """alpha of the lower level; unlike MGL's, h is not free of scale."""
    second_order: SecondOrder
    needs_jacobian: bool = True

    def init(self, policy: Theta, weights: WeightFunction, minibatch: Samples) -> Float[Array, "theta phi"]:
        return jnp.zeros((count_parameters(policy), count_parameters(weights)))

    def update(
        self, h: Float[Array, "theta phi"], step: LowerStep, after: After, weights: WeightFunction
    ) -> tuple[WeightFunction, Float[Array, "theta phi"]]:
        h = self.follow(h, step)
        return unravel_like(weights, ravel(after.gradient) @ h), h

    def follow(self, h: Float[Array, "theta phi"], step: LowerStep) -> Float[Array, "theta phi"]:
        """h after the step (lines 12-14 of Algorithm 1)."""
        samples = step.samples
        log_ratio, g = gradient_rows(step.policy, samples)
        mixed = mixed_derivatives(self.objective, log_ratio, samples.modified_advantage) / log_ratio.size
        first = mixed[:, None] * samples.advantage_jacobian
        if self.second_order == "opg":
            slope = slopes(self.objective, log_ratio, samples.modified_advantage) / log_ratio.size
            change = first_and_outer_product(g, first, slope, h)
        else:
            change = g.T @ first
        if self.second_order == "exact":
            change += hessian_product(
                lambda theta: surrogate(theta, samples, samples.modified_advantage, self.objective), step.policy, h
            )
        return h + self.learning_rate * (1.0 if step.times is None else step.times) * change
