"""`bipars bench faults`: processes killed, files damaged or hostile, nodes lost; and whether the results are the same.

Every count is multiplied by --scale; 1 is the size that the documentation quotes. What was tried is kept in a file per
part as it goes, so a bench that was stopped goes on where it was. `python -m bipars.bench.faults docs/runs.md
results/faults` writes a table of them into a page.
"""

import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from bipars.errors import UsageError, unknown
from bipars.metrics import with_tables
from bipars.runs.files import read_json, write_json
from bipars.runs.versions import versions

KILLS, CORRUPTIONS, HOSTILE, NODES = 300, 1_000, 500, 10
SHOWN = 10
"""Failures that are printed, and after which a part is given up."""


@dataclass
class Tally:
    """What was tried in one part, and what did not come out as it should."""

    part: str
    done: int = 0
    notes: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def count(self, note: str) -> None:
        self.done += 1
        self.notes[note] = self.notes.get(note, 0) + 1

    def line(self) -> str:
        return f"{self.part:14}{self.done:6} {len(self.failures):9} {self.seconds:8.0f} s   {self.noted}"

    @property
    def noted(self) -> str:
        return ", ".join(f"{count} {note}" for note, count in sorted(self.notes.items()))


Try = Callable[[Tally, int, random.Random], None]
"""One more fault, or some in one run: until so many are done in all."""
Part = Callable[[Path], AbstractContextManager[Try]]
"""Prepares them in an empty directory."""


def known_parts() -> dict[str, tuple[Part, int]]:
    """By name, with how many faults there are at full size."""
    from bipars.bench import corruptions, hostile, kills, nodes

    tasks = [name for name in kills.TASKS if name != "hopper" or find_spec("mujoco") is not None]
    found: dict[str, tuple[Part, int]] = {name: (partial(kills.killing, name), KILLS // len(tasks)) for name in tasks}
    found |= {"corruptions": (corruptions.corrupting, CORRUPTIONS), "hostile": (hostile.attacking, HOSTILE)}
    return found | ({"nodes": (nodes.losing, NODES)} if find_spec("ray") is not None else {})


def run_bench(scale: float = 1.0, out: Path | None = None, parts: Sequence[str] = ()) -> int:
    """Prints one line per part; the status is 1 where a fault changed a result or was not named."""
    if not (math.isfinite(scale) and 0 < scale <= 1):
        raise UsageError(f"--scale is {scale}; expected a number above 0 and at most 1, which is the full size")
    known = known_parts()
    for name in parts:
        if name not in known:
            raise unknown("part of bench faults", name, known)
    print(f"{'part':14}{'done':>6} {'failed':>9} {'time':>10}", flush=True)
    failures: list[str] = []
    for name in parts or known:
        part, whole = known[name]
        tally = do_part(name, part, math.ceil(whole * scale), out)
        print(tally.line(), flush=True)
        failures += tally.failures
    for failure in failures[:SHOWN]:
        print(f"FAILED {failure}")
    return 1 if failures else 0


def do_part(name: str, part: Part, count: int, out: Path | None) -> Tally:
    """As many faults as are missing; each try is seeded by the part's name and by what was done before it."""
    file = None if out is None else out / f"{name}.json"
    tally = Tally(name) if file is None or not file.exists() else read_tally(file)
    with tempfile.TemporaryDirectory(prefix="bipars-faults-") as scratch, part(Path(scratch)) as try_one:
        while tally.done < count and len(tally.failures) < SHOWN:
            began = time.perf_counter()
            try_one(tally, count, random.Random(f"{name} {tally.done}"))
            tally.seconds += time.perf_counter() - began
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                command = " ".join(["bipars", *sys.argv[1:]])
                write_json(file, {"result": asdict(tally), "command": command, "versions": versions()})
    return tally


def read_tally(file: Path) -> Tally:
    return Tally(**read_json(file)[0]["result"])


def table(results: Path) -> Iterator[str]:
    """What was tried, in Markdown."""
    yield "\n| part | tried | failed | of them |\n| --- | --- | --- | --- |\n"
    for tally in map(read_tally, sorted(results.glob("*.json"))):
        yield f"| `{tally.part}` | {tally.done:,} | {len(tally.failures):,} | {tally.noted} |\n"
    yield "\n"


if __name__ == "__main__":
    page, results = map(Path, sys.argv[1:])
    page.write_text(with_tables(page.read_text(), table(results)))
