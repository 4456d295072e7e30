"""Functions that a user wrote, called on many inputs in NumPy or JAX. An error names the function and the step."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from bipars.envs.host_batch import BatchInfo, HostBatch
from bipars.envs.spaces import NUMBERS, is_number
from bipars.errors import TermError, UsageError


def check_named(kind: str, name: Any, fn: Any, takes: str) -> None:
    """A function of a user's needs a name, by which every message and table calls it."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"a {kind} needs a name; got {name!r}, expected text such as 'upright'")
    if not callable(fn):
        raise UsageError(f"{kind} '{name}': fn is {fn!r}; expected a function of {takes}")


TRANSITION = "(obs, action, next_obs, info)"
"""What reward terms and the true reward are functions of."""


def check_arguments(what: str, fn: Callable[..., Any]) -> None:
    """That the function can be called on a transition; one that does not tell is tried later."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*TRANSITION.split())
    except TypeError:
        takes = ", ".join(map(str, signature.parameters))
        raise UsageError(f"{what} is a function of ({takes}); write it as one of {TRANSITION}") from None


def single_number(what: str, value: Any, where: str = "") -> float:
    """Text is no number, even if it reads like one."""
    if not is_number(value):
        raise TermError(f"{what} returned {value!r:.80}{where and f' at {where}'}; return a single number")
    return float(value)


def explain(error: Exception) -> str:
    """What went wrong in a function; where JAX stumbled over plain Python, what to write instead."""
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return "it decides by a value that JAX does not know yet. Use jnp.where(condition, a, b) instead of if"
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return "it gives a value of JAX to NumPy. Use jax.numpy instead of numpy"
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return "it makes a Python number of a value that JAX does not know yet. Leave out float() and int()"
    if isinstance(error, ValueError) and "read-only" in str(error):
        return "it writes into what it was given. Take a copy first, such as obs = obs.copy()"
    return repr(error)


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
            values = call(lambda *given: np.asarray(self.fn(*given)), 0, arguments, info)
            if values.shape != (count,):
                raise TermError(f"{self.what} returned shape {values.shape} for {count} transitions; return ({count},)")
            return values.astype(float) if values.dtype.kind in NUMBERS else self._numbers(values.tolist(), describe)

        def one(i: int) -> Any:
            return call(self.fn, i, [pick(x, i) for x in arguments], None if info is None else info.at(i))

        first = one(0)
        if isinstance(first, (np.ndarray, jax.Array)) and first.shape != ():
            raise TermError(
                f"{self.what} returned shape {first.shape} at {describe(0)} for one transition; "
                "return a single number, or declare it vectorised"
            )
        if isinstance(first, jax.Array):
            # Written in JAX: thousands of calls on single transitions would take seconds.
            numbers = None if info is None else info.numeric()
            return np.asarray(call(jax.vmap(self.fn), 0, arguments, numbers), float)
        return self._numbers([first, *(one(i) for i in range(1, count))], describe)

    def _numbers(self, values: Sequence[Any], describe: Callable[[int], str]) -> np.ndarray:
        for i, value in enumerate(values):
            if not is_number(value):
                single_number(self.what, value, describe(i))
        return np.array(values, float)

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
            raise TermError(f"{self.what} failed at {where()}: {explain(error)}") from error


def call_on_batch(what: str, fn: Callable[..., Any], vectorised: bool, host_batch: HostBatch) -> np.ndarray:
    """(time, env): a function of (obs, action, next_obs, info) on what happened."""
    step = tuple(map(flatten_lead, (host_batch.obs, host_batch.native_action, host_batch.next_obs)))
    function = UserFunction(what, fn, vectorised)
    values = function.on_host(step, host_batch.env_reward.size, host_batch.describe, BatchInfo(host_batch))
    return values.reshape(host_batch.shape)


def call_on_step(
    what: str,
    fn: Callable[..., Any],
    vectorised: bool,
    obs: Any,
    action: Any,
    next_obs: Any,
    info: Mapping[str, Any],
) -> float:
    """A function of (obs, action, next_obs, info) on one transition of one environment."""
    if not vectorised:
        return single_number(what, fn(obs, action, next_obs, info))
    step = jax.tree.map(lambda x: np.asarray(x)[None], (obs, action, next_obs))
    return single_number(what, np.asarray(fn(*step, {key: np.asarray([info[key]]) for key in info}))[0])


def pick(x: Any, index: Any) -> Any:
    """One entry of an array, or of every array of a nested observation; or several."""
    return x[index] if isinstance(x, np.ndarray) else jax.tree.map(lambda leaf: leaf[index], x)


def flatten_lead(x: Any) -> Any:
    """Time and environment on one axis, in every array of a nested observation. Nobody can write into NumPy's."""

    def one(leaf: Any) -> Any:
        flat = leaf.reshape(-1, *leaf.shape[2:])
        if isinstance(flat, np.ndarray):
            flat.flags.writeable = False  # of this view alone
        return flat

    return jax.tree.map(one, x)
