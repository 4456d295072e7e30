"""Which way a term points, from rows of evidence made by hand and by chance."""

import numpy as np
import pytest

from bipars.results.direction import KNOWN, SHORT, chance_spread, find_directions, hear, judge_way, together
from bipars.upper.evidence import MEMORY


def seed(true, **terms):
    """One row per update."""
    count = max(np.size(x) for x in (true, *terms.values()))
    named = {"true_gradient_t": true} | {f"agreement_t/{name}": t for name, t in terms.items()}
    columns = {name: np.broadcast_to(np.asarray(t, float), count).tolist() for name, t in named.items()}
    return [{"step": 2048 * (i + 1)} | {name: t[i] for name, t in columns.items()} for i in range(count)]


def faded(batches):
    """t over the newest batches, as training logs it: of the sum in which old ones fade."""
    total = variance = 0.0
    found = []
    for x in batches:
        total, variance = MEMORY * total + x, MEMORY**2 * variance + 1
        found.append(total / np.sqrt(variance))
    return np.array(found)


def direction_of_a(*seeds):
    return find_directions(seeds, ["a"])[0]


def way(true, **terms):
    return direction_of_a(seed(true, **terms)).way


@pytest.mark.parametrize(
    ("t", "true", "expected"),
    [(4.0, 5.0, "up"), (-4.0, 5.0, "down"), (0.3, 12.0, "nil"), (-1.2, 12.0, "nil"),
     (0.3, 2.5, "faint"), (-1.4, 2.6, "faint")],
)  # fmt: skip
def test_a_term_around_a_constant(t, true, expected):
    assert way(true, a=np.full(60, t)) == expected


def test_two_updates_by_hand():
    """s_1 = x_1, s_2 = 0.95 x_1 + x_2: variances 1 and 1.9025, covariance 0.95."""
    correlation = 0.95 / np.sqrt(1.9025)
    assert chance_spread(np.array([0, 1])) == pytest.approx(np.sqrt((2 + 2 * correlation) / 4))
    assert chance_spread(np.array([7])) == 1.0


def test_the_spread_of_the_mean_is_what_chance_gives():
    rng = np.random.default_rng(0)
    means = [faded(rng.normal(size=150)).mean() for _ in range(2_000)]
    assert chance_spread(np.arange(150)) == pytest.approx(np.std(means), rel=0.06)


def test_noise_is_seldom_taken_for_a_direction_and_nearly_always_for_none():
    rng = np.random.default_rng(1)
    ways = [way(faded(1 + rng.normal(size=150)), a=faded(rng.normal(size=150))) for _ in range(300)]
    assert ways.count("up") + ways.count("down") <= 6
    assert ways.count("nil") >= 0.93 * len(ways)


def test_a_faint_signal_adds_up_over_the_whole_of_training():
    """0.3 standard errors per batch: t is about 2 at any time, and 0.3 sqrt(400) = 6 in all."""
    rng = np.random.default_rng(2)
    found = [direction_of_a(seed(8.0, a=faded(0.3 + rng.normal(size=400)))).t for _ in range(50)]
    assert np.mean(found) == pytest.approx(6.0, abs=0.6)


def test_what_is_only_repeated_counts_once():
    """A task that is solved early: its evidence stands still for the rest of the run."""
    rng, called = np.random.default_rng(5), {True: 0, False: 0}
    for _ in range(200):
        t = np.r_[noise := faded(rng.normal(size=30)), np.full(400, noise[-1])]
        rows = seed(8.0, a=t)
        for marked in called:
            marks = [{"evidence_added": float(i < 30 or not marked)} for i in range(len(rows))]
            both = [row | mark for row, mark in zip(rows, marks, strict=True)]
            called[marked] += direction_of_a(both).known
    assert called[False] > 20  # of noise, were each row news
    assert called[True] <= 4


def test_updates_without_a_clear_true_gradient_do_not_count():
    true, t = np.r_[np.full(40, 1.0), np.full(40, 6.0)], np.r_[np.full(40, -9.0), np.full(40, 5.0)]
    assert way(true, a=t) == "up"
    direction = direction_of_a(seed(true, a=t))
    assert direction.clear == 0.5
    assert direction.change is None


@pytest.mark.parametrize("true", [0.5, 1.9, np.r_[np.full(59, 1.0), 2.9]])
def test_where_the_true_gradient_was_never_clear_all_updates_count(true):
    (heard,) = hear([seed(true, a=np.full(60, 5.0))])
    assert not heard.sure
    assert len(heard.index) == 60
    assert direction_of_a(seed(true, a=np.full(60, 5.0))).way == "up"
    assert direction_of_a(seed(true, a=np.full(60, 0.5))).way == "faint"


@pytest.mark.parametrize("true", [None, float("nan")])
def test_without_a_true_gradient_nothing_is_known(true):
    rows = [row | {"true_gradient_t": true} for row in seed(0.0, a=np.full(60, 5.0))]
    assert hear([rows]) == []
    assert direction_of_a(rows).way == "faint"


def test_chance_shows_no_direction_where_the_true_gradient_is_never_clear():
    rng = np.random.default_rng(0)
    ways = [
        direction_of_a(seed(faded(rng.normal(size=100)) / 2, a=faded(rng.normal(size=100)))).way for _ in range(300)
    ]
    assert ways.count("faint") >= 0.98 * 300


def test_a_sign_that_changes_is_found_where_it_changes():
    t = np.r_[np.full(40, 5.0), np.full(120, -5.0)]
    direction = direction_of_a(seed(8.0, a=t))
    assert direction.change.before > KNOWN
    assert direction.change.after < -KNOWN
    assert 30 * 2048 <= direction.change.step <= 50 * 2048
    assert direction_of_a(seed(8.0, a=np.full(160, 5.0))).change is None


def test_what_showed_early_alone_is_said_to_be_early():
    t = np.r_[np.full(40, 6.0), np.full(160, -0.5)]
    direction = direction_of_a(seed(8.0, a=t))
    assert (direction.way, direction.early, direction.change) == ("up", True, None)


def test_a_term_that_pointed_somewhere_for_a_while_is_not_called_nothing():
    wave = 3.8 * np.sin(np.arange(200) / 8)
    assert way(12.0, a=wave) == "faint"
    assert way(12.0, a=wave / 4) == "nil"


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [([4, 5, 4], "up"), ([4, 5, -4], "split"), ([9, 9, 9, 9, -4], "up"), ([1.5, 1.8, 2.4], "up"), ([5, -5], "split"),
     ([0.2, -0.4, 0.1], "nil")],
)  # fmt: skip
def test_seeds_are_added_up_unless_they_disagree(seeds, expected):
    assert judge_way(seeds, 8.0) == expected
    assert together([2.0, 2.0]) == pytest.approx(2 * np.sqrt(2))


@pytest.mark.parametrize(
    ("t", "power", "expected"),
    [
        (0.0, 2 * SHORT, "nil"),
        (0.0, 2 * SHORT - 0.01, "faint"),
        (2.0, 4.2, "faint"),
        (2.0, 8.0, "nil"),
        (2.6, 20.0, "faint"),
    ],
)
def test_none_is_called_nothing_that_may_tell_half_as_much_as_the_clearest(t, power, expected):
    assert judge_way([t], power) == expected


def test_what_another_term_made_clear_serves_to_tell_that_one_has_nothing():
    rows = seed(np.r_[np.full(59, 2.1), 3.0], a=np.full(60, 0.2), b=np.full(60, 7.0))
    assert [d.way for d in find_directions([rows], ["a", "b"])] == ["nil", "up"]
    assert direction_of_a(rows).way == "faint"


@pytest.mark.parametrize(
    ("itself", "updates", "t", "expected"),
    [(0.3, 60, 1.0, "noise"), (-0.5, 60, 1.0, "noise"), (6.0, 60, 1.0, "faint"), (0.3, 8, 1.0, "faint"),
     (0.3, 60, 5.0, "up"), (None, 60, 1.0, "faint")],
)  # fmt: skip
def test_a_term_without_a_gradient_of_its_own_is_noise_however_little_is_known_of_the_true_one(
    itself, updates, t, expected
):
    rows = seed(np.full(updates, 3.1), a=t)
    if itself is not None:
        rows = [row | {"term_gradient_t/a": itself} for row in rows]
    assert find_directions([rows], ["a"])[0].way == expected
    assert find_directions([rows], ["a"], not_noise=["a"])[0].way != "noise"
