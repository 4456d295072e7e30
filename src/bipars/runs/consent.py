"""Which files may choose code: those that this user wrote here, or has agreed to.

Remembered in one file of the user's own, a line for each: the SHA-256 of where the file is and of what stands in it. So
a run that was moved, copied or changed is asked about again.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bipars.runs.files import read_file, sha256
from bipars.runtime import state_directory
from bipars.settings.importing import agree, withhold


def remember(file: Path, content: bytes) -> None:
    """This user wrote it, or agrees to the code it names."""
    with suppress(OSError):  # without a place to remember one is asked again
        directory = state_directory()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(directory / "known", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with open(handle, "ab") as known:
            known.write(f"{_line(file, content)}\n".encode())


def is_known(file: Path, content: bytes) -> bool:
    try:
        return _line(file, content).encode() in read_file(state_directory() / "known").split()
    except (OSError, FileNotFoundError):
        return False


def _line(file: Path, content: bytes) -> str:
    return sha256(os.fsencode(file.resolve()) + b"\0" + content)


def take_names(names: Sequence[str], file: Path, content: bytes) -> None:
    """The code that a file names: agreed to where the file is known, else withheld."""
    if names:
        if is_known(file, content):
            agree(names)
        else:
            withhold(names, str(file))
