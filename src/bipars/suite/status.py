"""Where a suite stands, read from its files alone: also while it runs, also after it was killed."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from bipars.errors import printable
from bipars.runs.directory import State
from bipars.runs.lock import held, holder
from bipars.runs.metrics import read_last_row
from bipars.suite.manifest import read_manifest
from bipars.suite.work import PlannedRun

STATES: tuple[State, ...] = get_args(State)


def count_states(runs: Iterable[PlannedRun]) -> dict[str, Counter[str]]:
    """By cell, and in all; `steps` counts environment steps taken."""
    cells: dict[str, Counter[str]] = {"all": Counter()}
    for run in runs:
        state = run.directory.state
        if state == "done":
            steps = run.config.steps
        else:
            steps = 0 if state == "waiting" else (read_last_row(run.directory.metrics_file) or {}).get("step", 0)
        for name in (run.program, "all"):
            cells.setdefault(name, Counter()).update({state: 1, "steps": steps})
    return cells


def show_status(root: Path) -> int:
    """One line per cell and their sum; the exit status is 1 where a run failed."""
    manifest = read_manifest(root)
    runs = manifest.runs(root)
    cells = count_states(runs)
    total = cells.pop("all")
    print(printable(manifest.suite.title))
    print("cell".ljust(44), *(state.rjust(8) for state in STATES))
    for name, counts in cells.items():
        print(name.ljust(44), *(str(counts[state] or "").rjust(8) for state in STATES))
    print("all".ljust(44), *(str(total[state]).rjust(8) for state in STATES))
    steps = sum(run.config.steps for run in runs)
    lock = root / "runner.lock"
    runner = f"process {holder(lock)} is at work" if held(lock) else "nobody is at work"
    print(f"{total['steps']:,} of {steps:,} environment steps ({total['steps'] / steps:.0%}); {runner}")
    for run in runs if total["failed"] else ():
        if run.directory.state == "failed":
            print(f"FAILED {run.path}: {run.directory.error}")
    return 1 if total["failed"] else 0
