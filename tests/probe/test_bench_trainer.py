"""`bipars bench trainer` at tiny size: every system is trained, nothing twice, and the page gets its tables."""

import json

import pytest

from bipars.bench import trainer
from bipars.bench.trainer import FROZEN, LEARNED, NAIVE, SCALARS, SCHEDULE, SYSTEMS, TRUE, Task, run_bench, tables
from bipars.cli import main
from bipars.errors import UsageError

pytest.importorskip("stable_baselines3")
TINY = Task("CartPole-v1", "cartpole_off", 768, settings={"n_steps": 32, "batch_size": 64, "n_epochs": 1})


@pytest.fixture(autouse=True)
def short_evaluations(monkeypatch):
    monkeypatch.setattr(trainer, "EVALUATIONS", 2)
    monkeypatch.setattr(trainer, "EPISODES", 2)


def test_every_system_is_trained_once_and_a_killed_benchmark_goes_on(tmp_path, monkeypatch, capsys):
    times = {TRUE: 2.0, LEARNED: 3.0}
    monkeypatch.setattr(trainer, "apart", lambda *_: times)
    assert run_bench(tmp_path, tasks=[TINY], seeds=1) == 0
    assert "1.50" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "trainer.json").read_text())["tasks"]
    assert {system: len(row["end"][system]) for system in SYSTEMS} == dict.fromkeys(SYSTEMS, 1)
    assert row["seconds"] == [[2.0, 3.0]]
    learned = tmp_path / "CartPole-v1" / "shapedppo" / "seed-0"
    assert json.loads((learned / "schedule.json").read_text())["steps"] == [0, 256, 512]

    trainer.cell_file(tmp_path, TINY, LEARNED, 0).unlink()  # as if it had been killed in the middle of it
    asked, real = [], trainer.train
    monkeypatch.setattr(trainer, "train", lambda *given: asked.append(given[1]) or real(*given))
    assert run_bench(tmp_path, tasks=[TINY], seeds=1) == 0
    assert asked == [LEARNED]
    (again,) = json.loads((tmp_path / "trainer.json").read_text())["tasks"]
    assert again["end"] == row["end"]
    with pytest.raises(UsageError, match="has 768 steps; choose another --out, or ask for the same --steps"):
        run_bench(tmp_path, steps=1000, tasks=[TINY], seeds=1)


def test_a_part_that_is_missing_leaves_a_gap_in_the_tables(tmp_path, capsys):
    ends = {TRUE: [100.0, 110.0], NAIVE: [10.0, 10.0], LEARNED: [100.0, 90.0], FROZEN: [], SCALARS: [], SCHEDULE: []}
    row = {"task": "CartPole-v1", "term": "cost", "harmful": True, "untrained": 5.0, "end": ends, "area": ends}
    text = tables([row | {"seconds": [[1.0, 1.2], [1.0, 1.4]]}])
    first, second = text.strip().split("\n\n")
    cells = [cell.strip() for cell in first.splitlines()[2].split("|")[1:-1]]
    assert cells == ["CartPole-v1, cost", "105.0 ± 5.0", "10.0 ± 0.0", "95.0 ± 5.0", "5%", "90%", "1.30"]
    assert [cell.strip() for cell in second.splitlines()[2].split("|")[4:-1]] == ["-", "-", "-"]
    assert main(["bench", "trainer", "--out", str(tmp_path), "--parts", "Hopper-v5"]) == 2
    assert "Hopper-v5" in capsys.readouterr().err


def test_the_terms_of_all_tasks_exist():
    assert [len(task.terms) for task in trainer.TASKS] == [1] * 4
    assert sum(task.harmful for task in trainer.TASKS) == 3
