"""The commands as a person types them."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from bipars.cli import SHORT, _flag, as_typed, main
from bipars.errors import UsageError
from bipars.runs.checkpoint import save_checkpoint
from bipars.runs.execute import load_state
from bipars.settings.seeds import parse_seeds
from fake_runs import fake_cell

QUICK = [
    "--ppo.update-period", "2000", "--ppo.num-envs", "10", "--ppo.gradient-steps", "4", "--ppo.batch-size", "64"
]  # fmt: skip


def run(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "bipars.cli", *map(str, arguments)], capture_output=True, text=True, cwd=cwd
    )


def train(out, *more):
    return ["train", "--term", "harmful", "--out", str(out), "--steps", "6000", *QUICK, *map(str, more)]


def test_train_writes_runs_and_says_what_came_of_them_then_does_not_redo_them(tmp_path, capfd):
    out = tmp_path / "runs"
    assert main(train(out, "--seeds", "0-2")) == 0
    assert "| seeds |" in capfd.readouterr().out
    for seed in range(3):
        config = json.loads((out / f"seed-000{seed}" / "config.json").read_text())
        assert config["config"]["seed"] == seed
        assert config["config"]["weights"]["learning_rate"] == 5e-4
        assert config["versions"]["jax"]
        assert len((out / f"seed-000{seed}" / "metrics.jsonl").read_text().splitlines()) == 3
    written = {p: p.stat().st_mtime_ns for p in out.rglob("*.json*")}
    assert main(["resume", str(out)]) == 0
    assert "all 3 runs are finished already" in capfd.readouterr().out
    assert written == {p: p.stat().st_mtime_ns for p in out.rglob("*.json*")}


def test_learned_weights_are_reused_seed_by_seed(tmp_path, capfd):
    assert main(train(tmp_path / "first", "--seeds", "0-1")) == 0
    assert main(train(tmp_path / "again", "--seeds", "0-1", "--weights-from", tmp_path / "first")) == 0
    config = json.loads((tmp_path / "again" / "seed-0001" / "config.json").read_text())["config"]
    assert config["weights_from"].endswith("first/seed-0001")
    capfd.readouterr()
    assert main(train(tmp_path / "other", "--method", "em", "--weights-from", tmp_path / "first")) == 2
    assert "learned its weights with method 'mgl'; this run has 'em'" in capfd.readouterr().err
    assert not (tmp_path / "other").exists()


def test_an_environment_of_gymnasiums_in_processes_with_tensorboard_and_its_weights_reused(tmp_path):
    """Weights are reused together with the statistics of the observations that they were learned with."""
    pytest.importorskip("tensorboardX")
    terms = ["--term", "import:bipars.examples.pendulum_calm", "--env", "Pendulum-v1", "--steps", "512"]
    quick = ["--ppo.update-period", "256", "--ppo.num-envs", "2", "--ppo.gradient-steps", "2", "--ppo.batch-size", "64"]
    common = [*terms, *quick, "--evaluation-episodes", "1"]
    first, again = tmp_path / "first", tmp_path / "again"
    assert main(["train", *common, "--vector", "async", "--tensorboard", "True", "--out", str(first)]) == 0
    assert next((first / "seed-0000" / "tensorboard").glob("events*")).stat().st_size > 0
    assert main(["train", *common, "--weights-from", str(first), "--out", str(again)]) == 0
    (_, learned, _), (_, reused, _) = load_state(first / "seed-0000"), load_state(again / "seed-0000")
    assert float(learned.scales.observations.size) == 512
    for place in ("weights", "scales"):
        a, b = getattr(learned, place), getattr(reused, place)
        a, b = (a.observations, b.observations) if place == "scales" else (a, b)
        assert all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


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
        (["--method", "em", "--upper.earned-trust", "False"], "'em' has no use for --upper.earned-trust (here False)"),
        (["--weights-from", "nowhere"], "nowhere is not a run of bipars: it was not found"),
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


def test_messages_name_the_flags_that_were_typed():
    message = "config.total_steps is 0; ppo.num_envs (2), upper.unroll, weights.nothing, 'import:ppo.clip', total_steps"
    assert as_typed(message, ["train", "--unroll=3"]) == (
        "--steps is 0; --ppo.num-envs (2), --unroll, weights.nothing, 'import:ppo.clip', --steps"
    )
    assert "--upper.unroll" in as_typed(message, ["train", "--upper.unroll", "3"])


def test_the_help_shows_short_flags_and_the_potential_that_is_used(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for method, shown in (("pbrs", "(default: upright)"), ("dynamic-pbrs", "(default: fading)")):
        with pytest.raises(SystemExit):
            main(["train", "--method", method, "--help"])
        text = capsys.readouterr().out
        assert shown in text
    assert all(short in text for short in SHORT)


def test_steps_that_are_no_whole_update_are_said(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("bipars.suite.finish.run_locally", lambda runs, workers, report: False)
    assert main([*train(tmp_path / "a"), "--steps", "1"]) == 130
    assert (
        "--steps 1 is rounded up to 2,000: training goes by whole updates of 2,000 steps (--ppo"
        in capfd.readouterr().out
    )
    assert main(train(tmp_path / "b")) == 130
    assert "rounded" not in capfd.readouterr().out


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

    monkeypatch.setattr("bipars.demo.run_locally", one_fails)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 1
    errors = capfd.readouterr().err
    assert "the disk is full" in errors
    assert errors.count("FAILED") == errors.count("its process died") + 1 > 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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
        time.sleep(0.05)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)  # as a service manager may: to the command alone
    output, _ = process.communicate(timeout=30)
    os.close(leader)
    os.close(follower)
    assert process.returncode == 130
    assert f"go on with: bipars resume {out}" in output.decode()
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


def test_seeds_are_read_as_typed():
    assert parse_seeds("0-2,7") == (0, 1, 2, 7)
    with pytest.raises(UsageError, match="stands there twice"):
        parse_seeds("1,0-2")
    with pytest.raises(UsageError, match="expected numbers"):
        parse_seeds("a")


def test_list_and_help_name_everything(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for name in ("cartpole-continuous", "harmful", "imgl", "foundation"):
        assert name in text


def test_options_of_the_environment_are_read_as_they_are_meant():
    from bipars.cli import _parse_option

    options = dict(map(_parse_option, ("a=False", "b=none", "c=2", "d=2.0", "e=word", "f=TRUE")))
    assert options == {"a": False, "b": None, "c": 2, "d": 2.0, "e": "word", "f": True}
    assert isinstance(options["c"], int)


def test_of_a_repeated_flag_the_last_counts_for_defaults_too():
    arguments = ["train", "--env", "cartpole", "--method=mgl", "--method", "ddpg-mgl", "--env=cartpole-continuous"]
    assert (_flag(arguments, "--env"), _flag(arguments, "--method")) == ("cartpole-continuous", "ddpg-mgl")
    assert _flag(arguments, "--seed") is None
