"""Runs on this machine: one process per core (or several cores), each doing a share of the runs.

The files are the truth: progress is read from the runs' own metrics, so a worker may die without taking anything along.
"""

import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from bipars.runs.worker import NO_SPACE
from bipars.runtime import process_settings
from bipars.settings.importing import agreed
from bipars.suite.work import STOP_SECONDS, PlannedRun, Runner, Standing, Work, cores_of

MOST_SAID = 2**20


@dataclass(eq=False)
class Worker:
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    """What it says, kept apart from the progress that is shown meanwhile."""
    answer: IO[bytes]
    """The pipe in which it says why it leaves runs undone."""
    passed_on: int = 0
    """Bytes of it that were shown."""

    @functools.cached_property
    def left_with(self) -> int | None:
        """Asked once it has ended: the status that it said to leave with; none where it died, with whatever status."""
        with self.answer:
            said = self.answer.read(1)
        return said[0] if said else None

    def pass_on(self) -> None:
        """Shows the lines that have come. (`pread`: the file's own position is the worker's.)"""
        news = os.pread(self.errors.fileno(), MOST_SAID, self.passed_on)
        whole = news[: news.rfind(b"\n") + 1] if self.process.poll() is None else news
        if whole:
            self.passed_on += len(whole)
            sys.stderr.write(whole.decode(errors="replace"))


def run_locally(runs: Sequence[PlannedRun], cores: int, report: Callable[[Standing], None]) -> bool:
    """Executes all unfinished runs; False when it was told to stop."""
    return Processes(runs, cores).run(report)


class Processes(Runner):
    """A worker per share."""

    active: dict[Worker, list[PlannedRun]]

    def __init__(self, runs: Sequence[PlannedRun], cores: int) -> None:
        super().__init__(Work(runs, cores))
        self._cores = cores

    def cores(self) -> int:
        return self._cores

    def start(self, share: list[PlannedRun]) -> None:
        self.active[_start(share)] = share

    def collect(self, seconds: float) -> None:
        time.sleep(seconds)
        for worker in list(self.active):
            worker.pass_on()
            status = worker.process.poll()
            if status is not None:
                share = self.active.pop(worker)
                self.work.give_back(share, _death(status, worker, share))
                self.interrupted |= worker.left_with is not None
                self.full |= worker.left_with == NO_SPACE

    def stop(self) -> None:
        for worker in self.active:
            worker.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for worker, share in self.active.items():
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            self.full |= worker.left_with == NO_SPACE
            self.work.give_back(share)


def _start(share: list[PlannedRun]) -> Worker:
    # -P: a random.py that lies in the working directory is none of our modules
    command = [sys.executable, "-P", "-m", "bipars.runs.worker"]
    command += ["--cores", str(cores_of(share)), "--parent", str(os.getpid())]
    command += [f"--agreed={name}" for name in agreed()]
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    answer, question = os.pipe()
    os.set_blocking(answer, False)  # a process of the worker's may outlive it
    command += ["--answer", str(question), *(str(run.path) for run in share)]
    process = subprocess.Popen(command, env=os.environ | process_settings(), stderr=errors, pass_fds=[question])
    os.close(question)
    return Worker(process, errors, open(answer, "rb", buffering=0))


def _death(status: int, worker: Worker, share: list[PlannedRun]) -> str:
    """How it died, if it did; what it said is passed on."""
    worker.pass_on()
    said = os.pread(worker.errors.fileno(), MOST_SAID, 0).decode(errors="replace")
    worker.errors.close()
    left = [run for run in share if not run.finished and not run.directory.error_file.exists()]
    if worker.left_with is not None or not left:
        return ""
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return "\n".join([how, *said.splitlines()[-20:]])
