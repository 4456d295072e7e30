"""HEPO's objective, its policies' gradients and its multiplier, against their definitions in float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.lower.base import ALONE
from bipars.lower.ppo import PPO
from bipars.nets.mlp import ravel
from bipars.nets.spaces import BoxActions, Spaces
from bipars.nets.weights import Range, ScalarWeights
from bipars.rollout.batch import Batch
from bipars.settings.config import PPOConfig
from bipars.upper.hepo import ESTIMATES, RATE, ImprovementMultiplier, PolicyPair, combined, improvement

ENVS, TIME, TERMS = 6, 5, 2
CONFIG = PPOConfig(
    policy_hidden=(4,), value_hidden=(4,), num_envs=ENVS, update_period=ENVS * TIME, gradient_steps=2, batch_size=8,
    activation="tanh", normalise_observations=True, normalise_returns=True, gamma=0.9, gae_lambda=0.8,
)  # fmt: skip
LOWER = PolicyPair(PPO(CONFIG, Spaces(3, BoxActions(2)), num_terms=TERMS, learns_weights=True))
RNG = np.random.default_rng(0)


def of_alpha(alpha):
    return ScalarWeights(jnp.full(TERMS, 1 / (1 + alpha) - 1), Range(1.0, None, None))


@pytest.fixture
def pair():
    with jax.enable_x64():
        yield LOWER.init(jax.random.key(0), of_alpha(0.0), None)


def a_batch(pair, seed=0):
    """Actions of both policies, each in its half, with the log probability of the one that acted."""
    rng = np.random.default_rng(seed)
    obs, next_obs = (jnp.asarray(rng.normal(size=(TIME, ENVS, 3))) for _ in range(2))
    policy = LOWER.behaviour(pair, of_alpha(0.0))
    action = policy.sample(obs, policy.draw_noise(jax.random.key(seed), (TIME, ENVS)))
    done = jnp.asarray(rng.random((TIME, ENVS)) < 0.3)
    reward, terms = jnp.asarray(rng.normal(size=(TIME, ENVS))), jnp.asarray(rng.normal(size=(TIME, ENVS, TERMS)))
    log_prob = policy.log_prob(obs, action)
    return Batch(obs, action, log_prob, next_obs, reward, done, done, terms, jnp.zeros((), bool))


def by_hand(learner, batch, reward):
    """A of one reward by its definition: sums of TD errors, episode by episode."""
    which = 0 if reward.ndim == 3 else 1  # terms or the true reward
    values = reward.sum(axis=-1) if reward.ndim == 3 else reward
    totals, running = [], np.zeros(ENVS)
    for now, done in zip(np.asarray(values), np.asarray(batch.done), strict=True):
        running = CONFIG.gamma * running + now
        totals.append(running)
        running = np.where(done, 0.0, running)
    unit = float(learner.scales.returns.update(stacked(batch), batch.done, CONFIG.gamma).std[which])
    np.testing.assert_allclose(unit, np.std(totals), rtol=1e-3)  # fresh statistics are those of the batch
    obs, next_obs = (learner.scales.observations.normalise(x) for x in (batch.obs, batch.next_obs))
    critic = learner.critics[which]
    later = np.where(batch.terminated, 0.0, critic(next_obs)[..., 0])
    error = np.asarray(values) / unit + CONFIG.gamma * later - np.asarray(critic(obs)[..., 0])
    advantage = np.zeros((TIME, ENVS))
    for env, t in itertools.product(range(ENVS), range(TIME)):
        for k in range(t, TIME):
            advantage[t, env] += (CONFIG.gamma * CONFIG.gae_lambda) ** (k - t) * error[k, env]
            if batch.done[k, env]:
                break
    return advantage


def stacked(batch):
    return jnp.stack([batch.terms.sum(axis=-1), batch.reward], axis=-1)


def normalised(x):
    return (x - x.mean()) / x.std()


@pytest.mark.parametrize("alpha", [0.0, 0.7, 3.0])
def test_both_learn_from_all_samples_by_the_advantages_of_who_acted(pair, alpha):
    batch = a_batch(pair)
    _, data = LOWER.prepare(pair, of_alpha(alpha), batch, jnp.zeros(()))
    first = np.arange(ENVS) < ENVS // 2
    heuristic, true = (
        normalised(np.where(first, by_hand(pair.own, batch, reward), by_hand(pair.heuristic, batch, reward)))
        for reward in (batch.terms, batch.reward)
    )
    expected = normalised((1 + alpha) * true + heuristic).reshape(-1)
    np.testing.assert_allclose(data.own.samples.modified_advantage, expected, atol=1e-6)
    np.testing.assert_allclose(data.heuristic.samples.modified_advantage, heuristic.reshape(-1), atol=1e-6)
    np.testing.assert_array_equal(data.own.own.reshape(TIME, ENVS)[0], first)
    np.testing.assert_array_equal(data.heuristic.own.reshape(TIME, ENVS)[0], ~first)


def test_the_policy_climbs_the_clipped_sum_with_ratios_to_who_acted(pair):
    """Gradient and finite differences of mean min(rho U, clip(rho) U), rho = pi / pi_acted, away from the start."""
    batch, alpha = a_batch(pair), 1.5
    _, data = LOWER.prepare(pair, of_alpha(alpha), batch, jnp.zeros(()))
    obs = pair.own.scales.observations.normalise(batch.obs)
    flat, unravel = jax.flatten_util.ravel_pytree(pair.own.policy)
    flat = flat + 0.05 * np.random.default_rng(1).normal(size=flat.shape)
    advantage = data.own.samples.modified_advantage.reshape(TIME, ENVS)

    def objective(theta):
        ratio = jnp.exp(unravel(theta).log_prob(obs, batch.action) - batch.log_prob)
        return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CONFIG.clip, 1 + CONFIG.clip) * advantage).mean()

    found = ravel(LOWER.ppo.modified_gradient(unravel(flat), of_alpha(alpha), data.own.samples))
    np.testing.assert_allclose(found, jax.grad(objective)(flat), atol=1e-10)
    for i in (0, 7, flat.size - 1):
        step = 1e-6 * jnp.eye(flat.size)[i]
        slope = (objective(flat + step) - objective(flat - step)) / 2e-6
        np.testing.assert_allclose(found[i], slope, atol=1e-6)


GAMMA, STATES, ACTIONS = 0.9, 3, 2
MOVES = RNG.dirichlet(np.ones(STATES), size=(STATES, ACTIONS))
REWARD, START = RNG.normal(size=(STATES, ACTIONS)), np.array([0.5, 0.3, 0.2])


def solved(policy):
    """J, A and the discounted visits of states and actions, by linear algebra."""
    chain = np.einsum("sa,sat->st", policy, MOVES)
    value = np.linalg.solve(np.eye(STATES) - GAMMA * chain, (policy * REWARD).sum(axis=1))
    advantage = REWARD + GAMMA * MOVES @ value - value[:, None]
    visits = (1 - GAMMA) * np.linalg.solve(np.eye(STATES) - GAMMA * chain.T, START)
    return START @ value, advantage, visits[:, None] * policy


def test_the_gradient_of_alpha_is_the_difference_of_the_returns():
    """On a table where every expectation is known: E over pi of A^pi_H is (1 - gamma) (J(pi) - J(pi_H))."""
    own, other = (RNG.dirichlet(np.ones(ACTIONS), size=STATES) for _ in range(2))
    (return_own, a_own, visits_own), (return_other, a_other, visits_other) = solved(own), solved(other)
    # One row per state and action, weighed by how often its policy comes there: the mean is the expectation.
    count = STATES * ACTIONS
    columns = [(count * visits * x).reshape(-1) for visits in (visits_own, visits_other) for x in (a_own, a_other)]
    where_own, where_other = np.stack(columns[:2]), np.stack(columns[2:])
    of_own, of_other = (np.stack([where_own[i], where_other[i]], axis=1) for i in range(2))
    with jax.enable_x64():
        gap = float(improvement(jnp.asarray(of_own), jnp.asarray(of_other), jnp.asarray([1.0, 0.0])))
    np.testing.assert_allclose(gap / (1 - GAMMA), return_own - return_other, rtol=1e-10)

    def lagrangian(alpha, heuristic=0.3):
        return (1 + alpha) * return_own + heuristic - alpha * return_other

    np.testing.assert_allclose(jax.grad(lagrangian)(0.4), gap / (1 - GAMMA), rtol=1e-5)


def test_the_multiplier_follows_the_median_and_never_becomes_negative():
    """Against Adam by hand; alpha rises while pi is behind, which makes less of the terms."""
    rule = ImprovementMultiplier(LOWER)
    with jax.enable_x64():
        state = rule.init(of_alpha(0.0), None)
        gaps = [-0.5, -0.2, 5.0, -3.0, -0.1, -0.4, 0.2, -0.3, -0.6, *(0.4,) * 60]
        alpha, mean, square = 0.0, 0.0, 0.0
        for t, gap in enumerate(gaps, 1):
            state = rule.step(state, jnp.asarray(gap))
            slope = np.clip(np.median(gaps[max(0, t - ESTIMATES) : t]), -1, 1)
            mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
            alpha -= RATE * mean / (1 - 0.9**t) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
            alpha = max(alpha, 0.0)
            np.testing.assert_allclose(state.alpha, alpha, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(state.weights(jnp.zeros(3), None), 1 / (1 + alpha), rtol=1e-9)
            if t == 9:
                assert alpha > 0.05
    assert alpha == 0.0


def test_a_round_moves_both_policies_and_leaves_the_agent_to_pi(pair):
    batch = a_batch(pair)
    rule = ImprovementMultiplier(LOWER)
    learner, data = LOWER.prepare(pair, of_alpha(0.0), batch, jnp.zeros(()))
    updated = rule.update(rule.init(of_alpha(0.0), learner), learner, data, jax.random.key(1))
    for before, after in zip(pair, updated.learner, strict=True):
        assert not np.allclose(ravel(before.policy), ravel(after.policy))
    obs = batch.obs.reshape(-1, 3)
    acting = LOWER.act(updated.learner, of_alpha(0.0)).mode(obs)
    np.testing.assert_array_equal(acting, LOWER.ppo.act(updated.learner.own, of_alpha(0.0)).mode(obs))
    alone = LOWER.ppo.learn(learner.own, updated.upper, data.own, jax.random.key(1), ALONE).learner
    np.testing.assert_array_equal(ravel(updated.learner.own.policy), ravel(alone.policy))


def test_a_smaller_weight_of_the_terms_is_a_larger_multiplier():
    true, heuristic = RNG.normal(size=(2, 40))
    for alpha in (0.0, 0.5, 20.0):
        np.testing.assert_allclose(
            normalised(combined(true, heuristic, 1 / (1 + alpha))), normalised((1 + alpha) * true + heuristic)
        )
