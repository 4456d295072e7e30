"""Golden numbers for advantages, ratios and rollouts."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.envs import CartPole
from bipars.envs.base import StepResult
from bipars.lower.advantages import values
from bipars.lower.base import ALONE
from bipars.lower.control import NoUpper
from bipars.lower.ppo import FARTHEST, FINAL, PPO, spread, stay_close
from bipars.nets.mlp import make_mlp, ravel, to_numpy
from bipars.nets.policies import HyperPolicy, NormalisedPolicy, log_prob_of_sample, make_policy
from bipars.nets.running import Scale
from bipars.nets.spaces import DiscreteActions, MultiDiscreteActions, Spaces
from bipars.nets.weights import make_weights, no_weights
from bipars.objective import (
    ClippedObjective,
    Samples,
    discounted_suffix_sums,
    gae,
    mixed_derivatives,
    slopes,
    surrogate,
)
from bipars.rollout import jax_sampler
from bipars.rollout.jax_sampler import JaxSampler
from bipars.settings.config import PPOConfig
from bipars.settings.resolved import ResolvedWeights


def column(*values):
    return jnp.array(values)[:, None]


def test_gae_by_hand():
    # gamma 0.5, lambda 0.5, so gamma*lambda = 0.25. Four steps: the episode is truncated at step 1, terminated at 3.
    reward, value, next_value = column(1.0, 2.0, 3.0, 4.0), column(1.0, 1.0, 1.0, 1.0), column(2.0, 6.0, 2.0, 9.0)
    terminated, done = column(False, False, False, True), column(False, True, False, True)
    # errors: 1 + 1 - 1 = 1;  2 + 3 - 1 = 4 (truncated: bootstraps);  3 + 1 - 1 = 3;  4 + 0 - 1 = 3 (terminated)
    # advantages: 3;  3 + 0.25 * 3 = 3.75;  4 (the sum stops);  1 + 0.25 * 4 = 2
    advantage, target = gae(reward, value, next_value, terminated, done, 0.5, 0.5)
    np.testing.assert_allclose(advantage[:, 0], [2.0, 4.0, 3.75, 3.0])
    np.testing.assert_allclose(target[:, 0], [3.0, 5.0, 4.75, 4.0])


def test_lambda_one_is_the_discounted_return_minus_the_value():
    rng = np.random.default_rng(0)
    reward, value = jnp.asarray(rng.normal(size=(2, 6, 1)))
    next_value = jnp.concatenate([value[1:], jnp.full((1, 1), 2.0)])
    done = jnp.zeros((6, 1), bool)
    advantage, _ = gae(reward, value, next_value, done, done, 0.9, 1.0)
    returns = [sum(0.9**i * float(reward[t + i, 0]) for i in range(6 - t)) + 0.9 ** (6 - t) * 2.0 for t in range(6)]
    np.testing.assert_allclose(advantage[:, 0], np.array(returns) - np.asarray(value)[:, 0], rtol=1e-5)


def test_suffix_sums_restart_after_an_episode_ends_and_keep_further_axes():
    values = jnp.ones((4, 1, 2)) * jnp.array([1.0, 10.0])
    sums = discounted_suffix_sums(values, column(False, True, False, False), 0.5)
    np.testing.assert_allclose(sums[:, 0, 0], [1.5, 1.0, 1.5, 1.0])
    np.testing.assert_allclose(sums[:, 0, 1], [15.0, 10.0, 15.0, 10.0])


class FixedRatio:
    def __init__(self, ratio):
        self.ratio = jnp.asarray(ratio)

    def log_prob(self, obs, action):
        return jnp.log(self.ratio)


@pytest.mark.parametrize("ends", [0, 3, 30])
def test_values_of_states_reached_are_those_of_the_critic_however_many_episodes_end(ends):
    rng = np.random.default_rng(0)
    critic = make_mlp(jax.random.key(0), (3, 8, 1), "relu")
    obs = rng.normal(size=(20, 2, 3)).astype(np.float32)
    next_obs, done = np.roll(obs, -1, axis=0), np.zeros((20, 2), bool)
    done.flat[rng.choice(38, ends, replace=False)] = True
    unlike = done | (np.arange(20) == 19)[:, None]
    next_obs[unlike] = rng.normal(size=(unlike.sum(), 3))
    value, next_value = jax.jit(values)((critic,), *map(jnp.asarray, (obs, next_obs, done)))
    np.testing.assert_allclose(value, critic(jnp.asarray(obs)), rtol=1e-5)
    np.testing.assert_allclose(next_value, critic(jnp.asarray(next_obs)), rtol=1e-5)


def test_clipped_surrogate_by_hand():
    samples = Samples(jnp.zeros((4, 1)), jnp.zeros(4), jnp.zeros(4), jnp.zeros(4))
    ratio, advantage = jnp.array([2.0, 0.5, 2.0, 0.5]), jnp.array([1.0, 1.0, -1.0, -1.0])
    # min(2, 1.2); min(0.5, 0.8); min(-2, -1.2); min(-0.5, -0.8)
    clipped = ClippedObjective(0.2)
    assert float(surrogate(FixedRatio(ratio), samples, advantage, clipped)) == pytest.approx(
        (1.2 + 0.5 - 2.0 - 0.8) / 4
    )
    # d(rho A)/d log rho = rho A, and its derivative in A is rho; beyond the clip, on the side that A favours, nothing.
    np.testing.assert_allclose(slopes(clipped, jnp.log(ratio), advantage), [0, 0.5, -2.0, 0])
    np.testing.assert_allclose(mixed_derivatives(clipped, jnp.log(ratio), advantage), [0, 0.5, 2.0, 0])


@pytest.mark.parametrize("continuous", [False, True])
def test_log_probabilities_are_those_of_a_distribution(continuous):
    policy = make_policy(jax.random.key(0), PPOConfig(), CartPole(continuous=continuous))
    obs = jnp.ones(4)
    if continuous:
        grid = jnp.linspace(-8, 8, 4001)[:, None]
        density = jnp.exp(policy.log_prob(jnp.broadcast_to(obs, (4001, 4)), grid))
        assert float(density.sum() * 16 / 4000) == pytest.approx(1.0, abs=1e-4)
    else:
        assert float(sum(jnp.exp(policy.log_prob(obs, jnp.array(a))) for a in (0, 1))) == pytest.approx(1.0, abs=1e-6)
    many = jnp.broadcast_to(obs, (20_000, 4))
    drawn = policy.sample(many, policy.draw_noise(jax.random.key(1), (20_000,)))
    if continuous:
        assert float(drawn.std()) == pytest.approx(0.6, rel=0.02)
        assert float(drawn.mean()) == pytest.approx(float(policy.mode(obs)[0]), abs=0.02)
    else:
        assert float(drawn.mean()) == pytest.approx(float(jnp.exp(policy.log_prob(obs, jnp.array(1)))), abs=0.02)


def test_several_choices_at_once_are_independent_heads():
    """log pi is the sum of the choices' own, and all combinations together have probability one."""
    env = Spaces(4, MultiDiscreteActions((3, 2, 2)))
    policy = make_policy(jax.random.key(0), PPOConfig(), env)
    obs = jax.random.normal(jax.random.key(1), (4,))
    every = jnp.array(list(itertools.product(range(3), range(2), range(2))))
    many = jnp.broadcast_to(obs, (len(every), 4))
    probability = jnp.exp(policy.log_prob(many, every))
    assert float(probability.sum()) == pytest.approx(1.0, abs=1e-6)
    logits = policy.net(obs)
    heads = [jax.nn.softmax(logits[:3]), jax.nn.softmax(logits[3:5]), jax.nn.softmax(logits[5:])]
    expected = [float(heads[0][a] * heads[1][b] * heads[2][c]) for a, b, c in every.tolist()]
    np.testing.assert_allclose(probability, expected, rtol=1e-5)
    np.testing.assert_array_equal(policy.mode(obs), [int(head.argmax()) for head in heads])
    entropy = -sum(p * np.log(p) for p in expected)
    assert float(policy.spread(many)["entropy"]) == pytest.approx(entropy, rel=1e-5)
    drawn = policy.sample(jnp.broadcast_to(obs, (20_000, 4)), policy.draw_noise(jax.random.key(2), (20_000,)))
    for choice, head in enumerate(heads):
        np.testing.assert_allclose(np.bincount(drawn[:, choice]) / 20_000, head, atol=0.02)


def test_several_choices_in_numpy_are_those_in_jax():
    env = Spaces(4, MultiDiscreteActions((5, 2, 2, 3)))
    policy = make_policy(jax.random.key(0), PPOConfig(), env)
    obs, noise = jax.random.normal(jax.random.key(1), (9, 4)), policy.draw_noise(jax.random.key(2), (9,))
    acting = to_numpy(policy)
    np.testing.assert_array_equal(acting.sample(np.asarray(obs), np.asarray(noise)), policy.sample(obs, noise))
    np.testing.assert_array_equal(acting.mode(np.asarray(obs)), policy.mode(obs))
    weights = make_weights(jax.random.key(3), ResolvedWeights(form="state-action", hidden=(4,)), env, 2)
    action = policy.sample(obs, noise)
    inputs = weights.inputs(obs, action)
    assert inputs.shape == (9, 4 + 12)
    np.testing.assert_array_equal(inputs[:, 4:].sum(axis=-1), 4)
    np.testing.assert_array_equal(inputs[0, 4:].nonzero()[0], action[0] + jnp.array([0, 5, 7, 9]))
    np.testing.assert_allclose(to_numpy(weights)(np.asarray(obs), np.asarray(action)), weights(obs, action), rtol=1e-5)


@pytest.mark.parametrize("continuous", [False, True])
def test_the_noise_of_a_sample_tells_its_log_probability(continuous):
    env = CartPole(continuous=continuous)
    weights = make_weights(jax.random.key(0), ResolvedWeights(form="state"), env, 1)
    policy = HyperPolicy(make_policy(jax.random.key(1), PPOConfig(initial_std=0.3), env, extra_inputs=1), weights)
    policy = NormalisedPolicy(policy, Scale(jnp.full(4, 0.5), jnp.full(4, 2.0)))
    obs, noise = jax.random.normal(jax.random.key(2), (9, 4)), policy.draw_noise(jax.random.key(3), (9,))
    action = policy.sample(obs, noise)
    found = log_prob_of_sample(policy, obs, action, noise)
    np.testing.assert_allclose(found, policy.log_prob(obs, action), atol=1e-5)


def test_rollout_chains_states_and_tells_termination_from_truncation():
    env = CartPole(max_steps=15)
    policy = make_policy(jax.random.key(0), PPOConfig(), env)
    sampler = JaxSampler(env, (), num_envs=8, steps=100, episodes=1)
    end, batch = sampler.run(policy, sampler.reset(jax.random.key(1)), jax.random.key(2))
    done = np.asarray(batch.done)
    same = np.isclose(batch.next_obs[:-1], batch.obs[1:]).all(-1)
    np.testing.assert_array_equal(same, ~done[:-1])
    assert (np.abs(np.asarray(batch.obs[1:])[done[:-1]]) <= 0.05).all()
    truncated = done & ~np.asarray(batch.terminated)
    assert truncated.any()
    assert np.asarray(batch.terminated).any()
    np.testing.assert_array_equal(batch.reward, np.where(batch.terminated, -1.0, 0.0))
    lengths = np.diff(np.flatnonzero(np.concatenate([[True], done[:, 0]])))
    assert lengths.max() <= 15
    np.testing.assert_allclose(batch.log_prob, policy.log_prob(batch.obs, batch.action), atol=1e-6)
    assert end.time.shape == (8,)


class AlwaysRight:
    def mode(self, obs):
        return jnp.ones(obs.shape[:-1], jnp.int32)


def test_evaluation_counts_the_steps_until_each_pole_falls():
    env = CartPole()
    result = JaxSampler(env, (), 1, 1, episodes=20).evaluate(AlwaysRight(), jax.random.key(0))
    reset_key, unused = jax.random.split(jax.random.key(0))
    expected = []
    for start in jax.vmap(env.reset)(jax.random.split(reset_key, 20)):
        state, steps, fell = start, 0, False
        while not fell and steps < 200:
            state, _, fell, *_ = env.step(unused, state, jnp.array(1))
            steps += 1
        expected.append(steps)
    np.testing.assert_array_equal(result.length, expected)
    np.testing.assert_array_equal(result.true_return, -1.0)
    short = JaxSampler(CartPole(max_steps=5), (), 1, 1, episodes=3)
    assert short.evaluate(AlwaysRight(), jax.random.key(0)).length.tolist() == [5, 5, 5]


class Walk(NamedTuple):
    place: jax.Array
    luck: jax.Array


class RandomWalk:
    """A state of two parts, steps that are drawn, and episodes that are cut off by the environment itself."""

    observation_size, max_steps, actions = 1, 1_000, DiscreteActions(2)

    def reset(self, key):
        return Walk(jnp.zeros(()), jax.random.uniform(key))

    def observe(self, state):
        return state.place[None]

    def step(self, key, state, action):
        place = state.place + jax.random.normal(key) + state.luck
        return StepResult(Walk(place, state.luck), place, place < -2.0, place > 2.0)


def walk(drawn_beforehand, monkeypatch):
    monkeypatch.setattr(jax_sampler, "DRAWN_BEFOREHAND", drawn_beforehand)
    policy = make_policy(jax.random.key(0), PPOConfig(), RandomWalk())
    sampler = JaxSampler(RandomWalk(), (), num_envs=3, steps=50, episodes=2)
    assert np.isfinite(sampler.evaluate(policy, jax.random.key(3)).true_return).all()
    return sampler.run(policy, sampler.reset(jax.random.key(1)), jax.random.key(2))[1]


def test_environments_draw_by_keys_and_may_truncate_episodes_themselves(monkeypatch):
    batch = walk(2**22, monkeypatch)
    reached, done, terminated = (np.asarray(x) for x in (batch.next_obs[..., 0], batch.done, batch.terminated))
    np.testing.assert_array_equal(terminated, reached < -2)
    np.testing.assert_array_equal(done, np.abs(reached) > 2)
    assert (done & ~terminated).any()
    np.testing.assert_array_equal(np.asarray(batch.obs[1:, :, 0])[done[:-1]], 0.0)
    assert len(np.unique(reached)) == 150


def test_large_states_are_drawn_where_an_episode_starts_and_are_the_same(monkeypatch):
    beforehand, when_needed = walk(2**22, monkeypatch), walk(0, monkeypatch)
    np.testing.assert_allclose(beforehand.next_obs, when_needed.next_obs, rtol=1e-6)


def test_a_round_that_moves_the_policy_much_too_far_is_taken_back():
    old = PPO(PPOConfig(policy_hidden=(4,)), Spaces(3, DiscreteActions(2))).init(jax.random.key(0), no_weights(0), None)
    moved = old._replace(policy=jax.tree.map(lambda x: x + 1.0, old.policy))
    near, far = (stay_close(old.policy, moved, jnp.asarray(share * FARTHEST * 0.02), 0.02) for share in (0.9, 1.1))
    assert np.array_equal(ravel(near.policy), ravel(moved.policy))
    assert np.array_equal(ravel(far.policy), ravel(old.policy))
    assert float(far.rate) < float(old.rate)
    assert np.array_equal(ravel(stay_close(old.policy, moved, jnp.asarray(np.nan), 0.02).policy), ravel(old.policy))


@pytest.mark.parametrize("target_kl", [None, 0.02])
def test_steps_shrink_towards_the_end_where_the_step_size_is_adapted(target_kl):
    config = PPOConfig(
        policy_hidden=(4,), value_hidden=(4,), num_envs=4, update_period=40, gradient_steps=2, batch_size=8,
        target_kl=target_kl,
    )  # fmt: skip
    lower = PPO(config, Spaces(4, DiscreteActions(2)))
    nothing, env = no_weights(0), CartPole()
    learner = lower.init(jax.random.key(0), nothing, None)
    sampler = JaxSampler(env, (), 4, 40, episodes=2)
    batch = sampler.run(lower.act(learner, nothing), sampler.reset(jax.random.key(1)), jax.random.key(2))[1]

    def way(progress):
        prepared, data = lower.prepare(learner, nothing, batch, jnp.asarray(progress))
        moved = lower.learn(prepared, NoUpper(nothing), data, jax.random.key(3), ALONE).learner
        return float(jnp.linalg.norm(ravel(moved.policy) - ravel(learner.policy)))

    full, settled, half, last = (way(progress) for progress in (0.0, 1 - FINAL, 1 - FINAL / 2, 1.0))
    assert full == settled > 0
    if target_kl is None:
        assert half == last == full
    else:
        assert 0.4 * full < half < 0.6 * full
        assert last == 0


@pytest.mark.parametrize(("total", "envs"), [(2048, 2), (2048, 8), (8192, 8), (4096, 4), (6144, 6), (40, 2)])
def test_what_is_measured_of_a_batch_is_of_all_environments(total, envs):
    places = spread(total, 1024)
    assert len(places) <= 1024
    assert places.max() < total
    of_each = np.bincount(places % envs, minlength=envs)
    assert of_each.min() > 0.6 * of_each.max()


def test_a_learner_draws_its_own_samples_alone():
    lower = PPO(
        PPOConfig(num_envs=4, update_period=40, gradient_steps=10, batch_size=64), Spaces(2, DiscreteActions(2))
    )
    mine = jnp.tile(jnp.array([0.0, 1.0, 0.0, 0.0]), 10)
    theta, phi = lower.draw(jax.random.key(0), 40, mine, ALONE)
    assert theta.shape == phi.shape == (10, 64)
    assert set(np.asarray(theta).ravel()) == set(np.asarray(phi).ravel()) == set(range(1, 40, 4))
    every, alone = (lower.draw(jax.random.key(0), 40, own, ALONE) for own in (jnp.ones(40), None))
    np.testing.assert_array_equal(every, alone)
