"""Settings as flags: what was asked for, and nothing else. All the rest is filled in by the preset."""

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import docstring_parser
import tyro

from bipars.errors import BiparsError

ALIASES = {"upper.unroll": "--unroll"}
"""Flags that are typed often enough to have a second name."""
FLAGS = {"terms": "--term", "env_options": "--env-option"}
"""Settings whose flag, which is given several times, is in the singular."""


def _read_whole(words: list[str]) -> int:
    number = float(words[0])
    if not number.is_integer():
        raise ValueError(f"{words[0]} is not a whole number")
    return int(words[0]) if words[0].lstrip("+-").isdigit() else int(number)


Whole = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=_read_whole,
        is_instance=lambda x: isinstance(x, int),
        str_from_instance=lambda x: [str(x)],
    ),
]
"""A whole number, which may be written as 1e5."""


def subcommands(commands: Mapping[str, type]) -> Any:
    """One of these classes, each under its name."""
    named = (Annotated[explained(command), tyro.conf.subcommand(name)] for name, command in commands.items())
    return functools.reduce(operator.or_, named)


def explained(command: type) -> type:
    """The class, with help that fills its lines and says nothing of a default that is None."""
    kinds, docs = typing.get_type_hints(command), field_docs(command)
    for name, hint in typing.get_type_hints(command, include_extras=True).items():
        optional = getattr(command, name, ...) is None
        metavar = _metavar(typing.get_args(kinds[name])[0]) if optional else None
        about = tyro.conf.arg(help=docs.get(name), help_behavior_hint="" if optional else None, metavar=metavar)
        command.__annotations__[name] = Annotated[hint, about]
    return command


def asked(usual: Any, room: str) -> type:
    """The flags of a settings class: none is given by default, and the help says what it usually is."""
    kind = type(usual)
    hints, docs = typing.get_type_hints(kind), field_docs(kind)
    fields = []
    for part in dataclasses.fields(kind):
        value = getattr(usual, part.name)
        text = " ".join(map(str, value)) if isinstance(value, tuple) else "none" if value is None else value
        alias = ALIASES.get(f"{room}.{part.name}")
        about = tyro.conf.arg(
            help=docs.get(part.name, ""),
            help_behavior_hint=f"(usually {text})",
            metavar=_metavar(hints[part.name]),
            aliases=None if alias is None else (alias,),
        )
        fields.append((part.name, Annotated[_with_whole_numbers(hints[part.name]) | None, about], None))
    made = dataclasses.make_dataclass(f"{kind.__name__}Flags", fields, frozen=True)
    made.__doc__ = kind.__doc__
    return made


def _metavar(hint: Any) -> str:
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return _metavar(arguments[0])
    if typing.get_origin(hint) is tuple:
        return f"[{_metavar(arguments[0])} ...]"
    if typing.get_origin(hint) is Literal:
        return "{" + ",".join(arguments) + "}"
    return "{True,False}" if hint is bool else hint.__name__.upper()


def _with_whole_numbers(hint: Any) -> Any:
    if hint is int:
        return Whole
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return functools.reduce(lambda a, b: a | b, map(_with_whole_numbers, arguments))
    if typing.get_origin(hint) is tuple:
        return tuple[(_with_whole_numbers(arguments[0]), ...)]  # type: ignore[misc]
    return hint


def given(flags: Any) -> dict[str, Any]:
    """The settings that were typed, rooms inside."""
    found = {}
    for part in dataclasses.fields(flags):
        value = getattr(flags, part.name)
        if dataclasses.is_dataclass(value):
            value = given(value) or None
        if value is not None:
            found[part.name] = value
    return found


def flag(path: str) -> str:
    path = path.removeprefix("config.")
    return FLAGS.get(path, f"--{path}".replace("_", "-"))


def as_typed(error: BiparsError, arguments: list[str]) -> str:
    """The message, with each setting that it names called as the flag that a person typed or could type."""
    short: Mapping[str, str] = {
        path: alias for path, alias in ALIASES.items() if any(word.split("=")[0] == alias for word in arguments)
    }
    return error.render(lambda path: short.get(path) or flag(path))


def field_docs(kind: type) -> dict[str, str]:
    """What stands below each field of a dataclass, its ancestors' included."""
    ancestors = filter(dataclasses.is_dataclass, reversed(kind.__mro__))
    parts = [part for cls in ancestors for part in docstring_parser.parse_from_object(cls).params]
    return {part.arg_name: " ".join((part.description or "").split()) for part in parts}
