"""What the state alone tells of the terms to come. It favours no action, so phi is spared it: it is noise.

Where episodes go on to the end of the batch, say, a term that is 1 at every step adds up to less and less towards that
end, whatever the policy does.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def state_basis(
    features: Float[Array, "feature sample"], time: int, discount: float
) -> Float[Array, "feature+1 sample"]:
    """A basis of what depends on the state alone: features of it, and how much of the future lies beyond the batch.

    The rows are orthonormal but for a ridge: what is fitted is drawn to 0 as if there were as many more samples as
    features, in which nothing was to be seen. So small batches are not explained away.
    """
    total = features.shape[1]
    beyond = jnp.repeat(discount ** jnp.arange(time, 0, -1), total // time)
    rows = jnp.concatenate([features, beyond[None]])
    rows = rows - rows.mean(axis=1, keepdims=True)
    deviation = rows.std(axis=1, keepdims=True)
    rows = jnp.where(deviation > 1e-6, rows / jnp.maximum(deviation, 1e-6), 0.0)
    likeness = (rows @ rows.T + len(rows) * jnp.eye(len(rows))) / total
    return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(likeness), rows, lower=True) / jnp.sqrt(total)


def unexplained(x: Float[Array, "... sample"], basis: Float[Array, "feature sample"]) -> Float[Array, "... sample"]:
    """What is left of x without its mean and its least-squares fit by the basis.

    The fit is symmetric: sum_i x_i y_i is the same whether it is taken out of x or of y.
    """
    x = x - x.mean(axis=-1, keepdims=True)
    return x - (x @ basis.T) @ basis
