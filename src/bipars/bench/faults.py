"""`bipars bench faults`: processes killed, files damaged or hostile, nodes lost; and whether the results are the same.

Every count is multiplied by --scale; 1 is the size that the documentation quotes.
"""

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from bipars.errors import UsageError

KILLS, CORRUPTIONS, HOSTILE, NODES = 300, 1_000, 500, 10
SHOWN = 10
"""Failures that are printed in full."""


@dataclass
class Tally:
    """What was tried, and what did not come out as it should."""

    name: str
    done: int = 0
    notes: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def count(self, note: str) -> None:
        self.done += 1
        self.notes[note] = self.notes.get(note, 0) + 1

    def line(self, seconds: float) -> str:
        notes = ", ".join(f"{count} {note}" for note, count in sorted(self.notes.items()))
        return f"{self.name:34}{self.done:6} {len(self.failures):9} {seconds:8.0f} s   {notes}"


def run_bench(scale: float) -> int:
    """Prints one line per kind of fault; the status is 1 where one of them changed a result or was not named."""
    from bipars.bench import corruptions, hostile, kills, nodes

    if not (math.isfinite(scale) and 0 < scale <= 1):
        raise UsageError(f"--scale is {scale}; expected a number above 0 and at most 1, which is the full size")

    def size(whole: int) -> int:
        return math.ceil(whole * scale)

    print(f"{'fault':34}{'done':>6} {'failed':>9} {'time':>10}", flush=True)
    failures: list[str] = []

    def measure(make: Callable[[Path], Tally]) -> None:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="bipars-faults-") as scratch:
            tally = make(Path(scratch))
        print(tally.line(time.perf_counter() - began), flush=True)
        failures.extend(tally.failures)

    tasks = [name for name in kills.TASKS if name != "hopper" or find_spec("mujoco") is not None]
    for i, name in enumerate(tasks):
        count = size(KILLS) // len(tasks) + (i < size(KILLS) % len(tasks))
        if count:
            measure(lambda scratch, name=name, count=count: kills.kill_task(name, count, scratch))  # type: ignore[misc]
    measure(lambda scratch: corruptions.corrupt(size(CORRUPTIONS), scratch))
    measure(lambda scratch: hostile.attack(size(HOSTILE), scratch))
    if find_spec("ray") is None:
        print("Ray is not installed; its nodes are lost after: pip install 'bipars[ray]'")
    else:
        measure(lambda scratch: nodes.lose_nodes(size(NODES), scratch))
    for failure in failures[:SHOWN]:
        print(f"FAILED {failure}")
    return 1 if failures else 0
