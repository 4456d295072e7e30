"""Commands that are mistyped, stopped, or meet damaged files."""

import os
import pty
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bipars.cli import main
from bipars.runs.checkpoint import save_checkpoint
from commands import run, train
from fake_runs import fake_cell


@pytest.fixture(autouse=True)
def hangup():
    """A command that was started under nohup ignores SIGHUP, and so would the ones that tests start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "cartpol"], "Did you mean 'cartpole'"),
        (["--term", "harm"], "Did you mean 'harmful'"),
        (["--method", "mlg"], "Did you mean 'mgl'"),
        (["--seeds", "3-1"], "runs backwards"),
        (["--env-option", "force"], "expected name=value"),
        (["--env-option", "mass=2"], "does not take the options"),
        (["--ppo.clip", "-1"], "bipars: --ppo.clip is -1.0; expected a positive number"),
        (["--weights.low", "nan"], "bipars: --weights.low is nan; expected a number or none"),
        (["--steps", "0"], "bipars: --steps is 0; expected a positive number"),
        (["--unroll", "0"], "bipars: --unroll is 0; expected a positive number"),
        (["--unroll", "9"], "method 'mgl' has no use for --unroll (here 9): leave it out; it is for unrolled"),
        (
            ["--method", "em", "--upper.control-group", "False"],
            "'em' has no use for --upper.control-group (here False)",
        ),
        (["--weights-from", "nowhere"], "nowhere is not a run of bipars: it was not found"),
        (["--sedes", "0"], "unknown argument '--sedes'. Did you mean --seeds? `bipars train --help-all`"),
        (["--ppo.clop=1"], "unknown argument '--ppo.clop'. Did you mean --ppo.clip?"),
        (["--workers", "-1"], "--workers is -1; expected a number of cores"),
        (["--seeds", "0-999999999"], "more than 10,000"),
        (["--out", "/dev/null/runs"], "/dev/null/runs cannot be used: Not a directory"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing_behind(tmp_path, arguments, message):
    result = run("train", "--term", "harmful", "--out", "runs", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_holds_something_else_is_refused(tmp_path, capfd):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(train(tmp_path)) == 2
    assert "holds 'thesis.tex', which is not a run of bipars" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume", ".", "--workers", "-1"], "--workers is -1"),
        (["suite", "foundation", "--out", "out", "--workers", "-1"], "--workers is -1"),
        (["demo", "--out", "out", "--workers", "-1"], "--workers is -1"),
        (["demo", "--out", "/dev/null/x"], "cannot be used: Not a directory"),
        (["bench", "--updates", "0"], "--updates is 0; expected at least 1"),
        (
            ["suite", "status", "nope"],
            "nope is not a directory of `bipars suite run`: there is no such directory. Name",
        ),
    ],
)
def test_bad_input_of_other_commands_is_named(tmp_path, monkeypatch, capfd, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_runs_is_no_run_but_names_one(tmp_path, capfd):
    fake_cell(tmp_path, "mgl", [0.0, 0.0], weight=1.0)
    assert main(["render", str(tmp_path)]) == 2
    assert f"It holds runs, such as {tmp_path / 'seed-0000'}: name one of them" in capfd.readouterr().err


def test_a_finished_run_with_damaged_checkpoints_is_named(tmp_path, capfd):
    fake_cell(tmp_path, "mgl", [0.0, 0.0], weight=1.0)
    for seed in (0, 1):
        checkpoints = tmp_path / f"seed-000{seed}" / "checkpoints"
        save_checkpoint(checkpoints, 1, {"x": np.zeros(3)}, (0, ""))
    assert main(["resume", str(tmp_path)]) == 0
    (tmp_path / "seed-0001" / "checkpoints" / "00000001.safetensors").write_bytes(b"")
    assert main(["resume", str(tmp_path)]) == 1
    errors = capfd.readouterr().err
    assert f"DAMAGED {tmp_path / 'seed-0001'}: its results are there" in errors
    assert "seed-0000" not in errors


def test_resume_names_a_config_file_that_is_not_ours(tmp_path, capfd):
    (tmp_path / "config.json").write_text('{"editor": "vim"}')
    assert main(["resume", str(tmp_path)]) == 2
    assert "config.json is not of bipars" in capfd.readouterr().err


def test_the_demo_says_which_runs_failed(tmp_path, monkeypatch, capfd):
    def one_fails(runs, workers, report):
        runs[0].prepare().error_file.write_text('{"error": "the disk is full"}')
        return True

    monkeypatch.setattr("bipars.suite.finish.run_locally", one_fails)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 1
    said = capfd.readouterr()
    assert "the disk is full" in said.err
    assert said.err.count("FAILED") == 1
    assert f"try them again with: bipars demo --out {tmp_path / 'demo'}" in said.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_command_checkpoints_and_resume_finishes(tmp_path, number):
    out = tmp_path / "runs"
    arguments = [*train(out), "--steps", "400000", "--seeds", "0-1"]
    # A terminal of its own, so that Ctrl-C reaches the command and its workers as it does for a person.
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "bipars.cli", *arguments],
        stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    metrics = out / "seed-0000" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 3):
        time.sleep(0.02)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)  # as a service manager may: to the command alone
    output, _ = process.communicate(timeout=120)
    os.close(leader)
    os.close(follower)
    assert process.returncode == 130
    assert f"continue with: bipars resume {out}" in output.decode()
    assert list((out / "seed-0000" / "checkpoints").glob("*.json"))
    assert main(["resume", str(out)]) == 0
    assert all((out / f"seed-000{seed}" / "result.json").exists() for seed in (0, 1))


@pytest.mark.parametrize("what", ["list", "train --help"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_who_leaves_early_is_no_error(unbuffered, what):
    command = f"{sys.executable} -m bipars.cli {what} | true"
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env=environment)
    assert (result.returncode in (0, 141), result.stderr) == (True, "")
