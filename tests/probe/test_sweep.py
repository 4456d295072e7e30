"""The sweep at tiny size: what it counts, that it goes on where it was, and what it says without Optuna."""

import json

import pytest

from bipars.bench import sweep
from bipars.bench.sweep import LARGEST, SMALLEST, TASKS, Task, Training, as_text, run_bench, suggest
from bipars.cli import main
from bipars.errors import UsageError

pytest.importorskip("optuna")
TINY = Task("CartPole-v1", ("noise:1", "import:bipars.examples.cartpole_upright"), 512, {
    "num_envs": 2, "update_period": 256, "gradient_steps": 2, "batch_size": 16,
})  # fmt: skip


def training(returns, weights=(), number=0):
    steps = tuple(100 * (i + 1) for i in range(len(returns)))
    return Training("CartPole-v1", "trial", number, weights, steps, tuple(returns), tuple(s / 100 for s in steps))


def test_a_return_is_reached_when_the_last_evaluations_are_as_high_on_average():
    run = training([0.0, 10.0, 10.0, 10.0, 10.0, 10.0, 2.0])
    assert run.end == pytest.approx(8.4)
    assert run.reached(8.0) == 4
    assert run.reached(0.0) == 0
    assert run.reached(11.0) is None


def test_suggestions_are_the_same_whenever_they_are_asked_for():
    done = []
    for number in range(3):
        weights = suggest(TINY, done)
        assert weights == suggest(TINY, done)
        assert all(SMALLEST <= weight <= LARGEST for weight in weights)
        assert weights not in [list(trial.weights) for trial in done]
        done.append(training([float(number)], tuple(weights), number))


def test_a_sweep_counts_all_trials_and_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    assert run_bench(tmp_path, 2, tasks=[TINY], seeds=1) == 0
    (row,) = json.loads((tmp_path / "sweep.json").read_text())["tasks"]
    assert (row["steps of all trials"], row["steps of one run"], row["trials"]) == (1024, 512, 2)
    lines = (tmp_path / "trainings.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["trial", "trial", "learned", "again"]
    ends = [json.loads(line) for line in lines[:2]]
    best = max(ends, key=lambda trial: sum(trial["returns"][-5:]))
    assert row["best weights"] == best["weights"] == json.loads(lines[3])["weights"]
    assert "best of 2 trials" in capsys.readouterr().out

    (tmp_path / "trainings.jsonl").write_text("".join(line + "\n" for line in lines[:3]))
    asked = []
    real = sweep.train
    monkeypatch.setattr(sweep, "train", lambda *given: asked.append(given[1:3]) or real(*given))
    assert run_bench(tmp_path, 2, tasks=[TINY], seeds=1) == 0
    assert asked == [("again", 0)]
    again = json.loads((tmp_path / "trainings.jsonl").read_text().splitlines()[3])
    assert again["returns"] == json.loads(lines[3])["returns"]
    with pytest.raises(UsageError, match="has another trial 0 of CartPole-v1, of 512 steps; choose another --out"):
        run_bench(tmp_path, 2, steps=4096, tasks=[TINY], seeds=1)


def test_weights_that_are_tried_are_those_that_count(tmp_path):
    """With weight 0.01 and 10, one term counts a thousand times as much as the other."""
    found = sweep.train(TINY, "trial", 0, 0, [1.0, 1.0])
    same = sweep.train(TINY, "trial", 0, 0, [1.0, 1.0])
    other = sweep.train(TINY, "trial", 0, 0, [10.0, 0.01])
    assert found.returns == same.returns
    assert found.returns != other.returns


def test_the_tasks_have_four_to_eight_terms_and_are_two():
    assert len({task.env for task in TASKS}) == 2
    assert all(4 <= len(task.terms) <= 8 for task in TASKS)


def test_what_was_never_reached_is_said(capsys):
    row = {
        "env": "E", "trials": 2, "best return": 1.0, "best return, other seeds": 0.5, "learned return": 0.1,
        "steps of all trials": 20, "seconds of all trials": 2.0, "steps of one run": 10, "seconds of one run": 1.0,
        "reached by": [None], "seconds until": [None],
    }  # fmt: skip
    assert "best trial's return, 0 of 1 seeds" in as_text([row])


def test_wrong_sizes_and_a_missing_optuna_are_told_before_anything_runs(tmp_path, monkeypatch, capfd):
    out = ["--out", str(tmp_path / "out")]
    assert main(["bench", "sweep", "--trials", "0", *out]) == 2
    assert "--trials is 0; expected at least 1" in capfd.readouterr().err
    assert main(["bench", "cartpole", "--trials", "3"]) == 2
    assert "bench cartpole does not take --trials; bench sweep may" in capfd.readouterr().err
    monkeypatch.setattr(sweep, "find_spec", lambda name: None)
    assert main(["bench", "sweep", *out]) == 2
    assert "pip install 'bipars[bench]'" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
