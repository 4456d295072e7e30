"""How the modified advantage of every sample moves with phi: the paper's sum of gamma^t f dz/dphi (equation 8)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bipars.networks import count_parameters
from bipars.shaping.weights import WeightFunction

BLOCK = 50
"""Time steps whose gradients are computed at once. All of them together leave the processor's cache: slower by half."""


def weighted_term_gradients(
    weights: WeightFunction, obs: Float[Array, "time env obs"], action: Array, terms: Float[Array, "time env term"]
) -> Float[Array, "time env phi"]:
    """Derivative of sum_k f_k z_k(s, a) with respect to phi, at every step by itself."""

    def weighted(phi: WeightFunction, s: Array, a: Array, f: Array) -> Float[Array, ""]:
        return jnp.dot(phi(s, a), f)

    gradients = jax.vmap(jax.vmap(jax.grad(weighted), (None, 0, 0, 0)), (None, 0, 0, 0))(weights, obs, action, terms)
    lead = obs.shape[:2]
    return jnp.concatenate([leaf.reshape(*lead, -1) for leaf in jax.tree.leaves(gradients)], axis=-1)


def advantage_credit(
    weights: WeightFunction,
    obs: Float[Array, "time env obs"],
    action: Array,
    terms: Float[Array, "time env term"],
    done: Bool[Array, "time env"],
    discount: float,
    scale: Float[Array, ""],
) -> Float[Array, "time env phi"]:
    """The same summed over the rest of each episode and divided by the advantage's normaliser; V~ is held constant."""
    time, envs = done.shape
    block = max(size for size in range(1, min(BLOCK, time) + 1) if time % size == 0)
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

    blocks = jax.tree.map(lambda x: x.reshape(-1, block, *x.shape[1:]), (obs, action, terms / scale, keep))
    last = jnp.zeros((envs, count_parameters(weights)), terms.dtype)
    credit = jax.lax.scan(back_one_block, last, blocks, reverse=True)[1]
    return credit.reshape(time, envs, -1)


def through_normaliser(
    credit: Float[Array, "time env phi"], advantage: Float[Array, "time env"]
) -> Float[Array, "time env phi"]:
    """Derivative of (A - mean A) / std A, given that of A / std: phi gains nothing by shifting or scaling A~."""
    correlation = jnp.mean(advantage[..., None] * credit, axis=(0, 1))
    return credit - jnp.mean(credit, axis=(0, 1)) - advantage[..., None] * correlation
