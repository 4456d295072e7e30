"""How the modified advantage of every sample moves with phi: the paper's sum of gamma^t f dz/dphi (equation 8)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bipars.lower.advantages import discounted_suffix_sums
from bipars.shaping.weights import WeightFunction


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
    gradients = weighted_term_gradients(weights, obs, action, terms / scale)
    # Without the barrier XLA moves the gradients' arithmetic into the loop over time, at ten times the cost.
    return discounted_suffix_sums(jax.lax.optimization_barrier(gradients), done, discount)
