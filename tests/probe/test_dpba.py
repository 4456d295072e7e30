"""The learned potential of `dpba`: its arithmetic by hand, what it converges to, and its place in a run."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bipars
from bipars.nets.policies import make_policy
from bipars.nets.spaces import BoxActions, DiscreteActions, Spaces
from bipars.program import build, complete, configure
from bipars.rollout.batch import Batch
from bipars.settings.config import Config, DPBAConfig, PPOConfig
from bipars.shaping.dpba import LearnedPotential, make_potential
from bipars.shaping.potential_based import ShapingContext, next_actions
from transitions import ACTIONS, GAMMA, TINY, make_batch


@pytest.mark.parametrize("continuous", [False, True])
def test_the_shaping_of_an_episode_adds_up_to_what_its_first_state_was_worth(continuous):
    """sum gamma^t F = -Phi(s_0, a_0) where the episode terminated, whatever Phi is in between."""
    spaces = Spaces(4, ACTIONS[continuous])
    shaping = LearnedPotential(DPBAConfig(hidden=(5, 4), learning_rate=0.1), replace(TINY, gamma=GAMMA))
    state = shaping.init(jax.random.key(3), spaces)
    policy = make_policy(jax.random.key(1), PPOConfig(), spaces)
    batch = make_batch(continuous)
    key = jax.random.key(2)
    state, advice = shaping.shape(state, batch, ShapingContext(None, policy, None, 0), key)
    potential = np.asarray(state.net(batch.obs, batch.action)[..., 0])
    discount = GAMMA ** np.arange(4)
    assert abs(potential).min() > 1e-3
    np.testing.assert_allclose(discount[:2] @ np.asarray(advice.reward)[:2, 0], -potential[0, 0], rtol=1e-5)
    np.testing.assert_allclose(discount @ np.asarray(advice.reward)[:4, 1], -potential[0, 1], rtol=1e-5)
    # A truncated episode keeps the potential of the state it reached.
    last = state.net(batch.next_obs[2, 2], next_actions(policy, batch, jax.random.split(key)[0])[2, 2])[0]
    expected = -potential[0, 2] + GAMMA**3 * last
    np.testing.assert_allclose(discount[:3] @ np.asarray(advice.reward)[:3, 2], expected, rtol=1e-5)
    assert advice.correction is None


@pytest.mark.parametrize("gae_lambda", [0.0, 0.95])
def test_the_learned_potential_is_the_value_of_minus_f_and_its_differences_are_f(gae_lambda):
    """A corridor of three states that ends after the third; every sequence of two actions, once each."""
    spaces = Spaces(3, DiscreteActions(2))
    config = DPBAConfig(hidden=(16,), learning_rate=3e-3)
    ppo = PPOConfig(gamma=GAMMA, gae_lambda=gae_lambda, gradient_steps=10, batch_size=500)
    shaping = LearnedPotential(config, ppo)
    term = np.array([[0.2, -0.4], [1.0, 0.0], [-0.3, 0.7]])
    action = jnp.array(list(itertools.product([0, 1], repeat=3))).T
    obs = jnp.broadcast_to(jnp.eye(3)[:, None], (3, 8, 3))
    ends = jnp.zeros((3, 8), bool).at[2].set(True)
    terms = jnp.asarray(term)[jnp.arange(3)[:, None], action][..., None]
    zeros = jnp.zeros((3, 8))
    batch = Batch(obs, action, zeros, jnp.roll(obs, -1, axis=0), zeros, ends, ends, terms, jnp.zeros((), bool))
    moment = ShapingContext(None, make_policy(jax.random.key(1), PPOConfig(), spaces), None, 0)

    def update(state, key):
        state, advice = shaping.shape(state, batch, moment, key)
        return state, (state.net(obs, action)[..., 0], advice.reward)

    keys = jax.random.split(jax.random.key(2), 500)
    _, later = jax.lax.scan(update, shaping.init(jax.random.key(0), spaces), keys)
    potential, shaped = (np.asarray(x)[-200:].mean(axis=0) for x in later)  # Adam keeps moving about
    expected = np.zeros((3, 2))  # backwards in time, the two next actions equally likely
    expected[2] = -term[2]
    expected[1] = -term[1] + GAMMA * expected[2].mean()
    expected[0] = -term[0] + GAMMA * expected[1].mean()
    for time, a in itertools.product(range(3), [0, 1]):
        taken = np.asarray(action)[time] == a
        np.testing.assert_allclose(potential[time][taken], expected[time, a], atol=0.02)
        np.testing.assert_allclose(shaped[time][taken].mean(), term[time, a], atol=0.02)


def test_the_network_has_one_output_per_discrete_action():
    for actions, inputs, outputs in ((DiscreteActions(2), 4, 2), (BoxActions(1), 5, 1)):
        net = make_potential(jax.random.key(0), (16, 8), Spaces(4, actions))
        sizes = [layer.weight.shape for layer in net.net.layers]
        assert sizes == [(inputs, 16), (16, 8), (8, outputs)]
        assert net.net.activation == "tanh"


def test_the_papers_two_sizes():
    small, large = (configure({"env": env, "preset": "paper"}).dpba for env in ("cartpole", "Hopper-v5"))
    assert (small.hidden, small.learning_rate, small.max_grad_norm) == ((16, 8), 5e-4, None)
    assert (large.hidden, large.learning_rate, large.max_grad_norm) == ((64, 64), 5e-4, 10.0)


def test_metrics_say_what_the_potential_added():
    agent = bipars.BiPaRS("cartpole", terms=["beneficial"], method="dpba", ppo=replace(TINY, update_period=2000))
    agent.learn(10_000)
    row = agent.metrics[-1]
    assert row["potential_loss"] > 0 > row["potential"]  # the value of a term that is never negative, negated
    assert row["potential_shaping"] != 0
    np.testing.assert_allclose(row["modified_return"], row["true_return"] + row["potential_shaping"], rtol=1e-4)
    assert row["weighted_term/beneficial"] == 0 != row["term/beneficial"]


def test_the_correction_takes_the_potential_out_of_the_advantage_again():
    """With lambda = 1 nothing but the critic's error is left of the shaping, and both critics start equal."""
    ppo = replace(TINY, gae_lambda=1.0, gamma=GAMMA)
    advantages = {}
    for name, dpba in (
        ("plain", DPBAConfig(learning_rate=0.1)),
        ("corrected", DPBAConfig(learning_rate=0.1, correct=True)),
    ):
        config = complete(Config(method="dpba", terms=("harmful",), ppo=ppo, dpba=dpba))
        loop = build(config).algorithm
        state = loop.init(jnp.uint32(0))
        _, batch = loop.sampler.run(loop.acting(state), state.env, jax.random.key(1))
        moment = ShapingContext(loop.sampler, loop.acting(state), None, state.round)
        _, shaping = loop.potential.shape(state.potential, batch, moment, jax.random.key(2))
        terminated = np.asarray(batch.done) & np.asarray(batch.terminated)
        prepare = lambda batch, loop=loop, state=state: loop.lower.prepare(state.learner, state.weights, batch, 0.0)[1]  # noqa: E731
        advantages[name] = prepare(batch._replace(potential=shaping)).samples.modified_advantage
        true = prepare(batch).samples.modified_advantage  # weights are zero
        assert terminated.sum() > 5
    # Rows whose episode terminated inside the batch: their return holds the whole shaping.
    ends = np.flip(np.logical_or.accumulate(np.flip(terminated, 0), 0), 0)
    inside = ends.reshape(-1)

    def correlation(a, b):
        return np.corrcoef(np.asarray(a)[inside], np.asarray(b)[inside])[0, 1]

    assert correlation(advantages["corrected"], true) > 0.999999
    assert correlation(advantages["plain"], true) < 0.99
