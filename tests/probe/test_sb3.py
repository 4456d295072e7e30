"""`bipars.sb3.ShapedPPO`: every policy and environment of Stable-Baselines3, its callbacks and files; our record."""

import io
import json
import zipfile

import gymnasium
import numpy as np
import pytest

import bipars
from bipars.cli import main
from bipars.errors import RunDirectoryError, UsageError
from bipars.metrics import find_metric
from bipars.nets.mlp import ravel
from bipars.results.panels import collect
from sb3_models import COST, QUICK, Reach, shaped

sb3 = pytest.importorskip("stable_baselines3")
torch = pytest.importorskip("torch")

from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize  # noqa: E402

import bipars.sb3  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def vector(count=2, **settings):
    return DummyVecEnv([lambda: Reach(**settings)] * count)


@pytest.mark.parametrize(
    ("env", "policy", "form"),
    [
        ({"kind": "box"}, "MlpPolicy", "state-action"),
        ({"kind": "box", "actions": "discrete"}, "MlpPolicy", "per-action"),
        ({"kind": "box", "actions": "multi"}, "MlpPolicy", "state-action"),
        ({"kind": "discrete", "limit": 5}, "MlpPolicy", "state-action"),
        ({"kind": "dict", "limit": 5}, "MultiInputPolicy", "state-action"),
        ({"kind": "image", "actions": "discrete", "limit": 5}, "CnnPolicy", "per-action"),
    ],
)
def test_every_kind_of_policy_learns_weights(env, policy, form, tmp_path):
    model = shaped(vector(**env), policy=policy, by_evidence=False)
    assert model.shaping.config.weights.form == form
    before = model.shaping.knowledge.weights
    model.learn(192)
    assert [row["step"] for row in model.metrics] == [64, 128, 192]
    for name in model.metrics[-1]:
        assert find_metric(name) is not None, name
    assert model.metrics[-1]["weight/cost"] != model.metrics[0]["weight/cost"]
    report = model.report(tmp_path / "report.html")
    assert [v.term for v in report.verdicts] == ["cost"]
    assert (tmp_path / "report.html").stat().st_size > 100_000
    space = model.attached.observation_space
    z = model.weights(space.sample(), model.action_space.sample())
    assert z.shape == (1,)
    assert model.metrics[-1]["weight_gradient_norm"] > 0
    assert not np.array_equal(ravel(before), ravel(model.shaping.knowledge.weights))


def test_images_get_one_number_per_term_and_are_not_kept(tmp_path):
    class Large(Reach):
        def __init__(self):
            super().__init__("image", limit=5)
            self.observation_space = gymnasium.spaces.Box(0, 255, (48, 48, 1), np.uint8)

        def _obs(self):
            return np.full((48, 48, 1), self.time, np.uint8)

    model = shaped(Large(), policy="CnnPolicy")
    model.learn(64)
    assert model.shaping.config.weights.form == "scalar"
    assert model.shaping.moments is None
    model.report(tmp_path / "report.html")
    z = model.weights(np.zeros((3, 48, 48, 1), np.uint8), np.zeros((3, 1), np.float32))
    assert z.shape == (3, 1)


@pytest.mark.parametrize(("key", "sign", "advice"), [("cost", -1, "reverse"), ("push", 1, "keep")])
def test_a_term_against_the_reward_is_reversed_and_one_along_it_is_kept(key, sign, advice):
    terms = [bipars.RewardTerm.from_info(key), "noise"]
    model = shaped(vector(4), terms=terms, n_steps=128, batch_size=64, n_epochs=4).learn(6_000)
    row = model.metrics[-1]
    assert sign * row[f"weight/{key}"] > 0.5
    assert model.report().verdicts[0].advice == advice
    assert row["true_return"] > model.metrics[0]["true_return"] + 2


@pytest.mark.parametrize("method", ["mgl", "single"])
def test_the_meta_gradient_alone_moves_weights_the_right_way(method):
    quick = {"n_steps": 128, "batch_size": 64, "n_epochs": 4, "weights": {"learning_rate": 2e-2}}
    model = shaped(vector(4), method=method, by_evidence=False, **quick).learn(6_000)
    weights = [row["weight/cost"] for row in model.metrics]
    assert weights[0] == pytest.approx(1.0, abs=0.05)
    assert weights[-1] < 0.8


@pytest.mark.parametrize(("method", "weight"), [("ppo", 0.0), ("ns", 1.0)])
def test_weights_that_are_not_learned_stay(method, weight):
    model = shaped(vector(), method=method).learn(192)
    assert [row["weight/cost"] for row in model.metrics] == [weight] * 3
    # The term is the opposite of the reward: with both there is nothing to learn from but the critics' errors.
    largest = np.abs(model.rollout_buffer.returns).max()
    assert largest < 0.2 if method == "ns" else largest > 2


def test_terms_see_what_the_environment_gives_below_every_wrapper():
    seen = []

    def look(obs, action, next_obs, info):
        seen.append((obs.copy(), action.copy(), next_obs.copy()))
        return float(next_obs[0])

    env = VecNormalize(VecFrameStack(vector(life=4), 3), norm_obs=True, norm_reward=True)
    model = shaped(env, terms=bipars.RewardTerm("look", look))
    assert model.get_vec_normalize_env() is env
    model.learn(64)
    steps = np.array([next_obs[0] for _, _, next_obs in seen])
    assert set(steps) == {1.0, 2.0, 3.0, 4.0}
    assert all(obs.shape == (2,) and obs[0] == next_obs[0] - 1 for obs, _, next_obs in seen)
    assert model.metrics[0]["term/look"] == 1 + 2 + 3 + 4
    assert model.metrics[0]["evaluation_length"] == 4
    # r~ is in the unit of the rewards that PPO sees.
    raw = model.shaping.scales.returns.std
    assert np.abs(model.rollout_buffer.returns).max() < 10 * float(raw[0]) * 5


def test_the_rewards_of_episodes_are_the_true_ones():
    env = gymnasium.wrappers.TimeLimit(Reach(life=100), 5)
    twice = bipars.RewardTerm("twice", lambda obs, action, next_obs, info: 2 * info["push"])
    model = shaped(env, terms=twice, true_reward=lambda obs, action, next_obs, info: -info["push"])
    model.learn(32)
    row = model.metrics[0]
    assert row["term/twice"] == pytest.approx(-2 * row["true_return"], rel=1e-5)
    assert row["evaluation_return"] == row["true_return"]
    assert row["evaluation_length"] == 5
    assert row["episodes"] == 6


def test_callbacks_of_stable_baselines3_work_and_stop():
    class Count(BaseCallback):
        steps = 0

        def _on_step(self):
            self.steps += 1
            assert "term/cost" in self.locals["infos"][0]
            return self.steps < 40

    count = Count()
    model = shaped(vector()).learn(10_000, callback=[count])
    assert count.steps == 40
    assert len(model.metrics) == 1
    calls = []
    model.learn(64, callback=lambda names, values: calls.append(1) or True)
    assert len(calls) == 32


def test_saved_and_loaded_it_goes_on(tmp_path):
    model = shaped(vector()).learn(128)
    model.save(tmp_path / "model")
    assert (tmp_path / "model.zip").exists()
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert "bipars/knowledge.safetensors" in archive.namelist()
        assert not {"_evaluator", "shaping", "record", "_asked"} & json.loads(archive.read("data")).keys()
    obs, action = np.array([1.0, 0.5], np.float32), np.array([0.3], np.float32)
    bare = bipars.sb3.ShapedPPO.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(bare.weights(obs, action), model.weights(obs, action))
    np.testing.assert_array_equal(bare.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
    assert str(bare.report()) == str(model.report())
    with pytest.raises(UsageError, match="loaded without env; to learn, pass env=... to load"):
        bare.learn(64)
    again = bipars.sb3.ShapedPPO.load(tmp_path / "model", env=vector(3), terms=COST, device="cpu")
    for name, value in model.get_parameters()["shaping.critics"].items():
        assert torch.equal(value, again.get_parameters()["shaping.critics"][name])
    again.learn(96, reset_num_timesteps=False)
    assert [row["round"] for row in again.metrics] == [1, 2, 3]
    content = io.BytesIO()
    again.save(content)
    content.seek(0)
    assert len(bipars.sb3.ShapedPPO.load(content, device="cpu").metrics) == 3


def test_the_same_seed_gives_the_same_weights():
    first, second = (shaped(vector()).learn(192).metrics for _ in range(2))
    assert first == second


def test_the_run_directory_has_the_same_verdict(tmp_path, capsys):
    out = tmp_path / "run"
    model = shaped(vector(), out=out).learn(320)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["weight/cost"] for row in rows] == [row["weight/cost"] for row in model.metrics]
    assert main(["report", str(out)]) == 0
    assert next(v.evidence for v in model.report().verdicts) in " ".join(capsys.readouterr().out.split())
    assert (out / "report.html").exists()
    assert main(["verify", str(out)]) == 0
    (panel,) = collect(out).panels
    assert panel.terms == ("cost",)
    assert panel.env == "Reach"
    model.learn(64, reset_num_timesteps=False)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 6
    with pytest.raises(RunDirectoryError, match="holds another training. Choose another out"):
        shaped(vector(), out=out).learn(64)
    assert main(["resume", str(out)]) == 2
    assert "is the record of a bipars.sb3.ShapedPPO" in capsys.readouterr().err


def test_weights_go_home_with_every_kind_of_environment():
    model = shaped(vector()).learn(64)
    action = np.array([[0.5], [-1.0]], np.float32)
    single = model.shaped_env(Reach())
    single.reset(seed=0)
    _, reward, _, _, info = single.step(action[0])
    assert reward == pytest.approx(0.5 - 0.5 * info["weight/cost"])
    several = model.shaped_env(gymnasium.vector.SyncVectorEnv([Reach, Reach]))
    several.reset(seed=0)
    _, reward, _, _, info = several.step(action)
    np.testing.assert_allclose(reward, action[:, 0] * (1 - info["weight/cost"]), rtol=1e-5)
    stacked = model.shaped_env(vector())
    stacked.reset()
    _, reward, _, infos = stacked.step(action)
    np.testing.assert_allclose(reward, action[:, 0] * (1 - np.array([i["weight/cost"] for i in infos])), rtol=1e-5)
    sb3.PPO("MlpPolicy", stacked, **QUICK).learn(64)
    with pytest.raises(UsageError, match="weights were learned with action_space"):
        model.shaped_env(vector(actions="discrete"))


def test_a_table_of_terms_is_printed_at_the_start(capsys):
    shaped(Reach(), verbose=1)
    printed = capsys.readouterr().out
    assert "Reward terms of Reach" in printed
    assert "weight at start" in printed
    assert max(len(line) for line in printed.splitlines() if line[:1] in "+|") <= 80
