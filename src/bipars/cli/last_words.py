"""What is said if this process ends while environments are tried: by `os._exit`, or by a crash of a library in C."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bipars.errors import printable

LISTENER = 'read -r said; [ "$said" = done ] || printf "%s\\n" "$1" >&2'
"""Reads from a pipe that only ends without a word if we do."""


@contextmanager
def last_words(who: str) -> Iterator[None]:
    """Around the first steps of environments, which are tried here, before anything starts."""
    message = printable(f"bipars: {who} ended this process in its first steps (os._exit, or a crash). Mend it")
    if os.name != "posix":
        yield
        return
    listener = subprocess.Popen(["/bin/sh", "-c", LISTENER, "sh", message], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            listener.communicate(b"done\n")
