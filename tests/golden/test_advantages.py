"""From a batch to advantages: of the sum of rewards, and of every reward by itself."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.lower.advantages import SMALL, Scales, compute_advantages, compute_term_advantages, shorten
from bipars.lower.ppo import PPO
from bipars.nets.spaces import BoxActions, Spaces
from bipars.nets.weights import DeviatingWeights, Range, no_weights
from bipars.rollout.batch import Batch
from bipars.settings.config import PPOConfig

TIME, ENVS, TERMS = 12, 4, 2
CONFIG = PPOConfig(policy_hidden=(4,), value_hidden=(5,), num_envs=ENVS, update_period=ENVS * TIME, gamma=0.9)
LOWER = PPO(CONFIG, Spaces(3, BoxActions(1)), num_terms=TERMS, learns_weights=True, per_term=True)
WEIGHTS = DeviatingWeights(jnp.asarray([0.5, -2.0]), no_weights(TERMS), jnp.ones(TERMS), Range(0.0, None, None))


def batch(reward=None, terms=None, terminated=False):
    draw, lead = np.random.default_rng(0).normal, (TIME, ENVS)
    obs, action, next_obs = (jnp.asarray(draw(size=(*lead, size))) for size in (3, 1, 3))
    reward = draw(size=lead) if reward is None else np.broadcast_to(reward, lead)
    terms = draw(size=(*lead, TERMS)) if terms is None else np.broadcast_to(terms, (*lead, TERMS))
    done = jnp.asarray(np.arange(TIME)[:, None] % 5 == np.arange(ENVS))
    return Batch(
        obs, action, jnp.zeros(lead), next_obs, jnp.asarray(reward), done & terminated, done, jnp.asarray(terms),
        jnp.zeros((), bool),
    )  # fmt: skip


def learner(**changes):
    lower = replace(LOWER, config=replace(CONFIG, **changes))
    return lower.config, lower.init(jax.random.key(0), WEIGHTS, None)


def by_term(batch, own=None, **changes):
    config, start = learner(**changes)
    return compute_term_advantages(config, start.critics, WEIGHTS, start.scales, batch, False, own)


def test_advantages_add_up_as_rewards_do():
    """With critics that say nothing, both ways lead to the same modified advantages."""
    config, start = learner()
    nothing = jax.tree.map(jnp.zeros_like, start.critics)
    apart, _ = compute_term_advantages(config, nothing, WEIGHTS, start.scales, batch(terminated=True), False)
    one = tuple(jax.tree.map(lambda x: x[..., :1] if x.shape[-1] == TERMS + 2 else x, critic) for critic in nothing)
    scales = start.scales._replace(low=start.scales.low[:2], high=start.scales.high[:2])
    together, _ = compute_advantages(config, one, WEIGHTS, scales, batch(terminated=True), False)
    for data in (apart, together):
        assert np.mean(data.samples.modified_advantage) == pytest.approx(0.0, abs=1e-5)
    assert np.allclose(apart.samples.modified_advantage, together.samples.modified_advantage, atol=1e-4)
    assert np.allclose(apart.samples.true_advantage, together.samples.true_advantage, atol=1e-4)


def test_a_reward_that_was_never_seen_has_no_advantages():
    data, _ = by_term(batch(reward=0.0))
    assert not np.any(np.asarray(data.samples.true_advantage))
    assert bool(data.by_term.silent)
    assert np.all(np.asarray(data.by_term.terms).std(axis=0) > 0)


def test_a_reward_that_never_varied_makes_the_policy_explore_and_is_no_evidence():
    data, scales = by_term(batch(reward=-1.0))
    assert np.std(np.asarray(data.samples.true_advantage)) > 0
    assert not np.any(np.asarray(data.by_term.true))
    assert bool(data.by_term.silent)
    config, start = learner()
    later, _ = compute_term_advantages(config, start.critics, WEIGHTS, scales, batch(reward=-2.0), False)
    assert not bool(later.by_term.silent)  # it has varied between the two batches


def test_a_batch_without_news_of_the_reward_is_no_evidence():
    """Once a task is solved, rewards may not vary for a whole batch: what is left are the critic's errors."""
    config, _ = learner()
    _, scales = by_term(batch())

    def found(data, own=None):
        start = learner()[1]
        return compute_term_advantages(config, start.critics, WEIGHTS, scales, data, False, own)[0].by_term

    quiet = found(batch(reward=1.0))
    assert not bool(quiet.silent)
    assert not np.any(np.asarray(quiet.true))
    assert np.any(np.asarray(found(batch(reward=1.0, terminated=True)).true))
    varied = np.where(np.arange(ENVS) == 0, np.random.default_rng(1).normal(size=(TIME, ENVS)), 1.0)
    assert np.any(np.asarray(found(batch(reward=varied)).true))
    assert not np.any(np.asarray(found(batch(reward=varied), jnp.asarray([0.0, 1.0, 1.0, 1.0])).true))


def test_an_episode_that_terminates_is_news():
    assert not bool(by_term(batch(reward=-1.0, terminated=True))[0].by_term.silent)


def test_what_another_policy_was_rewarded_for_is_no_news():
    rewarded = np.arange(ENVS) == ENVS - 1
    own = jnp.asarray(np.where(rewarded, 0.0, 1.0))
    varying = np.where(rewarded, np.random.default_rng(1).normal(size=(TIME, ENVS)), 0.0)
    assert bool(by_term(batch(reward=varying), own)[0].by_term.silent)
    assert not bool(by_term(batch(reward=varying), 1 - own)[0].by_term.silent)


def test_a_term_that_is_always_zero_has_the_unit_of_the_reward():
    varying = np.random.default_rng(2).normal(size=(TIME, ENVS))
    data, _ = by_term(batch(terms=np.stack([varying, np.zeros_like(varying)], axis=-1)), normalise_returns=True)
    units = np.asarray(data.by_term.units)
    assert units[1] == pytest.approx(float(data.by_term.true_unit))
    assert units[0] != units[1]
    assert not np.any(np.asarray(data.by_term.terms)[:, 1])


def test_steps_are_short_where_there_is_next_to_nothing_to_gain():
    scales = learner(normalise_returns=True)[1].scales
    assert float(shorten(scales, jnp.asarray(10 * SMALL))) == 1.0
    assert float(shorten(scales, jnp.asarray(SMALL / 10))) == pytest.approx(0.1)
    unnormalised = Scales(None, None, scales.low, scales.high)
    assert float(shorten(unnormalised, jnp.asarray(SMALL / 10))) == 1.0  # what is small is not known


def test_the_length_of_episodes_is_in_a_term_through_its_mean():
    terms = np.stack(np.broadcast_arrays(np.random.default_rng(1).normal(3.0, 1.0, (TIME, ENVS)), -1.0), axis=-1)
    assert not np.any(by_term(batch(terms=terms))[0].by_term.length)  # nothing terminates
    found = by_term(batch(terms=terms, terminated=True))[0].by_term
    assert np.allclose(found.offset * found.units, [terms[..., 0].mean(), 0.0])  # the other one is nothing but that
    own = jnp.asarray([1.0, 1.0, 0.0, 0.0])
    data, scales = by_term(batch(terms=terms, terminated=True), own, normalise_returns=True)
    found, units = data.by_term, np.asarray(scales.returns.std)
    assert not np.any(np.asarray(found.length).reshape(TIME, ENVS)[:, 2:])
    assert np.allclose(found.units, np.hypot(units[:TERMS], terms.mean(axis=(0, 1)) * units[TERMS]), rtol=1e-4)
    expected = terms[:, :2, 0].mean() * units[TERMS] / float(found.units[0])
    assert found.offset[0] == pytest.approx(expected, rel=1e-4)


def test_evidence_is_of_terms_less_their_mean_over_the_batch():
    """Whatever the running mean was, also where it is of another policy's samples; a constant is left as it is."""
    config, start = learner()
    terms = np.random.default_rng(1).normal(3.0, 1.0, (TIME, ENVS, TERMS))
    terms[..., 1] = -0.005
    own = jnp.asarray([1.0, 1.0, 0.0, 0.0])
    drifted = start.scales._replace(terms=start.scales.terms.update(jnp.asarray(terms[0] - 2.0 * np.array([1.0, 0.0]))))

    def found(scales, terms):
        data = batch(terms=terms, terminated=True)
        nothing = jax.tree.map(jnp.zeros_like, start.critics)
        by_term = compute_term_advantages(config, nothing, WEIGHTS, scales, data, False, own)[0].by_term
        return np.asarray(by_term.terms * by_term.units), np.asarray(by_term.offset * by_term.units)

    less = terms - np.array([terms[:, :2, 0].mean(), 0.0])
    centred, none = found(start.scales, less)
    for scales in (start.scales, drifted):
        each, offset = found(scales, terms)
        assert np.allclose(each, centred, atol=1e-4)
        assert np.allclose(offset, [terms[:, :2, 0].mean(), 0.0], atol=1e-4)
    assert np.allclose(none, 0.0, atol=1e-5)


def test_a_mean_changes_nothing_but_what_is_paid_for_length():
    """With critics that know nothing yet, and with any others."""

    def found(terms, start):
        data = batch(terms=terms, terminated=True)
        return compute_term_advantages(start[0], start[1].critics, WEIGHTS, start[1].scales, data, False)[0]

    terms = np.random.default_rng(1).normal(size=(TIME, ENVS, TERMS))
    terms -= terms.mean(axis=(0, 1))
    for start in (learner(), learner(normalise_returns=True)):
        raised, centred = found(terms + 3, start), found(terms, start)
        assert np.allclose(raised.by_term.terms * raised.by_term.units, centred.by_term.terms * centred.by_term.units,
                           atol=1e-4)  # fmt: skip
        assert np.allclose(raised.value_targets[0][:, :TERMS], centred.value_targets[0][:, :TERMS], atol=1e-4)
        assert not np.allclose(raised.samples.modified_advantage, centred.samples.modified_advantage, atol=1e-2)


def test_means_are_those_of_all_batches_so_far():
    config, start = learner()
    first, second = (np.full((TIME, ENVS, TERMS), mean) + np.random.default_rng(1).normal(size=(TIME, ENVS, TERMS))
                     for mean in (0.0, 6.0))  # fmt: skip
    scales, found = start.scales, []
    for terms in (first, second):
        _, scales = compute_term_advantages(config, start.critics, WEIGHTS, scales, batch(terms=terms), False)
        found.append(np.asarray(scales.terms.mean))
    assert np.allclose(found[0], first.mean(axis=(0, 1)), atol=1e-5)
    assert np.allclose(found[1], (first.mean(axis=(0, 1)) + second.mean(axis=(0, 1))) / 2, atol=1e-5)
