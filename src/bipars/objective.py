"""What the policy climbs: advantages (GAE), and PPO's clipped objective of them.

The objective is one scalar function of a sample's log probability ratio and its advantage. Whoever needs a derivative
of it, in theta or in the advantages, takes it from here: to optimise another function of the two, change one line.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bipars.nets.per_sample import PerSampleGradients
from bipars.nets.policies import Policy, Theta, log_prob_gradients

Objective = Callable[[Float[Array, ""], Float[Array, ""]], Float[Array, ""]]
"""Of the log ratio of a sample, log pi(a|s) - log pi_acted(a|s), and its advantage."""


@dataclass(frozen=True)
class ClippedObjective:
    """min(rho A, clip(rho, 1 - c, 1 + c) A): a sample beyond the clip has no gradient, at either level."""

    clip: float

    def __call__(self, log_ratio: Float[Array, ""], advantage: Float[Array, ""]) -> Float[Array, ""]:
        ratio = jnp.exp(log_ratio)
        return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - self.clip, 1 + self.clip) * advantage)


def slopes(
    objective: Objective, log_ratio: Float[Array, " sample"], advantage: Float[Array, " sample"]
) -> Float[Array, " sample"]:
    """dL/dl of every sample, l its log ratio."""
    return jax.vmap(jax.grad(objective))(log_ratio, advantage)


def mixed_derivatives(
    objective: Objective, log_ratio: Float[Array, " sample"], advantage: Float[Array, " sample"]
) -> Float[Array, " sample"]:
    """d^2 L / dl dA of every sample: how its gradient, by the log ratio, grows with its advantage."""
    return jax.vmap(jax.grad(jax.grad(objective), argnums=1))(log_ratio, advantage)


class Samples(NamedTuple):
    """What both levels learn from. Built once per round, then drawn from in minibatches."""

    obs: Float[Array, "sample obs"]
    action: Array
    log_prob: Float[Array, " sample"]
    """Under the policy that acted."""
    modified_advantage: Float[Array, " sample"]
    true_advantage: Float[Array, " sample"] | None = None
    """None where no upper level asks for it."""
    advantage_jacobian: Float[Array, "sample phi"] | None = None
    """dA~/dphi, where an estimator needs it."""
    log_prob_gradients: PerSampleGradients | None = None
    """Of the policy that learns from them just now, where they are known already."""

    def at(self, index: Int[Array, " batch"]) -> "Samples":
        """A minibatch."""
        return jax.tree.map(lambda x: x[index], self)


def surrogate(
    policy: Policy, samples: Samples, advantage: Float[Array, " sample"], objective: Objective
) -> Float[Array, ""]:
    """The mean of the objective over the samples."""
    log_ratio = policy.log_prob(samples.obs, samples.action) - samples.log_prob
    return jnp.mean(jax.vmap(objective)(log_ratio, advantage))


def log_ratios(policy: Theta, samples: Samples) -> tuple[Float[Array, " sample"], PerSampleGradients]:
    """The log ratio of every sample, and its gradient."""
    known = samples.log_prob_gradients
    known = log_prob_gradients(policy, samples.obs, samples.action) if known is None else known
    return known.value - samples.log_prob, known


def surrogate_gradient(
    policy: Theta, samples: Samples, advantage: Float[Array, " sample"], objective: Objective
) -> Theta:
    """Of `surrogate`, by the gradients of every sample, which both levels may share."""
    log_ratio, gradients = log_ratios(policy, samples)
    factors = slopes(objective, log_ratio, advantage) / log_ratio.size
    return jax.tree.map(lambda x: x[0], gradients.sums(factors[None]))


def discounted_suffix_sums(
    values: Float[Array, "time env ..."], done: Bool[Array, "time env"], discount: float
) -> Float[Array, "time env ..."]:
    """y_t = x_t + discount * y_{t+1}, started anew where an episode ended at t."""
    keep = discount * (1 - done.astype(values.dtype))
    keep = keep.reshape(keep.shape + (1,) * (values.ndim - 2))

    def back(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        value, kept = now
        total = value + kept * later
        return total, total

    return jax.lax.scan(back, jnp.zeros_like(values[0]), (values, keep), reverse=True)[1]


def gae(
    reward: Float[Array, "time env ..."],
    value: Float[Array, "time env ..."],
    next_value: Float[Array, "time env ..."],
    terminated: Bool[Array, "time env"],
    done: Bool[Array, "time env"],
    gamma: float,
    gae_lambda: float,
) -> tuple[Float[Array, "time env ..."], Float[Array, "time env ..."]]:
    """Advantages and lambda-returns, of one reward or of several on the last axis.

    `next_value` is V of the state reached, not of the state after a reset: a truncated episode bootstraps from it, a
    terminated one does not, and the sum stops at both.
    """
    terminated = terminated.reshape(terminated.shape + (1,) * (reward.ndim - 2))
    error = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    advantage = discounted_suffix_sums(error, done, gamma * gae_lambda)
    return advantage, advantage + value


def normaliser(
    advantage: Float[Array, "time env"], own: Float[Array, " env"] | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and standard deviation that make advantages of one batch zero-mean and unit-variance.

    `own` weighs environments: over those of the learner itself, where it has not acted in all.
    """
    if own is None:
        return jnp.mean(advantage), jnp.std(advantage) + 1e-8
    mean = jnp.average(advantage.mean(axis=0), weights=own)
    variance = jnp.average(((advantage - mean) ** 2).mean(axis=0), weights=own)
    return mean, jnp.sqrt(variance) + 1e-8
