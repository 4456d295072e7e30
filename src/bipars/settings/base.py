"""Settings that check themselves: frozen dataclasses whose values are of the types they say, or an error in words."""

import dataclasses
import functools
import json
import math
import types
import typing
from typing import Any, Literal

from bipars.errors import SettingError, UsageError, unknown


def require(condition: bool, path: str, value: object, expected: str, *others: str) -> None:
    """`others`: paths of other settings that `expected` names."""
    if not condition:
        raise SettingError(path, value, expected, others)


def require_positive(owner: str, settings: object, *names: str) -> None:
    """None is for its type to refuse."""
    for name in names:
        value = getattr(settings, name)
        require(value is None or (math.isfinite(value) and value > 0), f"{owner}.{name}", value, "a positive number")


def require_not_negative(owner: str, settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        require(math.isfinite(value) and value >= 0, f"{owner}.{name}", value, "a number of at least 0")


def require_share(owner: str, settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        require(0 <= value <= 1, f"{owner}.{name}", value, "a number in [0, 1]")


def require_hidden(owner: str, settings: object, *names: str) -> None:
    for name in names:
        sizes = getattr(settings, name)
        require(all(size >= 1 for size in sizes), f"{owner}.{name}", sizes, "layer sizes of at least 1")


def require_multiple(owner: str, settings: object, name: str, divisor: str) -> None:
    value, number = getattr(settings, name), getattr(settings, divisor)
    path = f"{owner}.{divisor}"
    require(value % number == 0, f"{owner}.{name}", value, f"a multiple of {path} ({number})", path)


class Settings:
    """A frozen dataclass that checks itself when it is made."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        raise NotImplementedError

    def _infinite_means_none(self, *names: str, infinity: float = math.inf) -> None:
        for name in names:
            if getattr(self, name) == infinity:
                object.__setattr__(self, name, None)


def check_types(settings: object, owner: str) -> None:
    """NumPy's numbers become Python's, lists tuples; nan, another type, or a word that is not listed, is an error."""
    for name, hint in _hints(type(settings)).items():  # type: ignore[arg-type]
        value = _plain(getattr(settings, name))
        if not _fits(value, hint):
            require(False, f"{owner}{name}", value, _describe(hint))
        if typing.get_origin(hint) is Literal and value not in typing.get_args(hint):
            raise unknown(f"{owner}{name}", value, typing.get_args(hint))
        object.__setattr__(settings, name, value)


def merge(base: Any, data: Any, where: str) -> Any:
    """The dataclass with other values; a key that does not exist is an error, not a silence."""
    require(isinstance(data, dict), where, data, "settings by name")
    hints = _hints(type(base))  # type: ignore[arg-type]
    values = {}
    for key, value in data.items():
        if key not in hints:
            raise unknown(f"key in {where}", str(key), hints)
        nested = dataclasses.is_dataclass(hints[key])
        values[key] = merge(getattr(base, key), value, f"{where}.{key}") if nested else value
    return dataclasses.replace(base, **values)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _plain(value: Any) -> Any:
    """NumPy's and JAX's numbers and arrays as Python's; lists as tuples; dicts as JSON gives them back."""
    if isinstance(value, dict):
        try:
            return json.loads(json.dumps(value, default=lambda x: x.tolist(), allow_nan=False))
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"env_options are {value!r}; expected finite numbers, text, and lists of them") from error
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _fits(value: object, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return isinstance(value, str)  # which, is checked with a suggestion
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    kind = origin or hint
    if kind is tuple:
        return isinstance(value, tuple) and all(_fits(item, typing.get_args(hint)[0]) for item in value)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _describe(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "True or False", types.NoneType: "none"}
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(map(_describe, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return f"a list, each {_describe(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(typing.get_args(hint))}"
    return words.get(hint, getattr(hint, "__name__", str(hint)))
