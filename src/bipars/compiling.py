"""Compiled methods that live as long as their object, and two of them at once, or one in two halves."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np

First = TypeVar("First")
Second = TypeVar("Second")


def compiled(method: Any = None, static: str | tuple[str, ...] = ()) -> Any:
    """Compiles a method for its object; inside another compiled function it simply becomes a part of it.

    Arguments named in `static`, given by name, are settings: each value of theirs has a program of its own.

    The object itself keeps what was compiled, so both go together. `jit` would keep it for good, and a process that
    trains one agent after the other would run out of the pieces of memory a system grants it (65,530 on Linux).
    """
    if method is None:
        return functools.partial(compiled, static=static)
    return functools.cached_property(
        lambda self: jax.jit(functools.wraps(method)(functools.partial(method, self)), static_argnames=static)
    )


def at_once(really: bool, first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """What both calls return. With `really` they share the time: compiled programs leave Python alone while they run.

    XLA has no part in this: it runs the loops of one program, and programs started in one thread, one after the other.
    """
    if not really:
        return first(), second()
    with ThreadPoolExecutor(1) as other:
        future = other.submit(lambda: jax.block_until_ready(second()))
        return first(), future.result()


def in_halves(really: bool, work: Callable[[np.ndarray], First], count: int) -> tuple[First, ...]:
    """What `work` makes of the numbers below `count`: of all of them or, with `really`, of both halves at once."""
    if not really or count < 2:
        return (work(np.arange(count)),)
    first, second = np.array_split(np.arange(count), 2)
    return at_once(True, lambda: work(first), lambda: work(second))
