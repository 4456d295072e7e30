"""Runs on this machine: one process per core, each with one thread, each doing a share of the runs.

The files are the truth: progress is read from the runs' own metrics, so a worker may die without taking anything along.
"""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bipars.runs.directory import RunDirectory
from bipars.runs.metrics import read_last_row
from bipars.runs.stopping import stop_requests
from bipars.runs.worker import STOPPED
from bipars.runtime import HUGE_PAGES

POLL_SECONDS = 0.2


@dataclass
class Progress:
    """Where a set of runs stands."""

    done: int
    total: int
    rows: dict[str, dict[str, Any]]
    """The newest row of every run that is under way, by run directory."""


def shares(runs: Sequence[RunDirectory], workers: int) -> list[list[RunDirectory]]:
    """Runs that differ in the seed alone stay together, since they share a compiled program."""
    groups: dict[str, list[RunDirectory]] = {}
    for run in runs:
        groups.setdefault(run.config.program_text(), []).append(run)
    size = math.ceil(len(runs) / workers)
    return [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]


def run_locally(runs: Sequence[RunDirectory], workers: int, report: Callable[[Progress], None]) -> bool:
    """Executes all unfinished runs; False when it was told to stop, by Ctrl-C or SIGTERM.

    A run that fails does not stop the others.
    """
    waiting = shares([run for run in runs if not run.finished], workers)
    active: dict[int, tuple[subprocess.Popen[bytes], list[RunDirectory]]] = {}
    interrupted = False
    try:
        with stop_requests() as stop:
            while waiting or active:
                for core in range(workers):
                    if core not in active and waiting:
                        share = waiting.pop(0)
                        command = [sys.executable, "-m", "bipars.runs.worker", "--core", str(core)]
                        paths = [str(run.path) for run in share]
                        active[core] = subprocess.Popen([*command, *paths], env=os.environ | HUGE_PAGES), share
                time.sleep(POLL_SECONDS)
                for core, (process, _) in list(active.items()):
                    status = process.poll()
                    if status is not None:
                        del active[core]
                        interrupted |= status == STOPPED
                report(_progress(runs, active))
                if stop():
                    interrupted = True
                    for process, _ in active.values():
                        process.terminate()  # asks for a checkpoint
                if interrupted:
                    waiting = []
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for process, _ in active.values():
            process.terminate()
        for process, _ in active.values():
            process.wait()
    return not interrupted


def _progress(
    runs: Sequence[RunDirectory], active: dict[int, tuple[subprocess.Popen[bytes], list[RunDirectory]]]
) -> Progress:
    rows = {}
    for _, share in active.values():
        current = next((run for run in share if not run.finished and not run.error_file.exists()), None)
        if current is not None:
            rows[str(current.path)] = read_last_row(current.metrics_file) or {}
    return Progress(sum(run.finished for run in runs), len(runs), rows)
