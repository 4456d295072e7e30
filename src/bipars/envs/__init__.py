"""Where transitions come from."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bipars.envs.base import ActionSpace, BoxActions, DiscreteActions, Environment
from bipars.envs.cartpole import CartPole
from bipars.errors import UsageError, unknown

ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "cartpole": CartPole,
    "cartpole-continuous": partial(CartPole, continuous=True),
}
ALIASES = {
    "bipars/CartPole-v0": "cartpole",
    "bipars/CartPoleContinuous-v0": "cartpole-continuous",
}


def make_env(name: str, options: Mapping[str, Any] | None = None) -> Environment:
    """The environment called `name`, with its own settings (such as `force`) from `options`."""
    name = ALIASES.get(name, name)
    if name not in ENVIRONMENTS:
        raise unknown("environment", name, ENVIRONMENTS)
    try:
        return ENVIRONMENTS[name](**(options or {}))
    except TypeError as error:
        raise UsageError(f"environment '{name}' does not take the options {dict(options or {})}: {error}") from error


__all__ = ["ENVIRONMENTS", "ActionSpace", "BoxActions", "CartPole", "DiscreteActions", "Environment", "make_env"]
