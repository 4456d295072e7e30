"""Transitions of environments written in JAX, and functions that a user wrote, called on them and compiled along."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bipars.envs.base import Environment, native_actions, native_observation
from bipars.errors import UsageError
from bipars.nets.spaces import BoxActions
from bipars.terms.call import explain


class Transition(NamedTuple):
    """One step as a term sees it in JAX; any number of leading axes."""

    obs: Any
    action: Any
    next_obs: Any
    info: Any = {}  # noqa: RUF012 (arrays by name; none by default)


def call_in_jax(fn: Callable[..., Any], vectorised: bool, step: Transition) -> Float[Array, "time env"]:
    """A function of (obs, action, next_obs, info) on two leading axes."""
    lead = jax.tree.leaves(step.obs)[0].shape[:2]

    def one(*given: Any) -> Array:
        return jnp.asarray(fn(*given), float)

    if vectorised:
        return one(*jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), step)).reshape(lead)
    return jax.vmap(jax.vmap(one))(*step)


def info_in_jax(before: str, step: Transition, key: str) -> Float[Array, "time env"]:
    """A key of `info` that holds one number. `before` is how an error begins."""
    lead = jax.tree.leaves(step.obs)[0].shape[:2]
    if key not in step.info:
        raise UsageError(f"{before}info has no key '{key}'; its keys are {list(step.info) or 'none'}")
    value = step.info[key]
    if not isinstance(value, jax.Array) or value.shape != lead:
        raise UsageError(f"{before}info['{key}'] is {value!r:.80}; expected a single number")
    return value.astype(float)


def in_both_forms(
    env: Environment, obs: Array, action: Array, next_obs: Array, info: Mapping[str, Any]
) -> tuple[Transition, Transition]:
    """Transitions as the learner has them, for terms of ours, and as the environment has them, for all others."""
    acted = jnp.clip(action, -1.0, 1.0) if isinstance(env.actions, BoxActions) else action
    native = native_observation(env, obs), native_actions(env, action), native_observation(env, next_obs)
    return Transition(obs, acted, next_obs, info), Transition(*native, info)


def first_step(env: Environment) -> tuple[Array, tuple[Transition, Transition]]:
    """The rewards of two environments' first step, and that step."""
    keys = jax.random.split(jax.random.key(0), 2)
    state, action = jax.vmap(env.reset)(keys), jnp.zeros((2, *env.actions.shape), env.actions.dtype)
    after = jax.vmap(env.step)(keys, state, action)
    observe = jax.vmap(env.observe)
    step = observe(state), action, observe(after.state), after.info
    return after.reward[None], in_both_forms(env, *jax.tree.map(lambda x: x[None], step))


def check_in_jax(what: str, evaluate: Callable[..., Array], forms: tuple[Transition, Transition]) -> None:
    """That a function of a user's, of two environments' first step, can be compiled and returns numbers."""
    try:
        value = jax.eval_shape(evaluate, forms)
    except UsageError:
        raise
    except KeyError as error:
        if error.args[:1] and error.args[0] not in forms[0].info:
            keys = list(forms[0].info) or "none"
            raise UsageError(f"{what} asked for the key {error}; info has the keys {keys}") from error
        raise UsageError(f"{what} failed on one transition: {error!r}") from error
    except Exception as error:
        raise UsageError(f"{what} failed on one transition: {explain(error)}") from error
    if value.shape != (1, 2):
        raise UsageError(f"{what} returned shape {value.shape[2:]} for one transition; return a single number")
