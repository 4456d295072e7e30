"""What the state alone tells of the terms to come. It favours no action, so phi is spared it: it is noise.

A term that is 1 at every step, say, adds up to less and less towards a time limit, whatever the policy does.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Clock(NamedTuple):
    """How much time the running episodes have had, and how much they get."""

    age: Int[Array, " env"]
    """Steps of every running episode so far."""
    limit: Int[Array, ""]
    """Steps after which episodes are truncated: the most at which one was; 0 before that."""

    @classmethod
    def started(cls, num_envs: int) -> "Clock":
        return cls(jnp.zeros(num_envs, jnp.int32), jnp.zeros((), jnp.int32))

    def advance(
        self, terminated: Bool[Array, "time env"], done: Bool[Array, "time env"], restarted: Bool[Array, ""]
    ) -> tuple["Clock", Int[Array, "time env"]]:
        """The clock after a batch; and for each of its steps, how many there could at most be from there on.

        At most: where an episode terminates is up to the policy, and no baseline may know it.
        """

        def tick(age: Array, ended: Array) -> tuple[Array, Array]:
            return jnp.where(ended, 0, age + 1), age

        left, ages = jax.lax.scan(tick, jnp.where(restarted, 0, self.age), done)
        limit = jnp.maximum(self.limit, jnp.max(jnp.where(done & ~terminated, ages + 1, 0)))
        of_batch = jnp.arange(len(done), 0, -1)[:, None]
        of_episode = jnp.where(limit > 0, jnp.maximum(limit - ages, 1), len(done))
        return Clock(left, limit), jnp.minimum(of_batch, of_episode)


def state_basis(
    features: Float[Array, "feature sample"], to_go: Int[Array, " sample"], discount: float
) -> Float[Array, "feature+1 sample"]:
    """A basis of what depends on the state alone: features of it, and what a reward of 1 until the end adds up to.

    The rows are orthonormal but for a ridge: what is fitted is drawn to 0 as if there were as many more samples as
    features, in which nothing was to be seen. So small batches are not explained away.
    """
    ones_to_come = to_go if discount == 1 else (1 - discount**to_go) / (1 - discount)
    rows = jnp.concatenate([features, ones_to_come[None].astype(features.dtype)])
    rows = rows - rows.mean(axis=1, keepdims=True)
    deviation = rows.std(axis=1, keepdims=True)
    rows = jnp.where(deviation > 1e-6, rows / jnp.maximum(deviation, 1e-6), 0.0)
    rows = rows - rows.mean(axis=1, keepdims=True)  # once more: the mean of large numbers was rounded
    total = rows.shape[1]
    likeness = (rows @ rows.T + len(rows) * jnp.eye(len(rows))) / total
    return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(likeness), rows, lower=True) / jnp.sqrt(total)


def unexplained(x: Float[Array, "... sample"], basis: Float[Array, "feature sample"]) -> Float[Array, "... sample"]:
    """What is left of x without its mean and its least-squares fit by the basis.

    The fit is symmetric: sum_i x_i y_i is the same whether it is taken out of x or of y.
    """
    x = x - x.mean(axis=-1, keepdims=True)
    return x - (x @ basis.T) @ basis
