"""The table of pairs: shares by hand, and every pair of the shipped suite on one step."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bipars.cli import main
from bipars.errors import UsageError
from bipars.metrics import BEGIN, END, with_tables
from bipars.report.build import write_report
from bipars.report.pairs import (
    Outcome,
    as_markdown,
    audit,
    from_json,
    merge,
    pairs,
    share_interval,
    summaries,
)
from bipars.report.suite_files import write_pairs
from bipars.results.panels import collect
from bipars.results.summary import short_name
from bipars.runs.directory import seed_directory
from bipars.suite.manifest import record
from bipars.suite.plan import load_suite
from bipars.terms.misspecified import POISON, USEFUL
from fake_runs import ROUNDS, fake_seed
from suites import write

PAIRS = """
title = "Two pairs"
seeds = "0-3"
seeds_of = { hepo = "0-1" }
steps = 240_000
settings.preset = "paper"

[[grid]]
env = "cartpole"
method = "ppo"

[[grid]]
env = "cartpole"
term = ["harmful", "beneficial"]
method = ["ns", "mgl", "hepo"]
kind = "harmful"
half = "held back"
"""
ENDS = {
    "none/ppo": [0.4, 0.5, 0.6, 0.5],
    "harmful/ns": [-0.9, -0.9, -0.9, -0.9],
    "harmful/mgl": [0.5, 0.5, 0.5, 0.35],
    "harmful/hepo": [-0.2, 0.0],
    "beneficial/ns": [0.8, 0.8, 0.8, 0.8],
    "beneficial/mgl": [0.9, 0.9, 0.9, 0.9],
    "beneficial/hepo": [0.8, 0.8],
}


@pytest.fixture
def made(tmp_path):
    """A finished suite of two pairs with made-up returns, which all start near -0.8."""
    root = tmp_path / "out"
    manifest = record(root, load_suite(write(tmp_path, PAIRS)), ["my.toml"])
    for run in manifest.runs(root):
        cell, end = "/".join(run.path.parts[-3:-1]), ENDS["/".join(run.path.parts[-3:-1])][run.config.seed]
        fake_seed(run.path, run.config, end, weight=1.0 if "mgl" in cell else None)
    return manifest, root


def start(end):
    """The first evaluation of a made-up run, a sixth of the way from -1 to its end."""
    return -1.0 + (end + 1.0) / (ROUNDS / 2)


def test_the_share_is_measured_from_the_untrained_policy_to_the_better_of_the_two(made):
    harmful, beneficial = pairs(*made)
    assert [(p.title, p.kind, p.half) for p in (harmful, beneficial)] == [
        ("cartpole, harmful", "harmful", "held back"),
        ("cartpole, beneficial", "harmful", "held back"),
    ]
    first = np.mean([start(end) for end in ENDS["none/ppo"]])
    assert harmful.start == pytest.approx(first)
    assert (harmful.better, beneficial.better) == ("ppo", "ns")
    shares = {score.method: score.share for score in harmful.scores}
    expected = {"ppo": 0.5, "ns": -0.9, "mgl": 0.4625, "hepo": -0.1}
    assert shares == pytest.approx({method: (end - first) / (0.5 - first) for method, end in expected.items()})
    assert {score.method: score.seeds for score in harmful.scores} == {"ppo": 4, "ns": 4, "mgl": 4, "hepo": 2}
    best = beneficial.of("learner")
    assert best.share == pytest.approx((0.9 - first) / (0.8 - first))
    assert best.holds
    assert (beneficial.of("naive").low, beneficial.of("naive").high) == (1.0, 1.0)
    assert not harmful.of("naive").holds
    whole = np.mean([-1 + 1.9 * min(1.0, (i + 1) / (ROUNDS / 2)) for i in range(ROUNDS)])
    assert best.area == pytest.approx((whole - first) / (0.8 - first))


def test_intervals_are_of_both_sides_and_nobody_who_learned_nothing_has_one():
    x, better = np.array([0.0, 1.0, 1.0, 1.0]), np.array([0.8, 1.2])
    low, high = share_interval(x, better, 0.0, same=False)
    rng = np.random.default_rng(1)
    drawn = [rng.choice(values, (4_000, len(values))).mean(axis=1) for values in (x, better)]
    assert (low, high) == pytest.approx(np.quantile(drawn[0] / drawn[1], (0.025, 0.975)), abs=0.06)
    assert share_interval(x, np.zeros(3), 0.0, same=False) == (None, None)


def test_every_run_is_judged_by_itself(made):
    harmful, beneficial = pairs(*made)
    assert harmful.advice == {"harmful": {"unsure": 4}}
    assert beneficial.advice == {"beneficial": {"unsure": 4}}
    assert "| beneficial |  |  |  | 4 |" in as_markdown([beneficial])


def spread(counts):
    return [advice for advice, count in counts.items() for _ in range(count)]


def test_the_advice_on_many_terms_is_audited(made):
    names = (*POISON["Acrobot-v1, sixteen"], *USEFUL["Acrobot-v1, sixteen"])
    advice = {name: {"keep": 4} for name in names} | {names[0]: {"reverse": 3, "unsure": 1}, names[1]: {"drop": 4}}
    advice |= {names[2]: {"drop": 4}, names[3]: {"drop": 4}, names[-1]: {"keep": 3, "drop": 1}}
    said = list(zip(*(spread(counts) for counts in advice.values()), strict=True))
    runs = tuple(Outcome(seed, 0.0, 1.0, 1.0, dict(zip(advice, said[seed], strict=True))) for seed in range(4))
    made_up = pairs(*made)[0]
    found = audit(replace(made_up, env="Acrobot-v1", name="sixteen", outcomes=made_up.outcomes | {"mgl": runs}))
    assert (found.precision, found.recall) == (15 / 16, 15 / 16)
    assert audit(pairs(*made)[0]) is None


def test_the_lists_of_an_audit_name_terms_of_the_suite():
    cells = load_suite("misspecified").cells
    for title in POISON:
        terms = {
            short_name(term) for c in cells if c.name.startswith(title.replace(", ", "/")) for term in c.config.terms
        }
        assert {*POISON[title], *USEFUL[title]} <= terms


def test_a_group_is_summed_up_by_how_often_the_promise_is_kept(made):
    rows = {row.method: row for row in summaries(pairs(*made))}
    assert (rows["mgl"].pairs, rows["mgl"].held, rows["hepo"].held) == (2, 1, 1)
    assert rows["ppo"].area_ratio == 1.0
    assert rows["mgl"].area_ratio > 1.0


def test_the_tables_go_to_files_and_into_a_page(made, tmp_path):
    manifest, root = made
    assert write_pairs(manifest, root) == ["pairs.json", "pairs.md"]
    found = from_json(json.loads((root / "pairs.json").read_text()))
    assert found == pairs(manifest, root)
    page = with_tables(f"Before.\n{BEGIN}old\n{END}After.\n", [as_markdown(found)])
    assert page == f"Before.\n{BEGIN}{as_markdown(found)}{END}After.\n"
    assert "| cartpole, harmful | harmful | held back | 240,000 | 1.00 |" in page
    assert with_tables(page, [as_markdown(found)]) == page


def only(pair, seeds):
    """The part of a pair that has these seeds."""
    return replace(pair, outcomes={m: tuple(r for r in runs if r.seed in seeds) for m, runs in pair.outcomes.items()})


def test_parts_of_a_suite_are_put_together(made):
    whole = pairs(*made)
    early, late = [only(pair, {0, 1}) for pair in whole], [only(pair, {1, 2, 3}) for pair in whole]
    assert merge([*early, *late]) == whole
    changed = replace(whole[0].outcomes["mgl"][1], end=0.0)
    other = replace(late[0], outcomes=late[0].outcomes | {"mgl": (changed,)})
    with pytest.raises(UsageError, match="cartpole, harmful, mgl, seed 1 is there twice, with different results"):
        merge([*early, other])


def test_the_page_shows_all_pairs(made):
    page = write_report(collect(made[1]))
    text = page.read_text()
    assert "All pairs at a glance" in text
    assert text.count('<div class="what">') == 2
    assert "mgl: 0.97 (" in text
    assert {path.name for path in page.with_suffix("").glob("pairs.*")} == {"pairs.png", "pairs.svg", "pairs.csv"}
    assert len((page.with_suffix("") / "pairs.csv").read_text().splitlines()) == 1 + 8


def test_pairs_need_something_to_be_compared_with(tmp_path):
    for broken, message in (
        (PAIRS.replace('"ns", ', ""), "'cartpole/harmful' has a kind, .* add the method 'ns'"),
        (
            PAIRS.replace('method = "ppo"', 'method = "ppo"\nsteps = 20_000'),
            "a grid with the method 'ppo' and the same",
        ),
        (PAIRS.replace('kind = "harmful"\n', ""), "half is 'held back', but there is no kind"),
        (
            PAIRS.replace('seeds_of = { hepo = "0-1" }', 'seeds_of = "0-1"'),
            "seeds_of is '0-1'; expected seeds by method",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            load_suite(write(tmp_path, broken))


def test_the_shipped_suite_covers_what_people_write(tmp_path):
    pytest.importorskip("mujoco")
    suite = load_suite("misspecified")
    asked = [panel for panel in suite.panels if panel.kind]
    assert len(asked) >= 24
    assert len({panel.cells[0].split("/")[0] for panel in asked}) >= 8
    assert {panel.half for panel in asked} == {"tuning", "held back"}
    assert {
        "sparse, leads away", "1000 times too large", "1000 times too small", "noise", "living cost",
        "terms that cancel", "helps early, harms late", "a copy", "16 terms", "sparse, helpful", "helpful", "harmful",
    } == {panel.kind for panel in asked}  # fmt: skip
    of_method = {cell.config.method for cell in suite.cells}
    assert of_method == {"ppo", "ns", "mgl", "hepo", "pbrs", "rcpo"}
    held_back = {panel.kind for panel in asked if panel.half == "held back"}
    assert {panel.kind for panel in asked} == held_back
    sixteen = [cell for cell in suite.cells if cell.name.endswith("sixteen/mgl")]
    assert [len(cell.config.terms) for cell in sixteen] == [16, 16]


SMALLEST = """
seeds = "0"
steps = 512
settings.evaluation_episodes = 1
settings.true_reward = "import:bipars.terms.misspecified.pendulum_held"
settings.ppo = { num_envs = 2, update_period = 256, gradient_steps = 2, batch_size = 16 }

[[grid]]
env = "Pendulum-v1"
method = "ppo"

[[grid]]
env = "Pendulum-v1"
name = "up"
term = "import:bipars.terms.misspecified.pendulum_up"
method = ["ns", "hepo"]
kind = "sparse, helpful"
"""


def test_a_pair_of_the_shipped_suite_trains_and_is_reported(tmp_path):
    root = tmp_path / "out"
    assert main(["suite", "run", str(write(tmp_path, SMALLEST)), "--out", str(root), "--workers", "1"]) == 0
    assert (root / "pairs.md").exists()
    made = json.loads((root / "pairs.json").read_text())
    assert [score.method for score in from_json(made)[0].scores] == ["ppo", "ns", "hepo"]
    assert from_json(made)[0].title == "Pendulum-v1, up"
    assert seed_directory(root / "Pendulum-v1/up/hepo", 0).exists()


def test_the_untrained_policy_is_that_of_the_first_episodes(made):
    """Evaluations may begin late; the first update in which an episode ended says what the task pays at the start."""
    manifest, root = made
    for file in (root / "cartpole/none/ppo").rglob("metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows[1]["true_return"], rows[2]["true_return"] = -0.95, -0.5
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [pair.start for pair in pairs(manifest, root)] == pytest.approx([-0.95, -0.95])
