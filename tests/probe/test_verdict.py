"""The verdict on a term, from made-up figures."""

import json
from dataclasses import replace

import pytest

from bipars.methods import METHODS
from bipars.report.text import results_text, verdict_text
from bipars.results.panels import collect, differences, method_role
from bipars.results.verdict import judge, judge_use, verdicts
from bipars.settings.config import Config, DDPGConfig, DDPGUpperConfig, UpperConfig
from fake_runs import BAD, GOOD, MIDDLE, ROUNDS, as_resolved, fake_cell, task

MIXED = (-2.0, 3.0)


@pytest.mark.parametrize(
    ("learned", "naive", "weights", "word", "headline", "advice"),
    [
        (GOOD, GOOD, {"weight": 1.1}, "helps", "helpful as written", "Keep it."),
        (GOOD, MIDDLE, {"weight": 2.1}, "helps", "helpful with the learned weights", "Keep it, with the learned"),
        (
            GOOD,
            BAD,
            {"weight": -4.0},
            "reversed",
            "harmful as written, helpful once reversed",
            "Reverse it (a weight near -4.0), or keep",
        ),
        (
            MIDDLE,
            BAD,
            {"weight": -4.0},
            "reversed",
            "no clear gain",
            "Reverse it (a weight near -4.0), or leave it out",
        ),
        (
            GOOD,
            MIDDLE,
            {"weight": 0.2, "states": MIXED},
            "helps",
            "used as written in some states",
            "only with the learned",
        ),
        (BAD, BAD, {"weight": 0.9}, "hurts", "does better without it", "Leave it out."),
        (BAD, BAD, {"weight": -0.9}, "hurts", "does better without it", "Leave it out."),
        (GOOD, BAD, {"weight": -0.15, "share": 0.7}, "reversed", "helpful once reversed", "keep the learned"),
        (MIDDLE, BAD, {"weight": -0.15, "share": 0.05}, "ignored", "switch it off", "nothing is lost"),
        (MIDDLE, BAD, {"weight": 0.02}, "ignored", "switch it off", "nothing is lost"),
        (MIDDLE, BAD, {"weight": 1.5, "share": 0.01}, "ignored", "switch it off", "nothing is lost"),
        (MIDDLE, BAD, {"weight": 0.9}, "undecided", "no clear gain", "unless more seeds"),
        (MIDDLE, BAD, {"weight": 0.1, "states": MIXED}, "undecided", "reversed in others; no", "more seeds"),
        (GOOD[:1], GOOD[:1], {"weight": 1.1}, "undecided", "the gain is not certain yet", "Run more seeds"),
        (GOOD[:1], GOOD[:1], {"weight": -1.1}, "reversed", "the gain is not certain yet", "keep the learned"),
    ],
)
def test_verdicts(tmp_path, learned, naive, weights, word, headline, advice):
    verdict = task(tmp_path, learned, naive, MIDDLE, **weights)
    assert verdict.word == word
    assert headline in verdict.headline
    assert advice in verdict.advice


def test_the_mean_weight_of_a_term_used_here_and_reversed_there_is_not_taken_for_its_use(tmp_path):
    verdict = task(tmp_path, GOOD, MIDDLE, MIDDLE, weight=0.05, states=(-2.0, 2.1))
    assert verdict.weights.use == "mixed"
    assert "It depends on the state" in verdict.sentences[0]
    assert "hides this" in verdict.sentences[0]


ALONE = ": by then it learned from the true reward alone."


@pytest.mark.parametrize(
    ("begin", "end", "words", "word"),
    [(1.0, 0.0, ALONE, "reversed"), (1.0, 1.0, ".", "reversed"), (0.4, 0.0, ALONE, "ignored")],
)
def test_the_verdict_says_how_far_the_policy_followed_the_term(tmp_path, begin, end, words, word):
    fake_cell(tmp_path, "mgl", GOOD, weight=-1.2)
    for file in tmp_path.rglob("metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        trusts = [begin] * (ROUNDS // 2) + [end] * (ROUNDS // 2)
        rows = [row | {"trust": trust} for row, trust in zip(rows, trusts, strict=True)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = 50 * (begin + end)
    expected = (
        f"The policy followed it as far as it trusted it, {whole:.0f} % over training, {100 * end:.0f} % at the end"
    )
    collection = collect(tmp_path)
    (verdict,) = verdicts(collection.panels[0])
    assert verdict.sentences[1] == expected + words
    assert verdict.weights.trust == pytest.approx((whole / 100, end))
    assert verdict.word == word
    assert "trusted it" in verdict_text(collection).replace("\n", " ")


@pytest.mark.parametrize(
    ("clear", "words"), [(0, "Of the batches none could judge that"), (2, "only 17 %"), (10, None)]
)
def test_the_verdict_says_where_hardly_a_batch_could_judge_the_term(tmp_path, clear, words):
    fake_cell(tmp_path, "mgl", GOOD, weight=1.2)
    for file in tmp_path.rglob("metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        ts = [3.0 if i * clear // len(rows) < (i + 1) * clear // len(rows) else 0.5 for i in range(len(rows))]
        rows = [row | {"trust": 1.0, "true_gradient_t": t} for row, t in zip(rows, ts, strict=True)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (verdict,) = verdicts(collect(tmp_path).panels[0])
    assert verdict.weights.judged == pytest.approx(clear / ROUNDS)
    said = [sentence for sentence in verdict.sentences if "judge" in sentence]
    assert len(said) == (words is not None)
    assert all(words in sentence for sentence in said)


@pytest.mark.parametrize(("earned", "relative", "noted"), [(True, False, 1), (True, True, 0), (False, False, 0)])
def test_a_critic_that_only_one_side_has_is_named(tmp_path, earned, relative, noted):
    base = Config(env="cartpole", steps=ROUNDS * 20_000)
    learner = replace(base, upper=UpperConfig(earned_trust=earned))
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=1.2, config=learner)
    plain = replace(base, ppo=replace(base.ppo, relative_value_loss=relative), upper=learner.upper)
    fake_cell(tmp_path / "ppo", "ppo", MIDDLE, terms=(), config=plain)
    (verdict,) = verdicts(collect(tmp_path).panels[0])
    expected = "no shaping (ppo) was trained with ppo.relative_value_loss False, mgl with True for its true critic"
    assert sum(note.startswith(expected) for note in verdict.notes) == noted


def test_the_comparison_is_with_the_policy_that_has_the_same_teacher(tmp_path):
    base = Config(env="cartpole", steps=ROUNDS * 20_000)
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=1.2, config=replace(base, upper=UpperConfig(earned_trust=True)))
    fake_cell(tmp_path / "ppo", "ppo", MIDDLE, terms=(), config=base)
    relative = replace(base, ppo=replace(base.ppo, relative_value_loss=True))
    fake_cell(tmp_path / "ppo-relative", "ppo", GOOD, terms=(), config=relative)
    (panel,) = collect(tmp_path).panels
    assert panel.rival(panel.learners[0], "plain").label == "ppo-relative"
    (verdict,) = verdicts(panel)
    assert verdict.word == "undecided"
    assert not any("relative_value_loss" in note for note in verdict.notes)


def test_without_a_comparison_nothing_is_said_to_help(tmp_path):
    fake_cell(tmp_path, "mgl", GOOD, weight=1.2)
    (verdict,) = verdicts(collect(tmp_path).panels[0])
    assert verdict.word == "undecided"
    assert verdict.missing == ("naive", "plain")
    text = verdict_text(collect(tmp_path))
    assert "Weights only, no comparison: there is no run of the term as written (naive shaping) and training" in text
    assert f"Make what is missing with: bipars report {tmp_path} --compare" in text
    assert judge("used", None) == "undecided"
    assert judge("reversed", None) == "reversed"


def test_half_a_comparison_is_said_to_be_half(tmp_path):
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=1.2)
    fake_cell(tmp_path / "ppo", "ppo", MIDDLE, terms=())
    text = verdict_text(collect(tmp_path))
    assert "Compared with training without the term (no shaping) only: there is no run of the term as written" in text
    assert "Weights only" not in text
    assert "--compare" in text


def test_harm_as_written_is_said_only_where_it_was_seen(tmp_path):
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=-1.2)
    fake_cell(tmp_path / "ppo", "ppo", MIDDLE, terms=())
    (verdict,) = verdicts(collect(tmp_path).panels[0])
    assert verdict.headline == "helpful once reversed"


def test_returns_that_never_differ_are_the_same(tmp_path):
    verdict = task(tmp_path, [-1.0] * 4, [-1.0] * 4, [-1.0] * 4, weight=1.2)
    assert {c.leans for c in verdict.comparisons.values()} == {0}
    assert "as much true return as without" in verdict.sentences[1]


def test_one_statistic_in_every_table_and_sentence(tmp_path):
    verdict = task(tmp_path, [-0.9, -0.5, -0.4, 3.0], MIDDLE, MIDDLE, weight=1.2)
    collection = collect(tmp_path)
    figure = verdict.returns["learned"].text()
    assert figure.startswith("-0.45 ")  # the mean would be 0.30
    assert figure in results_text(collection)
    assert figure in verdict_text(collection)
    assert "-0.45 (" in verdict.sentences[1]
    assert "interquartile mean" in verdict_text(collection)


def test_seeds_that_disagree():
    assert judge_use((-1.0, 1.0), (-0.1, 0.1), None) == "unsure"
    assert judge("unsure", "better") == "undecided"


def test_the_same_end_reached_sooner_helps(tmp_path):
    fake_cell(tmp_path / "mgl", "mgl", GOOD, weight=1.2)
    fake_cell(tmp_path / "ppo", "ppo", GOOD, terms=())
    for file in (tmp_path / "ppo").rglob("metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows[: ROUNDS - 5]:
            row["evaluation_return"] = -1.0
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (verdict,) = verdicts(collect(tmp_path).panels[0])
    assert verdict.word == "helps"
    assert "learns sooner" in verdict.sentences[1]


def test_the_role_of_every_method():
    roles = {role: [n for n, m in METHODS.items() if method_role(m) == role] for role in ("plain", "naive", "other")}
    assert roles == {
        "plain": ["ppo", "ddpg"],
        "naive": ["ns", "ddpg-ns"],
        "other": ["rcpo", "dpba", "pbrs", "pba", "dynamic-pbrs"],
    }


def test_a_deterministic_learner_is_compared_with_its_own_kind(tmp_path):
    base = Config(env="cartpole-continuous", steps=ROUNDS * 20_000)
    fake_cell(tmp_path / "ddpg-em", "ddpg-em", BAD, weight=1.0, config=base)
    fake_cell(tmp_path / "ddpg-mgl", "ddpg-mgl", GOOD, weight=-4.0, config=base)
    fake_cell(tmp_path / "ns", "ns", GOOD, weight=1.0, config=base)
    fake_cell(tmp_path / "ppo", "ppo", GOOD, terms=(), config=base)
    (panel,) = collect(tmp_path).panels
    assert {verdict.missing for verdict in verdicts(panel)} == {("naive", "plain")}
    other = replace(base, ddpg=DDPGConfig(gamma=0.9))
    fake_cell(tmp_path / "ddpg", "ddpg", MIDDLE, terms=(), config=other)
    fake_cell(tmp_path / "ddpg-ns", "ddpg-ns", BAD, weight=1.0, config=base)
    (panel,) = collect(tmp_path).panels
    verdict = verdicts(panel)[0]
    assert (verdict.cell.label, verdict.word, verdict.missing) == ("ddpg-mgl", "reversed", ())
    assert verdict.headline == "harmful as written, helpful once reversed"
    assert verdict.notes == ("no shaping (ddpg) was trained with ddpg.gamma 0.9, ddpg-mgl with 0.99",)
    text = verdict_text(collect(tmp_path))
    assert "--compare" not in text


def test_settings_of_the_upper_level_do_not_matter_to_a_run_without_weights():
    upper = DDPGUpperConfig(second_order="exact")
    learner = as_resolved(Config(method="ddpg-imgl", ddpg=DDPGConfig(batch_size=64), ddpg_upper=upper))
    assert differences(as_resolved(Config(method="ddpg")), learner) == {"ddpg.batch_size": (128, 64)}
