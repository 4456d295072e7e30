"""One owner per directory: a lock that dies with its process, and says who holds it."""

import fcntl
import os
import platform
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bipars.errors import CheckpointError, RunDirectoryError
from bipars.runs.files import open_own, read_file

LOOK_SECONDS = 0.3
"""Who only looks whether a lock is held takes it for an instant, so nobody gives up at the first try."""


@contextmanager
def locked(file: Path, what: str, wait: float = 0.0) -> Iterator[None]:
    """Holds the lock; another live owner is named in an error, after `wait` seconds for it to leave.

    `what` completes the sentence "DIRECTORY ... (process 7 on a machine)".
    """
    with open(open_own(file), "r+b", buffering=0) as lock:
        deadline = time.monotonic() + max(wait, LOOK_SECONDS)
        while not _try(lock.fileno()):
            if time.monotonic() >= deadline:
                raise RunDirectoryError(f"{file.parent} {what} (process {holder(file)}). Wait for it, or stop it first")
            time.sleep(0.1)
        lock.truncate(0)
        lock.write(f"{os.getpid()} on {platform.node()}".encode())
        yield


def _try(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def held(file: Path) -> bool:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(handle).st_mode) and not _try(handle)
    finally:
        os.close(handle)


def holder(file: Path) -> str:
    """Who says to hold it."""
    try:
        text = read_file(file, last=200).decode(errors="replace").strip()
    except (FileNotFoundError, CheckpointError):
        text = ""
    return "".join(c for c in text if c.isprintable()) or "unknown"
