"""What a report needs of an agent that was trained in Python."""

from collections.abc import Mapping, Sequence
from typing import Any

from bipars.runs.directory import RunDirectory
from bipars.runs.files import write_atomically
from bipars.runs.metrics import encode_row
from bipars.runs.snapshots import read_snapshots, snapshot_file, write_snapshot


def write_record(run: RunDirectory, metrics: Sequence[Mapping[str, Any]], snapshots: Mapping[int, bytes]) -> bytes:
    """The metrics, which are returned, and how the weights looked at times, in place of what was there."""
    rows = b"".join(map(encode_row, metrics))
    if rows:
        write_atomically(run.metrics_file, rows)
    for round, content in snapshots.items():
        write_snapshot(run, round, content)
    for round in read_snapshots(run).keys() - snapshots.keys():
        snapshot_file(run, round).unlink()
    return rows
