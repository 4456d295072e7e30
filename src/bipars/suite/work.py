"""What is left to do, and what came of the rest: the part that is the same wherever runs are executed."""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bipars.errors import NoSpaceError, UsageError
from bipars.runs.directory import RunDirectory
from bipars.runs.files import write_json
from bipars.runs.metrics import read_last_row
from bipars.runs.stopping import stop_requests
from bipars.settings.resolved import ResolvedConfig

POLL_SECONDS = 0.2
STOP_SECONDS = 9.0
"""What a run gets to write its checkpoint and leave, before it is killed."""
MAX_DEATHS = 3
"""How often a process may die on one run, without a new checkpoint in between, before the run counts as failed."""


@dataclass(frozen=True)
class PlannedRun:
    """A run to be made: where, and with which settings. Its directory exists once somebody works on it."""

    path: Path
    config: ResolvedConfig
    program: str
    """The same for runs that share a compiled program: they differ in the seed alone."""

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.path)

    @property
    def finished(self) -> bool:
        return self.directory.finished

    @property
    def ready(self) -> bool:
        """Whether the weights it reuses, if any, are there."""
        return self.config.weights_from is None or RunDirectory(self.config.weights_from).finished

    def prepare(self) -> RunDirectory:
        """Its directory, made now if it is new, and without the error of an earlier try."""
        run = RunDirectory.create(self.path, self.config)
        run.error_file.unlink(missing_ok=True)
        return run


def existing(runs: Iterable[RunDirectory]) -> list[PlannedRun]:
    """Runs on disk, as they were planned."""
    return [PlannedRun(run.path, config, config.program_text()) for run in runs for config in [run.config]]


class Running(NamedTuple):
    run: PlannedRun
    row: dict[str, Any]
    """Its newest row of metrics."""


@dataclass(frozen=True)
class Standing:
    done: int
    failed: int
    total: int
    steps: int
    """Environment steps of finished runs and of those under way."""
    total_steps: int
    running: tuple[Running, ...]


def check_cores(name: object, config: ResolvedConfig, cores: int) -> None:
    """A run that waits for more cores than there are would wait for ever."""
    if config.threads > cores:
        raise UsageError(
            f"{name} has threads = {config.threads}, but {cores} core{'s' * (cores != 1)} to use. A new run may ask "
            f"for fewer; with --workers {config.threads} it shares the cores there are"
        )


def cores_of(share: Sequence[PlannedRun]) -> int:
    """What its runs need, which are alike in that: they share a program."""
    return share[0].config.threads


def shares(runs: Sequence[PlannedRun], cores: int) -> list[list[PlannedRun]]:
    """Runs that differ in the seed alone, which share a compiled program, split evenly between the cores."""
    groups: dict[str, list[PlannedRun]] = {}
    for run in sorted(runs, key=lambda run: run.config.weights_from is not None):
        check_cores(run.path, run.config, cores)
        groups.setdefault(run.program, []).append(run)
    split = []
    for group in groups.values():
        size = math.ceil(len(group) / (cores // cores_of(group)))
        split += [group[i : i + size] for i in range(0, len(group), size)]
    return split


class Work:
    """Hands out shares of runs and keeps the books."""

    def __init__(self, runs: Sequence[PlannedRun], cores: int | None) -> None:
        """For so many cores, or else for any number of them: every share is then one run."""
        missing = [run for run in runs if not run.finished]
        self.waiting = [[run] for run in missing] if cores is None else shares(missing, cores)
        self.active: list[list[PlannedRun]] = []
        self.failed: list[PlannedRun] = []
        self.total, self.done = len(runs), len(runs) - len(missing)
        self.total_steps = sum(run.config.steps for run in runs)
        self.steps = self.total_steps - sum(run.config.steps for run in missing)
        self.any_path = runs[0].path
        self._deaths: dict[Path, tuple[int, str]] = {}

    def take(self, cores: int) -> list[PlannedRun] | None:
        """The next share that can start on so many cores, with its directories made."""
        for i, share in enumerate(self.waiting):
            if cores_of(share) <= cores and all(run.ready for run in share):
                del self.waiting[i]
                for run in share:
                    run.prepare()
                self.active.append(share)
                return share
        if not self.active and not any(all(run.ready for run in share) for share in self.waiting):
            self.waiting = []  # the runs whose weights they reuse failed
        return None

    def give_back(self, share: list[PlannedRun], death: str = "") -> None:
        """A share is left, all of it done or not. `death` says how its process died, if it did."""
        self.active.remove(share)
        left = []
        for run in share:
            directory = run.directory
            if directory.finished:
                self.done += 1
                self.steps += run.config.steps
            elif directory.error_file.exists():
                self.failed.append(run)
            else:
                left.append(run)
        if death and left:
            if self._died_too_often(left[0], death):
                self.failed.append(left.pop(0))
            else:
                how = death.partition("\n")[0][:200]
                print(f"{left[0].path}: its process died ({how}). It goes on from its last checkpoint", file=sys.stderr)
        if left:
            self.waiting.insert(0, left)

    def _died_too_often(self, run: PlannedRun, death: str) -> bool:
        newest = max((path.name for path in run.directory.checkpoints.glob("*.json")), default="")
        deaths, then = self._deaths.get(run.path, (0, ""))
        deaths = deaths + 1 if newest == then else 1
        self._deaths[run.path] = deaths, newest
        if deaths < MAX_DEATHS:
            return False
        message = f"its process died {deaths} times without a new checkpoint in between: {death}"
        write_json(run.directory.error_file, {"error": message, "traceback": ""})
        return True

    def standing(self) -> Standing:
        done, failed, steps, running = self.done, len(self.failed), self.steps, []
        for share in self.active:
            for run in share:
                directory = run.directory
                if directory.finished:
                    done += 1
                    steps += run.config.steps
                elif directory.error_file.exists():
                    failed += 1
                else:
                    row = read_last_row(directory.metrics_file) or {}
                    running.append(Running(run, row))
                    steps += row.get("step", 0)
                    break  # the others of the share wait for it
        return Standing(done, failed, self.total, steps, self.total_steps, tuple(running))


class Runner:
    """Executes shares of runs until all are finished; `start`, `collect` and `stop` say where, and how."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.active: dict[Any, list[PlannedRun]] = {}
        """What is worked on, by who does it."""
        self.interrupted = self.full = False

    def cores(self) -> int:
        raise NotImplementedError

    def start(self, share: list[PlannedRun]) -> None:
        raise NotImplementedError

    def collect(self, seconds: float) -> None:
        """Waits so long at most, and gives back the shares that were left."""
        raise NotImplementedError

    def stop(self) -> None:
        """Asks for checkpoints, and gives up who takes too long: its last checkpoint is there."""
        raise NotImplementedError

    def run(self, report: Callable[[Standing], None]) -> bool:
        """False when it was told to stop, by Ctrl-C or SIGTERM.

        A run that fails does not stop the others, and one whose process dies is tried again.
        """
        try:
            with stop_requests() as stop:
                while (self.work.waiting or self.active) and not self.interrupted:
                    free = self.cores() - sum(map(cores_of, self.active.values()))
                    while free > 0 and (share := self.work.take(free)):
                        self.start(share)
                        free -= cores_of(share)
                    self.collect(POLL_SECONDS)
                    report(self.work.standing())
                    self.interrupted |= stop()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self.stop()
        report(self.work.standing())
        if self.full:
            raise NoSpaceError(self.work.any_path)
        return not self.interrupted
