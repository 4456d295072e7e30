"""The evidence for a term is made of true gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.nets.mlp import ravel
from bipars.upper.trust import part_gradients, pieces
from problems import assert_same, make_problem


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("continuous", [False, True])
def test_part_gradients_are_those_of_both_signals_part_by_part(continuous):
    problem = make_problem(continuous, 2, "state-action")
    samples, (time, envs) = problem.samples(), problem.reward.shape
    weighted = jnp.sin(jnp.arange(samples.log_prob.size, dtype=jnp.float64)) + 3
    signals = jnp.stack([samples.true_advantage, weighted], axis=-1)
    count = pieces(time, envs)
    v, w = part_gradients(problem.policy, samples, signals, envs, jnp.arange(envs * count))
    some = jnp.array([2, 1, 7])
    assert_same(part_gradients(problem.policy, samples, signals, envs, some), (v[some], w[some]))
    length = time // count
    assert len(v) >= 16
    assert time - count * length < count

    def brute_force(env, piece, signal):
        rows = np.arange(piece * length, (piece + 1) * length) * envs + env
        part = jax.tree.map(lambda x: x[rows], samples._replace(advantage_jacobian=None))
        log_prob = lambda theta: theta.log_prob(part.obs, part.action)  # noqa: E731
        return ravel(jax.grad(lambda theta: jnp.mean(log_prob(theta) * signal[rows]))(problem.policy))

    for i, (env, piece) in enumerate(itertools.product(range(envs), range(count))):
        assert_same(v[i], brute_force(env, piece, samples.true_advantage))
        assert_same(w[i], brute_force(env, piece, weighted))
