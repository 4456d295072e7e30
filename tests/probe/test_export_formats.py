"""`bipars export`: numbers, configuration of other frameworks, and ONNX graphs that say what the weights say."""

import json
import re
import sys
from types import SimpleNamespace

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

import bipars
from bipars.cli import main
from bipars.envs import spaces
from bipars.errors import UsageError
from bipars.export import LearnedWeightFunction
from bipars.export.onnx import save_onnx
from bipars.nets.running import RunningMoments
from bipars.nets.spaces import Spaces
from bipars.nets.weights import make_weights
from bipars.results.scalars import STAGES
from bipars.settings.resolved import ResolvedWeights
from fake_runs import fake_cell

OBS = Dict({"pose": Box(-5, 5, (2, 2)), "foot": Discrete(3)})
TORQUE = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
TERMS = ("near", "calm")


def export(root, to, *more):
    return main(["export", str(root), "--to", to, *map(str, more)])


@pytest.fixture
def learned(tmp_path):
    return fake_cell(tmp_path / "runs", "mgl", [0.5, 0.5], weight=0.25, terms=TERMS)


def exported(root, to, tmp_path):
    file = tmp_path / "exported"
    assert export(root, to, "--out", file) == 0
    return file.read_text()


def test_scalars_are_the_weights_at_the_end(learned, tmp_path):
    found = json.loads(exported(learned, "scalars", tmp_path))
    assert found["weights"] == {"near": 0.25, "calm": 1.25}
    assert found["about"] == "cartpole, method mgl, 240,000 steps, 2 seeds"


def test_a_schedule_has_the_weights_from_each_step_on(learned, tmp_path):
    found = json.loads(exported(learned, "schedule", tmp_path))
    assert found["steps"] == [20_000 * i for i in range(12)]
    assert len(found["weights"]["near"]) == 12 <= STAGES
    assert found["weights"]["near"][0] == 0.875
    assert found["weights"]["near"][-1] == 0.25


def test_isaac_lab_and_mjlab_multiply_the_weight_that_is_there(learned, tmp_path):
    def config():
        return {
            "near": SimpleNamespace(weight=4.0),
            "calm": SimpleNamespace(weight=-2.0),
            "own": SimpleNamespace(weight=1),
        }

    for to, rewards in (("isaaclab", SimpleNamespace(**config())), ("mjlab", config())):
        code = {}
        exec(exported(learned, to, tmp_path), code)
        code["apply"](SimpleNamespace(rewards=rewards))
        after = rewards if isinstance(rewards, dict) else vars(rewards)
        assert {name: term.weight for name, term in after.items()} == {"near": 1.0, "calm": -2.5, "own": 1}


def test_playground_overrides_the_scales_of_a_task(learned, tmp_path, monkeypatch):
    scales = {"near": 2.0, "calm": -1.0}
    task = SimpleNamespace(reward_config=SimpleNamespace(scales=scales))
    registry = SimpleNamespace(get_default_config=lambda name: {"Go": task}[name])
    monkeypatch.setitem(sys.modules, "mujoco_playground", SimpleNamespace(registry=registry))
    code = {}
    exec(exported(learned, "playground", tmp_path), code)
    assert code["overrides"]("Go") == {"reward_config.scales.near": 0.5, "reward_config.scales.calm": -1.25}


def test_names_in_a_strangers_run_stay_strings(tmp_path):
    bad = '"""\nraise SystemExit\n"""\\'
    root = fake_cell(tmp_path / "runs", "mgl", [0.5], weight=0.25, terms=(bad,))
    code = {}
    exec(exported(root, "mjlab", tmp_path), code)
    assert code["FACTORS"] == {bad: 0.25}


def test_what_cannot_be_exported_is_said(learned, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bipars.settings.importing._withheld", {})  # one process, several commands

    def refused(root, to, *more):
        assert export(root, to, *more) == 2
        return capsys.readouterr().err

    assert "no run" in refused(fake_cell(tmp_path / "plain", "ppo", [0.5], terms=()), "scalars")
    fake_cell(tmp_path / "two" / "a", "mgl", [0.5], weight=0.5)
    fake_cell(tmp_path / "two" / "b", "single", [0.5], weight=0.5)
    assert "2 sets of weights were learned" in refused(tmp_path / "two", "scalars")
    assert "'a b' is no name of a field" in refused(
        fake_cell(tmp_path / "blank", "mgl", [0.5], weight=0.5, terms=("a b",)), "isaaclab"
    )
    assert "--out weights.onnx" in refused(learned / "seed-0000", "onnx")
    assert "seed-0000" in refused(learned, "onnx", "--out", tmp_path / "w.onnx")
    twice = fake_cell(tmp_path / "twice", "mgl", [0.5], weight=0.5, terms=("import:a.near", "import:b.near"))
    assert "two terms are called 'near'" in refused(twice, "scalars")


def weight_function(form, action_space, normalised=True, **settings):
    sizes = Spaces(spaces.observation_size(OBS), spaces.action_space(action_space))
    config = ResolvedWeights(form=form, hidden=(5, 4), learning_rate=1e-3, **settings)
    weights = make_weights(jax.random.key(0), config, sizes, len(TERMS))
    weights = jax.tree.map(lambda x: x + 0.3 * np.random.default_rng(x.size).normal(size=x.shape), weights)
    moments = RunningMoments.fresh((sizes.observation_size,)) if normalised else None
    if moments is not None:
        moments = moments.update(np.random.default_rng(1).normal(1.0, 2.0, (50, sizes.observation_size)))
    return LearnedWeightFunction(weights, moments, config, TERMS, OBS, action_space)


@pytest.mark.parametrize(
    ("form", "action_space", "settings"),
    [
        ("state", Discrete(3), {}),
        ("state-action", TORQUE, {}),
        ("state-action", Box(-1, 1, (2,)), {"low": -0.2, "high": 1.1}),
        ("state-action", Discrete(3, start=2), {"by_evidence": True}),
        ("state-action", MultiDiscrete([2, 3, 3]), {"normalised": False, "by_evidence": True, "high": 1.0}),
        ("state-action", MultiBinary(3), {"low": 0.0}),
        ("per-action", Discrete(4), {}),
        ("per-action", Discrete(4), {"simplex": True}),
        ("scalar", TORQUE, {"low": 0.0}),
        ("scalar", TORQUE, {"simplex": True}),
    ],
)
def test_a_graph_says_what_the_weight_function_says(form, action_space, settings, tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    function = weight_function(form, action_space, **settings)
    model = onnx.load(save_onnx(function, tmp_path / "w.onnx"))
    OBS.seed(0)
    action_space.seed(0)
    observations, actions = [OBS.sample() for _ in range(7)], [action_space.sample() for _ in range(7)]
    flat = np.stack([spaces.flatten(OBS, obs, lead=0) for obs in observations])
    told = np.stack(actions).astype(np.float32 if isinstance(action_space, Box) else np.int64)
    (found,) = ReferenceEvaluator(model).run(None, {"obs": flat, "action": told})
    expected = np.stack([function(obs, action) for obs, action in zip(observations, actions, strict=True)])
    assert found.shape == expected.shape == (7, len(TERMS))
    assert np.allclose(found, expected, atol=1e-5)
    assert json.loads({entry.key: entry.value for entry in model.metadata_props}["terms"]) == list(TERMS)


def test_weights_in_measured_units_have_no_graph(tmp_path):
    pytest.importorskip("onnx")
    with pytest.raises(UsageError, match="export them as scalars"):
        save_onnx(weight_function("scalar", TORQUE, in_units=True), tmp_path / "w.onnx")


def test_a_missing_package_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"pip install 'bipars\[onnx\]'"):
        save_onnx(weight_function("scalar", TORQUE), tmp_path / "w.onnx")


def test_a_saved_agent_is_exported(tmp_path):
    agent = bipars.BiPaRS("cartpole", ["harmful"], ppo={"update_period": 400, "gradient_steps": 2, "batch_size": 64})
    agent.learn(400)
    agent.save(tmp_path / "agent")
    assert json.loads(exported(tmp_path / "agent", "scalars", tmp_path))["weights"].keys() == {"harmful"}
    pytest.importorskip("onnx")
    assert export(tmp_path / "agent", "onnx", "--out", tmp_path / "w.onnx") == 0
    assert (tmp_path / "w.onnx").stat().st_size > 100


def near(obs, action, next_obs, info):
    return 1.0


def calm(obs, action, next_obs, info):
    return -abs(float(obs[2]))


MINE = [bipars.RewardTerm("near", near), bipars.RewardTerm("import:my.calm", calm)]


def test_numbers_shape_any_environment(tmp_path):
    env = bipars.shaped_env(gymnasium.make("Pendulum-v1"), MINE, {"near": 0.5, "calm": 2.0})
    obs, _ = env.reset(seed=0)
    _, reward, _, _, info = env.step(np.zeros(1, np.float32))
    assert reward == pytest.approx(info["true_reward"] + 0.5 - 2.0 * abs(obs[2]))
    assert info["weight/near"] == 0.5


def test_a_schedule_is_replayed_by_steps_of_all_environments(tmp_path):
    file = tmp_path / "schedule.json"
    file.write_text(json.dumps({"steps": [0, 4], "weights": {"near": [1.0, -1.0], "calm": [0.0, 0.0]}}))

    def weights(env, action, key="weight/near"):
        env.reset(seed=0)
        return [np.ravel(env.step(action)[4][key])[0] for _ in range(4)]

    one = np.zeros(1, np.float32)
    assert weights(bipars.shaped_env(gymnasium.make("Pendulum-v1"), MINE, file), one) == [1.0] * 4
    assert weights(bipars.shaped_env(gymnasium.make("Pendulum-v1"), MINE, file, num_envs=2), one) == [1, 1, -1, -1]
    several = gymnasium.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync")
    assert weights(bipars.shaped_env(several, MINE, file), np.zeros((2, 1), np.float32)) == [1, 1, -1, -1]


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"near": 1.0}, "no weight for the term 'import:my.calm'; it has 'near'"),
        ({"near": 1.0, "calm": float("nan")}, "expected 1 finite numbers"),
        ({"near": 1.0, "calm": "much"}, "expected 1 finite numbers"),
        ('{"weights": {"near": [1, 2], "calm": [1, 2]}, "steps": [5, 6]}', "expected 0 and then ever larger ones"),
        ('{"weights": {"near": [1], "calm": [1, 2]}, "steps": [0, 6]}', "expected 2 finite numbers"),
        ("[" * 100_000, "cannot be read"),
        ("{}", "expected a file of `bipars export"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(weights, says, tmp_path):
    if isinstance(weights, str):
        (tmp_path / "w.json").write_text(weights)
        weights = tmp_path / "w.json"
    with pytest.raises(UsageError, match=re.escape(says)):
        bipars.shaped_env(gymnasium.make("Pendulum-v1"), MINE, weights)
