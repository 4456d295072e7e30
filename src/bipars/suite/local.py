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

from bipars.errors import NoSpaceError
from bipars.runs.stopping import stop_requests
from bipars.runs.worker import NO_SPACE
from bipars.runtime import process_settings
from bipars.settings.importing import agreed
from bipars.suite.work import PlannedRun, Standing, Work, cores_of

POLL_SECONDS = 0.2
MOST_SAID = 2**20
STOP_SECONDS = 9.0
"""What a worker gets to write its checkpoint and leave, before it is killed."""


@dataclass
class Worker:
    """A process and the share it works on."""

    process: subprocess.Popen[bytes]
    cores: int
    share: list[PlannedRun]
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
    """Executes all unfinished runs; False when it was told to stop, by Ctrl-C or SIGTERM.

    A run that fails does not stop the others, and a worker that dies is replaced.
    """
    work = Work(runs, cores)
    active: list[Worker] = []
    free = cores
    interrupted = full = False
    try:
        with stop_requests() as stop:
            while work.waiting or active:
                while free and (share := work.take(free)):
                    active.append(_start(cores_of(share), share))
                    free -= active[-1].cores
                time.sleep(POLL_SECONDS)
                for worker in list(active):
                    worker.pass_on()
                    status = worker.process.poll()
                    if status is not None:
                        active.remove(worker)
                        free += worker.cores
                        work.give_back(worker.share, _death(status, worker))
                        interrupted |= worker.left_with is not None
                        full |= worker.left_with == NO_SPACE
                report(work.standing())
                if stop() or interrupted:
                    interrupted = True
                    break
    except KeyboardInterrupt:
        interrupted = True
    finally:
        _stop([worker.process for worker in active])
    for worker in active:
        full |= worker.left_with == NO_SPACE
        work.give_back(worker.share)
    report(work.standing())
    if full:
        raise NoSpaceError(runs[0].path)
    return not interrupted


def _start(cores: int, share: list[PlannedRun]) -> Worker:
    # -P: a random.py that lies in the working directory is none of our modules
    command = [sys.executable, "-P", "-m", "bipars.runs.worker", "--cores", str(cores), "--parent", str(os.getpid())]
    command += [f"--agreed={name}" for name in agreed()]
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    answer, question = os.pipe()
    os.set_blocking(answer, False)  # a process of the worker's may outlive it
    command += ["--answer", str(question), *(str(run.path) for run in share)]
    process = subprocess.Popen(command, env=os.environ | process_settings(), stderr=errors, pass_fds=[question])
    os.close(question)
    return Worker(process, cores, share, errors, open(answer, "rb", buffering=0))


def _death(status: int, worker: Worker) -> str:
    """How it died, if it did; what it said is passed on."""
    worker.pass_on()
    said = os.pread(worker.errors.fileno(), MOST_SAID, 0).decode(errors="replace")
    worker.errors.close()
    left = [run for run in worker.share if not run.finished and not run.directory.error_file.exists()]
    if worker.left_with is not None or not left:
        return ""
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return "\n".join([how, *said.splitlines()[-20:]])


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Asks for checkpoints, and kills who takes too long: its last checkpoint is there."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
