"""Adam for both levels. Gradients point uphill here: both levels maximise."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

ADAM = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}


def adam(
    learning_rate: optax.ScalarOrSchedule, max_grad_norm: float | None, eps: float = ADAM["eps"]
) -> optax.GradientTransformation:
    optimiser = optax.adam(learning_rate, **ADAM | {"eps": eps})
    return optimiser if max_grad_norm is None else optax.chain(optax.clip_by_global_norm(max_grad_norm), optimiser)


def with_head_start(rate: float, times: float) -> optax.ScalarOrSchedule:
    """A step size of `1 + times` its usual size at first; the excess halves every 40 steps."""
    return (lambda step: rate * (1 + times * 0.5 ** (step / 40))) if times else rate


def ascend(parameters: Any, state: optax.OptState, optimiser: optax.GradientTransformation, gradient: Any) -> Any:
    """One step up the gradient (optimisers step down)."""
    step, state = optimiser.update(jax.tree.map(jnp.negative, gradient), state, parameters)
    return optax.apply_updates(parameters, step), state
