"""Weights that step after the policy has taken all steps of a round: when they do, and that it changes nothing."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from bipars.nets.mlp import ravel
from bipars.program import build, complete
from bipars.settings.config import Config, PPOConfig, UpperConfig, WeightConfig
from bipars.upper.schedule import Deferred, Interleaved
from problems import assert_same

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("form", ["state-action", "state"])
@pytest.mark.parametrize("horizon", ["gamma", "gamma-lambda"])
def test_phi_may_step_after_theta_where_advantages_do_not_follow(horizon, form):
    """Two rounds: the same steps as with derivatives of all advantages, one after each of theta's."""
    config = complete(
        Config(
            env="cartpole-continuous",
            terms=("harmful", "beneficial"),
            ppo=PPOConfig(update_period=3 * 104, num_envs=3, gradient_steps=5, batch_size=32),
            weights=WeightConfig(form=form, hidden=(3, 2), low=-1.0, high=1.0, learning_rate=0.02),
            upper=UpperConfig(horizon=horizon),
        )
    )
    deferred = build(config).algorithm
    schedule = deferred.upper
    assert isinstance(schedule, Deferred)
    interleaved = Interleaved(schedule.lower, schedule.estimator, schedule.optimiser, schedule.discount)
    at_once = replace(deferred, upper=interleaved)
    ends = []
    for loop in (deferred, at_once):
        state, iterate = loop.init(jnp.uint32(0)), jax.jit(loop.iterate)
        for _ in range(2):
            state, stats = iterate(state, jnp.uint32(0))
        ends.append((state, stats.log))
    assert jnp.linalg.norm(ravel(ends[0][0].weights) - ravel(deferred.init(jnp.uint32(0)).weights)) > 0.05
    assert_same(ravel(ends[0][0].weights), ravel(ends[1][0].weights), 1e-6)
    assert_same(ends[0][0].learner.policy, ends[1][0].learner.policy, 1e-6)
    assert ends[0][1].keys() == ends[1][1].keys()
    for name, value in ends[0][1].items():
        assert float(value) == pytest.approx(float(ends[1][1][name]), rel=1e-5), name


def test_phi_steps_with_theta_where_minibatches_are_small_beside_their_batch_or_many():
    bounded = Config(terms=("harmful",), weights=WeightConfig(low=-1.0, high=1.0))
    for ppo, defers in (({}, True), ({"batch_size": 512}, False), ({"gradient_steps": 101}, False)):
        upper = build(complete(replace(bounded, ppo=PPOConfig(**ppo)))).algorithm.upper
        assert isinstance(upper, Deferred) == defers
    assert isinstance(build(complete(replace(bounded, method="single"))).algorithm.upper, Interleaved)
