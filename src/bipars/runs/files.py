"""Writing so that a crash at any moment leaves either the old file or the new one."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

LEFTOVERS = ".*.tmp"
"""What a killed `write_atomically` leaves."""


def sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: bytes, replace: bool = True) -> None:
    """Temporary name, fsync, rename, fsync of the directory. Without `replace`, FileExistsError where it exists."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            if not replace:
                os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:  # no hard links on this file system: replace, which is right unless two come at once
            replace = True
        if replace:
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def write_json(path: Path, value: Any, replace: bool = True) -> None:
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"
    write_atomically(path, text.encode(), replace)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
