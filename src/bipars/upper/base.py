"""The upper level: two protocols, each with `init` and `update`.

An *upper level* moves phi: `update` takes the lower level through a round and says when phi steps. `schedule.py` has
four (`Fixed`, `Interleaved`, `Deferred`, `ByRound`), `rcpo.py` and `hepo.py` one each; `WeightsByEvidence` in
`evidence.py` and `MeasuredUnits` in `deterministic.py` wrap one.

An *estimator* is how the true return depends on phi through theta': `update` turns one step of theta into one gradient
of phi. `mgl.py`, `imgl.py`, `unrolled.py` and `em.py` are estimators.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from bipars.lower.base import After, LowerStep, UpperState
from bipars.nets.weights import WeightFunction


class Updated(NamedTuple):
    """The result of one round."""

    upper: Any
    learner: Any
    log: dict[str, Array]


class UpperLevel(Protocol):
    """Moves phi, while the lower level moves theta."""

    def init(self, weights: WeightFunction, learner: Any) -> UpperState:
        """The state before the first round (line 3 of Algorithm 1)."""
        ...

    def update(self, state: Any, learner: Any, data: Any, key: PRNGKeyArray) -> Updated:
        """A round: all steps of theta and of phi on what the lower level has prepared (lines 7-22)."""
        ...


class Estimator(Protocol):
    """How theta' depends on phi, and hence the true return."""

    @property
    def needs_jacobian(self) -> bool:
        """Whether samples must carry dA~/dphi."""
        ...

    def init(self, policy: Any, weights: WeightFunction, minibatch: Any) -> Any:
        """What is remembered of the steps, before the first one. `minibatch` has the shapes of those to come."""
        ...

    def update(self, state: Any, step: LowerStep, after: After, weights: WeightFunction) -> tuple[WeightFunction, Any]:
        """The gradient of the true return with respect to phi, and the next state (lines 9-14 and 18-21)."""
        ...


class Memoryless:
    """An estimator that looks at the newest step alone."""

    def init(self, policy: Any, weights: WeightFunction, minibatch: Any) -> tuple[()]:
        return ()


def hessian_product(
    objective: Callable[[Any], Float[Array, ""]], theta: Any, h: Float[Array, "theta phi"]
) -> Float[Array, "theta phi"]:
    """H h by forward-over-reverse differentiation, H the objective's Hessian in theta.

    The cheaper side is taken: one product per column of h, or, when n < m, the n columns of H itself.
    """
    flat, unravel = ravel_pytree(theta)
    # One direction at a time: all at once would leave the processor's cache, at twice the time.
    _, product = jax.linearize(jax.grad(lambda t: objective(unravel(t))), flat)
    if flat.size <= h.shape[1]:
        return jax.lax.map(product, jnp.eye(flat.size, dtype=flat.dtype)) @ h  # H is symmetric
    return jax.lax.map(product, h.T).T


def unravel_like(weights: WeightFunction, flat: Float[Array, " phi"]) -> WeightFunction:
    """A flat gradient in the shape of the weight function's parameters."""
    return ravel_pytree(weights)[1](flat)


def gradient_log(gradients: Any) -> dict[str, Array]:
    """What is logged of a round's gradients of phi, which stand on the first axis."""
    norms = jax.vmap(optax.tree.norm)(gradients)
    return {"weight_gradient_norm": jnp.mean(norms), "weight_gradient_snr": signal_to_noise(gradients)}


def signal_to_noise(gradients: Any) -> Float[Array, ""]:
    """Length of the mean gradient over the spread of single ones around it; gradients stand on the first axis."""
    flat = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(gradients)], axis=1)
    mean = flat.mean(axis=0)
    spread = jnp.sqrt(jnp.mean(jnp.sum((flat - mean) ** 2, axis=1)))
    return jnp.linalg.norm(mean) / (spread + 1e-12)
