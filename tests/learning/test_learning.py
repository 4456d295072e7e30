"""Small but real training: does each level do what it is for?"""

from dataclasses import replace

import numpy as np
import pytest

import bipars
from bipars.settings.config import DDPGConfig, PPOConfig, WeightConfig
from envs_of_others import Push

pytestmark = pytest.mark.usefixtures("optimised")

FAST = PPOConfig(update_period=10_000, gradient_steps=100, batch_size=512, policy_learning_rate=1e-3)


def test_ppo_learns_to_balance():
    agent = bipars.BiPaRS("cartpole", method="ppo", seed=0, ppo=replace(FAST, value_learning_rate=1e-3))
    agent.learn(300_000)
    assert agent.evaluate()[1] > 150


@pytest.mark.parametrize("method", ["mgl", "imgl", "single"])
def test_a_term_that_is_pure_harm_gets_a_negative_weight(method):
    """By the paper's formula."""
    weights = WeightConfig(learning_rate=1e-2 if method == "single" else 2e-3)
    agent = bipars.BiPaRS("cartpole", terms=["harmful"], method=method, weights=weights, preset="paper")
    agent.learn(500_000)
    assert agent.metrics[-1]["weight/harmful"] < -0.5


@pytest.mark.filterwarnings("ignore:term .* is the opposite of")
def test_with_two_terms_the_harmful_one_ends_below_the_helpful_one():
    """By the paper's formula."""
    terms, weights = ["harmful", "beneficial"], WeightConfig(learning_rate=2e-3)
    agent = bipars.BiPaRS("cartpole", terms=terms, method="mgl", weights=weights, preset="paper")
    agent.learn(400_000)
    assert agent.metrics[-1]["weight/harmful"] < agent.metrics[-1]["weight/beneficial"] - 0.5


def test_em_balances_with_a_beneficial_term():
    """By the paper's formula."""
    agent = bipars.BiPaRS("cartpole", terms=["beneficial"], method="em", seed=0, preset="paper").learn(900_000)
    assert agent.evaluate()[1] > 120
    assert agent.metrics[-1]["weight/beneficial"] > 0.9


def test_hepo_balances_with_a_beneficial_term():
    ppo = replace(FAST, value_learning_rate=1e-3)
    agent = bipars.BiPaRS("cartpole", terms=["beneficial"], method="hepo", seed=0, ppo=ppo).learn(200_000)
    assert agent.evaluate()[1] > 150
    assert 0 < agent.metrics[-1]["weight/beneficial"] <= 1


def test_naive_shaping_with_a_harmful_term_fails():
    agent = bipars.BiPaRS("cartpole", terms=["harmful"], method="ns", ppo=FAST).learn(200_000)
    assert agent.evaluate()[1] < 20


def test_weights_stay_in_their_range_and_can_leave_the_bound_again():
    bounded = WeightConfig(low=-1.0, high=1.0, learning_rate=5e-3)
    agent = bipars.BiPaRS("cartpole", terms=["harmful"], method="mgl", weights=bounded).learn(300_000)
    assert agent.metrics[0]["weight/harmful"] > 0.95
    assert agent.metrics[-1]["weight/harmful"] < 0.5
    for row in agent.metrics:
        assert row["weight_p10/harmful"] >= -1.0
        assert row["weight_p90/harmful"] <= 1.0


def test_ddpg_learns_to_balance_and_mgl_turns_a_harmful_term_down():
    plain = bipars.BiPaRS("cartpole-continuous", method="ddpg", ddpg=DDPGConfig()).learn(30_000)
    assert np.nanmax([row["evaluation_length"] for row in plain.metrics]) > 100
    shaped = bipars.BiPaRS("cartpole-continuous", ["harmful"], "ddpg-mgl", ddpg=DDPGConfig()).learn(30_000)
    assert shaped.metrics[-1]["weight/harmful"] < 0.9


@pytest.mark.filterwarnings("ignore:term .* is the opposite of")
def test_a_helpful_and_a_harmful_term_at_once():
    """One-step episodes whose reward is the action: the answer is known."""
    terms = [
        bipars.RewardTerm("repeats", lambda obs, action, next_obs, info: action[0]),
        bipars.RewardTerm("punishes", lambda obs, action, next_obs, info: -4 * action[0]),
    ]
    agent = bipars.BiPaRS(Push, terms=terms, seed=1, ppo={"update_period": 1024, "gradient_steps": 40})
    agent.learn(32_000)
    row = agent.metrics[-1]
    assert row["weight/punishes"] < row["weight/repeats"] - 0.2
    assert row["evaluation_return"] > 0.5
