"""Where a suite stands, read from its files alone: also while it runs, also after it was killed."""

from collections import Counter
from pathlib import Path

from bipars.runs.lock import held
from bipars.runs.metrics import read_last_row
from bipars.suite.manifest import read_manifest
from bipars.suite.work import PlannedRun

STATES = ("done", "running", "failed", "stopped", "waiting")


def state_of(run: PlannedRun) -> str:
    directory = run.directory
    if directory.finished:
        return "done"
    if held(directory.lock_file):
        return "running"
    if directory.error_file.exists():
        return "failed"
    return "stopped" if directory.metrics_file.exists() else "waiting"


def show_status(root: Path) -> int:
    """One line per cell and their sum; the exit status is 1 where a run failed."""
    manifest = read_manifest(root)
    cells: dict[str, Counter[str]] = {}
    failed, steps, total = [], 0, 0
    for run in manifest.runs(root):
        state = state_of(run)
        cells.setdefault(run.program, Counter())[state] += 1
        total += run.config.total_steps
        if state == "failed":
            failed.append(run)
        if state == "done":
            steps += run.config.total_steps
        elif state != "waiting":
            steps += (read_last_row(run.directory.metrics_file) or {}).get("step", 0)
    print(manifest.suite.title)
    print("cell".ljust(44), *(state.rjust(8) for state in STATES))
    for name, counts in cells.items():
        print(name.ljust(44), *(str(counts[state] or "").rjust(8) for state in STATES))
    sums = sum(cells.values(), Counter[str]())
    print("all".ljust(44), *(str(sums[state]).rjust(8) for state in STATES))
    print(f"{steps:,} of {total:,} environment steps ({steps / total:.0%}); a runner is {_runner(root)}")
    for run in failed:
        print(f"FAILED {run.path}: {run.directory.error}")
    return 1 if failed else 0


def _runner(root: Path) -> str:
    lock = root / "runner.lock"
    return f"at work (process {lock.read_text().strip()})" if held(lock) else "not at work"
