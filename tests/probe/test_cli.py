"""The commands as a person types them."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import bipars
from bipars.cli import main
from bipars.cli.asked import ALIASES, as_typed
from bipars.cli.train import parse_option
from bipars.errors import UsageError
from bipars.runs.execute import load_state
from bipars.settings.seeds import parse_seeds
from commands import train


def test_train_writes_runs_and_says_what_came_of_them_then_does_not_redo_them(tmp_path, capfd):
    out = tmp_path / "runs"
    assert main(train(out, "--seeds", "0-2")) == 0
    assert "| seeds |" in capfd.readouterr().out
    for seed in range(3):
        config = json.loads((out / f"seed-000{seed}" / "config.json").read_text())
        assert config["config"]["seed"] == seed
        assert config["config"]["weights"]["learning_rate"] == 3e-5
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
    assert main(["train", *common, "--vector", "async", "--tensorboard", "--out", str(first)]) == 0
    assert next((first / "seed-0000" / "tensorboard").glob("events*")).stat().st_size > 0
    assert main(["train", *common, "--weights-from", str(first), "--out", str(again)]) == 0
    (_, learned, _), (_, reused, _) = load_state(first / "seed-0000"), load_state(again / "seed-0000")
    assert float(learned.observations.size) == 512
    for place in ("weights", "observations"):
        a, b = getattr(learned, place), getattr(reused, place)
        assert all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_messages_name_the_flags_that_were_typed():
    error = UsageError(
        "config.steps is 0; ppo.num_envs (2), upper.unroll, 'import:ppo.clip', terms",
        ["config.steps", "ppo.num_envs", "upper.unroll", "terms"],
    )
    assert (
        as_typed(error, ["train", "--unroll=3"])
        == "--steps is 0; --ppo.num-envs (2), --unroll, 'import:ppo.clip', --term"
    )
    assert "--upper.unroll" in as_typed(error, ["train", "--upper.unroll", "3"])
    assert "ppo.num_envs (2)" in str(error)


def help_text(capsys, flag):
    with pytest.raises(SystemExit):
        main(["train", flag])
    return capsys.readouterr().out


def test_help_fits_two_screens_and_help_all_has_every_setting(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    short, everything = help_text(capsys, "--help"), help_text(capsys, "--help-all")
    assert len(short.splitlines()) <= 60
    assert "--ppo.clip" not in short
    assert "--help-all" in short
    for path in ("--ppo.clip FLOAT", "--weights.form", "--ddpg-upper.size-penalty", *ALIASES.values()):
        assert path in everything


def test_help_has_neither_none_nor_comments_of_the_source(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("bench", "monks", "report", "suite run"):
        with pytest.raises(SystemExit):
            main([*command.split(), "--help"])
        text = capsys.readouterr().out
        assert not any(odd in text for odd in ("None", "type: ignore", "command options")), command


def test_whole_numbers_may_be_written_as_powers_of_ten(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("bipars.suite.finish.run_locally", lambda runs, workers, report: False)
    assert main([*train(tmp_path / "a"), "--steps", "1e4", "--ppo.update-period", "2E3"]) == 130
    config = json.loads((tmp_path / "a" / "seed-0000" / "config.json").read_text())["config"]
    assert (config["steps"], config["ppo"]["update_period"]) == (10_000, 2_000)
    with pytest.raises(SystemExit):
        main([*train(tmp_path / "b"), "--steps", "1.5"])


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as leaves:
        main(["--version"])
    assert leaves.value.code == 0
    assert capsys.readouterr().out == f"bipars {bipars.__version__}\n"


def test_help_answers_without_loading_jax():
    code = "import sys; from bipars.cli import main\ntry: main(['--help'])\nfinally: print('jax' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "render" in result.stdout
    assert result.stdout.endswith("False\n")


def test_steps_that_are_no_whole_update_are_said(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("bipars.suite.finish.run_locally", lambda runs, workers, report: False)
    assert main([*train(tmp_path / "a"), "--steps", "1"]) == 130
    assert (
        "--steps 1 is rounded up to 2,000: training goes by whole updates of 2,000 steps (--ppo"
        in capfd.readouterr().out
    )
    assert main(train(tmp_path / "b")) == 130
    assert "rounded" not in capfd.readouterr().out


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
    options = dict(map(parse_option, ("a=False", "b=none", "c=2", "d=2.0", "e=word", "f=TRUE")))
    assert options == {"a": False, "b": None, "c": 2, "d": 2.0, "e": "word", "f": True}
    assert isinstance(options["c"], int)
