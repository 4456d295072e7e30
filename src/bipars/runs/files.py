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


def write_atomically(path: Path, content: bytes) -> None:
    """Temporary name, fsync, rename, fsync of the directory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
