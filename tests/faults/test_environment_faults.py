"""What is wrong with a term, a setting or an environment is named: the thing, the step, what was expected."""

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import bipars
from bipars.envs.spaces import action_space, observation_size
from bipars.errors import BiparsError, TermError, UsageError
from envs_of_others import Counter, quick


def raises(*_):
    raise ZeroDivisionError("no")


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (bipars.RewardTerm("wide", lambda obs, action, next_obs, info: obs), r"'wide' returned shape \(2,\).*step 0"),
        (
            bipars.RewardTerm("short", lambda obs, action, next_obs, info: 1.0, vectorised=True),
            r"'short' returned shape \(\) for 1 transitions; return \(1,\)",
        ),
        (
            bipars.RewardTerm("words", lambda *_: "3.5"),
            r"term 'words' returned '3.5' at step 0.*; return a single number",
        ),
        (bipars.RewardTerm("none", lambda *_: None), r"term 'none' returned None at step 0.*; return a single number"),
        (
            bipars.RewardTerm("many words", lambda obs, *_: np.full(len(obs), "x"), vectorised=True),
            r"term 'many words' returned 'x' at step 0 \(environment 0\); return a single number",
        ),
        (
            bipars.RewardTerm("choice", lambda obs, *_: jnp.zeros(()) if jnp.asarray(obs)[1] > 3 else jnp.ones(())),
            r"term 'choice' failed at step 0.*Use jnp.where\(condition, a, b\) instead of if",
        ),
        (bipars.RewardTerm("broken", raises), r"'broken' failed at step 0 \(environment 0\): ZeroDivisionError"),
        (bipars.RewardTerm.from_info("speed"), "'speed': info has no key 'speed'; its keys are .*'time', 'action'"),
        (
            bipars.RewardTerm("asks", lambda obs, action, next_obs, info: info["speed"]),
            "'asks' asked for the key 'speed' at step 0.*info has the keys .*'time'",
        ),
    ],
)
def test_bad_terms_are_named_before_any_training(term, message):
    with pytest.raises(TermError, match=message):
        quick(Counter, [term])


def test_a_term_that_breaks_later_names_its_step():
    def late(obs, action, next_obs, info):
        return "much" if info["time"] == 3 else 0.0

    agent = quick(Counter, [bipars.RewardTerm("late", late)])
    with pytest.raises(TermError, match=r"'late' returned 'much' at step 4 \(environment 0\); return a single number"):
        agent.learn(64)
    with pytest.raises(TermError, match="info of environment 0 has no key 'sometimes'|info has no key 'sometimes'"):
        quick(Counter, [bipars.RewardTerm.from_info("sometimes")])


@pytest.mark.parametrize("vectorised", [False, True])
def test_a_term_cannot_change_what_happened(vectorised):
    def centred(obs, action, next_obs, info):
        next_obs -= 1
        return next_obs[..., 0]

    with pytest.raises(BiparsError, match=r"term 'centred' failed at step 0.*it writes into what it was given"):
        bipars.BiPaRS("Pendulum-v1", terms=[bipars.RewardTerm("centred", centred, vectorised=vectorised)])


def test_a_nan_names_the_term_and_the_step():
    def late(obs, action, next_obs, info):
        return float("nan") if info["time"] == 3 else 0.0

    agent = quick(Counter, [bipars.RewardTerm("late", late)])
    with pytest.raises(BiparsError, match=r"term 'late' is nan at step 4 \(environment 0\)"):
        agent.learn(64)
    assert agent.num_timesteps == 0

    def late_reward(obs, action, next_obs, info):
        return float("nan") if info["time"] == 3 else 1.0

    agent = quick(Counter, true_reward=late_reward)
    with pytest.raises(BiparsError, match=r"the true reward is nan at step 4"):
        agent.learn(64)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "Pendulum-v9"}, "unknown environment 'Pendulum-v9'. Did you mean.*Pendulum-v1"),
        ({"env": "nowhere:Env-v0"}, "module before the colon cannot be imported"),
        ({"env": 3}, "expected an id, a gymnasium.Env, or a function"),
        ({"true_reward": "info:profit"}, "true reward is 'info:profit', but info has no key 'profit'"),
        ({"true_reward": "profit"}, "reward is 'profit'; expected one of env"),
        ({"true_reward": "env-minus-terms"}, "does not contain term 'noise'"),
        ({"terms": ["harmful"]}, "'harmful' is written for cart-pole"),
        ({"terms": ["random"]}, "observations have finite bounds"),
        ({"vector": "threads"}, "unknown vector 'threads'"),
        ({"method": "rcpo"}, r"'rcpo' constrains the torque: give it the one term 'torque', not \['noise'\]"),
        ({"env": "CartPole-v1", "env_options": {"gravity": 3}}, "does not take the options.*gravity"),
        ({"env": "cartpole", "true_reward": "info:x"}, "is 'info:x', but info has no key 'x'; its keys are none"),
    ],
)
def test_bad_settings_are_named_before_any_training(settings, message):
    with pytest.raises(BiparsError, match=message):
        quick(**{"env": Counter} | settings)


class Faulty(Counter):
    """Returns what it should not, at its third step."""

    def __init__(self, obs=None, reward=1.0):
        super().__init__()
        self.fault = obs, reward

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.time == 3:
            obs, reward = (obs if self.fault[0] is None else self.fault[0]), self.fault[1]
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            {"obs": np.zeros(3)},
            r"environment Faulty: step\(\) breaks its observation_space: observation: got shape \(3,\) for Box.*"
            r"expected \(2,\), in the 2 steps from 4 on. Mend the environment",
        ),
        ({"obs": "left"}, "observation is 'left'; expected numbers of Box"),
        ({"reward": "much"}, r"environment Faulty: step\(\) returned the reward 'much'; expected a single number"),
        (
            {"obs": np.array([0.0, np.nan])},
            r"observation\[1\] is nan at step 4 \(environment 0\). Mend the environment",
        ),
    ],
)
def test_an_environment_that_breaks_its_promise_is_named(fault, message):
    agent = quick(lambda: Faulty(**fault))
    with pytest.raises(BiparsError, match=message):
        agent.learn(64)


def test_an_environment_without_observations_or_actions_is_named():
    nothing = gymnasium.spaces.Box(-1, 1, (0,))
    with pytest.raises(UsageError, match="observation space is Box.*holds no number at all"):
        observation_size(nothing)
    with pytest.raises(UsageError, match=r"observation space\['a'\] is Box.*holds no number at all"):
        observation_size(gymnasium.spaces.Dict({"a": nothing}))
    with pytest.raises(UsageError, match="action space is Box.*leaves nothing to choose"):
        action_space(nothing)
    with pytest.raises(UsageError, match="function given as env returned 3; expected a gymnasium.Env"):
        quick(lambda: 3)


def test_a_true_reward_that_is_text_is_named():
    with pytest.raises(
        TermError, match=r"the true reward returned 'much' at step 0 \(environment 0\); return a single"
    ):
        quick(Counter, true_reward=lambda *_: "much")


def test_a_batch_that_failed_is_not_gone_on_from():
    calls = []

    def fails_once(obs, action, next_obs, info):
        calls.append(1)
        if len(calls) == 100:
            raise RuntimeError("once")
        return float(len(calls) % 3)

    agent = quick(lambda: Counter(1000), [bipars.RewardTerm("t", fails_once)])
    with pytest.raises(TermError):
        agent.learn(256)
    agent.learn(64)
    assert agent._state.env.obs[0, 1] == 32  # began anew instead of continuing from somewhere else
