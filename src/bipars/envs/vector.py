"""Gymnasium's vector environments, in which one that dies, hangs or raises is named."""

import multiprocessing
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from bipars.envs import spaces
from bipars.errors import EnvError, UsageError

DYING_SECONDS = 5.0
"""How long the error, or the end, of a process is waited for that is gone already."""


class _PlainInfo:
    """Keeps what each environment reports as it is; Gymnasium gives all the type of the first one's value."""

    num_envs: int

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        for key, value in env_info.items():
            vector_infos.setdefault(key, np.full(self.num_envs, None, object))[env_num] = value
            vector_infos.setdefault(f"_{key}", np.zeros(self.num_envs, bool))[env_num] = True
        return vector_infos


class Sync(_PlainInfo, SyncVectorEnv):
    pass


class Async(_PlainInfo, AsyncVectorEnv):
    """A process for each environment."""

    timeout: float | None = None
    """Seconds for a step or reset of all of them."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        with self._named("reset()"):
            self.reset_async(seed=seed, options=options)
            return self.reset_wait(self.timeout)

    def step(self, actions: Any) -> Any:
        with self._named("step()"):
            self.step_async(actions)
            return self.step_wait(self.timeout)

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except multiprocessing.TimeoutError:
            which = next((i for i, pipe in enumerate(self.parent_pipes) if not pipe.poll()), 0)
            self._end()
            raise EnvError(
                f"environment process {which}: {what} took longer than {self.timeout:g} s (--env-timeout)"
            ) from None
        except (EOFError, ConnectionError):
            message = f"{self._death()}, during {what}"
            self._end()
            raise EnvError(message) from None

    def _death(self) -> str:
        for process in self.processes:
            process.join(DYING_SECONDS / self.num_envs)
        for i, process in enumerate(self.processes):
            if process.exitcode is not None:
                return f"environment process {i} {ended(process.exitcode)}"
        return "an environment process closed its connection"

    def _end(self) -> None:
        for process in self.processes:
            process.kill()
        self._state = AsyncState.DEFAULT
        self.close(terminate=True)

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        failed = [i for i, success in enumerate(successes) if not success]
        if not failed:
            return
        index, error = failed[0], "it failed, and its error could not be sent"
        with suppress(queue.Empty):
            index, _, error, _ = self.error_queue.get(timeout=DYING_SECONDS)
        self._end()
        raise EnvError(f"environment process {index}: {error}")


def ended(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    return f"died with signal {-status} ({signal.Signals(-status).name})"


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that names what it returned where that is not what its spaces promise."""

    def __init__(self, env: gymnasium.Env[Any, Any], timeout: float | None = None, in_words: bool = False) -> None:
        """With `in_words`, what it raises becomes an `EnvError`: not every exception survives the way home."""
        super().__init__(env)
        self._timeout, self._in_words = timeout, in_words
        self.observation_space, self.dropped = spaces.without_unusable(env.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self._call("reset()", lambda: self.env.reset(seed=seed, options=options))
        self._check(obs, "reset()")
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._call("step()", lambda: self.env.step(action))
        self._check(obs, "step()")
        if not spaces.is_number(reward):
            raise EnvError(f"{self._name}: step() returned the reward {reward!r:.80}; expected a single number")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if type(value) is not bool and not _is_boolean(value):
                raise EnvError(f"{self._name}: step() returned {name} {value!r:.80}; expected True or False")
        return obs, reward, terminated, truncated, info

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            if self._timeout is None:
                return call()
            with _in_time(self._timeout):
                return call()
        except SystemExit as error:
            raise EnvError(f"{self._name}: {what} called sys.exit({error.code!r:.80})") from error
        except _TooLate as error:
            raise EnvError(f"{self._name}: {what} took longer than {self._timeout:g} s (--env-timeout)") from error
        except Exception as error:
            if not self._in_words:
                raise
            raise EnvError(f"{what} raised {type(error).__name__}: {error}") from error

    def _check(self, obs: Any, where: str) -> None:
        try:
            spaces.batched(self.observation_space, obs, many=False)
        except UsageError as error:
            raise EnvError(f"{self._name}: {where} breaks its observation_space: {error}") from None

    @property
    def _name(self) -> str:
        return f"environment {type(self.env.unwrapped).__name__}"


def _is_boolean(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype == bool
    return isinstance(value, (bool, np.bool_))


class _TooLate(BaseException):
    """No Exception: an environment that catches those must not catch this."""


@contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """Interrupts Python code that takes longer. Signals reach the main thread alone; elsewhere nothing is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _TooLate

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
