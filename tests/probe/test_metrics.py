"""What is logged is declared, and what is declared is logged."""

import pytest

import bipars
from bipars.metrics import METRICS, find_metric

SMALL = {"num_envs": 4, "update_period": 400, "gradient_steps": 4, "batch_size": 32}
PPO = {"ppo": SMALL}
DDPG = {"ddpg": SMALL | {"warmup_steps": 400}}
TRAININGS = [
    ("ppo", "cartpole-continuous", "harmful", PPO),
    ("mgl", "cartpole", "harmful", PPO),
    ("mgl", "cartpole", "harmful", PPO | {"upper": {"sampling": "round"}}),
    ("dpba", "cartpole", "beneficial", PPO),
    ("rcpo", "cartpole-continuous", "torque:1", PPO),
    ("hepo", "cartpole", "harmful", PPO),
    ("ddpg-mgl", "cartpole-continuous", "harmful", DDPG),
]


@pytest.fixture(scope="module")
def logged():
    """The names in every row of three updates, by training."""
    found = []
    for method, env, term, settings in TRAININGS:
        agent = bipars.BiPaRS(env, terms=[term], method=method, evaluation_episodes=1, **settings).learn(1_200)
        assert len(agent.metrics) == 3
        found.append(set().union(*agent.metrics))
    return found


@pytest.mark.parametrize("training", range(len(TRAININGS)), ids=lambda i: f"{TRAININGS[i][0]}-{i}")
def test_every_number_that_is_logged_is_declared(logged, training):
    assert {name for name in logged[training] if find_metric(name) is None} == set()


def test_every_number_that_is_declared_is_logged_by_somebody(logged):
    known = {find_metric(name).name for names in logged for name in names}
    assert {metric.name for metric in METRICS} - known <= {"nonfinite"}  # which only the file of a run has
