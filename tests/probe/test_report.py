"""The report: what it gathers and writes, names full of mischief, directories full of trouble."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from bipars.cli import main
from bipars.errors import RunDirectoryError
from bipars.nets.spaces import DiscreteActions, Spaces
from bipars.nets.weights import make_weights
from bipars.program import complete, preset
from bipars.report.build import write_report
from bipars.report.compare import ablation_names, comparison_config, missing_runs
from bipars.report.page import embedded_json
from bipars.report.paper import paper_beside
from bipars.report.text import verdict_text
from bipars.results.formats import csv_text
from bipars.results.panels import collect
from bipars.results.verdict import judgements, verdicts
from bipars.results.where import explained
from bipars.runs.directory import RunDirectory, find_runs
from bipars.settings.config import Config, DDPGConfig, DDPGUpperConfig, WeightConfig
from bipars.suite.manifest import record
from bipars.suite.plan import load_suite
from fake_runs import BAD, GOOD, MIDDLE, ROUNDS, fake_cell, fake_seed, fake_snapshots, task


def test_runs_are_gathered_by_task_and_terms(tmp_path):
    fake_cell(tmp_path / "a" / "mgl", "mgl", GOOD, weight=1.0, terms=("one",))
    fake_cell(tmp_path / "b" / "mgl", "mgl", GOOD, weight=1.0, terms=("two",))
    slow = Config(env="cartpole", steps=ROUNDS * 20_000, checkpoint_every=3)
    fake_cell(tmp_path / "b" / "slow", "mgl", GOOD, weight=1.0, terms=("two",), config=slow)
    fake_cell(tmp_path / "ppo", "ppo", BAD, terms=())
    other = Config(env="cartpole-continuous", steps=ROUNDS * 20_000)
    fake_cell(tmp_path / "c", "mgl", GOOD, weight=1.0, terms=("two",), config=other)
    panels = {panel.name: [cell.label for cell in panel.cells] for panel in collect(tmp_path).panels}
    assert panels == {
        "cartpole: one": ["ppo", "mgl"],
        "cartpole: two": ["ppo", "mgl", "slow"],
        "cartpole-continuous: two": ["mgl"],
    }


def test_runs_that_are_not_as_far_are_compared_at_the_same_step(tmp_path):
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=1.2, finish=False)
    fake_cell(tmp_path / "ppo", "ppo", MIDDLE, terms=())
    (judgement,) = judgements(collect(tmp_path).panels[0])
    assert judgement.step == 20_000 * ROUNDS // 2
    notes = judgement.together.notes
    assert any("at step 120,000 of 240,000" in note for note in notes)
    assert any("4 of 4 seeds of mgl are unfinished" in note for note in notes)


def test_settings_in_which_compared_runs_differ_are_named(tmp_path):
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=1.2)
    base = Config(env="cartpole", steps=ROUNDS * 20_000)
    fake_cell(tmp_path / "ppo", "ppo", MIDDLE, terms=(), config=replace(base, ppo=replace(base.ppo, clip=0.1)))
    (judgement,) = judgements(collect(tmp_path).panels[0])
    assert any("ppo.clip 0.1" in note for note in judgement.together.notes)


# Trouble


def message(capsys, *arguments):
    status = main(["report", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return status, out + err


def test_an_empty_directory_and_none_at_all(tmp_path, capsys):
    assert message(capsys, tmp_path) == (2, f"bipars: {tmp_path} holds no run of bipars\n")
    status, text = message(capsys, tmp_path / "nowhere")
    assert status == 2
    assert "does not exist" in text


def test_a_run_without_evaluations(tmp_path, capsys):
    fake_cell(tmp_path / "mgl", "mgl", [0.0], weight=1.0)
    (tmp_path / "mgl" / "seed-0000" / "metrics.jsonl").write_text("")
    (tmp_path / "mgl" / "seed-0000" / "result.json").unlink()
    status, text = message(capsys, tmp_path)
    assert status == 0
    assert "No evaluation yet" in text
    assert "1 of 1 runs stopped before the end, the last at 0%; continue with: bipars resume" in text
    assert "No evaluation yet" in (tmp_path / "report.html").read_text()


def test_failed_damaged_and_saved_runs_are_named_beside_the_rest(tmp_path, capsys):
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=1.2)
    failed = tmp_path / "mgl" / "seed-0001"
    (failed / "result.json").unlink()
    (failed / "error.json").write_text(json.dumps({"error": "the reward is <nan>", "traceback": ""}))
    (tmp_path / "mgl" / "seed-0002" / "metrics.jsonl").write_text("garbage\n")
    fake_cell(tmp_path / "agent", "mgl", [0.0], weight=1.0)
    about = tmp_path / "agent" / "seed-0000" / "config.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"kind": "agent"}))
    (about.parent / "metrics.jsonl").unlink()
    status, text = message(capsys, tmp_path)
    assert status == 0
    assert f"FAILED {failed}: the reward is <nan>" in text
    assert "metrics.jsonl is damaged: line 1" in text
    assert "is a saved agent without metrics" in text
    page = (tmp_path / "report.html").read_text()
    assert "the reward is &lt;nan&gt;" in page
    assert "is a saved agent without metrics" in page


@pytest.mark.parametrize("how", ["gone", "empty", "damaged"])
def test_a_seed_whose_metrics_are_lost_is_named(tmp_path, capsys, how):
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=1.2)
    fake_cell(tmp_path / "ppo", "ppo", MIDDLE, terms=())
    lost = tmp_path / "ppo" / "seed-0002"
    if how == "gone":
        (lost / "metrics.jsonl").unlink()
    else:
        (lost / "metrics.jsonl").write_text("" if how == "empty" else "garbage\n")
    status, text = message(capsys, tmp_path)
    assert status == 0
    assert f"MISSING {lost}: {lost / 'metrics.jsonl'} is {how}" in text
    note = "1 of 4 seeds of no shaping (ppo) are missing, since their metrics cannot be read (seed 2)"
    page = (tmp_path / "report.html").read_text()
    assert note in " ".join(text.split())
    assert note in page
    assert f"MISSING {lost}" in page


def test_running_stopped_and_waiting_runs_are_told_apart(tmp_path, capsys):
    fake_cell(tmp_path, "mgl", GOOD, weight=1.2, finish=False)
    (tmp_path / "seed-0003" / "metrics.jsonl").unlink()
    with RunDirectory(tmp_path / "seed-0001").owned():
        text = message(capsys, tmp_path, "--text")[1]
    assert "1 of 4 runs still running, the last at 50%\n" in text
    assert "2 of 4 runs stopped before the end, the last at 50%\n" in text
    assert "1 run has not begun\n" in text
    assert "bipars resume" not in text
    text = message(capsys, tmp_path, "--text")[1]
    assert f"3 of 4 runs stopped before the end, the last at 50%; continue with: bipars resume {tmp_path}" in text


def test_nothing_that_can_be_shown(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunDirectoryError, match="holds no training run that can be shown: .* is damaged"):
        collect(tmp_path)


def test_runs_that_learn_no_weights_have_no_verdict(tmp_path):
    fake_cell(tmp_path / "ns", "ns", BAD, weight=1.0)
    assert "No run here learns weights" in verdict_text(collect(tmp_path))
    fake_cell(tmp_path / "other" / "ppo", "ppo", BAD, terms=())
    assert "No reward term here" in verdict_text(collect(tmp_path / "other"))


def test_text_writes_nothing(tmp_path, capsys):
    task(tmp_path, GOOD, BAD, MIDDLE, weight=-4.0)
    before = set(tmp_path.rglob("*"))
    status, text = message(capsys, tmp_path, "--text")
    assert status == 0
    assert "\npush  reverse  strong" in text
    assert set(tmp_path.rglob("*")) == before


# Comparison runs


def learner(root, method="mgl", seeds=1, env="cartpole", terms=("harmful",), **settings):
    """Finished runs of a learner, as `bipars train` would configure them."""
    config = complete(replace(preset(env, method), steps=ROUNDS * 20_000, terms=terms, **settings))
    return fake_cell(root, method, [0.0] * seeds, weight=1.0, terms=config.terms, config=config)


def names(runs, root):
    return [str(run.path.relative_to(root)) for run in runs]


def pretend_trained(runs):
    for run in runs:
        fake_seed(run.path, run.config, 0.0)


def test_the_comparison_is_the_same_but_for_the_method(tmp_path):
    learner(tmp_path, seeds=2, evaluation_episodes=3)
    runs = missing_runs(collect(tmp_path))
    assert names(runs, tmp_path) == [
        f"comparison/{name}/seed-000{seed}" for name in ("ns", "ppo", "frozen", "scalars") for seed in (0, 1)
    ]
    assert {run.config.evaluation_episodes for run in runs} == {3}
    assert [run.config.weights.initial for run in runs[:4]] == [1.0, 1.0, 0.0, 0.0]
    assert [run.config.weights_from for run in runs[4:]] == [str(tmp_path / f"seed-000{seed}") for seed in (0, 1)] * 2
    assert [run.config.weights_as for run in runs] == ["function"] * 6 + ["scalars"] * 2
    pretend_trained(runs)
    assert missing_runs(collect(tmp_path)) == []
    (panel,) = collect(tmp_path / "seed-0001").panels
    assert {cell.role for cell in panel.cells} == {"learner", "naive", "plain", "other"}
    assert panel.frozen(panel.learners[0]) is not None
    assert panel.frozen(panel.learners[0], "scalars") is not None
    assert comparison_config(runs[0].config, "ppo").weights.form == "scalar"


def test_the_weights_that_a_policy_takes_as_its_input_are_not_frozen(tmp_path):
    learner(tmp_path, "em")
    assert names(missing_runs(collect(tmp_path)), tmp_path) == ["comparison/ns/seed-0000", "comparison/ppo/seed-0000"]


def test_leaving_out_one_term_at_a_time(tmp_path):
    learner(tmp_path, seeds=2, terms=("harmful", "noise", "half"), evaluation_episodes=3)
    runs = missing_runs(collect(tmp_path), compare=False, ablate=True)
    left_out = ("harmful", "noise", "half")
    assert names(runs, tmp_path) == [f"comparison/without-{name}/seed-000{i}" for name in left_out for i in (0, 1)]
    assert [run.config.terms for run in runs[::2]] == [("noise", "half"), ("harmful", "half"), ("harmful", "noise")]
    assert {(run.config.method, run.config.evaluation_episodes) for run in runs} == {("mgl", 3)}
    pretend_trained(runs)
    assert missing_runs(collect(tmp_path), compare=False, ablate=True) == []
    (panel,) = collect(tmp_path).panels
    assert all(verdict.gain is not None for verdict in verdicts(panel))


def test_directories_are_named_after_terms_as_far_as_names_go():
    assert ablation_names(["a", "import:mine.A", "../..", "info:reward ctrl"]) == [
        "without-a-1", "without-a-2", "without-term-3", "without-info-reward-ctrl"
    ]  # fmt: skip


def test_without_its_only_term_an_agent_has_none(tmp_path):
    learner(tmp_path)
    assert names(missing_runs(collect(tmp_path), compare=False, ablate=True), tmp_path) == ["comparison/ppo/seed-0000"]


def test_the_weight_of_a_comparison_has_no_bounds(tmp_path):
    learner(tmp_path, weights=WeightConfig(initial=0.6, low=0.5, high=0.8))
    for run in missing_runs(collect(tmp_path))[:2]:
        weights = make_weights(jax.random.key(0), run.config.weights, Spaces(4, DiscreteActions(2)), 1)
        assert weights(np.zeros(4), 0) == {"ns": 1.0, "ppo": 0.0}[run.config.method]


@pytest.mark.parametrize(("method", "weights"), [("simplex", WeightConfig()), ("mgl", WeightConfig(simplex=True))])
def test_the_weights_of_a_comparison_do_not_sum_to_one(tmp_path, method, weights):
    learner(tmp_path, method, terms=("harmful", "noise"), weights=weights)
    runs = missing_runs(collect(tmp_path))
    assert [(run.config.method, run.config.weights.simplex) for run in runs[:2]] == [("ns", False), ("ppo", False)]


def test_deterministic_learners_are_compared_with_deterministic_policies(tmp_path):
    settings, upper = DDPGConfig(gradient_steps=2, warmup_steps=100), DDPGUpperConfig(second_order="exact")
    learner(tmp_path, "ddpg-imgl", env="cartpole-continuous", ddpg=settings, ddpg_upper=upper)
    runs = missing_runs(collect(tmp_path))
    assert names(runs, tmp_path) == [
        f"comparison/{name}/seed-0000" for name in ("ddpg-ns", "ddpg", "frozen", "scalars")
    ]
    assert [run.config.weights.initial for run in runs[:2]] == [1.0, 0.0]
    assert {run.config.ddpg.gradient_steps for run in runs} == {2}
    pretend_trained(runs)
    assert missing_runs(collect(tmp_path)) == []
    (judgement,) = judgements(collect(tmp_path).panels[0])
    assert judgement.together.missing == ()


def test_what_several_learners_need_alike_is_made_once(tmp_path):
    for method in ("single", "simplex"):
        learner(tmp_path / method, method, terms=("harmful", "noise"))
    found = names(missing_runs(collect(tmp_path)), tmp_path)
    assert [name for name in found if "frozen" not in name] == [
        f"simplex/comparison/{method}/seed-0000" for method in ("ns", "ppo")
    ]


def test_a_comparison_that_was_stopped_goes_on(tmp_path):
    learner(tmp_path, seeds=2)
    runs = missing_runs(collect(tmp_path))
    pretend_trained(runs)
    (runs[2].path / "result.json").unlink()
    (runs[3].path / "result.json").unlink()
    with RunDirectory(runs[3].path).owned():
        assert names(missing_runs(collect(tmp_path)), tmp_path) == ["comparison/ppo/seed-0000"]


def test_nothing_is_made_where_a_comparison_cannot_be(tmp_path, capsys):
    learner(tmp_path / "a")
    fake_cell(tmp_path / "b", "mgl", [0.0], weight=1.0, terms=("no-such-term",))
    before = set(tmp_path.rglob("*"))
    status, text = message(capsys, tmp_path, "--compare")
    assert status == 2
    assert "no-such-term" in text
    assert set(tmp_path.rglob("*")) == before


def test_nothing_is_made_beside_a_comparison_with_other_settings(tmp_path, capsys):
    learner(tmp_path)
    plain = missing_runs(collect(tmp_path))[1]
    RunDirectory.create(plain.path, replace(plain.config, evaluation_episodes=7))
    status, text = message(capsys, tmp_path, "--compare")
    assert status == 2
    assert "evaluation_episodes" in text
    assert not (tmp_path / "comparison" / "ns").exists()


def test_why_nothing_is_compared(tmp_path, capsys):
    fake_cell(tmp_path / "pbrs", "pbrs", [0.0], terms=())
    fake_cell(tmp_path / "dpba", "dpba", [0.0])
    for method in ("pbrs", "dpba"):
        status, text = message(capsys, tmp_path / method, "--compare", "--text")
        assert status == 0
        assert text.startswith("no comparison made: it is for runs that learn weights (such as --method mgl), and")
    fake_cell(tmp_path / "mgl", "mgl", [0.0], weight=1.0, finish=False)
    (tmp_path / "mgl" / "seed-0000" / "metrics.jsonl").unlink()
    _, text = message(capsys, tmp_path / "mgl", "--compare", "--text")
    assert text.startswith("no comparison made: no run that learns weights has an evaluation yet")
    learner(tmp_path / "all")
    pretend_trained(missing_runs(collect(tmp_path / "all")))
    assert message(capsys, tmp_path / "all", "--compare", "--text")[1].startswith("every comparison exists already")


# Names and numbers

NASTY = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>"
FORMULA = '=HYPERLINK("http://example.com","x")'


def test_names_full_of_markup_and_formulas_stay_text(tmp_path):
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=-2.0, terms=(NASTY, FORMULA, "$x^{2"))
    page = write_report(collect(tmp_path)).read_text()
    assert "<img" not in page
    assert "alert(2)</script>" not in page
    verdict = (tmp_path / "report" / "verdict.csv").read_text()
    cells = [cell for row in csv.reader(io.StringIO(verdict)) for cell in row]
    assert f"'{FORMULA}" in cells
    assert not any(cell.startswith(("=", "@", "+")) for cell in cells)
    assert any(cell.startswith("-") and float(cell) < 0 for cell in cells)
    for picture in (tmp_path / "report").rglob("*.svg"):
        assert "<img" not in picture.read_text()


def test_a_terminal_is_not_told_what_to_do(tmp_path):
    fake_cell(tmp_path, "mgl", GOOD, weight=-2.0, terms=("\x1b[2Jbell\x07",))
    text = verdict_text(collect(tmp_path))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_embedded_json_cannot_end_its_element():
    text = str(embedded_json({"name": "</script><!-- &"}))
    assert "<" not in text
    assert json.loads(text) == {"name": "</script><!-- &"}


def test_csv_keeps_numbers():
    assert csv_text(["=a"], [[-1.5], ["-x"], ["+x"], ["@x"], ["\tx"]]) == "'=a\n-1.5\n'-x\n'+x\n'@x\n'\tx\n"


def test_every_figure_is_a_picture_and_a_table(tmp_path):
    task(tmp_path, GOOD, BAD, MIDDLE, weight=-4.0)
    write_report(collect(tmp_path), tmp_path / "out" / "page.html")
    found = {path.name for path in (tmp_path / "out" / "page" / "cartpole-push").iterdir()}
    names = ("true-return", "steps-per-episode", "weight", "gradients")
    assert found == {f"{name}.{kind}" for name in names for kind in ("png", "svg", "csv")}
    text = (tmp_path / "out" / "page" / "cartpole-push" / "true-return.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    last = [row for row in rows if row["method"] == "mgl" and row["step"] == str(20_000 * ROUNDS)]
    assert [float(row["true return"]) for row in last[:4]] == GOOD
    assert Path(tmp_path / "out" / "page.html").stat().st_size < 10_000_000


def test_sixteen_terms_are_drawn(tmp_path):
    terms = tuple(f"random:{i}" for i in range(16))
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=1.0, terms=terms)
    for run in find_runs(tmp_path):
        fake_snapshots(run, terms=16)
    write_report(collect(tmp_path), tmp_path / "out" / "page.html")
    assert len(list((tmp_path / "out").glob("page/*/episode.png"))) == 1


def test_the_input_that_decides_the_weight_is_ranked_first():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(512, 3))
    (first, share), *rest = explained(inputs, 3 * np.tanh(inputs[:, 1]) + 0.3 * rng.normal(size=512))
    assert first == 1
    assert share > 0.8
    assert all(other < 0.05 for _, other in rest)
    assert explained(inputs, np.ones(512)) == []


# Suites

FIGURE = """
title = "figure"
seeds = "0-2"
steps = 240_000
[[grid]]
env = ["cartpole"]
method = ["ppo"]
[[grid]]
env = ["cartpole"]
term = ["harmful"]
method = ["ns", "mgl"]
[[panel]]
name = "a"
title = "Panel"
cells = ["cartpole/*"]
[[panel.paper]]
says = "MGL ends above PPO's line."
of = ["cartpole/harmful/mgl"]
above = "cartpole/none/ppo"
"""
ENDS = {"ppo": MIDDLE, "ns": BAD, "mgl": GOOD}


def fill(runs):
    """Made-up figures for the runs that a suite planned."""
    for place in {run.path.parent for run in runs}:
        cell = [run for run in runs if run.path.parent == place]
        config = cell[0].config
        weight = {"ppo": 0.0, "ns": 1.0, "mgl": -3.0}[config.method]
        fake_cell(place, config.method, ENDS[config.method][: len(cell)], weight, terms=config.terms, config=config)


def test_the_papers_statements_stand_beside_our_figures(tmp_path):
    (tmp_path / "my.toml").write_text(FIGURE)
    root = tmp_path / "out"
    runs = record(root, load_suite(str(tmp_path / "my.toml")), ["my"]).runs(root)
    fill([run for run in runs if run.config.method != "ns"])
    collection = collect(root)
    assert "3 runs have not begun; continue with: bipars resume" in verdict_text(collection)
    (section,) = paper_beside(collection)
    assert section["panel"] == 0
    assert section["rows"][0][0] == "MGL ends above PPO's line."
    assert section["rows"][0][-1] == "yes"
    page = write_report(collection).read_text()
    assert "MGL ends above PPO&#39;s line." in page
    (root / "suite.json").write_text("{")
    assert paper_beside(collection) == []


def test_the_demo_ends_with_a_verdict_and_a_report(tmp_path, monkeypatch, capsys):
    def train(runs, workers, report):
        fill(runs)
        return True

    monkeypatch.setattr("bipars.suite.finish.run_locally", train)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
    text = capsys.readouterr().out
    for term in ("upright", "harmful", "noise"):
        assert f"{term}: reverse. The learned weights flip its sign" in text
    assert f"Report: {tmp_path / 'demo' / 'report.html'}" in text
    assert (tmp_path / "demo" / "report.html").exists()


@pytest.mark.parametrize(("name", "what"), [("pages", "a directory"), ("page.txt", "no name of a page")])
def test_a_page_is_not_written_over_something_else(tmp_path, capfd, name, what):
    (tmp_path / "pages").mkdir()
    assert main(["report", str(tmp_path), "--out", str(tmp_path / name)]) == 2
    assert f"{name}, {what}; expected one such as" in capfd.readouterr().err


def test_a_page_of_somebody_else_is_not_replaced(tmp_path, capfd):
    fake_cell(tmp_path / "runs", "mgl", GOOD, weight=1.2)
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><title>years of work</title>")
    assert main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 2
    assert "page.html, which is no page of `bipars report`" in capfd.readouterr().err
    page.unlink()
    for _ in range(2):  # ours may be written again
        assert main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 0
