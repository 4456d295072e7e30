"""Defaults that follow the environment, the MuJoCo settings of the paper, and RCPO by hand."""

from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bipars
from bipars.envs.registry import find_family
from bipars.errors import UsageError
from bipars.methods import find_method
from bipars.nets.spaces import BoxActions, Spaces
from bipars.nets.weights import Range, ScalarWeights
from bipars.program import build, complete, configure, preset
from bipars.resolve import resolve
from bipars.settings.config import Config, PPOConfig, UpperConfig, WeightConfig
from bipars.terms.builtin import make_term, task_term
from bipars.upper.rcpo import Multiplier

HOPPER = Spaces(11, BoxActions(3))


def test_mujoco_tasks_have_the_papers_settings():
    w = {"Swimmer-v5": 20, "Hopper-v5": 16, "Humanoid-v5": 20, "Walker2d-v5": 10, "HalfCheetah-v5": 100}
    assert {task: find_family(task).term_scales["torque"] for task in w} == w
    rates = {}
    for method in ("em", "mgl", "imgl"):
        config = resolve(
            configure({"env": "Hopper-v5", "preset": "paper", "method": method, "terms": ["torque:16"]}), HOPPER
        )
        rates[method] = config.weights.learning_rate
        assert config.ppo.policy_hidden == config.ppo.value_hidden == (64, 64, 64)
        assert (config.ppo.clip, config.ppo.max_grad_norm, config.ppo.gamma) == (0.2, 1.0, 0.999)
        assert (config.weights.low, config.weights.high, config.weights.initial) == (-1.0, 1.0, 1.0)
        assert config.weights.max_grad_norm == 10.0
        assert not config.upper.control_group
    assert rates == {"em": 5e-4, "mgl": 1e-3, "imgl": 1e-3}
    assert preset("Walker2d-v5", name="paper").steps == 4_800_000
    humanoid = preset("Humanoid-v5", "imgl", "paper")
    assert (humanoid.ppo.policy_hidden, humanoid.upper.second_order) == ((32, 32), "none")


def test_one_step_of_phi_per_round_goes_as_far_as_one_per_step_of_theta():
    by_round = {"env": "cartpole", "preset": "paper", "terms": ["harmful"], "upper": {"sampling": "round"}}
    assert complete(configure(by_round)).weights.learning_rate == pytest.approx(50 * 5e-4)
    given = by_round | {"weights": {"learning_rate": 1e-3}}
    assert complete(configure(given)).weights.learning_rate == 1e-3


def test_what_is_given_goes_before_the_preset():
    config = configure({"env": "Pendulum-v1", "ppo": {"gamma": 0.5}})
    assert config.ppo.gamma == 0.5
    assert config.ppo.policy_hidden == (64, 64)
    assert configure(config.to_dict()) == config
    assert configure({}) == preset("cartpole")


@pytest.mark.parametrize("method", ["ppo", "mgl", "ddpg-mgl"])
def test_every_environment_starts_from_the_same_settings(method):
    first = preset("cartpole", method)
    for env in ("cartpole-continuous", "Pendulum-v1", "Hopper-v5", "Humanoid-v5", "MyOwn-v0"):
        assert replace(preset(env, method), env="cartpole") == first
    assert first.preset == "default"


def test_the_papers_settings_are_for_its_tasks():
    assert preset("cartpole", name="paper") == replace(Config(), preset="paper", env="cartpole")
    with pytest.raises(
        UsageError, match=r"preset 'paper' has no settings for 'Pendulum-v1', but for .*Hopper-v5.*cartpole"
    ):
        preset("Pendulum-v1", name="paper")
    with pytest.raises(UsageError, match="unknown preset 'papre'.*'paper'"):
        preset("cartpole", name="papre")
    assert complete(configure({"env": "cartpole", "preset": "paper", "terms": ["harmful"]})).preset == "paper"


def test_the_torque_term_takes_the_tasks_w():
    assert task_term("torque", "Hopper-v5") == "torque:16"
    assert task_term("torque:3", "Hopper-v5") == "torque:3"
    assert task_term("torque", "Pendulum-v1") == "torque"
    action = np.array([[0.5, -0.5, 0.2], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(make_term("torque:16").fn(None, action, None, {}), [16 * (0.25 - 0.4), 4.0])
    np.testing.assert_allclose(make_term("torque:16").as_cost().fn(None, action, None, {}), [-0.4, 0.0])
    with pytest.raises(UsageError, match="w is -1.0; it must be a positive number"):
        make_term("torque:-1")
    with pytest.raises(UsageError, match="measures torque; the actions of this environment are discrete"):
        bipars.BiPaRS("CartPole-v1", terms=["torque"])


def test_rcpo_raises_its_multiplier_above_the_limit_and_keeps_it_above_zero():
    weights = ScalarWeights(jnp.zeros(1), Range(0.0, None, None))
    rule = Multiplier(None, limit=0.25, rate=0.1, decay=0.5, highest=0.03)
    costly, cheap = -0.45 * jnp.ones((4, 2, 1)), jnp.zeros((4, 2, 1))
    up = rule.step(weights, costly, jnp.asarray(0))
    np.testing.assert_allclose(up.value, 0.1 * (0.45 - 0.25), rtol=1e-6)
    later = rule.step(up, costly, jnp.asarray(1))
    np.testing.assert_allclose(later.value, 0.02 + 0.05 * 0.2, rtol=1e-6)
    np.testing.assert_allclose(rule.step(later, costly, jnp.asarray(0)).value, 0.03, rtol=1e-6)
    np.testing.assert_allclose(rule.step(up, cheap, jnp.asarray(0)).value, 0.0, atol=0)
    found = find_method("rcpo").upper(Config(), None)
    assert (found.limit, found.rate, found.decay, found.highest) == (0.25, 5e-5, 1 - 1e-9, 1e4)


def test_rcpo_trains_on_the_cost(monkeypatch):
    ppo = {"num_envs": 2, "update_period": 64, "gradient_steps": 2, "batch_size": 32}
    agent = bipars.BiPaRS("Pendulum-v1", terms=["torque"], method="rcpo", ppo=ppo, evaluation_episodes=1)
    agent.learn(128)
    row = agent.metrics[-1]
    assert row["weight/torque"] > 0  # lambda left zero: random actions cost more than 0.25
    assert agent.config.weights.high is None


@pytest.mark.parametrize("env", ["cartpole-continuous", "Pendulum-v1", "HalfCheetah-v5"])
def test_deterministic_methods_penalise_noise_unless_they_look_back_to_the_start(env):
    assert preset(env, "ddpg-mgl").ddpg_upper.size_penalty == 4
    assert preset(env, "ddpg-imgl").ddpg_upper.size_penalty == 0


OTHER_VALUES = {
    "sampling": "round", "second_order": "exact", "unroll": 2, "horizon": "gamma-lambda",
    "follow_weights": False, "control_group": True,
}  # fmt: skip


@pytest.mark.parametrize("method", ["ppo", "em", "mgl", "imgl", "unrolled"])
def test_a_method_has_no_use_for_settings_that_leave_its_program_as_it_is(method):
    """And for none that change it."""
    small = PPOConfig(update_period=40, num_envs=2, gradient_steps=2, batch_size=8, policy_hidden=(2,))

    def program(**settings):
        weights = WeightConfig(hidden=(2,))
        config = Config(
            method=method, terms=("noise",), ppo=small, weights=weights, upper=replace(UpperConfig(), **settings)
        )
        loop = build(complete(config)).algorithm
        return jax.jit(loop.iterate).lower(jax.eval_shape(loop.init, jnp.uint32(0)), jnp.uint32(0)).as_text()

    usual = program()
    idle = {name: value for name, value in OTHER_VALUES.items() if name not in find_method(method).settings}
    if method == "unrolled":
        del idle["sampling"]  # refused with a reason of its own
    assert program(**idle) == usual
    assert set(OTHER_VALUES) == {part.name for part in fields(UpperConfig)}
    for name, value in OTHER_VALUES.items():
        if name in find_method(method).settings:
            assert program(**{name: value}) != usual, name
