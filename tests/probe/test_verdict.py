"""The verdict on each term, from made-up figures."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bipars.methods import METHODS
from bipars.report.text import results_text, verdict_text
from bipars.results import direction
from bipars.results.comparison import Comparison, judge_use
from bipars.results.direction import Change, Direction
from bipars.results.panels import collect, differences, method_role
from bipars.results.verdict import by_direction, by_weights, judgements, verdicts
from bipars.runs.directory import find_runs
from bipars.settings.config import Config, DDPGConfig, DDPGUpperConfig
from fake_runs import (
    BAD,
    GOOD,
    MIDDLE,
    ROUNDS,
    add_evidence,
    add_transitions,
    as_resolved,
    fake_cell,
    fake_seed,
    fake_snapshots,
    task,
)

TERMS = ("a", "b", "c")
FIVE = ("toward", "away", "noise", "copy", "late")


def of_terms(root, true=6.0, **evidence):
    """The verdicts on a learner whose terms have this evidence."""
    fake_cell(root, "mgl", GOOD, weight=1.0, terms=tuple(evidence))
    add_evidence(root, true, **evidence)
    return {v.term: v for v in verdicts(collect(root).panels[0])}


# Evidence about each term


@pytest.mark.parametrize(
    ("t", "advice", "words"),
    [
        (4.0, "keep", "led to more true return"),
        (-4.0, "reverse", "led to less true return"),
        (0.1, "drop", "to do with the true return (t = +0.2; 100 % of the updates were informative). Leave it out."),
        (1.2, "unsure", "Whether it helps or harms is not clear (t = +2.7; 3 would be)"),
        (np.r_[np.full(6, 9.0), np.full(6, -9.0)], "keep", "It helped up to about step 140,000"),
        (np.r_[np.full(6, -9.0), np.full(6, 9.0)], "unsure", "It harmed up to about step"),
    ],
)
def test_a_term_is_judged_by_its_own_agreement(tmp_path, t, advice, words):
    found = of_terms(tmp_path, push=t, other=5.0)
    assert found["push"].advice == advice
    assert words in found["push"].evidence
    assert found["other"].advice == "keep"


def test_every_term_has_a_paragraph_of_its_own_and_all_together_is_said_once(tmp_path):
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=1.0, terms=FIVE)
    late = np.r_[np.full(6, 9.0), np.full(6, -9.0)]
    add_evidence(tmp_path, toward=6.0, away=-5.0, noise=0.1, copy=6.1, late=late)
    fake_cell(tmp_path / "ppo", "ppo", MIDDLE, terms=())
    fake_cell(tmp_path / "ns", "ns", BAD, weight=1.0, terms=FIVE)
    x, y = np.random.default_rng(0).normal(size=(2, 200, 1)).astype(np.float32)
    add_transitions(tmp_path / "mgl", np.concatenate([x, y, y**2, -3 * x + 1, y**3], axis=1))
    (judgement,) = judgements(collect(tmp_path).panels[0])
    assert [v.advice for v in judgement.verdicts] == ["keep", "reverse", "drop", "drop", "keep"]
    assert len({v.evidence for v in judgement.verdicts}) == 5
    assert "It is the opposite of 'toward', up to scale and a constant: they cancel" in judgement.verdicts[3].evidence
    text = " ".join(verdict_text(collect(tmp_path)).split())
    assert text.count("All 5 terms together, with learned weights: true return -0.01") == 1
    assert "without them, clearly more." in text
    assert "Simply added to the reward (weight 1 everywhere): -0.99" in text
    assert "clearly less than without them" in text
    assert "Of two policies trained side by side, the one with them got ahead in 4 of 4 runs." in text


def test_16_terms_fit_80_columns(tmp_path):
    names = [f"a_reward_term_with_quite_a_long_name_{i}" for i in range(16)]
    of_terms(tmp_path, **{name: float(i - 8) for i, name in enumerate(names)})
    collection = collect(tmp_path)
    text = verdict_text(collection).replace(str(tmp_path), "runs")
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("a_reward")]
    assert len(set(rows)) == len(rows) == 16  # a table, no paragraphs, and every name can be told from the others
    assert max(map(len, results_text(collection).splitlines())) <= 120


def test_copies_constants_and_zeros_are_named(tmp_path):
    fake_cell(tmp_path, "mgl", GOOD, weight=1.0, terms=("a", "b", "zero", "living"))
    add_evidence(tmp_path, a=5.0, b=5.0, zero=-4.0, living=4.0)
    x = np.random.default_rng(0).normal(size=(200, 1)).astype(np.float32)
    add_transitions(tmp_path, np.concatenate([x, 5 * x, 0 * x, 0 * x - 0.5], axis=1))
    a, b, zero, living = verdicts(collect(tmp_path).panels[0])
    assert (a.advice, a.headline) == ("keep", "helped")
    assert (b.advice, b.headline, b.strength) == ("drop", "same as a", "strong")
    assert b.sentences == ("It is the same as 'a', up to scale and a constant: keep only that one.",)
    assert "'b'" not in a.evidence  # it is said once
    assert (zero.advice, zero.headline) == ("drop", "always 0")
    assert living.advice == "keep"
    assert "It was -0.5 in every step: it rewards shorter episodes, no more." in living.evidence


def test_of_opposites_the_one_that_helps_is_kept(tmp_path):
    fake_cell(tmp_path, "mgl", GOOD, weight=1.0, terms=("a", "b", "c"))
    add_evidence(tmp_path, a=-5.0, b=5.0, c=0.1)
    x, y = np.random.default_rng(0).normal(size=(2, 200, 1)).astype(np.float32)
    add_transitions(tmp_path, np.concatenate([x, -2 * x, y], axis=1))
    a, b, c = verdicts(collect(tmp_path).panels[0])
    assert (a.advice, a.headline, b.advice, c.advice) == ("drop", "opposite of b", "keep", "drop")
    assert c.headline == "no direction"


def test_of_opposites_that_nothing_is_known_of_neither_is_dropped(tmp_path):
    fake_cell(tmp_path, "mgl", GOOD, weight=1.0, terms=("a", "b", "c"))
    add_evidence(tmp_path, a=-1.2, b=1.2, c=5.0)
    x, y = np.random.default_rng(0).normal(size=(2, 200, 1)).astype(np.float32)
    add_transitions(tmp_path, np.concatenate([x, -2 * x, y], axis=1))
    a, b, c = verdicts(collect(tmp_path).panels[0])
    assert (a.advice, b.advice, c.advice) == ("unsure", "unsure", "keep")


def evaluated_as(root, curve):
    """Every run below with these true returns."""
    for file in root.rglob("metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row, value in zip(rows, curve, strict=True):
            row["evaluation_return"] = float(value)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("true", [1.5, 6.0])
def test_longer_training_is_advised_only_while_the_true_return_rises(tmp_path, true):
    fake_cell(tmp_path, "mgl", GOOD, weight=1.0, terms=("push", "pull"))
    add_evidence(tmp_path, push=1.2, pull=1.2, true=true)
    evaluated_as(tmp_path, np.minimum(np.arange(ROUNDS), 3))
    text = " ".join(verdict_text(collect(tmp_path)).split())
    assert "rain longer" not in text
    assert "--ablate" in text
    what = "Train more seeds" if true < 2 else "Train without it to find out, or leave it out."
    assert what in text
    evaluated_as(tmp_path, np.arange(ROUNDS))
    assert "Train longer: the true return is still rising." in " ".join(verdict_text(collect(tmp_path)).split())


@pytest.mark.parametrize(
    ("t", "weight", "share", "words"),
    [
        (-6.0, -2.0, 0.5, "Change its sign (a weight of about -2), or leave it out."),
        (-6.0, -2.0, 0.01, "Leave it out: even reversed, it hardly counts."),
        (-6.0, -0.02, 0.5, "Leave it out: even reversed, it hardly counts."),  # its unit is 1
        (-6.0, 2.0, 0.5, "Change its sign, or leave it out."),
        (-6.0, 0.02, 0.5, "Change its sign, or leave it out."),  # it was never reversed
    ],
)
def test_no_weight_is_named_that_is_next_to_nothing(tmp_path, t, weight, share, words):
    fake_cell(tmp_path, "mgl", GOOD, weight=weight, share=share)
    add_evidence(tmp_path, push=t)
    for run in find_runs(tmp_path):
        fake_snapshots(run, unit=1.0)
    (verdict,) = verdicts(collect(tmp_path).panels[0])
    assert (verdict.advice, verdict.sentences[-1]) == ("reverse", words)


@pytest.mark.parametrize(
    ("unit", "words"),
    [(0.5, ""), (0.0011, "As written it counts 900 times as much as the true reward: give it a far smaller weight.")],
)
def test_a_term_to_keep_that_drowns_the_reward_as_written_says_so(tmp_path, unit, words):
    fake_cell(tmp_path, "mgl", GOOD, weight=0.001)
    add_evidence(tmp_path, push=6.0)
    for run in find_runs(tmp_path):
        fake_snapshots(run, unit=unit)
    (verdict,) = verdicts(collect(tmp_path).panels[0])
    assert verdict.advice == "keep"
    assert ("As written it counts" in verdict.evidence) == bool(words)
    assert verdict.evidence.endswith(words)


def test_what_a_hint_names_can_be_done_where_it_was_trained(tmp_path):
    fake_cell(tmp_path, "mgl", GOOD, weight=1.0)
    for kind, what in (("agent", "bipars.compare("), ("sb3", "ShapedPPO(..., method=method, seed=seed, out=out)")):
        for file in tmp_path.rglob("config.json"):
            file.write_text(json.dumps(json.loads(file.read_text()) | {"kind": kind}))
        text = verdict_text(collect(tmp_path))
        assert what in text
        assert ("bipars.compare(" in text) == (kind == "agent")
        assert max(map(len, text.splitlines())) <= 80


def test_where_nothing_was_heard_nothing_is_said_of_any_term(tmp_path):
    found = of_terms(tmp_path, true=1.5, push=1.0, pull=-1.0)
    assert {v.advice for v in found.values()} == {"unsure"}
    text = " ".join(verdict_text(collect(tmp_path)).split())
    assert "Which way the terms point is not known: the gradient of the true reward never stood out from noise" in text
    assert "(at best 1.5 standard errors; 3 are needed)" in text
    fake_cell(tmp_path / "ppo", "ppo", MIDDLE, terms=())  # of all together, something can
    assert "Both terms together, with learned weights: true return -0.01" in verdict_text(collect(tmp_path))


def test_a_term_may_show_its_direction_where_the_true_gradient_does_not_stand_out(tmp_path):
    found = of_terms(tmp_path, true=1.5, push=2.0, pull=0.5)
    assert {name: v.advice for name, v in found.items()} == {"push": "keep", "pull": "unsure"}
    assert "is not known: the gradient" not in verdict_text(collect(tmp_path))


@pytest.mark.parametrize("true", [1.5, 2.6])
def test_noise_is_told_by_its_own_gradient_however_little_is_known_of_the_true_one(tmp_path, monkeypatch, true):
    monkeypatch.setattr(direction, "LEAST_UPDATES", 12)
    itself = {"push": 8.0, "noise": 0.4, "bonus": 0.4}
    fake_cell(tmp_path, "mgl", [-0.5], weight=1.0, terms=("push", "noise", "bonus"))
    add_evidence(tmp_path, np.r_[np.zeros(11), true], push=0.2, noise=0.2, bonus=0.2, itself=itself)
    values = np.random.default_rng(0).normal(size=(200, 3)) * [1, 1, 0]
    values[7, 2] = 1.0  # hardly ever: its gradient may have been missed
    add_transitions(tmp_path, values)
    found = {v.term: v for v in verdicts(collect(tmp_path).panels[0])}
    assert {name: v.advice for name, v in found.items()} == {"push": "unsure", "noise": "drop", "bonus": "unsure"}
    assert found["noise"].headline == "like noise"
    assert "t = +0." in found["noise"].evidence


@pytest.mark.parametrize("method", ["mgl", "em"])
def test_a_true_reward_that_never_varies_tells_nothing_of_any_term(tmp_path, method):
    fake_cell(tmp_path, method, [-1.0] * 4, weight=2.0, terms=("push", "pull"))
    if method == "mgl":
        add_evidence(tmp_path, push=5.0, pull=-5.0)
    (judgement,) = judgements(collect(tmp_path).panels[0])
    assert {v.advice for v in judgement.verdicts} == {"unsure"}
    assert judgement.together.silence.startswith("the true return was -1 in every episode")
    assert "Nothing can be said about any single term: the true return" in verdict_text(collect(tmp_path))


def test_seeds_that_disagree_are_said_to(tmp_path):
    fake_cell(tmp_path, "mgl", GOOD, weight=1.0)
    for i in range(4):
        add_evidence(tmp_path / f"seed-000{i}", push=6.0 if i < 2 else -6.0)
    (verdict,) = verdicts(collect(tmp_path).panels[0])
    assert (verdict.advice, verdict.headline) == ("unsure", "seeds disagree")


def test_a_large_weight_is_no_evidence(tmp_path):
    fake_cell(tmp_path, "mgl", GOOD, weight=900.0, terms=("push", "pull"))
    add_evidence(tmp_path, push=-6.0, pull=0.0)
    assert [v.advice for v in verdicts(collect(tmp_path).panels[0])] == ["reverse", "drop"]


# The direction, and a gain: two statements


def compared(outcome, faster=False):
    return Comparison(outcome, faster, 0)


@pytest.mark.parametrize(
    ("way", "outcome", "weight", "expected"),
    [
        ("up", None, 1.0, ("keep", "strong")),
        ("up", "better", 1.0, ("keep", "strong")),
        ("up", "same", 1.0, ("keep", "strong")),
        ("up", "worse", 1.0, ("drop", "fair")),
        ("down", "better", -1.0, ("reverse", "strong")),
        ("down", "worse", -1.0, ("drop", "strong")),
        ("nil", None, 1.0, ("drop", "strong")),
        ("nil", "better", 1.0, ("keep", "fair")),
        ("nil", "unclear", 1.0, ("drop", "strong")),
        ("faint", None, 1.0, ("unsure", "none")),
        ("faint", "better", -1.0, ("reverse", "fair")),
        ("faint", "same", 1.0, ("drop", "weak")),
        ("split", "unclear", 1.0, ("unsure", "none")),
    ],
)
def test_the_direction_decides_unless_leaving_the_term_out_has_shown_something_else(way, outcome, weight, expected):
    direction = Direction(way, {"up": 7.0, "down": -7.0}.get(way, 0.5), (), 20.0, 20.0, 1.0)
    assert by_direction(direction, outcome and compared(outcome), weight) == expected


@pytest.mark.parametrize(
    ("t", "early", "strength"),
    [(3.2, False, "weak"), (-4.5, False, "fair"), (6.1, False, "strong"), (6.1, True, "fair")],
)
def test_the_strength_follows_the_evidence(t, early, strength):
    direction = Direction("up" if t > 0 else "down", t, (t,), 20.0, 20.0, 1.0, early)
    assert by_direction(direction, None, 1.0)[1] == strength
    changed = replace(direction, change=Change(5.0, -4.0, 10))
    assert by_direction(changed, None, 1.0) == ("keep", "fair")


@pytest.mark.parametrize(
    ("way", "outcome", "trial", "expected"),
    [
        ("faint", None, -4.1, ("drop", "fair")),
        ("faint", None, 3.2, ("keep", "fair")),
        ("faint", None, 2.9, ("unsure", "none")),
        ("nil", None, 3.2, ("keep", "fair")),
        ("down", None, -4.1, ("reverse", "strong")),
        ("up", None, -4.1, ("keep", "strong")),
        ("nil", None, -4.1, ("drop", "strong")),
        ("faint", "better", -4.1, ("keep", "fair")),
    ],
)
def test_the_control_group_decides_where_the_direction_is_not_known(way, outcome, trial, expected):
    direction = Direction(way, {"up": 7.0, "down": -7.0}.get(way, 0.5), (), 20.0, 20.0, 1.0)
    assert by_direction(direction, outcome and compared(outcome), 1.0, trial) == expected


def test_a_term_that_lost_as_written_is_kept_only_on_strong_evidence():
    fair = Direction("up", 4.5, (), 20.0, 20.0, 1.0)
    assert by_direction(fair, None, 1.0, -1.6) == ("drop", "fair")
    assert by_direction(fair, None, 1.0, -1.4) == ("keep", "fair")
    assert by_direction(replace(fair, t=6.1), None, 1.0, -4.1) == ("keep", "strong")


@pytest.mark.parametrize(("seeds", "trial"), [(1, 4.0 / 2.5), (4, 2 * 4.0 / 2.5)])
def test_the_episodes_of_one_run_alone_do_not_show_that_a_term_helps(tmp_path, seeds, trial):
    """Two policies trained alike differ by 2.5 standard errors of their episodes: by luck, without any term."""
    fake_cell(tmp_path, "mgl", GOOD[:seeds], weight=1.0)
    add_evidence(tmp_path, push=1.2, true=2.6, lead_t=4.0)
    (verdict,) = verdicts(collect(tmp_path).panels[0])
    assert verdict.trial == pytest.approx(trial)
    assert verdict.advice == ("keep" if seeds == 4 else "unsure")


def test_of_one_term_the_run_itself_shows_what_it_is_worth(tmp_path):
    fake_cell(tmp_path, "mgl", GOOD, weight=1.0)
    add_evidence(tmp_path, push=1.0, true=2.6, lead_t=-2.0)
    (verdict,) = verdicts(collect(tmp_path).panels[0])
    assert (verdict.advice, verdict.headline, verdict.trial) == ("drop", "better without", -1.6)
    assert (
        "A policy trained with it as written earned less than one without it (t = -1.6). Leave it out."
        in verdict.evidence
    )
    add_evidence(tmp_path, push=6.0, lead_t=-2.0)
    (verdict,) = verdicts(collect(tmp_path).panels[0])
    assert (verdict.advice, verdict.headline) == ("keep", "helped")
    assert "As written it counts too much: give it its learned weight (about 1)." in verdict.evidence


def test_of_several_terms_the_control_group_says_nothing_by_itself(tmp_path):
    fake_cell(tmp_path, "mgl", GOOD, weight=1.0, terms=("push", "pull"))
    add_evidence(tmp_path, push=1.0, pull=1.0, true=2.6, lead_t=-8.0)
    assert [(v.advice, v.trial) for v in verdicts(collect(tmp_path).panels[0])] == [("unsure", None)] * 2


def ablation(root, term, ends):
    """Runs of the same learner without a term, as `--ablate` makes them."""
    left = tuple(name for name in TERMS if name != term)
    return fake_cell(root / "comparison" / f"without-{term}", "mgl", ends, weight=1.0, terms=left)


def test_leaving_one_term_out_is_evidence_about_that_term(tmp_path):
    fake_cell(tmp_path, "mgl", MIDDLE, weight=1.0, terms=TERMS)
    for term, ends in zip(TERMS, (BAD, GOOD, MIDDLE), strict=True):
        ablation(tmp_path, term, ends)
    for i in range(4):
        add_evidence(tmp_path / f"seed-000{i}", a=4.0, b=4.0, c=4.0)
    collection = collect(tmp_path)
    (panel,) = collection.panels
    assert [cell.label for cell in panel.cells] == ["mgl"]
    a, b, c = verdicts(panel)
    assert (a.advice, a.gain.outcome, b.advice, b.headline) == ("keep", "better", "drop", "better without")
    assert "The agent earned clearly more with it: -0.47 with it, -0.99 without." in a.evidence
    assert "The agent earned clearly more without it" in b.evidence
    assert (c.advice, c.gain.outcome) == ("keep", "same")
    assert "Leaving it out made no clear difference" in c.evidence
    assert len(collection.records) == 16


# Methods that record no evidence: the weights, and the comparison

MIXED = (-2.0, 3.0)


@pytest.mark.parametrize(
    ("learned", "weights", "advice", "headline"),
    [
        (GOOD, {"weight": 1.1}, "keep", "used as written"),
        (GOOD, {"weight": 0.2, "states": MIXED}, "keep", "depends on the state"),
        (GOOD, {"weight": -4.0}, "reverse", "sign flipped"),
        (MIDDLE, {"weight": -4.0}, "reverse", "sign flipped"),
        (BAD, {"weight": 0.9}, "drop", "used as written"),
        (BAD, {"weight": -0.9}, "drop", "sign flipped"),
        (MIDDLE, {"weight": 0.02}, "drop", "switched off"),
        (MIDDLE, {"weight": -0.15, "share": 0.05}, "drop", "switched off"),
        (GOOD, {"weight": -0.15, "share": 0.7}, "reverse", "sign flipped"),
        (MIDDLE, {"weight": 1.5, "share": 0.01}, "drop", "switched off"),
        (MIDDLE, {"weight": 0.9}, "unsure", "used as written"),
        (GOOD[:1], {"weight": 1.1}, "unsure", "used as written"),
    ],
)
def test_without_evidence_the_weights_and_the_comparison_decide(tmp_path, learned, weights, advice, headline):
    (verdict,) = task(tmp_path, learned, MIDDLE, MIDDLE, **weights).verdicts
    assert (verdict.advice, verdict.headline) == (advice, headline)
    assert verdict.direction is None


def test_several_terms_are_not_each_blamed_for_what_they_did_together():
    assert by_weights("used", compared("worse"), alone=False) == ("unsure", "none")
    assert by_weights("used", compared("worse"), alone=True) == ("drop", "fair")
    assert by_weights("used", None, alone=True) == ("unsure", "none")
    assert by_weights("unsure", compared("better"), alone=True) == ("unsure", "none")


def test_the_mean_weight_of_a_term_used_here_and_reversed_there_is_not_taken_for_its_use(tmp_path):
    (verdict,) = task(tmp_path, GOOD, MIDDLE, MIDDLE, weight=0.05, states=(-2.0, 2.1)).verdicts
    assert verdict.weights.use == "mixed"
    assert "flip its sign in others" in verdict.evidence
    assert judge_use((-1.0, 1.0), (-0.1, 0.1), None) == "unsure"


# All terms together


def test_what_is_missing_is_named_with_what_makes_it(tmp_path):
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=1.2)
    text = verdict_text(collect(tmp_path))
    assert f"\n    bipars report {tmp_path} --compare\n" in text
    missing = "there is no training with the terms as written (naive shaping) and none without them (no shaping)."
    assert missing in " ".join(text.split())
    fake_cell(tmp_path / "ppo", "ppo", MIDDLE, terms=())
    text = " ".join(verdict_text(collect(tmp_path)).split())
    assert "there is no training with the terms as written (naive shaping). To compare:" in text


def test_a_fresh_agent_on_the_frozen_weights_is_judged(tmp_path):
    fake_cell(tmp_path, "mgl", MIDDLE, weight=1.2)
    fake_cell(tmp_path / "ppo", "ppo", BAD, terms=())
    config = as_resolved(Config(env="cartpole", steps=ROUNDS * 20_000, method="mgl", terms=("push",)))
    for seed, end in enumerate(GOOD):
        own = replace(config, seed=seed, weights_from=str(tmp_path / f"seed-000{seed}"))
        fake_seed(tmp_path / "comparison" / "frozen" / f"seed-000{seed}", own, end, 1.2)
    (panel,) = collect(tmp_path).panels
    assert [cell.label for cell in panel.cells] == ["ppo", "mgl", "mgl, frozen weights"]
    (judgement,) = judgements(panel)
    assert judgement.together.comparisons["frozen"].outcome == "better"
    (said,) = [sentence for sentence in judgement.together.sentences if "frozen" in sentence]
    assert said.startswith("A fresh agent on the frozen weights, which are what you take away: -0.0")
    assert said.endswith("clearly more than without it.")


def test_one_statistic_in_every_table_and_sentence(tmp_path):
    judgement = task(tmp_path, [-0.9, -0.5, -0.4, 3.0], MIDDLE, MIDDLE, weight=1.2)
    collection = collect(tmp_path)
    figure = judgement.together.returns["learned"].text()
    assert figure.startswith("-0.45 ")  # the mean would be 0.30
    assert figure in results_text(collection)
    assert "true return -0.45 (" in judgement.together.sentences[0]


def test_the_same_end_reached_sooner_is_a_gain(tmp_path):
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=1.2)
    fake_cell(tmp_path / "ppo", "ppo", GOOD, terms=())
    for file in (tmp_path / "ppo").rglob("metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows[: ROUNDS - 5]:
            row["evaluation_return"] = -1.0
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (judgement,) = judgements(collect(tmp_path).panels[0])
    assert judgement.verdicts[0].advice == "keep"
    assert "the same in the end, but reached sooner" in judgement.together.sentences[0]
    assert "The agent got to the same true return sooner with it" in judgement.verdicts[0].evidence


def test_the_role_of_every_method():
    roles = {role: [n for n, m in METHODS.items() if method_role(m) == role] for role in ("plain", "naive", "other")}
    assert roles == {
        "plain": ["ppo", "ddpg"],
        "naive": ["ns", "ddpg-ns"],
        "other": ["rcpo", "hepo", "dpba", "pbrs", "pba", "dynamic-pbrs"],
    }


def test_a_deterministic_learner_is_compared_with_its_own_kind(tmp_path):
    base = Config(env="cartpole-continuous", steps=ROUNDS * 20_000)
    fake_cell(tmp_path / "ddpg-em", "ddpg-em", BAD, weight=1.0, config=base)
    fake_cell(tmp_path / "ddpg-mgl", "ddpg-mgl", GOOD, weight=-4.0, config=base)
    fake_cell(tmp_path / "ns", "ns", GOOD, weight=1.0, config=base)
    fake_cell(tmp_path / "ppo", "ppo", GOOD, terms=(), config=base)
    (panel,) = collect(tmp_path).panels
    assert {judgement.together.missing for judgement in judgements(panel)} == {("naive", "plain")}
    other = replace(base, ddpg=DDPGConfig(gamma=0.9))
    fake_cell(tmp_path / "ddpg", "ddpg", MIDDLE, terms=(), config=other)
    fake_cell(tmp_path / "ddpg-ns", "ddpg-ns", BAD, weight=1.0, config=base)
    (panel,) = collect(tmp_path).panels
    judgement = judgements(panel)[0]
    assert (judgement.cell.label, judgement.verdicts[0].advice) == ("ddpg-mgl", "reverse")
    assert judgement.together.missing == ()
    assert judgement.together.notes == ("no shaping (ddpg) was trained with ddpg.gamma 0.9, ddpg-mgl with 0.99",)
    assert "--compare" not in verdict_text(collect(tmp_path))


def test_settings_of_the_upper_level_do_not_matter_to_a_run_without_weights():
    upper = DDPGUpperConfig(second_order="exact")
    learner = as_resolved(Config(method="ddpg-imgl", ddpg=DDPGConfig(batch_size=64), ddpg_upper=upper))
    assert differences(as_resolved(Config(method="ddpg")), learner) == {"ddpg.batch_size": (128, 64)}
