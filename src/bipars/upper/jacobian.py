"""How the modified advantage of every sample moves with phi: the paper's sum of gamma^t f dz/dphi (equation 8)."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from bipars.nets.mlp import count_parameters
from bipars.nets.per_sample import PerSampleGradients
from bipars.nets.weights import WeightFunction

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

    block = block_of(time)
    blocks = jax.tree.map(lambda x: x.reshape(-1, block, *x.shape[1:]), (obs, action, terms / scale, keep))
    last = jnp.zeros((envs, count_parameters(weights)), terms.dtype)
    credit = jax.lax.scan(back_one_block, last, blocks, reverse=True)[1]
    return credit.reshape(time, envs, -1)


def credited(
    weights: WeightFunction,
    obs: Float[Array, "sample obs"],
    action: Array,
    terms: Float[Array, "time env term"],
    done: Bool[Array, "time env"],
    discount: float,
    scale: Float[Array, ""],
    gains: Float[Array, "step time env"],
) -> WeightFunction:
    """sum_i c_i dA~_i/dphi for each row c of `gains`, without the N x m numbers of dA~/dphi.

    A term counts in the advantage of its own step and of all earlier ones of its episode. So what these gain is handed
    on, from step to step, and all of it meets the term's gradient at once.
    """
    (time, envs), steps = done.shape, len(gains)
    block = block_of(time)
    handed_on = hand_on(gains, done, discount).reshape(-1, block, steps, envs)
    blocks = (
        *(x.reshape(time // block, block * envs, -1) for x in (obs, terms / scale)),
        action.reshape(time // block, block * envs, *action.shape[1:]),
        jnp.swapaxes(handed_on, 1, 2).reshape(-1, steps, block * envs),
    )

    def add(total: WeightFunction, now: tuple[Array, ...]) -> tuple[WeightFunction, None]:
        s, f, a, c = now
        slopes = PerSampleGradients.of(weights, lambda phi: jnp.sum(phi(s, a) * f, axis=-1), weights.inputs(s, a))
        return optax.tree.add(total, slopes.sums(c)), None

    nothing = jax.tree.map(lambda x: jnp.zeros((steps, *x.shape), x.dtype), weights)
    return jax.lax.scan(add, nothing, blocks)[0]


def hand_on(
    gains: Float[Array, "step time env"], done: Bool[Array, "time env"], discount: float
) -> Float[Array, "time step env"]:
    """y_t = x_t + discount * y_{t-1} for every step of theta's, started anew after an episode ended at t - 1."""
    keep = discount * (1 - done.astype(gains.dtype))[:, None]

    def on(earlier: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        gained, kept = now
        total = gained + earlier
        return kept * total, total

    return jax.lax.scan(on, jnp.zeros_like(gains[:, 0]), (jnp.swapaxes(gains, 0, 1), keep))[1]


def block_of(time: int) -> int:
    """Time steps of a block: the most that divide all of them."""
    return max(size for size in range(1, min(BLOCK, time) + 1) if time % size == 0)


def through_normaliser(
    credit: Float[Array, "sample phi"], advantage: Float[Array, " sample"]
) -> Float[Array, "sample phi"]:
    """Derivative of (A - mean A) / std A, given that of A / std: phi gains nothing by shifting or scaling A~."""
    correlation = jnp.mean(advantage[:, None] * credit, axis=0)
    return credit - jnp.mean(credit, axis=0) - advantage[:, None] * correlation


def gains_through_normaliser(
    gains: Float[Array, "step sample"], advantage: Float[Array, " sample"]
) -> Float[Array, "step sample"]:
    """The same, of what is gained by (A - mean A) / std A: what is gained by A / std."""
    correlation = jnp.mean(gains * advantage, axis=-1, keepdims=True)
    return gains - jnp.mean(gains, axis=-1, keepdims=True) - correlation * advantage
