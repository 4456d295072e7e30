"""Executing what is missing, on the engine asked for, and saying what failed."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bipars.errors import CheckpointError, RunDirectoryError
from bipars.runs.checkpoint import settings_digest, verified_checkpoints
from bipars.runs.directory import RunDirectory
from bipars.runs.lock import locked
from bipars.runs.verify import reopen, result_damages
from bipars.suite.local import run_locally
from bipars.suite.progress import standing_bar
from bipars.suite.ray import require_ray, run_on_ray
from bipars.suite.work import PlannedRun, Standing

DONE, FAILED, STOPPED = 0, 1, 130
"""Exit status of the command."""
ORPHAN_SECONDS = 30.0
"""How long the workers of a runner that was killed get to finish their round and leave."""

Engine = Callable[[Sequence[PlannedRun], Callable[[Standing], None]], bool]
"""Executes all unfinished runs, reporting meanwhile; False when it was told to stop."""


def local_engine(workers: int) -> Engine:
    return lambda runs, report: run_locally(runs, workers, report)


def ray_engine(workers: int | None, address: str | None) -> Engine:
    require_ray()
    return lambda runs, report: run_on_ray(runs, workers, address, report)


@contextmanager
def runner_of(root: Path) -> Iterator[None]:
    """One runner at a time for a directory of runs."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(f"{root} cannot be used: {error.strerror}. Choose another --out") from error
    with locked(root / "runner.lock", "is being worked on"):
        yield


def finish(runs: Sequence[PlannedRun], root: Path, engine: Engine, again: str = "") -> int:
    """Executes what is unfinished, as the `runner_of(root)`. The exit status: 0 done, 1 some failed, 130 stopped.

    `again` is the command that goes on with it, if not `bipars resume`.
    """
    again = again or f"bipars resume {root}"
    damaged = mend(run for run in runs if run.finished)
    missing = [run for run in runs if not run.finished]
    if not missing:
        print(f"{root}: all {len(runs):,} runs are finished already; nothing to do")
        for run in runs:
            if run not in damaged and not can_be_loaded(run.directory):
                damaged.append(run)
                print(
                    f"DAMAGED {run.path}: its results are there, but all of its checkpoints are damaged, so its agent "
                    "cannot be loaded. To have the agent, delete the directory and train again",
                    file=sys.stderr,
                )
        return FAILED if damaged else DONE
    for run in missing:
        if run.directory.lock_file.exists():
            with run.directory.owned(wait=ORPHAN_SECONDS):  # another live owner is an error now, not in the middle
                pass
    with standing_bar(str(root)) as show:
        completed = engine(runs, show)
    failed = [run for run in missing if run.directory.error_file.exists() and not run.finished]
    left = [run for run in missing if not run.finished and run not in failed]
    for run in failed:
        print(f"FAILED {run.path}: {run.directory.error}", file=sys.stderr)
    if not completed or (left and not failed):
        print(f"stopped with {len(left):,} of {len(runs):,} runs unfinished; continue with: {again}")
        return STOPPED
    for run in left:
        print(f"NOT RUN {run.path}: the run whose weights it reuses failed", file=sys.stderr)
    if failed:
        print(f"{len(failed):,} of {len(runs):,} runs failed; try them again with: {again}")
    return FAILED if failed or damaged else DONE


def mend(finished: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Names damaged results. Where a checkpoint can make them again the run is unfinished from now on; the others."""
    lost = []
    for run in finished:
        for damage in result_damages(run.directory):
            with run.directory.owned():
                again = reopen(run.directory)
            what = "made again from its last intact checkpoint" if again else "no checkpoint can make it again"
            print(f"DAMAGED {run.path}: {damage} ({what})", file=sys.stderr)
            lost += [] if again else [run]
    return lost


def can_be_loaded(run: RunDirectory) -> bool:
    """Whether a checkpoint is intact, or nobody kept one. What is damaged is named."""
    try:
        intact = verified_checkpoints(run.checkpoints, settings_digest(run.config))
    except CheckpointError as error:  # their directory cannot be listed
        print(f"DAMAGED {error}", file=sys.stderr)
        return False
    return bool(intact) or not any(run.checkpoints.glob("*.json"))
