"""The environments that are known by name, each with all that depends on it. A family is one file, which registers it.

    register(EnvironmentFamily("PointMass-v0", observations=("position", "velocity")))

Every other name is a Gymnasium id, and belongs to the family that `gym` registers as `ANY`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from bipars.errors import UsageError, unknown
from bipars.settings.config import Config
from bipars.settings.importing import WithheldError, import_from_here
from bipars.settings.recipe import recipe

if TYPE_CHECKING:  # names are known before JAX is loaded
    from bipars.envs.base import Environment
    from bipars.envs.host import HostEnvironment

ANY = "any Gymnasium id"
"""The family of names that no other family answers to."""


class WeightMap(NamedTuple):
    """A view of the weights that the report offers: over two observations, from minus to plus a limit."""

    title: str
    x: int
    """Which observation runs along the horizontal axis ..."""
    y: int
    """... and which along the vertical."""
    x_limit: float
    y_limit: float
    state: tuple[float, ...]
    """The other observations' values."""


@dataclass(frozen=True, eq=False)
class EnvironmentFamily:
    """Environments that are made, trained and shown alike."""

    name: str
    """What people call it: in `env=`, after `--env`, in files."""
    presets: Mapping[str, Callable[[str, str], Config]] = field(default_factory=dict)
    """Settings by the name of a preset, given a method's name and its learner, ppo or ddpg: "paper" for a task of the
    paper; "default" in place of what every environment starts from."""
    aliases: tuple[str, ...] = ()
    """Other names that it answers to."""
    make_jax: Callable[..., Environment] | None = None
    """make_jax(**options): the environment, where it is written in JAX."""
    make_host: Callable[..., HostEnvironment] | None = None
    """make_host(num_envs, threads, **options): many of them, where it is stepped on the host by code of its own.
    With neither, Gymnasium makes and steps the environment of this name."""
    observations: tuple[str, ...] = ()
    """What the numbers of an observation are called."""
    term_scales: Mapping[str, float] = field(default_factory=dict)
    """The argument of a term that is named without one, such as w of torque."""
    potentials: Mapping[str, str] = field(default_factory=dict)
    """The usual potential, by what it takes besides the observation: nothing, action or step."""
    draw: Callable[[np.ndarray], Any] | None = None
    """The picture of an observation, (height, width, 3), where Gymnasium's environment does not draw itself."""
    measures: tuple[str, ...] = ("evaluation_return", "evaluation_action_size")
    """Metrics that its curves show, performance first."""
    weight_map: WeightMap | None = None
    """A view of the weights that its report offers."""


_FAMILIES: dict[str, EnvironmentFamily] = {}


def register(family: EnvironmentFamily) -> None:
    """From now on, the environment is known by its names."""
    names = (family.name, *family.aliases)
    for name in names:
        if not isinstance(name, str) or not name or ":" in name:
            raise UsageError(f"a family is called {name!r}; expected a name without a colon, as in 'PointMass-v0'")
        if name in _FAMILIES:
            raise UsageError(
                f"environment '{name}' is registered twice: by family '{_FAMILIES[name].name}' and by family "
                f"'{family.name}'. Give one of them another name"
            )
    _FAMILIES.update(dict.fromkeys(names, family))


def families() -> tuple[EnvironmentFamily, ...]:
    return tuple(dict.fromkeys(_FAMILIES.values()))


def known_names() -> list[str]:
    return sorted((family.name for family in families() if family.name != ANY), key=str.lower)


def find_family(name: str) -> EnvironmentFamily:
    """The family that answers to a name. Written module:name, the module is imported first: it may register one."""
    module, _, plain = name.rpartition(":")
    if module:
        with suppress(ImportError, WithheldError):  # who makes the environment says so
            import_from_here(module, name)
    return _FAMILIES.get(plain, _FAMILIES[ANY])


def make_environment(name: str, options: Mapping[str, Any]) -> Environment:
    """The environment written in JAX that has this name, with its own settings (such as `force`) from `options`."""
    make = find_family(name).make_jax
    assert make is not None, name
    return take_options(name, make, options)


def take_options(name: str, make: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """What `make` makes with these options; one that it does not know is an error."""
    try:
        return make(**options)
    except TypeError as error:
        raise UsageError(f"environment '{name}' does not take the options {dict(options)}: {error}") from error


def family_preset(env: str, name: str, method: str, learner: Literal["ppo", "ddpg"]) -> Config:
    """The configuration that everything starts from: the same for every environment, unless its family has another."""
    family = find_family(env)
    if name in family.presets:
        config = family.presets[name](method, learner)
        if not isinstance(config, Config):
            raise UsageError(f"family '{family.name}': its preset returned {config!r:.80}; expected a bipars.Config")
    elif name == Config.preset:
        config = recipe(learner)
    else:
        known = [other.name for other in families() if name in other.presets]
        if not known:
            raise unknown("preset", name, sorted({Config.preset, *(p for other in families() for p in other.presets)}))
        raise UsageError(
            f"preset '{name}' has no settings for '{env}', but for {', '.join(known)}. Leave the preset out", ["preset"]
        )
    return replace(config, env=env, preset=name, method=method, learner=learner)
