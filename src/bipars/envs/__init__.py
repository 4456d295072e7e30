"""Where transitions come from."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bipars.envs.base import Environment
from bipars.envs.cartpole import CartPole
from bipars.errors import UsageError
from bipars.nets.spaces import ActionSpace, BoxActions, DiscreteActions

ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "cartpole": CartPole,
    "cartpole-continuous": partial(CartPole, continuous=True),
}
"""Environments written in JAX; every other name is a Gymnasium id."""
ALIASES = {
    "bipars/CartPole-v0": "cartpole",
    "bipars/CartPoleContinuous-v0": "cartpole-continuous",
}


def find_compiled(name: str) -> Callable[..., Environment] | None:
    """The environment written in JAX that has this name, if there is one."""
    return ENVIRONMENTS.get(ALIASES.get(name, name))


def make_compiled(name: str, options: Mapping[str, Any] | None = None) -> Environment:
    """The environment called `name`, with its own settings (such as `force`) from `options`."""
    make = find_compiled(name)
    assert make is not None, name
    try:
        return make(**(options or {}))
    except TypeError as error:
        raise UsageError(f"environment '{name}' does not take the options {dict(options or {})}: {error}") from error


__all__ = [
    "ENVIRONMENTS",
    "ActionSpace",
    "BoxActions",
    "CartPole",
    "DiscreteActions",
    "Environment",
    "find_compiled",
    "make_compiled",
]
