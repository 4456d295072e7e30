"""Modules of the user's, by name. Code that a file names is not imported before somebody has agreed to it.

What a person types, or passes in Python, is agreed to by that. What stands in a file is withheld: the file may be a
stranger's.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType

from bipars.errors import UsageError
from bipars.settings.config import Config

IMPORT = "import:"
"""How a term, a potential or a method begins that is a function of the user's."""

_agreed: set[str] = set()
_withheld: dict[str, list[str]] = {}


class WithheldError(UsageError):
    """A file names code, and nobody has agreed to it."""

    def __init__(self, name: str, file: str) -> None:
        super().__init__(
            f"{file} names code, '{name}', which would run with your rights. If you trust it: --allow-imports, or "
            "allow_imports=True in Python; or pass what it names yourself, as env=, terms=, potential= or method="
        )


def named_code(config: Config) -> tuple[str, ...]:
    """What must be imported for a configuration, such as my_terms.upright and my_module:MyEnv-v0.

    An option of an environment may be such a name, too: of the environment that it wraps.
    """
    options = [value for value in config.env_options.values() if isinstance(value, str)]
    return foreign_code(
        [config.env, *options], (*config.terms, config.true_reward, config.potential or "", config.method)
    )


def foreign_code(envs: Iterable[str], specs: Iterable[str]) -> tuple[str, ...]:
    """What must be imported for environments, and for terms, potentials and methods. The library's own is left out."""
    names = [env for env in envs if ":" in env]
    names += [spec.removeprefix(IMPORT) for spec in specs if spec.startswith(IMPORT)]
    return tuple(name for name in dict.fromkeys(names) if name.replace(":", ".").partition(".")[0] != "bipars")


def agree(names: Iterable[str]) -> None:
    """From now on these may be imported, whoever names them."""
    for name in names:
        _agreed.add(name)
        _withheld.pop(name, None)


def agree_typed(*specs: object) -> None:
    """The same of what somebody typed or passed; names that import nothing are left out."""
    agree(spec.removeprefix(IMPORT) for spec in specs if isinstance(spec, str) and ":" in spec)


def withhold(names: Iterable[str], file: str) -> None:
    """Code that a file names; what was agreed to stays so."""
    for name in names:
        if name not in _agreed and file not in _withheld.setdefault(name, []):
            _withheld[name].append(file)


def withheld() -> Mapping[str, list[str]]:
    """Code that nobody has agreed to, with the files that name it."""
    return dict(_withheld)


def agreed() -> tuple[str, ...]:
    return tuple(sorted(_agreed))


def require_agreed(names: Iterable[str]) -> None:
    for name in names:
        if name in _withheld:
            raise WithheldError(name, _withheld[name][0])


def import_from_here(module: str, name: str) -> ModuleType:
    """The module of `name`, also from the working directory, where no other has that name."""
    require_agreed([name])
    if module.startswith("."):
        raise ImportError(f"'{module}' begins with a dot; write the whole name")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    return import_module(module)
