"""metrics.jsonl: one row per round, appended by one writer, readable at any moment."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bipars.errors import CheckpointError
from bipars.runs.files import is_number, open_own, parse_json, read_file, sha256

NEEDED = ("round", "step", "evaluation_return", "evaluation_length")
"""What every row has; what was not evaluated yet is null."""


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
        self.content = bytearray(read_marked(path, mark or (0, sha256(b""))))
        self.file = open(open_own(path), "ab")  # noqa: SIM115
        self.file.truncate(len(self.content))

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


def read_marked(path: Path, mark: tuple[int, str]) -> bytes:
    """The file up to a mark, where that is what was written."""
    size, digest = mark
    try:
        content = read_file(path)[:size]
    except FileNotFoundError:
        content = b""
    if len(content) != size or sha256(content) != digest:
        raise CheckpointError(f"{path} is damaged: it is not what was recorded in its first {size} bytes")
    return content


def parse_metrics(content: bytes, path: Path) -> list[dict[str, Any]]:
    """All complete rows of a file; a torn last line is dropped."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        row = _parse(line)
        problem = f"is {line[:40]!r}; expected a row of metrics" if row is None else _problem(row)
        if row is not None and not problem and rows and row["round"] <= rows[-1]["round"]:
            problem = f"has round {row['round']} after round {rows[-1]['round']}"
        if row is None or problem:
            raise CheckpointError(f"{path} is damaged: line {number} {problem}")
        rows.append(row)
    return rows


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _problem(row: dict[str, Any]) -> str:
    """What is wrong with a row, in words that follow its number."""
    for name in NEEDED:
        if name not in row:
            return f"has no {name}"
    for name in ("round", "step"):
        if not isinstance(row[name], int) or row[name] < 1:
            return f"has {name} {row[name]!r:.40}; expected a whole number of at least 1"
    for name, value in row.items():
        if not is_number(value) and value is not None and name != "nonfinite":
            return f"has {name!r:.60} {value!r:.40}; expected a number"
    return ""


def evaluated(rows: list[dict[str, Any]], every: int, finished: bool = True) -> list[dict[str, Any]]:
    """The rows whose policy was evaluated: every so many and, of a finished run, the last."""
    return [row for row in rows if row["round"] % every == 0 or (finished and row is rows[-1])]


def read_last_row(path: Path) -> dict[str, Any] | None:
    """The newest complete row, reading only the end of the file; none where that is damaged or not there."""
    try:
        lines = read_file(path, last=65_536).splitlines(keepends=True)
    except (FileNotFoundError, CheckpointError):
        return None
    complete = [line for line in lines[-2:] if line.endswith(b"\n")]
    row = _parse(complete[-1]) if complete else None
    return None if row is None or _problem(row) else row
