"""`TermLogger`: every kind of environment, every term and the true reward apart, and nothing else changed."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import bipars
from bipars.errors import TermError, UsageError
from envs_of_others import Counter


def clock(obs, action, next_obs, info):
    return next_obs[1] - obs[1]


def both(obs, action, next_obs, info):
    return action[:, 0] + info["time"]


TERMS = [
    bipars.RewardTerm("clock", clock),
    bipars.RewardTerm.from_info("time"),
    bipars.RewardTerm("both", both, vectorised=True),
]
ACTION = np.array([0.5], np.float32)


def expected_episode(life):
    """Counter counts 1, 2, ..., `life`; its reward is ten times that."""
    total = life * (life + 1) / 2
    return {"length": life, "true_return": 10 * total, "term/clock": life, "term/time": total,
            "term/both": total + 0.5 * life}  # fmt: skip


def assert_episode(row, life):
    assert {key: row[key] for key in expected_episode(life)} == pytest.approx(expected_episode(life))


def test_one_environment(tmp_path, capsys):
    env = bipars.TermLogger(Counter(life=4), TERMS, path=tmp_path / "terms.jsonl")
    table = capsys.readouterr().out
    assert "Reward terms of Counter" in table
    assert "info['time']" in table
    assert max(map(len, table.splitlines())) <= 80
    assert isinstance(env, gymnasium.Env)
    assert isinstance(env, bipars.TermLogger)
    for _ in range(2):
        env.reset(seed=0)
        for t in range(1, 5):
            _, reward, terminated, _, info = env.step(ACTION)
            assert reward == info["true_reward"] == 10.0 * t
            assert (info["term/clock"], info["term/time"], info["term/both"]) == (1.0, t, t + 0.5)
            assert ("episode_terms" in info) == terminated == (t == 4)
    assert len(env.episodes) == 2
    assert_episode(env.episodes[1], 4)
    rows = [json.loads(line) for line in (tmp_path / "terms.jsonl").read_text().splitlines()]
    assert rows == env.episodes
    summary = env.summary()
    assert "8 steps, 2 episodes" in summary
    assert max(map(len, summary.splitlines())) <= 80
    assert "+1.00" in next(line for line in summary.splitlines() if "time" in line)  # grows with the reward


@pytest.mark.filterwarnings("ignore:.*infinity", "ignore:.*different from the unwrapped version")
def test_gymnasiums_checker_has_nothing_against_it():
    env = gymnasium.make("CartPole-v1").unwrapped
    logger = bipars.TermLogger(env, bipars.RewardTerm("cart", lambda o, a, n, i: n[0]), verbose=False)
    check_env(logger, skip_render_check=True)


def test_an_episode_that_is_given_up_is_not_logged():
    env = bipars.TermLogger(Counter(life=4), TERMS, verbose=False)
    for steps in (2, 4):
        env.reset(seed=0)
        for _ in range(steps):
            env.step(ACTION)
    assert len(env.episodes) == 1
    assert_episode(env.episodes[0], 4)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_vector_environment_with_either_reset(mode):
    lives = (3, 5)
    vector = SyncVectorEnv([lambda life=life: Counter(life=life) for life in lives], autoreset_mode=mode)
    env = bipars.TermLogger(vector, TERMS, verbose=False)
    assert isinstance(env, gymnasium.vector.VectorEnv)
    env.reset(seed=0)
    for _ in range(24):
        _, reward, _, _, info = env.step(np.stack([ACTION, ACTION]))
        np.testing.assert_array_equal(info["true_reward"], reward)
        np.testing.assert_array_equal(info["term/clock"], info["_term/clock"])  # 1 where a step was taken
    for i, life in enumerate(lives):
        episodes = [row for row in env.episodes if row["env"] == i]
        assert len(episodes) == 24 // (life + (mode == AutoresetMode.NEXT_STEP))
        for row in episodes:
            assert_episode(row, life)


@pytest.mark.parametrize("space", ["box", "dict"])
def test_a_vec_env_of_stable_baselines3(space):
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    inside = bipars.RewardTerm("clock", clock if space == "box" else lambda o, a, n, i: n["clock"][1] - o["clock"][1])
    terms = [inside, *TERMS[1:]]
    made = vec_env.DummyVecEnv([lambda life=life: Counter(life=life, space=space) for life in (3, 4)])
    env = bipars.TermLogger(made, terms, verbose=False)
    assert isinstance(env, vec_env.VecEnv)
    env.reset()
    for _ in range(12):
        _, reward, done, infos = env.step(np.stack([ACTION, ACTION]))
        assert [info["true_reward"] for info in infos] == reward.tolist()
        assert ["episode_terms" in info for info in infos] == done.tolist()
    for i, life in enumerate((3, 4)):
        episodes = [row for row in env.episodes if row["env"] == i]
        assert len(episodes) == 12 // life
        for row in episodes:
            assert_episode(row, life)


def test_the_true_reward_may_be_another():
    env = bipars.TermLogger(Counter(), TERMS[1], true_reward="env-minus-terms", verbose=False)
    env.reset()
    _, reward, _, _, info = env.step(ACTION)
    assert reward == 10
    assert info["true_reward"] == 9


def test_bad_input_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="terms is empty; give at least one"):
        bipars.TermLogger(Counter(), [])
    with pytest.raises(UsageError, match="env is 3; expected a gymnasium.Env, a Gymnasium VectorEnv, or a VecEnv"):
        bipars.TermLogger(3, TERMS)
    (tmp_path / "log").write_text("mine")
    with pytest.raises(UsageError, match="holds something already"):
        bipars.TermLogger(Counter(), TERMS, path=tmp_path / "log")
    env = bipars.TermLogger(Counter(), bipars.RewardTerm.from_info("speed"), verbose=False)
    env.reset()
    with pytest.raises(TermError, match="term 'speed': info has no key 'speed'; its keys are \\['time'"):
        env.step(ACTION)
    shape = bipars.RewardTerm("two", lambda o, a, n, i: np.zeros(3), vectorised=True)
    vector = bipars.TermLogger(SyncVectorEnv([Counter, Counter]), shape, verbose=False)
    vector.reset()
    with pytest.raises(TermError, match="term 'two' returned shape \\(3,\\) for 2 environments; return \\(2,\\)"):
        vector.step(np.stack([ACTION, ACTION]))
    raising = bipars.TermLogger(Counter(), bipars.RewardTerm("odd", lambda o, a, n, i: o.missing), verbose=False)
    raising.reset()
    with pytest.raises(TermError, match="term 'odd' failed: AttributeError"):
        raising.step(ACTION)


def test_shaped_rewards_of_a_vector_environment_with_whole_numbers_keep_their_fraction():
    class Whole(gymnasium.vector.VectorRewardWrapper):
        def rewards(self, reward):
            return reward.astype(np.int64)

    vector = Whole(SyncVectorEnv([Counter, Counter]))
    env = bipars.shaped_env(vector, [bipars.RewardTerm("half", lambda *transition: 1.0)], {"half": 0.5})
    env.reset(seed=0)
    reward = env.step(np.stack([ACTION, ACTION]))[1]
    assert np.allclose(reward, 10.5)
