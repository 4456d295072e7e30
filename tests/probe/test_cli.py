"""The commands as a person types them."""

import json

import jax
import numpy as np
import pytest

from bipars.cli import main
from bipars.cli.train import SHORT, _flag, as_typed
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
    assert float(learned.observations.size) == 512
    for place in ("weights", "scales"):
        a, b = getattr(learned, place), getattr(reused, place)
        a, b = (a.observations, b.observations) if place == "scales" else (a, b)
        assert all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


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
    from bipars.cli.train import _parse_option

    options = dict(map(_parse_option, ("a=False", "b=none", "c=2", "d=2.0", "e=word", "f=TRUE")))
    assert options == {"a": False, "b": None, "c": 2, "d": 2.0, "e": "word", "f": True}
    assert isinstance(options["c"], int)


def test_of_a_repeated_flag_the_last_counts_for_defaults_too():
    arguments = ["train", "--env", "cartpole", "--method=mgl", "--method", "ddpg-mgl", "--env=cartpole-continuous"]
    assert (_flag(arguments, "--env"), _flag(arguments, "--method")) == ("cartpole-continuous", "ddpg-mgl")
    assert _flag(arguments, "--seed") is None
