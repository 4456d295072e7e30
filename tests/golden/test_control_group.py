"""The control group: who acts where, who learns from what, and which policy goes on."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.lower.control import (
    AHEAD,
    CONTROL,
    DECISION,
    LATEST,
    MAY_LOSE,
    TREATED,
    UNDECIDED,
    ControlGroup,
    Returns,
    give_policy,
)
from bipars.lower.ppo import PPO
from bipars.nets.mlp import ravel
from bipars.nets.policies import as_networks, log_prob_of_sample
from bipars.nets.spaces import BoxActions, Spaces
from bipars.nets.weights import DeviatingWeights, Range, no_weights
from bipars.rollout.batch import Batch
from bipars.settings.config import PPOConfig

ENVS, TIME = 8, 6
CONFIG = PPOConfig(
    policy_hidden=(4,), value_hidden=(4,), num_envs=ENVS, update_period=ENVS * TIME, gradient_steps=2, batch_size=8,
    activation="tanh", normalise_observations=True, normalise_returns=True,
)  # fmt: skip
ALONE = PPO(CONFIG, Spaces(3, BoxActions(2)), num_terms=1)
LOWER = ControlGroup(replace(ALONE, learns_weights=True, per_term=True), ALONE)
WEIGHTS = DeviatingWeights(jnp.ones(1), no_weights(1), jnp.ones(1), Range(0.0, None, None))


def start():
    groups = LOWER.init(jax.random.key(0), WEIGHTS, None)
    other = jax.tree.map(lambda x: x + 1.0, groups.control.policy)
    return groups._replace(control=groups.control._replace(policy=other))


def batch(reward, done=None, seed=0):
    rng = np.random.default_rng(seed)
    lead, draw = (TIME, ENVS), rng.normal
    done = np.zeros(lead, bool) if done is None else done
    numbers = [jnp.asarray(draw(size=(*lead, *shape))) for shape in ((3,), (2,), (), (3,))]
    terms = jnp.asarray(draw(size=(*lead, 1)))
    return Batch(*numbers, jnp.asarray(reward), jnp.asarray(done), jnp.asarray(done), terms, jnp.zeros((), bool))


def decide(groups, batch, progress, silent=False):
    return LOWER.decide(groups, batch, jnp.asarray(progress), jnp.asarray(silent))


def of_groups(treated, control):
    """One episode per step in every environment, whose return depends on the group, with a little noise."""
    noise = 0.1 * np.random.default_rng(1).normal(size=(TIME, ENVS))
    mine = np.where(np.arange(ENVS) < ENVS // 2, treated, control)
    return batch(mine + noise, np.ones((TIME, ENVS), bool))


def after(leader):
    return start()._replace(leader=jnp.asarray(leader))


def test_half_of_the_environments_are_the_control_groups_until_one_has_won():
    assert [int(LOWER.num_treated(after(leader))) for leader in (UNDECIDED, TREATED, CONTROL)] == [4, ENVS, ENVS]


def test_each_policy_acts_in_its_own_environments():
    groups = start()
    policy = LOWER.behaviour(groups, WEIGHTS)
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(ENVS, 3)))
    noise = policy.draw_noise(jax.random.key(1), (ENVS,))
    action = policy.sample(obs, noise)
    for learner, lower, part in (
        (groups.treated, LOWER.treated, slice(0, 4)),
        (groups.control, LOWER.control, slice(4, ENVS)),
    ):
        alone = lower.act(learner, WEIGHTS)
        assert np.allclose(action[part], alone.sample(obs[part], noise[part]))
        assert np.allclose(policy.log_prob(obs, action)[part], alone.log_prob(obs[part], action[part]), atol=1e-5)
    log_prob = log_prob_of_sample(policy, obs, action, noise)
    assert np.allclose(log_prob, policy.log_prob(obs, action), atol=1e-4)
    networks = as_networks(jax.tree.map(np.asarray, policy), ENVS)
    assert [envs for _, envs in networks] == [range(4), range(4, ENVS)]


def test_each_learns_from_its_own_samples_alone():
    """Other rewards in the other group's environments change nothing for a learner's advantages."""
    plain = replace(CONFIG, normalise_returns=False)  # the unit of returns is common to both
    lower = ControlGroup(replace(LOWER.treated, config=plain), replace(LOWER.control, config=plain))
    groups = lower.init(jax.random.key(0), WEIGHTS, None)
    reward = np.random.default_rng(2).normal(size=(TIME, ENVS))
    changed = reward.copy()
    changed[:, 4:] += np.random.default_rng(3).normal(size=(TIME, 4))
    first, second = (lower.prepare(groups, WEIGHTS, batch(r), jnp.zeros(()))[1] for r in (reward, changed))
    mine = np.tile(np.arange(ENVS) < 4, TIME)
    assert np.array_equal(first.own, mine.astype(float))
    assert not np.any(np.asarray(first.samples.modified_advantage)[~mine])
    assert np.array_equal(first.samples.modified_advantage, second.samples.modified_advantage)
    assert np.array_equal(first.by_term.true, second.by_term.true)

    def control(reward):
        return ravel(lower.learn_control(groups, batch(reward), jnp.zeros(()), jax.random.key(1)).policy)

    assert not np.array_equal(control(reward), control(changed))
    other = reward.copy()
    other[:, :4] += np.random.default_rng(3).normal(size=(TIME, 4))
    assert np.array_equal(control(reward), control(other))


def test_the_control_group_stands_still_once_it_is_decided():
    for leader in (TREATED, CONTROL):
        learned = LOWER.learn_control(after(leader), batch(np.ones((TIME, ENVS))), jnp.zeros(()), jax.random.key(1))
        assert np.array_equal(ravel(learned.policy), ravel(start().control.policy))


def test_both_groups_settle_alike():
    """At the end of a run, no policy moves: a comparison that comes so late is between equals."""
    settles = replace(CONFIG, target_kl=100.0)
    lower = ControlGroup(replace(LOWER.treated, config=settles), replace(LOWER.control, config=settles))
    groups, reward = lower.init(jax.random.key(0), WEIGHTS, None), np.random.default_rng(2).normal(size=(TIME, ENVS))
    before, key = ravel(groups.control.policy), jax.random.key(1)
    for progress, moves in ((0.5, True), (1.0, False)):
        learned = lower.learn_control(groups, batch(reward), jnp.asarray(progress), key)
        assert np.array_equal(ravel(learned.policy), before) != moves


@pytest.mark.parametrize(
    ("returns", "progress", "leader"),
    [
        ((1.0, 0.0), 0.0, TREATED),  # the terms may win at any time
        ((0.0, 1.0), 0.0, UNDECIDED),  # but lose only when they have had time to pay
        ((0.0, 1.0), MAY_LOSE, CONTROL),
        ((0.5, 0.5), MAY_LOSE, UNDECIDED),
    ],
)
def test_training_goes_on_with_the_better_policy(returns, progress, leader):
    groups = start()
    for _ in range(3):
        groups, log = decide(groups, of_groups(*returns), progress)
    assert int(groups.leader) == leader
    winner = start().control if int(groups.leader) == CONTROL else start().treated
    assert np.allclose(ravel(groups.treated.policy), ravel(winner.policy))
    assert np.allclose(ravel(groups.treated.critics[-1]), ravel(winner.critics[-1]))
    assert float(log["leader"]) == int(groups.leader)


def test_what_is_decided_stays_decided():
    groups, _ = decide(start(), of_groups(1.0, 0.0), 0.5)
    later, _ = decide(groups, of_groups(0.0, 1.0), 0.6)
    assert int(groups.leader) == int(later.leader) == TREATED
    assert np.allclose(groups.returns.mean, later.returns.mean)


def test_the_trial_begins_when_the_true_reward_first_varies():
    worse = of_groups(0.0, 1.0)
    groups, _ = decide(start(), worse, 0.5, silent=True)
    assert int(groups.leader) == UNDECIDED
    groups, _ = decide(groups, worse, 0.5 + MAY_LOSE / 2)
    assert int(groups.leader) == UNDECIDED
    groups, _ = decide(groups, worse, 0.5 + MAY_LOSE)
    assert int(groups.leader) == CONTROL


def test_before_anything_is_learned_the_terms_have_to_be_ahead():
    even = of_groups(0.5, 0.5)
    groups, _ = decide(start(), even, MAY_LOSE)
    assert int(groups.leader) == UNDECIDED
    assert int(decide(groups, even, DECISION)[0].leader) == CONTROL
    assert int(decide(groups, of_groups(0.6, 0.5), DECISION)[0].leader) == TREATED


def test_once_something_is_learned_the_terms_have_to_be_level():
    groups, _ = decide(start(), of_groups(0.5, 0.5), MAY_LOSE)
    groups, log = decide(groups, of_groups(0.98, 0.9), DECISION)
    assert 0 < float(log["lead_t"]) < AHEAD
    assert int(groups.leader) == TREATED


def test_without_episodes_the_terms_lose_after_half_of_the_run():
    without = batch(np.ones((TIME, ENVS)))
    assert int(decide(start(), without, LATEST - 0.01)[0].leader) == UNDECIDED
    assert int(decide(start(), without, LATEST)[0].leader) == CONTROL


def test_episodes_that_come_seldom_are_counted_for_good():
    done = np.zeros((TIME, ENVS), bool)
    done[0, [0, -1]] = True
    groups = start()
    for i in range(40):  # one per group in every eighth round
        groups, _ = decide(groups, batch(np.ones((TIME, ENVS)), done if i % 8 == 0 else None), 0.0)
    assert np.all(np.asarray(groups.returns.episodes) < 5)
    assert int(decide(groups, batch(np.ones((TIME, ENVS))), DECISION)[0].leader) != UNDECIDED


def test_few_episodes_that_vary_much_against_many_that_vary_little_decide_nothing():
    """Means are equal: with the errors of the groups mixed up, more than half of these would be decided."""
    rng, found = np.random.default_rng(0), []
    ended = np.stack([np.arange(44) < 4, np.arange(44) >= 4], axis=-1)[None]
    for _ in range(40):
        returns = Returns.none(2)
        for _ in range(20):
            drawn = np.where(np.arange(44) < 4, rng.normal(scale=10, size=44), rng.normal(size=44))
            returns = returns.update(jnp.asarray(drawn[None]), jnp.asarray(ended))
            found.append(abs(float(returns.of(0).above(returns.of(1)))))
    assert np.mean(np.array(found) > 3) < 0.05


def test_a_small_spread_around_large_returns_is_measured():
    drawn = 1000 + 0.3 * np.random.default_rng(0).normal(size=(60, 2))
    returns = Returns.none(2)
    for pair in drawn:
        returns = returns.update(jnp.asarray(pair[None], jnp.float32), jnp.eye(2, dtype=bool)[None])
    weights = 0.95 ** np.arange(59, -1, -1)
    mean = weights @ drawn / weights.sum()
    assert np.allclose(returns.mean, mean, atol=1e-2)
    assert np.allclose(np.sqrt(returns.var), np.sqrt(weights @ (drawn - mean) ** 2 / weights.sum()), rtol=0.02)


def test_who_is_given_a_policy_is_told_that_there_is_a_reward():
    groups = start()
    seen = groups.control.scales._replace(low=jnp.zeros(1), high=jnp.ones(1))
    nothing = groups.treated.scales._replace(low=jnp.zeros(3), high=jnp.zeros(3))
    given = give_policy(groups.control._replace(scales=seen), groups.treated._replace(scales=nothing)).scales
    assert np.array_equal(given.never_seen, [True, True, False])


def test_returns_that_differ_by_rounding_alone_are_equal():
    returns = Returns(jnp.full(2, 50.0), jnp.asarray([-200.0, -200.0001]), jnp.zeros(2), jnp.full(2, 50.0))
    assert float(returns.of(0).above(returns.of(1))) == 0.0


def test_returns_fade_and_are_compared_in_standard_errors():
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(50, 2)) + np.array([1.0, 0.0])
    ended = jnp.broadcast_to(jnp.eye(2, dtype=bool), (50, 2, 2))
    returns = Returns.none(2).update(jnp.asarray(drawn), ended)
    mean, var = drawn.mean(axis=0), drawn.var(axis=0)
    assert np.allclose(returns.mean, mean, rtol=1e-5)
    assert np.allclose(returns.var, var, rtol=1e-4)
    assert float(returns.of(0).above(returns.of(1))) == pytest.approx(
        (mean[0] - mean[1]) / np.sqrt(var.mean() * 2 / 50), rel=1e-4
    )
