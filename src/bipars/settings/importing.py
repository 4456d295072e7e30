"""Modules of the user's, by name."""

import os
import sys
from importlib import import_module
from types import ModuleType


def import_from_here(module: str) -> ModuleType:
    """Also from the working directory, as `python -m` does and an installed command does not."""
    if module.startswith("."):
        raise ImportError(f"'{module}' begins with a dot; write the whole name")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    return import_module(module)
