"""The Ray engine: the same bytes as local processes, also when a node dies or does not see the directory."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

pytest.importorskip("ray")

from bipars.suite.local import run_locally
from bipars.suite.manifest import record
from bipars.suite.plan import load_suite
from bipars.suite.ray import execute_task, pack, run_on_ray, unpack
from suites import NAMES_CODE, bipars, outcome, planned, suite_file

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::ResourceWarning",
    # Ray forks to start its programs, and JAX warns of every fork once it has worked in this process.
    "ignore:os.fork:RuntimeWarning",
)


def plan(file, root):
    return record(root, load_suite(str(file)), ["small"]).runs(root)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Two seeds, undisturbed, by local processes."""
    folder = tmp_path_factory.mktemp("calm")
    file = suite_file(folder, ["cartpole"], ["ns"], "0-1", rounds=300)
    root = folder / "out"
    assert run_locally(plan(file, root), 2, lambda standing: None)
    return file, root


def test_a_killed_node_loses_nothing(calm, tmp_path, monkeypatch):
    """A cluster of two nodes, met by its address; the second is killed once both runs have a checkpoint."""
    from ray.cluster_utils import Cluster

    monkeypatch.setattr("bipars.suite.work.POLL_SECONDS", 0.02)  # the runs take seconds
    file, undisturbed = calm
    root = tmp_path / "out"
    runs = plan(file, root)
    arguments = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=arguments)
    other = cluster.add_node(num_cpus=1)
    killed = False

    def kill(standing):
        nonlocal killed
        if not killed and all(any(run.directory.checkpoints.glob("*.json")) for run in runs):
            cluster.remove_node(other, allow_graceful=False)
            killed = True

    try:
        assert run_on_ray(runs, None, cluster.address, kill)
    finally:
        cluster.shutdown()
    assert killed
    assert outcome(root) == outcome(undisturbed)
    assert all([row["round"] for row in run.directory.metrics] == list(range(1, 301)) for run in planned(root))


def test_told_to_stop_it_leaves_checkpoints_and_goes_on_later(calm, tmp_path):
    file, undisturbed = calm
    root = tmp_path / "out"
    process = bipars("suite", "run", file, "--out", root, "--engine", "ray", "--workers", 2)
    while not any(root.rglob("checkpoints/*.json")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    assert not all(run.directory.finished for run in planned(root))
    assert bipars("resume", root, "--engine", "ray", "--workers", 2).wait() == 0
    assert outcome(root) == outcome(undisturbed)


def test_an_abandoned_task_leaves(tmp_path):
    from ray.cluster_utils import Cluster

    settings = "update_period = 2000000, num_envs = 100, gradient_steps = 400, batch_size = 8192"
    file = tmp_path / "long.toml"
    file.write_text(f'steps = 100_000_000\n[[grid]]\nenv = "cartpole"\nmethod = "ppo"\nsettings.ppo = {{{settings}}}\n')
    root = tmp_path / "out"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        lock = root / "cartpole/none/ppo/seed-0000/lock"
        process = bipars("suite", "run", file, "--out", root, "--engine", "ray", "--address", cluster.address)
        while not (lock.exists() and lock.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        task = Path(f"/proc/{lock.read_text().split()[0]}")
        assert task.exists()
        process.kill()
        process.wait()
        deadline = time.monotonic() + 10
        while task.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not task.exists()
    finally:
        cluster.shutdown()


def test_files_travel_where_the_directory_is_not_seen(calm, tmp_path):
    """The task's own function in a process that does not find the token: it asks for the files and sends them home."""
    file, undisturbed = calm
    root = tmp_path / "out"
    run = plan(file, root)[0]
    run.prepare()
    with ProcessPoolExecutor(1, get_context("spawn")) as node:
        ask = node.submit(execute_task, str(run.path), "no-such-token", None, None)
        assert ask.result().state == "send files"
        for seconds, state in ((0.0, "paused"), (0.0, "paused"), (1e9, "ended")):
            reply = node.submit(execute_task, str(run.path), "no-such-token", pack(run.path), None, 1, seconds).result()
            assert reply.state == state
            unpack(run.path, reply.files)
    assert outcome_of(run) == outcome_of(plan(file, undisturbed)[0])


def test_tasks_import_what_was_agreed_to_and_look_elsewhere_first(tmp_path, monkeypatch):
    """The module lies in the working directory, beside two that must not be taken for others of their name."""
    here, executed = tmp_path / "here", tmp_path / "executed"
    here.mkdir()
    executed.mkdir()
    for name in ("stranger", "random", "safetensors"):
        code = f"import pathlib\npathlib.Path({str(executed / name)!r}).touch()\ndef term(*_): return 0.0\n"
        (here / f"{name}.py").write_text(code)
    (tmp_path / "theirs.toml").write_text(NAMES_CODE)
    monkeypatch.chdir(here)
    monkeypatch.setenv("BIPARS_STATE", str(tmp_path / "state"))
    command = [sys.executable, "-P", "-m", "bipars.cli", "suite", "run", str(tmp_path / "theirs.toml")]
    command += ["--out", str(tmp_path / "out"), "--engine", "ray", "--workers", "1"]
    assert subprocess.run(command, capture_output=True).returncode == 2
    assert not any(executed.iterdir())
    result = subprocess.run([*command, "--allow-imports"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in executed.iterdir()] == ["stranger"]


def outcome_of(run):
    files = pack(run.path)
    newest = max(name for name in files if name.endswith(".safetensors") and name.startswith("checkpoints/"))
    return {name: files[name] for name in ("metrics.jsonl", "result.json", newest)}


def test_unpacking_mirrors_the_files(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "old.json").touch()
    unpack(tmp_path, {"metrics.jsonl": b"a", "checkpoints/new.json": b"b"})
    assert pack(tmp_path) == {"metrics.jsonl": b"a", "checkpoints/new.json": b"b"}
