"""Statistics against numbers worked out by hand and against rliable's."""

import numpy as np
import pytest

from bipars.results.statistics import (
    align,
    area_under_curve,
    evaluation_grid,
    improvement_interval,
    interquartile_mean,
    interval,
    on_grid,
    permutation_p,
    probability_of_improvement,
    stratified_interval,
    time_to_threshold,
)

# Ten seeds of three tasks, and what rliable 1.2.0 (pandas 2.1.4, NumPy 1.26.4) makes of them:
# library.get_interval_estimates({"x": X}, lambda s: [aggregate_iqm(s), aggregate_mean(s), np.median(s)], reps=100_000)
# library.get_interval_estimates({"x,y": (X, Y)}, metrics.probability_of_improvement, reps=100_000)
X = np.array(
    [[1.0, 1.1, 0.9], [0.6, 0.8, 0.5], [1.0, 1.7, 0.8], [0.7, 1.2, 1.2], [1.1, 0.5, 1.0],
     [1.3, 0.3, 0.8], [0.0, 0.4, 0.1], [0.9, 0.4, 1.1], [1.1, 0.9, -0.3], [0.7, 1.0, 1.1]]
)  # fmt: skip
Y = np.array(
    [[0.3, 0.8, 0.4], [0.3, 1.2, 0.3], [0.9, 1.7, 0.5], [0.7, 1.1, 1.0], [0.4, 0.7, 1.4],
     [0.5, 0.8, 0.8], [0.1, 1.3, 0.7], [0.3, 0.5, 1.2], [0.9, 1.1, 0.1], [1.0, 1.5, 0.7]]
)  # fmt: skip
RLIABLE = [
    # values, statistic, point, low, high, and the grain of the bootstrap: the values have one decimal
    (X, interquartile_mean, 0.8625, 0.69375, 0.99375, 0.1 / 16),
    (X, np.mean, 0.7966666666666667, 0.6466666666666667, 0.94, 0.1 / 30),
    (X, np.median, 0.9, 0.7, 1.0, 0.1 / 2),
    (Y, interquartile_mean, 0.75, 0.59375, 0.90625, 0.1 / 16),
    (Y, np.mean, 0.7733333333333334, 0.65, 0.8966666666666668, 0.1 / 30),
    (Y, np.median, 0.75, 0.5, 0.95, 0.1 / 2),
]


def tasks(values):
    return list(values.T)


@pytest.mark.parametrize(("values", "statistic", "point", "low", "high", "grain"), RLIABLE)
def test_statistics_and_stratified_intervals_are_rliables(values, statistic, point, low, high, grain):
    assert statistic(values) == pytest.approx(point, abs=1e-12)
    found = stratified_interval(tasks(values), statistic, samples=50_000)
    assert found == pytest.approx((low, high), abs=1.01 * grain)


def test_probability_of_improvement_is_rliables():
    assert probability_of_improvement(tasks(X), tasks(Y)) == pytest.approx(0.5483333333333333, abs=1e-12)
    found = improvement_interval(tasks(X), tasks(Y), samples=50_000)
    assert found == pytest.approx((0.40833333, 0.69), abs=0.003)


def test_strata_are_resampled_apart():
    """Two tasks of other scales: drawn within each, the mean of constants does not move; drawn across, it would."""
    assert stratified_interval([np.zeros(4), np.full(6, 10.0)], np.mean) == (6.0, 6.0)


def test_interquartile_mean_by_hand():
    assert interquartile_mean(np.array([100.0, 1, 2, 3, 4, 5, 6, -100])) == 3.5
    assert interquartile_mean(np.array([1.0, 2, 6])) == 3.0  # fewer than four: nothing is cut
    assert interquartile_mean(np.array([[1.0, 5], [2, 6], [3, 7], [99, 8]]), axis=0).tolist() == [2.5, 6.5]


def test_intervals_of_known_values():
    assert interval(np.full(8, 3.0)) == (3.0, 3.0)
    values = np.random.default_rng(0).normal(10.0, 2.0, 50)
    half = 1.96 * values.std() / np.sqrt(50)
    assert interval(values, np.mean) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.06)
    assert interval(values, np.mean) == interval(values, np.mean)


def test_the_interval_of_a_curve_is_that_of_its_points():
    curves = np.random.default_rng(0).normal(size=(8, 5))
    low, high = interval(curves, samples=500)
    assert low.shape == high.shape == (5,)
    assert (low[2], high[2]) == interval(curves[:, 2], samples=500)


def test_a_tie_counts_half_and_tasks_count_alike():
    assert probability_of_improvement([np.array([1.0, 2])], [np.array([1.0, 3])]) == 0.375
    assert probability_of_improvement([np.ones(2), np.ones(9)], [np.zeros(3), np.full(1, 2.0)]) == 0.5
    assert improvement_interval([np.ones(3)], [np.zeros(3)], samples=10) == (1.0, 1.0)


def test_area_and_time_to_a_threshold():
    steps, curves = np.array([0, 10, 30]), np.array([[0.0, 1, 1], [0, 0, 2]])
    assert area_under_curve(steps, curves) == pytest.approx([25 / 30, 20 / 30])
    assert area_under_curve(steps[:1], curves[:, :1]).tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(time_to_threshold(steps, curves, 1.0), [10, 30])
    np.testing.assert_array_equal(time_to_threshold(steps, curves, 1.5), [np.nan, 30])


def test_curves_are_aligned_by_the_newest_value():
    assert evaluation_grid(20_000).tolist() == [4_000, 8_000, 12_000, 16_000, 20_000]
    np.testing.assert_array_equal(on_grid([5, 10], [1.0, 2], [4, 5, 9, 10, 99]), [np.nan, 1, 1, 2, 2])
    np.testing.assert_array_equal(align([([5], [1.0]), ([10], [3.0])], [5, 10]), [[1, 1], [np.nan, 3]])


def test_seeds_dealt_out_at_random_by_hand():
    assert permutation_p(np.array([4.0, 5.0, 6.0]), np.array([1.0, 2.0, 3.0])) == 2 / 20
    assert permutation_p(np.array([4.0, 5.0, 6.0, 7.0]), np.array([0.0, 1.0, 2.0, 3.0])) == 2 / 70
    assert permutation_p(np.ones(4), np.ones(4)) == 1.0


def test_a_difference_is_called_clear_by_chance_one_time_in_twenty():
    rng = np.random.default_rng(0)
    for count in (4, 5, 8, 12):
        found = [permutation_p(*rng.normal(size=(2, count)), samples=1_000) < 0.05 for _ in range(200)]
        assert np.mean(found) < 0.09
