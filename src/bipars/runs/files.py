"""Writing so that a crash leaves the old file or the new one; reading so that a damaged file is named."""

import errno
import hashlib
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any

from bipars.errors import CheckpointError, RunDirectoryError

LEFTOVERS = ".*.tmp"
"""What a killed `write_atomically` leaves."""
CHECKSUM = "checksum"
"""The key of a JSON file that holds the SHA-256 of all the rest."""
LARGEST = 2**30
"""Bytes of a file that are read."""
SURROGATE = re.compile(rb"\\u[dD]")
DEEPEST = 32
"""Levels of lists and names in a JSON file; ours have six."""


def sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: bytes, replace: bool = True) -> None:
    """Temporary name, fsync, rename, fsync of the directory. Without `replace`, FileExistsError where it exists."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "xb") as file:  # never through a link that somebody put there
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


def encode_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any, replace: bool = True) -> None:
    write_atomically(path, encode_json(value), replace)


def write_checked(path: Path, value: dict[str, Any], replace: bool = True) -> None:
    """JSON that holds its own checksum."""
    write_json(path, value | {CHECKSUM: sha256(encode_json(value))}, replace)


def is_unused(path: Path) -> bool:
    """A directory without files: new, or of a process that was killed before it wrote its first one."""
    return path.is_dir() and all(entry.is_dir() or entry.match(LEFTOVERS) for entry in path.rglob("*"))


def refuse_links(*paths: Path) -> None:
    """What we write to must be where it seems to be."""
    for path in paths:
        if path.is_symlink():
            raise RunDirectoryError(
                f"{path} is a symbolic link, and nothing is written through those. Put what it leads to in its place"
            )


def open_own(path: Path) -> int:
    """A file that is written in place, at its end, and made if there is none: a regular one, of this name alone."""
    refuse_links(path)
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be used: {error.strerror}") from error
    about = os.fstat(handle)
    if stat.S_ISREG(about.st_mode) and about.st_nlink == 1:
        return handle
    os.close(handle)
    if not stat.S_ISREG(about.st_mode):
        raise RunDirectoryError(f"{path} is no regular file. Remove it")
    raise RunDirectoryError(f"{path} has a second name, a hard link, which would change with it. Copy it instead")


def refuse_outside(root: Path, path: Path) -> None:
    """The same for every directory from `root`, which a person named, down to `path`."""
    refuse_links(path, *(parent for parent in path.parents if parent != root and parent.is_relative_to(root)))


def list_files(directory: Path, suffix: str = "") -> list[Path]:
    """What a directory holds, by name; nothing where there is none. One that cannot be listed is not an empty one."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be read: {error.strerror}") from error
    return sorted(directory / name for name in names if name.endswith(suffix))


def find_below(root: Path, name: str) -> list[Path]:
    """Every file of this name, and where it would be in a directory that cannot be listed: whoever reads it, says so.

    Not `rglob`, which leaves those out without a word, and ends with a traceback where one is removed meanwhile or
    where there are a thousand in each other.
    """
    found, waiting = [], [root]
    while waiting:
        place = waiting.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.name == name:
                        found.append(place / name)
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(place / entry.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:  # where nobody can have written either
                found.append(place / name)
    return sorted(found)


def read_file(path: Path, last: int | None = None) -> bytes:
    """A regular file, or its last bytes: a pipe would never end, and a link may lead anywhere."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise CheckpointError(f"{path} cannot be read: {why}") from error
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        raise CheckpointError(f"{path} cannot be read: it is no regular file. Remove it")
    with open(handle, "rb") as file:
        if last is None and about.st_size > LARGEST:
            raise CheckpointError(f"{path} cannot be read: it has {about.st_size:,} bytes, more than any of ours")
        try:
            file.seek(0 if last is None else max(0, about.st_size - last))
            return file.read()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def parse_json(content: bytes) -> Any:
    """Strict JSON of bounded depth that can be written again; ValueError for anything else."""
    try:
        value = json.loads(content, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if SURROGATE.search(content):
        json.dumps(value, ensure_ascii=False).encode()  # half a character is an error here, not when it is shown
    level = [value]
    for _ in range(DEEPEST):
        if any(isinstance(inner, float) and not math.isfinite(inner) for inner in level):
            raise ValueError("it holds a number that is too large")
        nested = [value for value in level if isinstance(value, (dict, list))]
        level = [inner for outer in nested for inner in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def _refuse(constant: str) -> None:
    raise ValueError(f"it holds {constant}")


def is_number(value: Any) -> bool:
    """A finite number that fits into eight bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def read_json(path: Path) -> tuple[dict[str, Any], bytes]:
    """Names and values, and the bytes they stand in."""
    content = read_file(path)
    try:
        value = parse_json(content)
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged: it holds {value!r:.40}; expected names and values")
    return value, content


def verify_checksum(path: Path, value: dict[str, Any], content: bytes, needed: bool = True) -> None:
    if not needed and CHECKSUM not in value:
        return
    rest = {name: value[name] for name in value if name != CHECKSUM}
    if value.get(CHECKSUM) != sha256(encode_json(rest)) or encode_json(value) != content:
        raise CheckpointError(f"{path} is damaged, or was edited: its checksum is not that of its content")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
