"""The evidence for a term is made of true gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.lower.ppo import probability_ratio
from bipars.nets.mlp import ravel
from bipars.upper.trust import pieces_of, pulls
from problems import assert_same, make_problem


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("continuous", [False, True])
def test_pulls_are_gradients_of_both_returns_part_by_part(continuous):
    problem = make_problem(continuous, 2, "state-action")
    samples, (time, envs) = problem.samples(), problem.reward.shape
    samples = samples._replace(weighted=jnp.sin(jnp.arange(samples.log_prob.size, dtype=jnp.float64)) + 3)
    pieces = pieces_of(time, envs)
    v, w = pulls(problem.policy, samples, envs, jnp.arange(envs * pieces))
    some = jnp.array([2, 1, 7])
    assert_same(pulls(problem.policy, samples, envs, some), (v[some], w[some]))
    length = time // pieces
    assert len(v) >= 16
    assert time - pieces * length < pieces

    def brute_force(env, piece, signal):
        rows = np.arange(piece * length, (piece + 1) * length) * envs + env
        part = jax.tree.map(lambda x: x[rows], samples._replace(credit=None, value_targets=()))
        part = part._replace(log_prob=problem.policy.log_prob(part.obs, part.action))
        return ravel(jax.grad(lambda theta: jnp.mean(probability_ratio(theta, part) * signal[rows]))(problem.policy))

    for i, (env, piece) in enumerate(itertools.product(range(envs), range(pieces))):
        assert_same(v[i], brute_force(env, piece, samples.true_advantage))
        assert_same(w[i], brute_force(env, piece, samples.weighted - samples.weighted.mean()))
