"""Adam for both levels. Gradients point uphill here: both levels maximise."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

ADAM = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}


def adam(learning_rate: float, max_grad_norm: float | None, eps: float = ADAM["eps"]) -> optax.GradientTransformation:
    optimiser = optax.adam(learning_rate, **ADAM | {"eps": eps})
    return optimiser if max_grad_norm is None else optax.chain(optax.clip_by_global_norm(max_grad_norm), optimiser)


def ascend(
    parameters: Any, state: optax.OptState, optimiser: optax.GradientTransformation, gradient: Any, times: Any = 1.0
) -> Any:
    """One step up the gradient (optimisers step down), `times` as long as usual."""
    step, state = optimiser.update(jax.tree.map(jnp.negative, gradient), state, parameters)
    step = jax.tree.map(lambda x: times * x, step)
    return optax.apply_updates(parameters, step), state
