"""What leaves the library: the policy, the weight function, the shaped environment; and what hangs into training."""

import json

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import bipars
from bipars.errors import BiparsError, CheckpointError, UsageError
from envs_of_others import Counter

QUICK = {"num_envs": 2, "update_period": 64, "gradient_steps": 4, "batch_size": 32, "policy_hidden": (4,)}


def still(obs, action, next_obs, info):
    return -abs(action[0])


def moving(obs, action, next_obs, info):
    return np.abs(next_obs[:, 2])


TERMS = [bipars.RewardTerm("still", still), bipars.RewardTerm("moving", moving, vectorised=True)]


@pytest.fixture(scope="module")
def agent():
    return bipars.BiPaRS("Pendulum-v1", terms=TERMS, ppo=QUICK, evaluation_episodes=2).learn(256)


def test_the_weight_function_is_the_one_that_was_trained(agent):
    """NumPy on the environment's own observations and actions, against JAX on what the learner sees."""
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=0)
    env.action_space.seed(0)
    obs = np.stack([env.step(env.action_space.sample())[0] for _ in range(20)])
    action = np.linspace(-2, 2, 20, dtype=np.float32)[:, None]
    state = agent._state
    seen = state.observations.normalise(jnp.asarray(obs))
    expected = state.weights(seen, jnp.asarray(action / 2))
    z = agent.weight_function()
    np.testing.assert_allclose(z(obs, action), expected, atol=1e-5)
    np.testing.assert_allclose(z(obs[3], action[3]), expected[3], atol=1e-5)
    np.testing.assert_array_equal(agent.weights(obs, action), z(obs, action))
    assert np.ptp(z(obs, action)) > 1e-4
    with pytest.raises(UsageError, match="both be single, or both be batches"):
        z(obs, action[0])


@pytest.mark.parametrize(
    ("env", "form"), [("Pendulum-v1", "state"), ("CartPole-v1", "per-action"), ("cartpole", "auto")]
)
def test_the_weight_function_is_one_small_file(env, form, tmp_path):
    agent = bipars.BiPaRS(env, terms=["noise"], ppo=QUICK, weights={"form": form}, evaluation_episodes=1)
    agent.learn(64)
    z = agent.weight_function()
    path = z.save(tmp_path / "weights.safetensors")
    assert path.stat().st_size < 10_000
    again = bipars.LearnedWeightFunction.load(path)
    assert again.terms == ("noise",)
    space = z.observation_space
    obs, action = space.sample(), z.action_space.sample()
    np.testing.assert_array_equal(again(obs, action), z(obs, action))
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    with pytest.raises(CheckpointError, match="weights.safetensors cannot be read"):
        bipars.LearnedWeightFunction.load(path)


@pytest.mark.filterwarnings("ignore:.*not within the observation space")
def test_the_shaped_environment_adds_every_weighted_term(agent):
    env = agent.shaped_env(gymnasium.make("Pendulum-v1"))
    plain = gymnasium.make("Pendulum-v1")
    obs, _ = env.reset(seed=5)
    other, _ = plain.reset(seed=5)
    np.testing.assert_array_equal(obs, other)
    for i in range(30):
        action = np.array([np.sin(i)], np.float32)
        next_obs, reward, _, _, info = env.step(action)
        true = plain.step(action)[1]
        f = np.array([-abs(action[0]), abs(next_obs[2])])
        z = agent.weights(obs, action)
        assert reward == pytest.approx(true + z @ f, rel=1e-6)
        assert info["true_reward"] == true
        assert info["term/moving"] == pytest.approx(f[1])
        assert info["weight/still"] == pytest.approx(z[0])
        obs = next_obs


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version", "ignore:.*symmetric and normalized space")
def test_the_shaped_environment_passes_gymnasiums_checker(agent):
    check_env(agent.shaped_env(gymnasium.make("Pendulum-v1").unwrapped), skip_render_check=True)


def test_the_shaped_environment_takes_no_jax_at_a_step(agent, monkeypatch):
    env = agent.shaped_env(gymnasium.make("Pendulum-v1"))
    env.reset(seed=0)
    import jax.extend

    def refuse(*_, **__):
        raise AssertionError("JAX was called")

    monkeypatch.setattr(jax.extend.core.Primitive, "bind", refuse)
    with pytest.raises(AssertionError, match="JAX was called"):
        jnp.ones(3) + 1
    env.step(np.array([0.5], np.float32))


def test_the_shaped_environment_refuses_another_one(agent):
    with pytest.raises(UsageError, match="weights were learned with observation_space.*this environment has"):
        agent.shaped_env(gymnasium.make("MountainCarContinuous-v0"))


def test_built_in_terms_and_other_true_rewards_are_shaped_too():
    random = bipars.BiPaRS("CartPole-v1", terms=["harmful", "noise"], ppo=QUICK, evaluation_episodes=1)
    env = random.shaped_env(gymnasium.make("CartPole-v1"))
    env.reset(seed=0)
    *_, info = env.step(1)
    assert abs(info["term/noise"]) <= 1
    time = bipars.RewardTerm.from_info("time")
    agent = bipars.BiPaRS(Counter, [time], ppo=QUICK, true_reward="env-minus-terms", evaluation_episodes=1)
    env = agent.shaped_env(Counter())
    env.reset()
    _, reward, _, _, info = env.step(np.zeros(1, np.float32))
    assert info["true_reward"] == 9
    assert reward == pytest.approx(9 + info["weight/time"], rel=1e-6)


def test_stable_baselines3_trains_on_the_shaped_environment(agent):
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    env = agent.shaped_env(gymnasium.make("Pendulum-v1"))
    model = stable_baselines3.PPO("MlpPolicy", env, n_steps=64, batch_size=32, device="cpu", seed=0)
    model.learn(128)
    assert model.num_timesteps == 128


# Callbacks


class Recorder(bipars.Callback):
    def __init__(self, stop_at=None):
        self.calls, self.stop_at = [], stop_at

    def on_start(self, agent):
        self.calls.append("start")

    def on_update(self, agent, row):
        self.calls.append(row["step"])
        return row["step"] != self.stop_at

    def on_evaluation(self, agent, row):
        self.calls.append(round(row["evaluation_return"]) < 0)

    def on_end(self, agent):
        self.calls.append("end")


def test_callbacks_are_called_in_order_and_can_stop():
    agent = bipars.BiPaRS("Pendulum-v1", terms=TERMS, ppo=QUICK, evaluation_episodes=1, evaluation_every=1)
    recorder, rows = Recorder(stop_at=128), []
    agent.learn(640, callback=[recorder, lambda agent, row: rows.append(row["round"])])
    assert recorder.calls == ["start", 64, True, 128, True, "end"]
    assert rows == [1, 2]
    assert agent.num_timesteps == 128
    agent.learn(64, callback=lambda agent, row: False)
    assert agent.num_timesteps == 192
    with pytest.raises(UsageError, match="callback is 3; expected"):
        agent.learn(64, callback=3)


def test_on_end_is_called_when_training_fails():
    late = bipars.RewardTerm("late", lambda obs, action, next_obs, info: np.nan if info["time"] > 2 else 1.0)
    agent, recorder = bipars.BiPaRS(Counter, [late], ppo=QUICK, evaluation_episodes=1), Recorder()
    with pytest.raises(BiparsError):
        agent.learn(64, callback=recorder)
    assert recorder.calls == ["start", "end"]


def test_tensorboard_holds_the_metrics(agent, tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto import event_pb2

    agent = bipars.BiPaRS("Pendulum-v1", terms=TERMS, ppo=QUICK, evaluation_episodes=1, evaluation_every=1)
    agent.learn(128, callback=bipars.TensorBoard(tmp_path))
    content = next(tmp_path.glob("events*")).read_bytes()
    found, start = {}, 0
    while start < len(content):  # length (8), checksum (4), event, checksum (4)
        size = int.from_bytes(content[start : start + 8], "little")
        event = event_pb2.Event.FromString(content[start + 12 : start + 12 + size])
        found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        start += size + 16
    for row in agent.metrics:
        assert found["weight/still", row["step"]] == pytest.approx(row["weight/still"], rel=1e-6)
        assert found["evaluation_return", row["step"]] == pytest.approx(row["evaluation_return"], rel=1e-6)


def test_the_run_records_how_gymnasium_makes_the_environment(agent, tmp_path):
    agent.save(tmp_path / "agent")
    about = json.loads((tmp_path / "agent" / "config.json").read_text())
    assert about["env_spec"]["id"] == "Pendulum-v1"
    assert about["env_spec"]["max_episode_steps"] == 200
