"""A suite whose processes are killed, whose cells fail, whose disk is full, and which two runners want."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from bipars.cli import main
from bipars.errors import RunDirectoryError
from bipars.runs.worker import NO_SPACE
from bipars.suite.finish import runner_of
from bipars.suite.manifest import record
from bipars.suite.plan import load_suite
from bipars.suite.status import count_states
from bipars.suite.work import MAX_DEATHS, Work
from suites import ROUNDS, bipars, outcome, planned, suite_file


def workers_of(pid):
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(child) for child in children.split()]


def disturb(root, file, kills, rng):
    """Kills the runner, or one of its workers, at random moments; returns how often it did.

    Moments are told by the rounds that were done meanwhile, for machines are not equally fast.
    """
    done, process = 0, bipars("suite", "run", file, "--out", root, "--workers", 2)
    while done < kills and process.poll() is None:
        rows = rows_written(root) + rng.randrange(100)
        while process.poll() is None and not ((root / "suite.json").exists() and rows_written(root) >= rows):
            time.sleep(0.02)
        workers = workers_of(process.pid)
        if rng.random() < 0.5 and workers:
            os.kill(rng.choice(workers), signal.SIGKILL)
            done += 1
        elif process.poll() is None and (root / "suite.json").exists():
            process.kill()
            process.wait()
            done += 1
            process = bipars("resume", root, "--workers", 2)
    process.wait()
    return done


def rows_written(root):
    return sum(file.read_bytes().count(b"\n") for file in root.rglob("metrics.jsonl"))


def check_disturbed(tmp_path, envs, methods, seeds, kills, rounds=ROUNDS):
    file = suite_file(tmp_path, envs, methods, seeds, rounds)
    calm, wild = tmp_path / "calm", tmp_path / "wild"
    assert bipars("suite", "run", file, "--out", calm, "--workers", 2).wait() == 0
    done = disturb(wild, file, kills, random.Random(0))
    assert main(["resume", str(wild), "--workers", "2"]) == 0
    assert outcome(wild) == outcome(calm)
    for run in planned(wild):
        assert [row["round"] for row in run.directory.metrics] == list(range(1, rounds + 1))
        timings = map(json.loads, run.directory.timings_file.read_text().splitlines())
        assert [row["round"] for row in timings] == list(range(1, rounds + 1))
    return done


def test_killed_runners_and_workers_lose_nothing(tmp_path):
    assert check_disturbed(tmp_path, ["cartpole"], ["ns"], "0-1", kills=3, rounds=400) >= 1


def test_a_cell_that_fails_is_recorded_and_the_others_finish(tmp_path, capfd):
    bad = """
[[grid]]
env = ["cartpole"]
term = ["harmful"]
method = ["ns"]
label = "explodes"
seeds = "0"
settings.checkpoint_every = 4
settings.evaluation_episodes = 2
settings.ppo = {update_period = 1000, num_envs = 10, gradient_steps = 4, batch_size = 64, policy_learning_rate = 1e38}
"""
    root = tmp_path / "out"
    file = suite_file(tmp_path, ["cartpole"], ["ns"], "0", 4, bad)
    assert main(["suite", str(file), "--out", str(root)]) == 1
    text = capfd.readouterr()
    assert "FAILED" in text.err
    assert (text.out + text.err).count("explodes/seed-0000: ") == 1
    assert "bipars resume" in text.out
    states = count_states(planned(root))
    assert (states["all"]["done"], states["all"]["failed"]) == (1, 1)
    assert "Traceback" in json.loads((root / "cartpole/harmful/explodes/seed-0000/error.json").read_text())["traceback"]
    assert main(["suite", "status", str(root)]) == 1
    assert "explodes" in capfd.readouterr().out


def plan(tmp_path, methods, seeds):
    root = tmp_path / "out"
    return record(root, load_suite(str(suite_file(tmp_path, ["cartpole"], methods, seeds))), ["small"]).runs(root)


def test_a_run_on_which_processes_keep_dying_counts_as_failed_and_frees_the_others(tmp_path):
    runs = plan(tmp_path, ["ns"], "0-2")
    work = Work(runs, 1)
    for death in range(MAX_DEATHS):
        share = work.take(1)
        assert len(share) == 3
        work.give_back(share, "signal SIGKILL")
        assert len(work.failed) == (death == MAX_DEATHS - 1)
    assert [run.config.seed for run in work.take(1)] == [1, 2]
    assert "died 3 times without a new checkpoint in between: signal SIGKILL" in runs[0].directory.error


def test_deaths_with_progress_in_between_are_forgiven(tmp_path):
    work = Work(plan(tmp_path, ["ns"], "0"), 1)
    for death in range(2 * MAX_DEATHS):
        share = work.take(1)
        checkpoints = share[0].directory.checkpoints
        checkpoints.mkdir(exist_ok=True)
        (checkpoints / f"{death:08d}.json").touch()
        work.give_back(share, "signal SIGKILL")
    assert not work.failed


def test_two_runners_on_one_directory_exactly_one_works(tmp_path, capfd):
    plan(tmp_path, ["ns"], "0")
    with runner_of(tmp_path / "out"):
        assert main(["resume", str(tmp_path / "out")]) == 2
        assert f"is being worked on (process {os.getpid()} on " in capfd.readouterr().err
        with pytest.raises(RunDirectoryError, match="is being worked on"), runner_of(tmp_path / "out"):
            pass


def test_a_full_disk_is_no_fault_of_the_run_and_leaves_it_readable(tmp_path):
    """A limit on the size of files stands in for the disk: the kernel refuses the write in the same place."""
    run = plan(tmp_path, ["ns"], "0")[0].prepare()
    limited = ["bash", "-c", 'ulimit -f 12; exec "$@"', "bash"]  # 12 KiB: some rows of metrics, no checkpoint
    process = subprocess.run(
        [*limited, sys.executable, "-m", "bipars.runs.worker", "--cores", "1", str(run.path)],
        stderr=subprocess.PIPE,
        env=os.environ | {"BIPARS_CACHE": str(tmp_path / "cache")},
    )
    assert process.returncode == NO_SPACE, process.stderr.decode()
    assert not any(run.checkpoints.glob("*.json"))
    assert not run.error_file.exists()
    assert [row["round"] for row in run.metrics] == list(range(1, len(run.metrics) + 1))
    assert main(["resume", str(tmp_path / "out")]) == 0
    assert len(run.metrics) == ROUNDS
