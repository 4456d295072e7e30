"""What a batch says of each term, by hand: products of different parts, and the weights that follow from them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.lower.advantages import TermAdvantages
from bipars.lower.control import CONTROL, TREATED, UNDECIDED
from bipars.upper.evidence import (
    LARGEST,
    Evidence,
    agree,
    best_weights,
    products,
    signed_regression,
    with_means,
)

PARTS, SIZE = 16, 40
TRUE = np.random.default_rng(1000).normal(size=SIZE)


def gradients(seed, *along, noise=1.0):
    """(part, reward, theta): noise, with a share of the true direction in each reward."""
    drawn = noise * np.random.default_rng(seed).normal(size=(PARTS, len(along), SIZE))
    return jnp.asarray(drawn + np.array(along)[:, None] * TRUE)


def advantages(silent=False, units=(1.0, 1.0)):
    return TermAdvantages(None, None, None, None, jnp.ones(()), jnp.asarray(units), jnp.asarray(silent))


def found_after(leader, evidence, advantages, held=0.0, decided=False):
    held = jnp.full(advantages.units.shape, held, float)
    return best_weights(evidence, advantages, 1.0, jnp.asarray(leader), held, jnp.asarray(decided))


def gathered(*along, batches=40, noise=1.0):
    evidence = Evidence.none(len(along) - 1)
    for seed in range(batches):
        evidence = evidence.add(gradients(seed, *along, noise=noise), jnp.ones(PARTS))
    return evidence


def test_products_are_means_over_pairs_of_different_parts():
    g = np.asarray(gradients(0, 0.3, -0.2, 0.0), float)
    gram, with_true, with_itself = products(jnp.asarray(g), jnp.ones(PARTS))
    whole = g.mean(axis=0)
    assert np.allclose(gram, whole @ whole.T, rtol=1e-4)

    def mean(parts, reward, other):
        return np.mean([g[i, other] @ g[j, reward] for i, j in itertools.permutations(parts, 2)])

    for found, others in (with_true, (0, 0, 0)), (with_itself, (0, 1, 2)):
        for reward, other in enumerate(others):
            without = np.array([mean([j for j in range(PARTS) if j != i], reward, other) for i in range(PARTS)])
            assert found.total[reward] == pytest.approx(mean(range(PARTS), reward, other), rel=1e-3)
            jackknife = (PARTS - 1) / PARTS * np.sum((without - without.mean()) ** 2)
            surplus = 2 * rest(g[:, other] @ g[:, reward].T) / ((PARTS - 1) * (PARTS - 2))
            error = max(jackknife - surplus, jackknife * (PARTS - 2) / (2 * (PARTS - 1)))
            assert found.variance[reward] == pytest.approx(error, rel=1e-3)


def rest(products):
    """The variance of pairs of parts beyond what either part adds, by analysis of variance."""
    n, apart = len(products), ~np.eye(len(products), dtype=bool)
    pair = np.where(apart, (products + products.T) / 2, 0.0)
    mean = pair[apart].mean()
    adds = (pair.sum(axis=1) - (n - 1) * mean) / (n - 2)
    return np.sum((pair - mean - adds[:, None] - adds[None])[apart] ** 2) / (n * (n - 3))


@pytest.mark.parametrize(("parts", "own", "signal"), [(16, 16, 0.0), (16, 8, 0.0), (16, 16, 0.1), (100, 100, 0.0)])
def test_the_variance_is_that_over_many_batches(parts, own, signal):
    """The jackknife's would be more than twice as large where there is only noise."""
    mine = (np.arange(parts) < own).astype(np.float32)
    g = np.random.default_rng(0).normal(size=(2000, parts, 1, 30)).astype(np.float32) + signal
    found = jax.vmap(lambda g: agree(g, g, mine))(jnp.asarray(g * mine[:, None, None]))
    assert 0.9 < np.mean(found.variance) / np.var(found.total) < 1.5
    assert np.mean(found.total) == pytest.approx(30 * signal**2, abs=0.1)


def test_parts_of_the_other_group_do_not_count():
    g, own = gradients(0, 0.3, -0.2), np.zeros(PARTS)
    own[:6] = 1.0
    masked = products(g * own[:, None, None], jnp.asarray(own))
    for found, expected in zip(*map(jax.tree.leaves, (masked, products(g[:6], jnp.ones(6)))), strict=True):
        assert np.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_noise_agrees_with_nothing():
    """Neither with the true gradient nor, however long one looks, with itself."""
    scores = []
    for first in range(60):
        evidence = Evidence.none(1)
        for seed in range(10):
            evidence = evidence.add(gradients(1000 * first + seed, 0.0, 0.0)[:4], jnp.ones(4))
        scores.append(np.concatenate([evidence.agreement.t, evidence.with_itself.t[1:]]))
    assert np.abs(np.mean(scores, axis=0)).max() < 0.45
    assert np.std(scores) < 1.6


def test_a_batch_in_which_nothing_was_rewarded_changes_nothing():
    before = gathered(0.5, 0.5)
    after = before.add(jnp.zeros((PARTS, 2, SIZE)), jnp.ones(PARTS))
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert np.array_equal(new, old)


def test_a_term_agrees_with_itself_where_the_true_reward_says_nothing():
    evidence = Evidence.none(2)
    for seed in range(20):
        evidence = evidence.add(gradients(seed, 0.0, 0.5, 0.0).at[:, 0].set(0.0), jnp.ones(PARTS))
    assert evidence.batches == 0
    assert np.all(np.asarray(evidence.agreement.t) == 0)
    _, clear, noise = np.asarray(evidence.with_itself.t)
    assert clear > 5
    assert abs(noise) < 2.5


def test_weights_follow_what_each_term_explains_of_the_true_gradient():
    evidence = gathered(0.5, 0.5, -0.5, 0.0, batches=100)
    found = found_after(CONTROL, evidence, advantages(units=(1.0, 1.0, 1.0)))
    helpful, harmful, noise = np.asarray(found.weights)
    assert found.known
    assert helpful == pytest.approx(1.0, abs=0.2)
    assert harmful == pytest.approx(-1.0, abs=0.2)
    assert noise == pytest.approx(0.0, abs=0.2)


def test_a_term_that_is_less_noisy_than_the_reward_counts_for_more():
    evidence = Evidence.none(1)
    for seed in range(40):
        noisy, quiet = gradients(seed, 0.5, noise=3.0), gradients(seed + 1000, 0.5, noise=0.3)
        evidence = evidence.add(jnp.concatenate([noisy, quiet], axis=1), jnp.ones(PARTS))
    assert found_after(TREATED, evidence, advantages(units=(1.0,))).weights[0] > 1.5


def test_two_copies_share_the_weight():
    evidence = Evidence.none(2)
    for seed in range(40):
        reward, term = jnp.split(gradients(seed, 0.5, 0.5), 2, axis=1)
        evidence = evidence.add(jnp.concatenate([reward, term, term], axis=1), jnp.ones(PARTS))
    first, second = found_after(TREATED, evidence, advantages()).weights
    assert first == pytest.approx(float(second), rel=0.05)
    assert first + second == pytest.approx(1.0, abs=0.3)


def test_the_regression_is_the_ordinary_one_where_its_signs_are_those_of_the_evidence():
    rows = np.random.default_rng(0).normal(size=(9, 4))
    gram = jnp.asarray(rows.T @ rows + np.eye(4))
    beta = np.array([0.5, 1.0, -2.0, -1.0])
    assert np.array_equal(np.sign(gram @ beta), np.sign(beta))
    assert np.allclose(signed_regression(gram, gram @ beta), beta, atol=1e-4)


def test_no_weight_has_another_sign_than_the_evidence_of_its_term():
    """The second term is nearly the first one: the ordinary regression sets the one against the other."""
    gram = jnp.asarray([[1.0, 0.5, 0.5], [0.5, 1.0, 0.95], [0.5, 0.95, 1.0]])
    agreement = jnp.asarray([0.6, 0.9, 0.6])
    assert np.linalg.solve(gram, agreement)[2] < -1.0
    beta = np.asarray(signed_regression(gram, agreement))
    assert beta[2] == 0.0
    assert np.allclose(beta[:2], np.linalg.solve(gram[:2, :2], agreement[:2]), atol=1e-4)


def test_many_terms_that_nearly_say_the_same_are_regressed_to_the_end():
    """At the least, no beta can move within its sign: the conditions of Karush, Kuhn and Tucker."""
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(200, 17)) + 2.0 * rng.normal(size=(200, 1))  # correlation 0.8
    gram = noise.T @ noise / 200 + 0.05 * np.eye(17)
    agreement = rng.normal(size=17)
    beta = np.asarray(signed_regression(jnp.asarray(gram), jnp.asarray(agreement)), float)
    slope = (agreement - gram @ beta) * np.sign(agreement)
    assert np.all(beta * np.sign(agreement) >= 0)
    assert np.all(slope < 5e-3)
    assert np.all(np.abs(slope[beta != 0]) < 5e-3)


def test_a_factor_in_the_code_changes_nothing_but_the_unit():
    evidence = gathered(0.5, 0.5, -0.5)
    plain = found_after(CONTROL, evidence, advantages(units=(1.0, 1.0))).weights
    large = found_after(CONTROL, evidence, advantages(units=(1.0, 1000.0))).weights
    assert np.allclose(large * np.array([1.0, 1000.0]), plain, rtol=1e-4)


@pytest.mark.parametrize(
    ("silent", "leader", "units", "expected"),
    [
        (False, UNDECIDED, (0.5, 1.0), (1.0, 1.0)),  # as written
        (False, TREATED, (0.5, 1.0), (1.0, 1.0)),
        (False, TREATED, (4.0, 1000.0), (1.0, 1.0)),
        (False, CONTROL, (0.5, 4.0), (0.0, 0.0)),  # terms that lost have to earn it
        (True, UNDECIDED, (2.0, 4.0), (1.0, 0.5)),  # before there was a reward all count alike
    ],
)
def test_without_evidence_weights_are_what_they_start_at(silent, leader, units, expected):
    found = found_after(leader, Evidence.none(2), advantages(silent, units), held=7.0)
    assert not found.known
    assert np.allclose(found.weights, expected)


def test_weights_stay_where_they_are_once_the_evidence_is_gone():
    found = found_after(TREATED, Evidence.none(2), advantages(units=(2.0, 4.0)), held=0.5, decided=True)
    assert not found.known
    assert np.allclose(found.weights, (0.25, 0.125))


def test_evidence_does_not_count_before_the_groups_are_compared():
    found = found_after(UNDECIDED, gathered(0.5, -0.5, batches=100), advantages(units=(1.0,)))
    assert not found.decided
    assert np.allclose(found.weights, 1.0)


def test_weights_are_bounded():
    evidence = Evidence.none(1)
    for seed in range(40):
        reward, term = gradients(seed, 0.05, noise=1.0), gradients(seed + 1000, 0.5, noise=0.001)
        evidence = evidence.add(jnp.concatenate([reward, 0.01 * term], axis=1), jnp.ones(PARTS))
    assert abs(found_after(CONTROL, evidence, advantages(units=(1.0,))).weights[0]) <= LARGEST


def test_late_batches_that_tell_nothing_do_not_drown_what_was_known():
    """Of a solved task: the true gradient is a hundredth of what it was, and the term's is as long as ever."""
    evidence = Evidence.none(1)
    for i in range(20):
        late = i >= 10
        g = np.random.default_rng(i).normal(size=(PARTS, 2, 50))
        g[:, 0] *= 0.01 if late else 1.0
        g += 0.0 if late else 0.7
        evidence = evidence.add(jnp.asarray(g), jnp.ones(PARTS))
    assert evidence.direction.t[0] == evidence.agreement.t[0]
    assert evidence.direction.t[1] > 4 > evidence.agreement.t[1] > -4


def test_what_a_term_pays_for_the_length_of_episodes_is_no_direction_of_its_own():
    """The true reward is length; one term is a multiple of it with noise, the other says something more."""
    evidence, offset = Evidence.none(2), jnp.asarray([2.0, -1.0])
    for i in range(20):
        g = np.random.default_rng(i).normal(size=(PARTS, 4, 50))
        g[:, 0] += 0.7
        g[:, 3] += 0.7
        g[:, 2] += 0.7
        rewards, beyond = with_means(jnp.asarray(g), offset)
        evidence = evidence.add(rewards, jnp.ones(PARTS), beyond)
    assert evidence.agreement.t[1] > 5
    assert abs(evidence.direction.t[1]) < 3
    assert evidence.direction.t[2] > 5 > abs(evidence.agreement.t[2])
