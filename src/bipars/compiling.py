"""Compiled methods that live as long as their object."""

import functools
from typing import Any

import jax


def compiled(method: Any) -> Any:
    """Compiles a method for its object; inside another compiled function it simply becomes a part of it.

    The object itself keeps what was compiled, so both go together. `jit` would keep it for good, and a process that
    trains one agent after the other would run out of the pieces of memory a system grants it (65,530 on Linux).
    """
    return functools.cached_property(lambda self: jax.jit(functools.wraps(method)(functools.partial(method, self))))
