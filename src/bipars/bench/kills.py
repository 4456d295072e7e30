"""Runners and workers killed at random moments, and the files that are left compared with those of a calm run."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bipars.bench.faults import Tally, Try
from bipars.errors import BiparsError
from bipars.runs.directory import RunDirectory, find_runs

SMALL = [
    "--ppo.update-period", "1000", "--ppo.num-envs", "10", "--ppo.gradient-steps", "4", "--ppo.batch-size", "64",
]  # fmt: skip
COMMON = ["--steps", "150000", "--checkpoint-every", "5", "--evaluation-episodes", "2"]
DDPG = [
    "--ddpg.update-period", "200", "--ddpg.num-envs", "10", "--ddpg.gradient-steps", "4", "--ddpg.batch-size", "32",
    "--ddpg.warmup-steps", "200", "--ddpg.replay-capacity", "5000",
]  # fmt: skip
HOST = [
    "--ppo.update-period", "256", "--ppo.num-envs", "4", "--ppo.gradient-steps", "4", "--ppo.batch-size", "64",
    "--steps", "38400", "--checkpoint-every", "5", "--evaluation-episodes", "1",
]  # fmt: skip
TASKS = {
    "mgl": ["train", "--env", "cartpole", "--term", "harmful", "--method", "mgl", *SMALL, *COMMON],
    "imgl": ["train", "--env", "cartpole", "--term", "harmful", "--method", "imgl", *SMALL, *COMMON],
    "ddpg-mgl": ["train", "--env", "cartpole-continuous", "--term", "harmful", "--method", "ddpg-mgl", *DDPG,
                 "--steps", "30000", "--checkpoint-every", "5", "--evaluation-episodes", "2"],
    "pendulum": ["train", "--env", "Pendulum-v1", "--term", "noise", "--method", "mgl", *HOST],
    "hopper": ["train", "--env", "Hopper-v5", "--term", "torque", "--method", "mgl", *HOST],
    "suite": ["suite", "run", "small.toml"],
}  # fmt: skip
SUITE = """
seeds = "0-1"
steps = 100000
[[grid]]
env = ["cartpole"]
term = ["harmful"]
method = ["ns", "mgl"]
settings.checkpoint_every = 5
settings.evaluation_episodes = 2
settings.ppo = {update_period = 1000, num_envs = 10, gradient_steps = 4, batch_size = 64}
"""
LEAVE_SECONDS = 10.0


@contextmanager
def killing(name: str, scratch: Path) -> Iterator[Try]:
    """One task, run and resumed while its processes are killed, and compared with a calm run of it."""
    (scratch / "small.toml").write_text(SUITE)
    calm = scratch / "calm"
    if _start([*TASKS[name], "--out", str(calm)], scratch).wait() != 0:
        raise BiparsError(f"{name}: the undisturbed run failed")
    expected = outcome(calm)

    def run(tally: Tally, most: int, rng: random.Random) -> None:
        before, wild = tally.done, scratch / f"wild-{tally.done}"
        _disturb(name, wild, most, tally, rng, scratch)
        where = f"{name}, kills {before + 1} to {tally.done}"
        if _start(["resume", str(wild)], scratch).wait() != 0:
            tally.failures.append(f"{where}: it did not finish")
        tally.failures += [f"{where}: {problem}" for problem in differences(wild, expected)]
        shutil.rmtree(wild)

    yield run


def _disturb(name: str, wild: Path, most: int, tally: Tally, rng: random.Random, scratch: Path) -> None:
    process = _start([*TASKS[name], "--out", str(wild)], scratch)
    while tally.done < most and process.poll() is None:
        _wait_for_a_moment(process, wild, rng)
        workers = children(process.pid)
        begun = any(wild.rglob("config.json")) or (wild / "suite.json").exists()
        if process.poll() is not None or not begun:
            continue
        whom = rng.choice(["runner", "worker", "both"]) if workers else "runner"
        if whom == "worker":
            _kill(rng.choice(workers))
        else:
            process.kill()
            process.wait()
            for worker in workers if whom == "both" else ():
                _kill(worker)
            deadline = time.monotonic() + LEAVE_SECONDS
            while any(map(_alive, workers)) and time.monotonic() < deadline:
                time.sleep(0.02)
            if any(map(_alive, workers)):
                tally.failures.append(f"{name}: a worker was still there {LEAVE_SECONDS:.0f} s after its runner died")
            process = _start(["resume", str(wild)], scratch)
        tally.count(whom)
    process.wait()


def _wait_for_a_moment(process: subprocess.Popen[bytes], root: Path, rng: random.Random) -> None:
    """Some rows later, which is the same on every machine; or, a fifth of the time, whenever it may be."""
    rows, deadline = _rows(root) + rng.randrange(30), time.monotonic() + 60
    if rng.random() < 0.2:
        deadline = time.monotonic() + rng.uniform(0, 6)
        rows = 10**9
    while process.poll() is None and _rows(root) < rows and time.monotonic() < deadline:
        time.sleep(rng.uniform(0, 0.02))


def outcome(root: Path) -> dict[str, bytes]:
    """The bytes that must not depend on what happened to a run."""
    found = {}
    for run in find_runs(root):
        newest = max(run.checkpoints.glob("*.safetensors"), default=run.checkpoints)
        for path in (run.metrics_file, run.result_file, newest, *run.snapshots.glob("*")):
            found[str(path.relative_to(root))] = path.read_bytes() if path.is_file() else b""
    return found


def differences(root: Path, expected: dict[str, bytes]) -> Iterator[str]:
    """From an undisturbed run: other bytes, and rows that are missing or there twice."""
    found = outcome(root)
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            yield f"{name} differs from that of the undisturbed run"
    for run in find_runs(root):
        rounds = list(range(1, run.config.num_updates + 1))
        for file in (run.metrics_file, run.timings_file):
            if [json.loads(line)["round"] for line in file.read_text().splitlines()] != rounds:
                yield f"{file.relative_to(root)} does not have every round once"


def _start(arguments: list[str], scratch: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "bipars.cli", *arguments, "--workers", "2"]
    return subprocess.Popen(command, cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _rows(root: Path) -> int:
    found = 0
    for file in root.rglob("metrics.jsonl"):
        with suppress(OSError):
            found += file.read_bytes().count(b"\n")
    return found


def children(pid: int) -> list[int]:
    """Processes that this one has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def small_run(path: Path, stop_after: int | None = None, seed: int = 0) -> RunDirectory:
    """A run of seconds in this process, finished or stopped after some rounds."""
    from bipars.program import complete, configure
    from bipars.runs.execute import execute

    ppo = {"update_period": 200, "num_envs": 10, "gradient_steps": 2, "batch_size": 64}
    settings = {"env": "cartpole", "terms": ["harmful"], "steps": 2_400, "checkpoint_every": 4, "ppo": ppo}
    run = RunDirectory.create(path, complete(configure(settings | {"evaluation_episodes": 2, "seed": seed})))
    rounds = iter(range(1, 10**6))
    execute(run, lambda: next(rounds) == stop_after)
    return run
