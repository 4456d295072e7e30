"""Meta-gradient learning (section 4.2): theta' depends on phi through the last step alone.

    d theta'/d phi = alpha / N * sum_i grad l_i (x) (d^2 L_i / dl_i dA~_i) dA~_i/dphi       l_i: log ratio, L: objective

is an n x m matrix. It is never built: multiplying from the left by v = grad J(theta') first leaves one number per
sample, the cotangent of its advantage.

dA~_i/dphi is the paper's sum of gamma^t f dz/dphi (equation 8), or of (gamma lambda)^t f dz/dphi (`upper.horizon`): V~
is held constant.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from bipars.lower.advantages import UpdateData
from bipars.lower.base import After, LowerStep
from bipars.nets.mlp import count_parameters
from bipars.nets.per_sample import PerSampleGradients
from bipars.nets.policies import Theta
from bipars.nets.weights import WeightFunction
from bipars.objective import Objective, log_ratios, mixed_derivatives
from bipars.upper.base import Memoryless, unravel_like


@dataclass(frozen=True)
class MetaGradient(Memoryless):
    objective: Objective
    needs_jacobian: bool = True

    def update(self, state: Any, step: LowerStep, after: After, weights: WeightFunction) -> tuple[WeightFunction, Any]:
        return unravel_like(weights, pull_back(after.gradient, step, self.objective)), state

    def advantage_cotangent(self, step: LowerStep, after: After) -> Float[Array, " sample"]:
        return advantage_cotangent(after.gradient, step, self.objective)


def advantage_cotangent(v: Theta, step: LowerStep, objective: Objective) -> Float[Array, " sample"]:
    """v^T d theta'/d A~_i of one lower-level step, per unit of its learning rate."""
    log_ratio, gradients = log_ratios(step.policy, step.samples)
    mixed = mixed_derivatives(objective, log_ratio, step.samples.modified_advantage)
    return mixed * gradients.along(v) / log_ratio.size


def pull_back(v: Theta, step: LowerStep, objective: Objective) -> Float[Array, " phi"]:
    """v^T d theta'/d phi: the same, chained with dA~_i/dphi."""
    return advantage_cotangent(v, step, objective) @ step.samples.advantage_jacobian


BLOCK = 1_000
"""Samples whose gradients are computed together. More would leave the processor's cache, and be slower by half."""


def advantage_jacobian(weights: WeightFunction, data: UpdateData, discount: float) -> Float[Array, "sample phi"]:
    """dA~/dphi of every sample: f dz/dphi, summed over the rest of each episode, in the advantages' unit."""
    terms, done = data.terms, data.done
    time, envs = done.shape
    obs, action = (x.reshape(time, envs, *x.shape[1:]) for x in (data.samples.obs, data.samples.action))
    keep = discount * (1 - done.astype(terms.dtype))[..., None]

    def back(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        gradient, kept = now
        total = gradient + kept * later
        return total, total

    def back_one_block(later: Array, steps: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        s, a, f, kept = steps
        # The barrier keeps XLA from moving the gradients' arithmetic into the loop over time.
        gradients = jax.lax.optimization_barrier(weighted_term_gradients(weights, s, a, f))
        return jax.lax.scan(back, later, (gradients, kept), reverse=True)

    block = block_size(time, envs)
    blocks = jax.tree.map(lambda x: x.reshape(-1, block, *x.shape[1:]), (obs, action, terms / data.scale, keep))
    last = jnp.zeros((envs, count_parameters(weights)), terms.dtype)
    return jax.lax.scan(back_one_block, last, blocks, reverse=True)[1].reshape(time * envs, -1)


def weighted_term_gradients(
    weights: WeightFunction, obs: Float[Array, "time env obs"], action: Array, terms: Float[Array, "time env term"]
) -> Float[Array, "time env phi"]:
    """Derivative of sum_k f_k z_k(s, a) with respect to phi, at every step by itself."""

    def weighted(phi: WeightFunction, s: Array, a: Array, f: Array) -> Float[Array, ""]:
        return jnp.dot(phi(s, a), f)

    gradients = jax.vmap(jax.vmap(jax.grad(weighted), (None, 0, 0, 0)), (None, 0, 0, 0))(weights, obs, action, terms)
    lead = obs.shape[:2]
    return jnp.concatenate([leaf.reshape(*lead, -1) for leaf in jax.tree.leaves(gradients)], axis=-1)


def advantage_pull_back(
    weights: WeightFunction, data: UpdateData, discount: float, cotangents: Float[Array, "step sample"]
) -> WeightFunction:
    """sum_i c_i dA~_i/dphi for each row c of `cotangents`, without the N x m numbers of dA~/dphi.

    A term counts in the advantage of its own step and of all earlier ones of its episode. So their cotangents are added
    up over time first, and meet the term's gradient once.
    """
    done, terms, (obs, action, *_) = data.done, data.terms, data.samples
    (time, envs), steps = done.shape, len(cotangents)
    block = block_size(time, envs)
    cotangents = cotangents.reshape(steps, time, envs)
    sums = discounted_prefix_sums(cotangents, done, discount).reshape(-1, block, steps, envs)
    blocks = (
        *(x.reshape(time // block, block * envs, -1) for x in (obs, terms / data.scale)),
        action.reshape(time // block, block * envs, *action.shape[1:]),
        jnp.swapaxes(sums, 1, 2).reshape(-1, steps, block * envs),
    )

    def add(total: WeightFunction, now: tuple[Array, ...]) -> tuple[WeightFunction, None]:
        s, f, a, c = now
        gradients = PerSampleGradients.of(weights, lambda phi: jnp.sum(phi(s, a) * f, axis=-1), weights.inputs(s, a))
        return optax.tree.add(total, gradients.sums(c)), None

    zeros = jax.tree.map(lambda x: jnp.zeros((steps, *x.shape), x.dtype), weights)
    return jax.lax.scan(add, zeros, blocks)[0]


def discounted_prefix_sums(
    values: Float[Array, "step time env"], done: Bool[Array, "time env"], discount: float
) -> Float[Array, "time step env"]:
    """y_t = x_t + discount * y_{t-1}, started anew after an episode ended at t - 1."""
    keep = discount * (1 - done.astype(values.dtype))[:, None]

    def on(earlier: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        value, kept = now
        total = value + earlier
        return kept * total, total

    return jax.lax.scan(on, jnp.zeros_like(values[:, 0]), (jnp.swapaxes(values, 0, 1), keep))[1]


def block_size(time: int, envs: int) -> int:
    """The most time steps, of at most `BLOCK` samples, that divide `time`."""
    return max(size for size in range(1, min(max(BLOCK // envs, 1), time) + 1) if time % size == 0)
