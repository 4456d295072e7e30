"""The same estimators against finite differences of the exact true return on a small tabular MDP.

Three steps, two states, two actions. Under the uniform policy every action sequence is equally likely, so a batch that
holds each of the 2 x 8 episodes once is the exact expectation, and no sampling error stands in the way.
"""

import jax
import jax.numpy as jnp
import pytest

from bipars.lower.base import LowerStep
from bipars.nets.mlp import count_parameters, ravel
from bipars.objective import ClippedObjective, Samples, surrogate, surrogate_gradient
from bipars.upper.imgl import IncrementalMetaGradient
from bipars.upper.mgl import advantage_jacobian, pull_back
from bipars.upper.schedule import Pending
from problems import assert_same
from tabular import HORIZON, TERM, TRUE, TableWeights, every_episode, exact_return, seen, table_policy

pytestmark = pytest.mark.usefixtures("float64")

ALPHA = 0.3
CLIPPED = ClippedObjective(0.2)


def make_samples(policy, weights):
    obs, action, reward, term = every_episode()
    obs = seen(obs[..., 0], obs[..., 1])
    done = jnp.zeros(action.shape, bool).at[-1].set(True)

    def returns(r):
        return jnp.cumsum(r[::-1], axis=0)[::-1].reshape(-1)

    modified = reward + weights(obs, action)[..., 0] * term
    flat = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
    log_prob = policy.log_prob(flat(obs), flat(action))
    samples = Samples(flat(obs), flat(action), log_prob, returns(modified), returns(reward))
    data = Pending(policy, samples, term[..., None], done, jnp.ones(()), jnp.ones((), bool))
    return samples._replace(advantage_jacobian=advantage_jacobian(weights, data, 1.0))


@pytest.fixture
def problem():
    policy = table_policy()
    weights = TableWeights(jnp.array([[1.0, 0.5], [-0.3, 0.8]]))
    return policy, weights, make_samples(policy, weights)


def finite_differences(function, weights, eps=1e-5):
    slopes = []
    for i in range(weights.table.size):
        bump = jnp.zeros(weights.table.size).at[i].set(eps).reshape(weights.table.shape)
        up, down = TableWeights(weights.table + bump), TableWeights(weights.table - bump)
        slopes.append((function(up) - function(down)) / (2 * eps))
    return jnp.array(slopes)


def policy_step(policy, samples, size):
    """The mean is over samples; an episode has HORIZON of them."""
    gradient = jax.grad(surrogate)(policy, samples, samples.modified_advantage, CLIPPED)
    return jax.tree.map(lambda p, g: p + size * g, policy, gradient)


def test_true_gradient_is_the_policy_gradient_of_the_exact_return(problem):
    policy, _, samples = problem
    expected = jax.grad(lambda p: exact_return(p, TRUE))(policy)
    assert_same(
        jax.tree.map(lambda x: HORIZON * x, surrogate_gradient(policy, samples, samples.true_advantage, CLIPPED)),
        expected,
    )


def test_lower_step_climbs_the_exact_modified_return(problem):
    policy, weights, samples = problem
    expected = jax.grad(lambda p: exact_return(p, TRUE + weights.table * TERM))(policy)
    found = jax.grad(surrogate)(policy, samples, samples.modified_advantage, CLIPPED)
    assert_same(jax.tree.map(lambda x: HORIZON * x, found), expected)


def test_mgl_is_the_slope_of_the_true_return_after_one_step(problem):
    policy, weights, samples = problem

    def after(w):
        step = jax.grad(lambda p: exact_return(p, TRUE + w.table * TERM))(policy)
        return jax.tree.map(lambda p, g: p + ALPHA * g, policy, step)

    v = jax.grad(lambda p: exact_return(p, TRUE))(after(weights))
    found = ALPHA * HORIZON * pull_back(v, LowerStep(policy, samples), CLIPPED)
    assert_same(found, finite_differences(lambda w: exact_return(after(w), TRUE), weights), 1e-7)


def test_exact_imgl_is_the_slope_of_the_true_return_after_three_steps(problem):
    """The steps are real ones on a fixed batch; only the last return is exact."""
    policy, weights, samples = problem

    def train(w):
        p, fixed = policy, make_samples(policy, w)
        for _ in range(3):
            p = policy_step(p, fixed, ALPHA)
        return p

    estimator = IncrementalMetaGradient(CLIPPED, ALPHA, "exact")
    h, p = jnp.zeros((count_parameters(policy), weights.table.size)), policy
    for _ in range(3):
        h = estimator.follow(h, LowerStep(p, samples))
        p = policy_step(p, samples, ALPHA)
    v = ravel(jax.grad(lambda q: exact_return(q, TRUE))(p))
    assert_same(v @ h, finite_differences(lambda w: exact_return(train(w), TRUE), weights), 1e-6)
