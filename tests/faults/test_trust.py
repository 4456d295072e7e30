"""A file never chooses code: what a stranger's run or suite names is imported only after consent."""

import os
import pty
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

import bipars
from bipars.cli import main
from bipars.errors import BiparsError, UsageError
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import execute
from bipars.settings import importing
from bipars.settings.config import Config
from bipars.suite.ray import execute_task
from commands import QUICK, SMALL
from fake_runs import fake_cell
from suites import NAMES_CODE

CODE = """
import pathlib
pathlib.Path({marker!r}).touch()
import gymnasium
from bipars.methods import METHODS
if "Mine-v0" not in gymnasium.registry:
    gymnasium.register("Mine-v0", "gymnasium.envs.classic_control:PendulumEnv", max_episode_steps=50)

def term(obs, action, next_obs, info):
    return obs[0]

def potential(obs):
    return obs[0]

method = METHODS["mgl"]
"""
NAMED = {
    "term": {"terms": ("import:stranger.term",)},
    "environment": {"env": "stranger:Mine-v0"},
    "potential": {"potential": "import:stranger.potential", "method": "pbrs"},
    "method": {"method": "import:stranger.method"},
    "true reward": {"true_reward": "import:stranger.term"},
    "option": {"env": "Pendulum-v1", "terms": ("noise",), "env_options": {"env_id": "stranger:Mine-v0"}},
}


@pytest.fixture(autouse=True)
def forgetful(monkeypatch, tmp_path):
    """Nothing was agreed to, and nothing is remembered."""
    monkeypatch.setattr(importing, "_agreed", set())
    monkeypatch.setattr(importing, "_withheld", {})
    monkeypatch.setenv("BIPARS_STATE", str(tmp_path / "state"))
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """A module in the working directory, and the file that appears when it is imported."""
    marker = tmp_path / "was-executed"
    here = tmp_path / "here"
    here.mkdir()
    (here / "stranger.py").write_text(CODE.format(marker=str(marker)))
    monkeypatch.chdir(here)
    return marker


def foreign(tmp_path, monkeypatch, **named):
    """A run that somebody else made: its user remembers it, we do not."""
    with monkeypatch.context() as theirs:
        theirs.setenv("BIPARS_STATE", str(tmp_path / "theirs"))
        theirs.setattr("bipars.runs.directory.env_spec", lambda name: None)
        run = RunDirectory.create(tmp_path / "runs" / "seed-0000", replace(SMALL, **named))
    return run


@pytest.mark.parametrize("what", NAMED)
@pytest.mark.parametrize("command", ["resume", "render", "load"])
def test_a_strangers_run_is_refused_before_its_code_is_imported(tmp_path, monkeypatch, marker, capfd, what, command):
    run = foreign(tmp_path, monkeypatch, **NAMED[what])
    if command == "load":
        with pytest.raises(UsageError, match=r"config\.json names code, 'stranger.*allow_imports=True"):
            bipars.BiPaRS.load(run.path)
    else:
        assert main([command, str(run.path)]) == 2
        assert "config.json names code, 'stranger" in capfd.readouterr().err
    assert not marker.exists()
    assert not run.metrics_file.exists()


@pytest.mark.parametrize("command", [["report", "--text"], ["report"], ["verify"]])
def test_looking_at_a_strangers_runs_imports_nothing(tmp_path, marker, command):
    fake_cell(tmp_path / "runs", "mgl", [0.0, 0.1], weight=1.0, config=Config(env="stranger:Mine-v0"))
    importing._agreed.clear()
    shutil.rmtree(tmp_path / "state")
    assert main([command[0], str(tmp_path / "runs"), *command[1:]]) == 0
    assert not marker.exists()


def test_a_comparison_with_a_strangers_run_asks_first(tmp_path, marker, capfd):
    fake_cell(tmp_path / "runs", "mgl", [0.0, 0.1], weight=1.0, terms=("import:stranger.term",))
    shutil.rmtree(tmp_path / "state")
    assert main(["report", str(tmp_path / "runs"), "--compare"]) == 2
    assert "names code, 'stranger.term'" in capfd.readouterr().err
    assert not marker.exists()


def test_with_the_flag_it_is_imported_and_remembered(tmp_path, monkeypatch, marker):
    run = foreign(tmp_path, monkeypatch, terms=("import:stranger.term",))
    assert main(["resume", str(run.path), "--allow-imports"]) == 0
    assert marker.exists()
    importing._agreed.clear()
    run.result_file.unlink()
    assert main(["resume", str(run.path)]) == 0
    moved = shutil.copytree(run.path, tmp_path / "moved")
    importing._agreed.clear()
    assert main(["resume", str(moved)]) == 2


def test_objects_take_the_place_of_names(tmp_path, monkeypatch, marker):
    run = foreign(tmp_path, monkeypatch, terms=("import:stranger.term", "harmful"))
    mine = bipars.RewardTerm("import:stranger.term", lambda obs, action, next_obs, info: obs[0])
    with pytest.raises(BiparsError, match="no intact checkpoint"):  # it was never trained; all else is there
        bipars.BiPaRS.load(run.path, terms=[mine, "harmful"])
    assert not marker.exists()
    with pytest.raises(BiparsError, match="no intact checkpoint"):
        bipars.BiPaRS.load(run.path, terms=["import:stranger.term", "harmful"])  # typed here
    assert marker.exists()


def test_ones_own_runs_go_on_unasked(tmp_path, marker):
    arguments = ["--term", "import:stranger.term", "--out", str(tmp_path / "runs"), "--steps", "4000", *QUICK]
    assert main(["train", *arguments]) == 0
    importing._agreed.clear()
    (tmp_path / "runs" / "seed-0000" / "result.json").unlink()
    assert main(["resume", str(tmp_path / "runs")]) == 0
    importing._agreed.clear()
    bipars.BiPaRS.load(tmp_path / "runs" / "seed-0000")


def test_a_suite_of_a_strangers_asks_too(tmp_path, marker, capfd):
    file = tmp_path / "theirs.toml"
    file.write_text(NAMES_CODE)
    for command in (["suite", "show", str(file)], ["suite", str(file), "--out", str(tmp_path / "out")]):
        assert main(command) == 2
        assert "theirs.toml names code, 'stranger.term'" in capfd.readouterr().err
    assert not marker.exists()
    assert main(["suite", str(file), "--out", str(tmp_path / "out"), "--allow-imports"]) == 0
    assert marker.exists()
    importing._agreed.clear()
    assert main(["resume", str(tmp_path / "out")]) == 0  # started here
    shutil.rmtree(tmp_path / "state")
    importing._agreed.clear()
    shutil.rmtree(tmp_path / "out" / "cartpole")
    assert main(["resume", str(tmp_path / "out")]) == 2
    assert "suite.json names code" in capfd.readouterr().err


@pytest.mark.parametrize(("answer", "status"), [("n", 2), ("", 2), ("y", 0)])
def test_at_a_terminal_one_is_asked(tmp_path, monkeypatch, marker, answer, status):
    run = foreign(tmp_path, monkeypatch, terms=("import:stranger.term",))
    leader, follower = pty.openpty()
    command = [sys.executable, "-P", "-m", "bipars.cli", "resume", str(run.path)]
    process = subprocess.Popen(command, stdin=follower, stderr=follower, stdout=subprocess.DEVNULL)
    os.close(follower)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(leader, 1024)
    assert b"'stranger.term'" in said
    os.write(leader, f"{answer}\n".encode())
    while process.poll() is None:  # its progress must be read, or it would wait
        try:
            os.read(leader, 1024)
        except OSError:
            break
    assert process.wait() == status
    os.close(leader)
    assert marker.exists() == (status == 0)


def test_workers_do_not_find_modules_in_the_working_directory_first(tmp_path, marker):
    for name in ("random.py", "jax.py", "numpy.py", "safetensors.py"):
        shutil.copy("stranger.py", name)
    command = ["train", "--term", "harmful", "--out", str(tmp_path / "runs"), "--steps", "2000", *QUICK]
    process = subprocess.run([sys.executable, "-P", "-m", "bipars.cli", *command], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert not marker.exists()


def test_a_worker_imports_what_was_agreed_to_and_nothing_else(tmp_path, monkeypatch, marker):
    run = foreign(tmp_path, monkeypatch, terms=("import:stranger.term",))
    command = [sys.executable, "-P", "-m", "bipars.runs.worker", "--cores", "1", str(run.path)]
    assert subprocess.run(command, capture_output=True).returncode == 3
    assert "names code, 'stranger.term'" in run.error
    assert not marker.exists()
    assert subprocess.run([*command[:-1], "--agreed=stranger.term", command[-1]]).returncode == 0
    assert marker.exists()


def test_a_task_of_ray_imports_what_was_agreed_to_and_nothing_else(tmp_path, monkeypatch, marker):
    """Its function, in a process that starts elsewhere."""
    run = foreign(tmp_path, monkeypatch, terms=("import:stranger.term",))
    (run.path / "token").touch()
    call = partial(execute_task, str(run.path), "token", None, None)
    here = os.getcwd()
    monkeypatch.chdir("/")
    with ProcessPoolExecutor(1, get_context("spawn")) as node:
        assert node.submit(call).result().state == "ended"
        assert "names code, 'stranger.term'" in run.error
        assert not marker.exists()
        (run.path / "token").touch()
        assert node.submit(call, code=("stranger.term",), here=here).result().state == "ended"
    assert marker.exists()
    assert run.finished


def test_weights_of_a_strangers_run_do_not_bring_its_code(tmp_path, monkeypatch, marker, capfd):
    source = RunDirectory.create(tmp_path / "runs" / "seed-0000", SMALL)
    assert execute(source, lambda: False)
    forged = foreign(tmp_path / "forged", monkeypatch, potential="import:stranger.potential")
    for path in source.path.iterdir():
        if path.name != "config.json":
            (shutil.copytree if path.is_dir() else shutil.copy)(path, forged.path / path.name)
    arguments = ["--term", "harmful", "--out", str(tmp_path / "new"), "--steps", "2000", "--preset", "paper", *QUICK]
    assert main(["train", *arguments, "--weights-from", str(forged.path)]) == 2
    assert "names code, 'stranger.potential'" in capfd.readouterr().err
    assert not marker.exists()


def test_the_librarys_own_modules_need_no_consent(tmp_path, monkeypatch):
    run = foreign(tmp_path, monkeypatch, terms=("import:bipars.examples.cartpole_upright",))
    assert not importing.named_code(run.config)
    assert Path(run.path).exists()
