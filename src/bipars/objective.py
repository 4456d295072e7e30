"""Generalised advantage estimation, with termination kept apart from truncation."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


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
    reward: Float[Array, "time env"],
    value: Float[Array, "time env"],
    next_value: Float[Array, "time env"],
    terminated: Bool[Array, "time env"],
    done: Bool[Array, "time env"],
    gamma: float,
    gae_lambda: float,
) -> tuple[Float[Array, "time env"], Float[Array, "time env"]]:
    """Advantages and lambda-returns. `next_value` is V of the state reached, not of the state after a reset:
    a truncated episode bootstraps from it, a terminated one does not, and the sum stops at both.
    """
    error = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    advantage = discounted_suffix_sums(error, done, gamma * gae_lambda)
    return advantage, advantage + value


def normaliser(advantage: Float[Array, "..."]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and standard deviation that make advantages of one batch zero-mean and unit-variance."""
    return jnp.mean(advantage), jnp.std(advantage) + 1e-8
