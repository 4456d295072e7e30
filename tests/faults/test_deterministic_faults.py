"""Settings of deterministic methods that cannot be meant."""

import pytest

from bipars.errors import UsageError
from bipars.program import complete, configure

BAD = [
    (
        {"env": "cartpole"},
        "needs continuous actions; environment 'cartpole' has 2 discrete ones. Use a method with a stochastic policy",
    ),
    ({"env": "CartPole-v1"}, "needs continuous actions; environment 'CartPole-v1' has 2"),
    ({"terms": ()}, "give at least one term"),
    ({"weights": {"form": "state-action"}}, "weights.form is 'state-action', expected 'state' or 'scalar'"),
    ({"ppo": {"gamma": 0.5}}, "ppo.gamma is 0.5 and has no effect. Use those of ddpg"),
    ({"upper": {"sampling": "round"}}, "upper.sampling is 'round' and has no effect"),
    ({"method": "mgl", "ddpg": {"gamma": 0.5}}, "ddpg.gamma is 0.5 and has no effect. Use those of ppo"),
    ({"ddpg": {"policy_delay": 3}}, "ddpg.gradient_steps is 4; expected a multiple of ddpg.policy_delay"),
    ({"ddpg": {"num_envs": 3}}, "ddpg.update_period is 40; expected a multiple of ddpg.num_envs"),
    ({"ddpg": {"replay_capacity": 10}}, "ddpg.replay_capacity is 10; expected at least ddpg.update_period"),
    ({"steps": 1_000}, "ddpg.warmup_steps is 2000; expected at most the 1000 steps of the run, otherwise"),
    ({"ddpg": {"target_rate": 0.0}}, "ddpg.target_rate is 0.0; expected a number in"),
    ({"ddpg_upper": {"size_penalty": -1.0}}, "ddpg_upper.size_penalty is -1.0; expected a number of at least 0"),
    ({"ddpg_upper": {"second_order": "opg"}}, "ddpg_upper.second_order 'opg'"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_bad_input_is_named_before_training(settings, message):
    given = {"env": "cartpole-continuous", "terms": ("harmful",), "method": "ddpg-mgl"} | settings
    if given["method"].startswith("ddpg"):
        sizes = {"num_envs": 4, "update_period": 40, "gradient_steps": 4}
        given["ddpg"] = sizes | settings.get("ddpg", {})
    with pytest.raises(UsageError) as error:
        complete(configure(given))
    assert message in str(error.value)
