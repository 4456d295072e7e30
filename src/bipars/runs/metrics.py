"""metrics.jsonl: one row per round, appended by one writer, readable at any moment."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bipars.errors import CheckpointError
from bipars.runs.files import sha256


def encode_row(row: Mapping[str, Any]) -> bytes:
    """One line of strict JSON. A number that is not finite becomes null, and its name goes into `nonfinite`."""
    bad = sorted(k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v))
    clean: dict[str, Any] = {k: None if k in bad else v for k, v in row.items()}
    if bad:
        clean["nonfinite"] = bad
    return (json.dumps(clean, allow_nan=False) + "\n").encode()


class MetricsWriter:
    """Appends rows; `mark` makes them durable and says where the file stands."""

    def __init__(self, path: Path, mark: tuple[int, str] | None = None) -> None:
        """Opens the file anew, or at `mark` of an earlier writer: what came after it is cut off."""
        size, digest = mark or (0, sha256(b""))
        content = path.read_bytes()[:size] if path.exists() else b""
        if len(content) != size or sha256(content) != digest:
            raise CheckpointError(f"{path} is not what the checkpoint recorded in its first {size} bytes")
        self.file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
        self.file.truncate(size)
        self.file.seek(size)
        self.content = bytearray(content)

    def append(self, row: Mapping[str, Any]) -> None:
        line = encode_row(row)
        self.file.write(line)
        self.file.flush()
        self.content += line

    def mark(self) -> tuple[int, str]:
        os.fsync(self.file.fileno())
        return len(self.content), sha256(bytes(self.content))

    def close(self) -> None:
        self.file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete rows; a torn last line is dropped."""
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        row = _parse(line)
        if row is None:
            raise CheckpointError(f"{path} is damaged: line {number} is {line[:40]!r}; expected a row of metrics")
        rows.append(row)
    return rows


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def evaluated(rows: list[dict[str, Any]], every: int, finished: bool = True) -> list[dict[str, Any]]:
    """The rows whose policy was evaluated: every so many and, of a finished run, the last."""
    return [row for row in rows if row["round"] % every == 0 or (finished and row is rows[-1])]


def read_last_row(path: Path) -> dict[str, Any] | None:
    """The newest complete row, reading only the end of the file."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 65_536))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    complete = [line for line in lines[-2:] if line.endswith(b"\n")]
    return _parse(complete[-1]) if complete else None
