"""One owner per directory: a lock that dies with its process, and says who holds it."""

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bipars.errors import RunDirectoryError

LOOK_SECONDS = 0.3
"""Who only looks whether a lock is held takes it for an instant, so nobody gives up at the first try."""


@contextmanager
def locked(file: Path, what: str, wait: float = 0.0) -> Iterator[None]:
    """Holds the lock; another live owner is named in an error, after `wait` seconds for it to leave.

    `what` completes the sentence "DIRECTORY ... (process 7 on a machine)".
    """
    try:
        lock = open(file, "a+")  # noqa: SIM115
    except OSError as error:
        raise RunDirectoryError(f"{file.parent} cannot be used: {error.strerror}") from error
    with lock:
        deadline = time.monotonic() + max(wait, LOOK_SECONDS)
        while not _try(lock.fileno()):
            if time.monotonic() >= deadline:
                lock.seek(0)
                holder = lock.read().strip() or "unknown"
                raise RunDirectoryError(f"{file.parent} {what} (process {holder}). Wait for it, or stop it first")
            time.sleep(0.1)
        lock.truncate(0)
        lock.write(f"{os.getpid()} on {platform.node()}")
        lock.flush()
        yield


def _try(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def held(file: Path) -> bool:
    """Whether a live process holds the lock."""
    try:
        with open(file) as lock:
            return not _try(lock.fileno())
    except OSError:
        return False
