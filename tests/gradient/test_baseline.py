"""The baseline of terms to come: what the state alone tells is taken out, and nothing that an action does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.nets.mlp import make_mlp, ravel
from bipars.objective import discounted_suffix_sums
from bipars.program import build, complete
from bipars.settings.config import Config, PPOConfig, UpperConfig
from bipars.upper.baseline import Baseline, Clock, state_basis, subtract_baseline
from bipars.upper.mgl import advantage_jacobian, advantage_pull_back
from problems import assert_same

pytestmark = pytest.mark.usefixtures("float64")

TIME, ENVS, GAMMA = 200, 4, 0.9
TO_GO = jnp.repeat(jnp.arange(TIME, 0, -1), ENVS)
"""Steps left of a batch without time limits."""


def features_of(obs):
    """As a critic's last layer is given them."""
    return make_mlp(jax.random.key(3), (obs.shape[1], 6, 1), "tanh").inputs(obs)[-1]


def test_what_is_left_is_the_residual_of_ridge_regression():
    obs = jax.random.normal(jax.random.key(0), (TIME * ENVS, 3))
    x = jax.random.normal(jax.random.key(1), (5, TIME * ENVS)) + 3 * obs[:, 0] ** 2
    features = features_of(obs)
    rows = np.vstack([features, GAMMA ** np.asarray(TO_GO)]).T
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    centred = np.asarray(x - x.mean(axis=1, keepdims=True)).T
    # As many more samples as features, in which there was nothing to be seen.
    size = rows.shape[1]
    fit, *_ = np.linalg.lstsq(
        np.vstack([rows, np.sqrt(size) * np.eye(size)]), np.vstack([centred, np.zeros((size, 5))]), rcond=None
    )
    assert_same(subtract_baseline(x, state_basis(features, TO_GO, GAMMA)), (centred - rows @ fit).T, 1e-9)


def test_features_that_say_nothing_do_no_harm():
    """Units that are off, or that say all the same, as young networks have them."""
    one = jax.random.normal(jax.random.key(0), (TIME * ENVS,))
    basis = state_basis(jnp.stack([one, one, jnp.zeros_like(one), jnp.ones_like(one)]), TO_GO, GAMMA)
    assert jnp.isfinite(basis).all()
    assert float(jnp.std(subtract_baseline(one, basis))) < 0.01
    other = jax.random.normal(jax.random.key(1), (TIME * ENVS,))
    assert float(jnp.std(subtract_baseline(other, basis))) == pytest.approx(float(jnp.std(other)), rel=0.02)


def test_a_small_batch_is_not_explained_away():
    noise = jax.random.normal(jax.random.key(0), (100, 64))
    basis = state_basis(jax.random.normal(jax.random.key(1), (64, 64)), jnp.arange(64), GAMMA)
    assert float(jnp.mean(jnp.var(subtract_baseline(noise, basis), axis=1))) > 0.4


@pytest.mark.parametrize("gamma", [GAMMA, 1.0])
@pytest.mark.parametrize("limit", [None, 30])
def test_nothing_is_left_of_a_term_that_is_the_same_everywhere(limit, gamma):
    """Its sum grows smaller towards the end of the batch and of the time, and by nothing that an action does."""
    ages = (np.arange(TIME)[:, None] + [0, 3, 14, 29]) % (limit or 10**6)
    done = jnp.asarray(ages == (limit or 0) - 1)
    clock = Clock(jnp.asarray(ages[0]), jnp.zeros((), int))
    _, to_go = clock.advance(jnp.zeros_like(done), done, jnp.array(False))
    to_come = discounted_suffix_sums(jnp.ones((TIME, ENVS)), done, gamma).reshape(-1)
    obs = jax.random.normal(jax.random.key(0), (TIME * ENVS, 3))
    left = subtract_baseline(to_come, state_basis(features_of(obs), to_go.reshape(-1), gamma))
    assert float(jnp.std(left)) < 0.02 * float(jnp.std(to_come))


def test_the_clock_knows_time_limits_once_it_has_seen_one_and_no_end_that_is_up_to_the_policy():
    terminated = jnp.zeros((6, 3), bool).at[1, 1].set(True)
    done = terminated.at[3, 0].set(True)
    clock = Clock(jnp.array([1, 0, 4]), jnp.zeros((), int))
    clock, to_go = clock.advance(terminated, done, jnp.array(False))
    assert int(clock.limit) == 5  # the first environment's episode was truncated after its fifth step
    np.testing.assert_array_equal(clock.age, [2, 4, 10])
    np.testing.assert_array_equal(to_go[:, 0], [4, 3, 2, 1, 2, 1])
    np.testing.assert_array_equal(to_go[:, 1], [5, 4, 4, 3, 2, 1])  # not 2 at the start, where it will terminate
    np.testing.assert_array_equal(to_go[:, 2], [1] * 6)  # older than the limit seen: it may end any moment
    later, to_go = clock.advance(jnp.zeros_like(done), jnp.zeros_like(done), jnp.array(True))
    assert int(later.limit) == 5  # remembered
    np.testing.assert_array_equal(to_go[:, 0], [5, 4, 3, 2, 1, 1])  # all episodes are new
    fresh, to_go = Clock.started(3).advance(terminated, terminated, jnp.array(False))
    assert int(fresh.limit) == 0
    np.testing.assert_array_equal(to_go, np.repeat(np.arange(6, 0, -1)[:, None], 3, axis=1))


def test_large_numbers_are_centred_in_single_precision():
    with jax.enable_x64(False):
        basis = state_basis(1e5 + jax.random.normal(jax.random.key(0), (4, 800)), TO_GO, GAMMA)
        x = 50 + jax.random.normal(jax.random.key(1), (800,))
        y = jax.random.normal(jax.random.key(2), (800,))
        assert float(jnp.sum(x * subtract_baseline(y, basis))) == pytest.approx(
            float(jnp.sum(subtract_baseline(x, basis) * y)), abs=0.03
        )


def test_the_gradient_stays_where_it_was_on_average_and_scatters_less():
    """A term of which the action makes up little and the state much, over and over with other actions."""
    obs = jax.random.normal(jax.random.key(0), (TIME * ENVS, 2))
    basis = state_basis(features_of(obs), TO_GO, GAMMA)
    state_alone = 4 * jnp.tanh(obs[:, 0]) + obs[:, 1]
    slope = jax.nn.sigmoid(obs[:, 0])

    def gradient(key):
        """Of a Gaussian policy with mean theta . obs, by the score function, with the baseline and without."""
        action = jax.random.normal(key, (len(obs),))
        to_come = state_alone + slope * action
        score = action[:, None] * obs
        return jnp.stack([score.T @ to_come, score.T @ subtract_baseline(to_come, basis)]) / len(obs)

    plain, less_noisy = jnp.moveaxis(jax.vmap(gradient)(jax.random.split(jax.random.key(1), 4000)), 1, 0)
    expected = jnp.mean(slope[:, None] * obs, axis=0)
    assert jnp.all(less_noisy.std(axis=0) < 0.5 * plain.std(axis=0))
    for found in (plain, less_noisy):
        error = found.std(axis=0) / jnp.sqrt(len(found))
        # What is fitted to the samples takes a little of them along; of independent ones, features / samples: 1 %.
        assert jnp.all(jnp.abs(found.mean(axis=0) - expected) < 4 * error + 0.01 * jnp.abs(expected))


def make(method="mgl", **upper):
    return build(
        complete(
            Config(
                env="cartpole-continuous",
                method=method,
                terms=("harmful", "beneficial"),
                ppo=PPOConfig(update_period=4 * 60, num_envs=4, gradient_steps=4, batch_size=32, value_hidden=(5,)),
                upper=UpperConfig(**{"noise_penalty": 1.0, "baseline": True} | upper),
            )
        )
    ).algorithm


def prepared(loop):
    """The state, and what the upper level inside the baseline is given of a batch."""
    state = loop.init(jnp.uint32(0))
    _, batch = loop.sampler.run(loop.acting(state), state.env, jax.random.key(1))
    learner, data = loop.lower.prepare(state.learner, state.weights, batch)
    if isinstance(loop.upper, Baseline):
        ends = batch.terminated, batch.done, batch.restarted
        data = data._replace(basis=loop.upper.basis(state.upper.clock, learner.critics[0], data.samples.obs, ends)[1])
    return state, data


@pytest.mark.parametrize("discount", [0.97, 0.8])
def test_both_ways_to_phis_gradient_have_the_same_baseline(discount):
    """Out of the jacobian of every advantage, or out of the advantages' cotangents."""
    state, data = prepared(make())
    cotangents = jax.random.normal(jax.random.key(0), (3, data.samples.log_prob.size))
    jacobian = advantage_jacobian(state.weights, data, discount)
    found = jax.vmap(ravel)(advantage_pull_back(state.weights, data, discount, cotangents))
    assert_same(found, cotangents @ jacobian)
    bare = advantage_jacobian(state.weights, data._replace(basis=None), discount)
    assert float(jnp.linalg.norm(jacobian)) < 0.9 * float(jnp.linalg.norm(bare))


def test_terms_are_judged_by_what_is_left():
    loop = make(earned_trust=True)
    _, data = prepared(loop)
    trust = loop.upper.upper
    found, bare = trust.signals(data)[:, 1], trust.signals(data._replace(basis=None))[:, 1]
    assert_same(found, subtract_baseline(bare, data.basis))
    assert not np.allclose(found, bare)


def test_the_policy_learns_from_the_same_advantages_as_without():
    _, data = prepared(make())
    _, bare = prepared(make(baseline=False))
    assert bare.basis is None
    assert_same(data.samples.modified_advantage, bare.samples.modified_advantage)
    assert_same(data.samples.true_advantage, bare.samples.true_advantage)


def test_explicit_mapping_has_no_baseline():
    assert not isinstance(make("em").upper, Baseline)
