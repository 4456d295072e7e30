"""Runs on a Ray cluster: one task per run, on an existing cluster or on one started here.

Where a node sees the directory of the suite, its tasks work in it. Where it does not, the files of a run travel with
its task and come home every so often: a node may die, and the run goes on elsewhere from what came home.
"""

import os
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bipars.errors import UsageError, no_space
from bipars.runs.directory import RunDirectory
from bipars.runs.files import refuse_outside, write_atomically
from bipars.runs.stopping import Stop, stop_requests
from bipars.runtime import keep_freed_memory, own_cores, process_settings
from bipars.settings.importing import agree, agreed
from bipars.suite.work import POLL_SECONDS, STOP_SECONDS, PlannedRun, Runner, Standing, Work, check_cores, cores_of

HOME_SECONDS = 20.0
"""Files that travel come home at the first checkpoint after so long."""
LOCK_SECONDS = 30.0
"""How long a task waits for one that was given up but still works in the same directory."""
CARRIED = ("JAX_", "XLA_", "BIPARS_")
"""Environment variables that tasks get begin like this: what is compiled, so the last bit, may depend on them."""

Files = dict[str, bytes]
"""The files of a run, by their path within it."""


@dataclass(frozen=True)
class Reply:
    state: Literal["ended", "paused", "stopped", "full", "send files"]
    files: Files | None = None
    """All files of the run, where it did not run in their home."""
    said: str = ""


def require_ray() -> None:
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise UsageError("--engine ray needs a package that is not installed: pip install 'bipars[ray]'")


# On the node: ------------------------------------------------------------------------------------------------------


def execute_task(
    path: str,
    token: str,
    files: Files | None,
    source: Files | None,
    cores: int = 1,
    home_seconds: float = HOME_SECONDS,
    code: Sequence[str] = (),
    here: str = "",
) -> Reply:
    """One run, in its own directory where this node sees it, else in a copy that goes home again.

    `code` is what of the code that it names was agreed to at home, `here` the working directory that it may lie in.
    """
    agree(code)
    if code and here not in sys.path:
        sys.path.append(here)
    with own_cores(cores), stop_requests() as stop:
        keep_freed_memory()
        if (Path(path) / token).exists():
            return _execute(RunDirectory(path), stop, None)
        if files is None:
            return Reply("send files")
        with tempfile.TemporaryDirectory() as scratch:
            run, learned = RunDirectory(Path(scratch) / "run"), Path(scratch) / "learned"
            unpack(run.path, files)
            unpack(learned, source or {})
            reply = _execute(run, _or_time_to_go_home(run, stop, home_seconds), learned if source else None)
            paused = reply.state == "stopped" and not stop()
            return Reply("paused" if paused else reply.state, pack(run.path), reply.said)


def _execute(run: RunDirectory, stop: Stop, learned: Path | None) -> Reply:
    from bipars.runs.execute import execute

    try:
        return Reply("ended" if execute(run, stop, learned=learned, wait=LOCK_SECONDS) else "stopped")
    except Exception as error:
        if no_space(error):
            return Reply("full")
        if not run.error_file.exists():
            raise
        return Reply("ended", said=f"{run.path}: {error}")  # the error is on record


def _or_time_to_go_home(run: RunDirectory, stop: Stop, seconds: float) -> Stop:
    """Asked after every round, true at the first checkpoint that is due after a while."""
    rounds = max((int(path.stem) for path in run.checkpoints.glob("*.json")), default=0)
    every, leave = run.config.checkpoint_every, time.monotonic() + seconds

    def ask() -> bool:
        nonlocal rounds
        rounds += 1
        return stop() or (rounds % every == 0 and time.monotonic() > leave)

    return ask


def pack(run: Path) -> Files:
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def unpack(run: Path, files: Files) -> None:
    """Makes the directory hold these files; those that say that others are complete come last."""
    for name in sorted(files, key=_order):
        path = run / name
        refuse_outside(run, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != files[name]:
            write_atomically(path, files[name])
    for name in pack(run).keys() - files.keys():
        (run / name).unlink()


def _order(name: str) -> tuple[int, str]:
    """Metrics, arrays, manifests of checkpoints, then what says that the run is over."""
    last = (
        2 if name in ("result.json", "error.json") else int(name.startswith("checkpoints/") and name.endswith(".json"))
    )
    return last, name


# At home: ----------------------------------------------------------------------------------------------------------


def run_on_ray(
    runs: Sequence[PlannedRun], workers: int | None, address: str | None, report: Callable[[Standing], None]
) -> bool:
    """Executes all unfinished runs; False when it was told to stop. `workers` limits the cores they use."""
    import ray

    started = not ray.is_initialized()
    if started:
        _connect(address, workers)
    try:
        wide = [run for run in runs if run.config.threads > 1 and not run.finished]
        for run in wide:
            largest = max((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=0)
            check_cores(run.path, run.config, min(workers or largest, largest))
        return Tasks(runs, workers).run(report)
    finally:
        if started:
            ray.shutdown()


def _connect(address: str | None, workers: int | None) -> None:
    import ray

    how: dict[str, Any] = {"address": address, "logging_level": "error", "log_to_driver": False}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        how |= {"num_cpus": workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    # Ray puts the directory that it is started from first on the path of its workers.
    with chdir("/"), warnings.catch_warnings():
        # Planning may have used JAX, which then warns of every fork; Ray's are followed by another program at once.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        try:
            ray.init(**how)
        except (ConnectionError, ValueError, RuntimeError) as error:
            if address is None:
                raise
            raise UsageError(f"--address is '{address}', where no Ray cluster answers: {error}") from error


class Tasks(Runner):
    """A task per run, known by the reference to its reply."""

    def __init__(self, runs: Sequence[PlannedRun], workers: int | None) -> None:
        super().__init__(Work(runs, None))
        self.workers = workers
        self.travelling = False
        """Whether some node does not see our directory, so that files are sent along."""

    def cores(self) -> int:
        import ray

        return self.workers or int(ray.cluster_resources().get("CPU", 1))

    def start(self, share: list[PlannedRun]) -> None:
        import ray

        run, token = share[0], f".{uuid.uuid4().hex}.tmp"  # removed by whoever owns the run next
        path = run.path.resolve()
        (path / token).touch()
        files = source = None
        if self.travelling:
            files = {name: content for name, content in pack(path).items() if not name.endswith(".tmp")}
            source = None if run.config.weights_from is None else pack(Path(run.config.weights_from))
        carried = {name: value for name, value in os.environ.items() if name.startswith(CARRIED)}
        # A process of its own for every program: Ray gives a process to tasks of the same environment alone.
        environment = {
            "env_vars": {"JAX_PLATFORMS": "cpu", "BIPARS_PROGRAM": run.program, **carried, **process_settings()}
        }
        cores = cores_of(share)
        task: Any = ray.remote(execute_task).options(num_cpus=cores, max_retries=0, runtime_env=environment)
        self.active[task.remote(str(path), token, files, source, cores, code=agreed(), here=os.getcwd())] = share

    def collect(self, seconds: float) -> None:
        import ray

        if not self.active:
            time.sleep(seconds)
            return
        ready, _ = ray.wait(list(self.active), num_returns=1, timeout=seconds)
        for reference in ready:
            share, death = self.active.pop(reference), ""
            try:
                reply = ray.get(reference)
            except ray.exceptions.TaskCancelledError:
                pass
            except ray.exceptions.RayError as error:
                death = str(error)
            else:
                self.take_in(share[0], reply)
            self.work.give_back(share, death)

    def take_in(self, run: PlannedRun, reply: Reply) -> None:
        if reply.files is not None:
            unpack(run.path, reply.files)
        if reply.said:
            print(reply.said, file=sys.stderr)
        self.travelling |= reply.state == "send files"
        self.full |= reply.state == "full"
        self.interrupted |= reply.state in ("stopped", "full")

    def stop(self) -> None:
        import ray

        for reference in self.active:
            ray.cancel(reference)
        deadline = time.monotonic() + STOP_SECONDS
        while self.active and time.monotonic() < deadline:
            self.collect(POLL_SECONDS)
        for reference in self.active:
            ray.cancel(reference, force=True)
