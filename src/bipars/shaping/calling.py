"""Functions that a user wrote, called on many inputs in NumPy or JAX. An error names the function and the step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from bipars.errors import TermError
from bipars.shaping.experience import BatchInfo


@dataclass(frozen=True)
class UserFunction:
    what: str
    """What it is, and its name."""
    fn: Callable[..., Any]
    vectorised: bool
    """Takes many inputs at once, on a leading axis."""

    def on_host(
        self, arguments: Sequence[Any], count: int, describe: Callable[[int], str], info: BatchInfo | None = None
    ) -> np.ndarray:
        """One number for each of `count` inputs, which stand on the leading axis of every argument."""

        def call(fn: Callable[..., Any], index: int, given: Sequence[Any], about: Any) -> Any:
            return self._call(fn, lambda: describe(index), info, *given, *(() if info is None else (about,)))

        if self.vectorised:
            values = np.asarray(call(self.fn, 0, arguments, info))
            if values.shape != (count,):
                raise TermError(f"{self.what} returned shape {values.shape} for {count} transitions; return ({count},)")
            return values.astype(float)

        def one(i: int) -> Any:
            return call(self.fn, i, [pick(x, i) for x in arguments], None if info is None else info.at(i))

        first = one(0)
        if np.shape(first) != ():
            raise TermError(
                f"{self.what} returned shape {np.shape(first)} at {describe(0)} for one transition; "
                "return a single number, or declare it vectorised"
            )
        if isinstance(first, jax.Array):
            # Written in JAX: thousands of calls on single transitions would take seconds.
            numbers = None if info is None else info.numeric()
            return np.asarray(call(jax.vmap(self.fn), 0, arguments, numbers), float)
        values = np.empty(count)
        values[0] = first
        for i in range(1, count):
            value = one(i)
            try:
                values[i] = value
            except (TypeError, ValueError):
                raise TermError(f"{self.what} returned {value!r} at {describe(i)}; return a single number") from None
        return values

    def _call(self, fn: Callable[..., Any], where: Callable[[], str], info: BatchInfo | None, *arguments: Any) -> Any:
        try:
            return fn(*arguments)
        except KeyError as error:
            first = {} if info is None else info.at(0)
            if info is not None and error.args[:1] and error.args[0] not in first:
                raise TermError(
                    f"{self.what} asked for the key {error} at {where()}; info has the keys {list(first) or 'none'}"
                ) from error
            raise TermError(f"{self.what} failed at {where()}: {error!r}") from error
        except TermError as error:
            raise TermError(f"{self.what}: {error}") from None
        except Exception as error:
            raise TermError(f"{self.what} failed at {where()}: {error!r}") from error


def pick(x: Any, index: int) -> Any:
    """One entry of an array, or of every array of a nested observation."""
    return x[index] if isinstance(x, np.ndarray) else jax.tree.map(lambda leaf: leaf[index], x)


def flatten_lead(x: Any) -> Any:
    """Time and environment on one axis, in every array of a nested observation."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), x)
