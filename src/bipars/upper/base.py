"""The upper level's one protocol: `init` makes h, `update` turns samples of the true reward into a gradient of phi.

An estimator knows nothing of the loop that calls it, and the loop nothing of the estimator.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from bipars.lower.ppo import Samples, surrogate, surrogate_gradients
from bipars.nets.mlp import ravel
from bipars.nets.policies import Theta
from bipars.nets.weights import WeightFunction

TINY = 1e-30
"""Below the square of any length that means something."""


class LowerStep(NamedTuple):
    """The step theta -> theta' that the lower level just took: where it started and what it learned from."""

    policy: Theta
    samples: Samples
    optimiser: Any = None
    """Adam's state after it."""
    gradient: Theta | None = None
    """Of the modified return on these samples, where it has been computed anyway."""
    taken: Theta | None = None
    """The gradient that was really climbed: another one where the policy did not trust the terms."""


class Estimator(Protocol):
    """How theta' depends on phi, and hence the true return."""

    @property
    def needs_credit(self) -> bool:
        """Whether samples must carry the derivative of the modified advantage with respect to phi."""
        ...

    @property
    def restarts(self) -> bool:
        """Whether h goes back to zero at the start of every round."""
        ...

    def init(self, policy: Any, weights: WeightFunction, minibatch: Any) -> Any:
        """h, the derivative of theta with respect to phi, before the first step (line 3 of Algorithm 1).

        `minibatch` has the shapes of those to come.
        """
        ...

    def update(
        self, h: Any, step: Any, policy: Any, weights: WeightFunction, samples: Any
    ) -> tuple[WeightFunction, Any]:
        """The gradient of the true return with respect to phi, and the next h (lines 9-14 and 18-21).

        `policy` is theta', the result of `step`, a `LowerStep`; `samples` carry the true advantage. Of deterministic
        policies, `step` and `samples` are those of `upper/deterministic.py`.
        """
        ...


@runtime_checkable
class Deferring(Protocol):
    """An estimator by which phi can take its steps when theta has taken all of a round's."""

    @property
    def defers(self) -> bool:
        """Whether it does: theta's steps must not depend on phi's. Then `gains` takes the place of `update`."""
        ...

    def gains(self, step: LowerStep, policy: Theta, samples: Samples) -> Float[Array, " sample"]:
        """What the true return gains by the modified advantage of each of the step's samples.

        Its product with their derivatives by phi is the gradient. There is no h.
        """
        ...


class Memoryless:
    """An estimator that looks at the newest step alone: there is no h."""

    restarts = False

    def init(self, policy: Any, weights: WeightFunction, minibatch: Any) -> tuple[()]:
        return ()


def h_of_round(estimator: Estimator | None, h: Any) -> Any:
    """h as a round begins with it, given how the last one ended."""
    return jax.tree.map(jnp.zeros_like, h) if estimator is not None and estimator.restarts else h


def true_gradient(policy: Theta, samples: Samples, clip: float) -> Theta:
    """v: the gradient of the true return at theta', by the policy gradient theorem."""
    assert samples.true_advantage is not None
    return surrogate_gradients(policy, samples, (samples.true_advantage,), clip)[0]


def penalise_noise(v: Theta, move: Theta, penalty: float) -> Theta:
    """v - kappa d, with d the move of theta that is differentiated and kappa = penalty * <v, d> / |d|^2.

    At penalty 1 what remains of v stands at right angles to d: phi then climbs <v, d> / |d|, the alignment of v with
    the *direction* of the move. A term that only makes the move longer, or noisier, is no gain any more.
    """
    kappa = penalty * optax.tree.vdot(v, move) / jnp.maximum(optax.tree.vdot(move, move), TINY)
    return jax.tree.map(lambda a, b: a - kappa * b, v, move)


def modified_gradient(step: LowerStep, clip: float) -> Theta:
    """g~: what the lower level climbed, the direction of a plain gradient step."""
    if step.gradient is not None:
        return step.gradient
    return jax.grad(surrogate)(step.policy, step.samples, step.samples.modified_advantage, clip)


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
    leaves, structure = jax.tree.flatten(weights)
    parts, start = [], 0
    for leaf in leaves:
        parts.append(flat[start : start + leaf.size].reshape(leaf.shape))
        start += leaf.size
    return jax.tree.unflatten(structure, parts)


__all__ = [
    "Deferring", "Estimator", "LowerStep", "Memoryless", "Theta", "h_of_round", "hessian_product", "modified_gradient",
    "penalise_noise", "ravel", "true_gradient", "unravel_like",
]  # fmt: skip
