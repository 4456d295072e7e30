"""Environments that are known by name, and all that follows from the name."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import bipars
from bipars.cli import main
from bipars.envs import EnvironmentFamily, WeightMap, families, find_family, register
from bipars.envs.base import StepResult
from bipars.envs.cartpole import CartPole
from bipars.envs.gym import GymnasiumEnvironment
from bipars.envs.registry import _FAMILIES, ANY
from bipars.errors import UsageError
from bipars.nets.spaces import DiscreteActions
from bipars.program import complete, configure, preset
from bipars.report.content import content
from bipars.report.render import render_episode
from bipars.results.dimensions import input_names
from bipars.results.panels import collect
from bipars.rollout.make import is_compiled
from bipars.settings.config import Config
from bipars.settings.recipe import recipe
from bipars.terms.builtin import task_term
from fake_runs import fake_cell

EXAMPLE = Path(__file__).parents[2] / "examples/own_environment_family.py"
MUJOCO = ("HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "Swimmer-v5", "Walker2d-v5")
SMALL = {"update_period": 40, "num_envs": 2, "gradient_steps": 1, "batch_size": 8, "policy_hidden": (4,)}


@pytest.fixture(autouse=True)
def forget():
    """What a test registers is gone after it."""
    ours, theirs = dict(_FAMILIES), dict(gymnasium.registry)
    yield
    for registry, before in ((_FAMILIES, ours), (gymnasium.registry, theirs)):
        registry.clear()
        registry.update(before)


def test_the_papers_tasks_are_registered_and_every_other_name_is_gymnasiums():
    assert {"cartpole", "cartpole-continuous", *MUJOCO, ANY} <= {family.name for family in families()}
    assert find_family("bipars/CartPole-v0") is find_family("cartpole") is not find_family("cartpole-continuous")
    assert find_family("Pong-v9") is find_family(ANY)
    assert find_family("gymnasium.envs.mujoco:Hopper-v5") is find_family("Hopper-v5")
    assert find_family("no.such.module:Pong-v9") is find_family(".:x") is find_family(ANY)
    assert {family.name for family in families() if family.make_jax} == {"cartpole", "cartpole-continuous"}
    assert {family.name for family in families() if family.make_host} == set(MUJOCO)


@pytest.mark.parametrize("name", [family.name for family in families() if family.observations])
def test_there_is_a_name_for_every_number_of_an_observation(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo may log
    if name in MUJOCO:
        pytest.importorskip("mujoco")
    env = gymnasium.make(name)
    assert len(find_family(name).observations) == env.observation_space.shape[0]


def test_names_of_observations():
    assert input_names("bipars/CartPole-v0", 4, 1)[2:] == ["pole angle", "pole angular velocity", "action"]
    assert input_names("Pendulum-v1", 3, 1)[0] == "cos(angle)"
    assert input_names("Pendulum-v1", 2, 1)[0] == "obs[0]"  # changed by a wrapper
    assert input_names("HalfCheetah-v5", 17, 6)[4] == "back foot angle"
    assert input_names("Walker2d-v5", 17, 6)[11] == "right thigh speed"


def test_presets_are_the_familys_with_the_name_and_the_method_filled_in():
    assert preset("bipars/CartPole-v0", "em") == replace(preset("cartpole", "em"), env="bipars/CartPole-v0")
    assert preset("Pong-v9") == replace(recipe("ppo"), env="Pong-v9")
    assert configure({"env": "Hopper-v5", "method": "ppo"}) == preset("Hopper-v5", "ppo")
    assert Config.from_dict({"env": "Hopper-v5"}) == Config(env="Hopper-v5")  # who wants defaults asks for them


def test_nothing_heavy_is_loaded_to_know_the_names():
    """Nor is MuJoCo needed."""
    code = """
import sys
sys.modules["mujoco"] = sys.modules["numba"] = None
import bipars
from bipars.cli import main
assert bipars.envs.find_family("Hopper-v5").term_scales == {"torque": 16}
try:
    main(["--help"])
except SystemExit:
    pass
assert "jax" not in sys.modules, "JAX was loaded"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def own(name="mine", **settings):
    return EnvironmentFamily(name, **settings)


def test_a_name_is_registered_once():
    with pytest.raises(UsageError, match="'Hopper-v5' is registered twice: by family 'Hopper-v5' and by family 'mine'"):
        register(own(aliases=("other", "Hopper-v5")))
    assert find_family("mine") is find_family("other") is find_family(ANY)  # all of its names, or none
    with pytest.raises(UsageError, match="'bipars/CartPole-v0' is registered twice: by family 'cartpole'"):
        register(own("bipars/CartPole-v0"))
    for bad in ("", "a:b", None):
        with pytest.raises(UsageError, match="expected a name without a colon"):
            register(own(bad))


def test_unknown_names_and_bad_presets_are_named():
    with pytest.raises(
        UsageError, match=r"unknown environment 'Hoper-v5'. Did you mean 'Hopper-v5'.*Known are .*cartpole,"
    ):
        complete(Config(env="Hoper-v5"))
    register(EnvironmentFamily("mine", {"default": lambda method, learner: {"steps": 3}}))
    with pytest.raises(UsageError, match="family 'mine': its preset returned .*expected a bipars.Config"):
        preset("mine")
    register(own("in-jax", make_jax=CartPole))
    with pytest.raises(UsageError, match="'in-jax' is not made by Gymnasium; leave vector at 'auto'"):
        complete(Config(env="in-jax", method="ppo", vector="sync"))
    with pytest.raises(UsageError, match="'in-jax' does not take the options {'gravity': 3}"):
        complete(Config(env="in-jax", method="ppo", env_options={"gravity": 3}))


class Still:
    """The protocol of environments in JAX, and nothing of cart-pole in it."""

    observation_size, max_steps = 2, 5
    actions = DiscreteActions(3)

    def __init__(self, reward=1.0):
        self.reward = reward

    def reset(self, key):
        return jnp.stack((jax.random.uniform(key), jnp.zeros(())))

    def observe(self, state):
        return state

    def step(self, key, state, action):
        return StepResult(state.at[1].add(1.0), jnp.asarray(self.reward), jnp.asarray(False))


def test_an_environment_in_jax_need_not_be_a_cart_pole():
    register(own(make_jax=Still, observations=("noise", "time")))
    config = complete(Config(env="mine", method="ppo"))
    assert is_compiled(config, None)
    assert not is_compiled(config, lambda: gymnasium.make("CartPole-v1"))
    agent = bipars.BiPaRS("mine", terms=["noise"], ppo=SMALL, env_options={"reward": 2.0}).learn(80)
    assert agent.evaluate() == (10.0, 5.0)
    with pytest.raises(UsageError, match="term 'harmful' is written for cart-pole"):
        bipars.BiPaRS("mine", terms=["harmful"])
    with pytest.raises(UsageError, match="method 'pbrs' needs a potential"):
        bipars.BiPaRS("mine", method="pbrs")


def test_a_host_of_ones_own_gets_environments_threads_and_options():
    asked = []

    def make(num_envs, threads, colour):
        asked.append((num_envs, threads, colour))
        return GymnasiumEnvironment(lambda: gymnasium.make("Pendulum-v1"), num_envs)

    register(own(make_host=make, term_scales={"torque": 3}, potentials={"nothing": "import:math.fsum"}))
    options = {"env_options": {"colour": "red"}, "evaluation_episodes": 1}
    agent = bipars.BiPaRS("mine", terms=["torque"], ppo=SMALL, threads=2, **options)
    assert agent.config.terms == ("torque:3",)
    assert set(asked) == {(1, 2, "red"), (2, 2, "red")}
    assert bipars.BiPaRS("mine", method="pbrs", ppo=SMALL, **options).config.potential == "import:math.fsum"
    with pytest.raises(UsageError, match="'mine' does not take the options {'size': 3}"):
        bipars.BiPaRS("mine", env_options={"size": 3})


def test_usual_potentials_are_those_of_the_name_not_of_the_sizes():
    for env in ("cartpole", "bipars/CartPoleContinuous-v0", "CartPole-v1"):
        assert complete(Config(env=env, method="pba")).potential == "push"
    gymnasium.register("four-numbers", gymnasium.spec("CartPole-v1").entry_point)
    with pytest.raises(UsageError, match="method 'pba' needs a potential"):
        complete(Config(env="four-numbers", method="pba"))
    assert complete(Config(env="four-numbers", method="pba", potential="push")).potential == "push"


def test_terms_take_the_scale_of_their_environment():
    register(own(term_scales={"random": 8}))
    assert [task_term(term, "mine") for term in ("random", "random:2", "noise")] == ["random:8", "random:2", "noise"]
    assert task_term("torque", "cartpole-continuous") == "torque"


def test_the_cart_pole_is_stepped_by_gymnasium_under_its_short_name_too():
    config = complete(Config(env="cartpole", method="ppo", vector="sync"))
    assert not is_compiled(config, None)
    assert config.ppo == complete(Config(env="cartpole", method="ppo")).ppo


def test_a_family_draws_itself(tmp_path):
    class Blind(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.zeros(2, np.float32), 0.0, True, False, {}

    gymnasium.register("mine", Blind)
    register(own(draw=lambda obs: np.full((20, 20, 3), (255, 0, 0), np.uint8)))
    agent = bipars.BiPaRS("mine", terms=["noise"], method="ns", ppo=SMALL, evaluation_episodes=1)
    with Image.open(render_episode(agent, tmp_path / "episode.gif")) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    assert (pixels[240, 240] - (255, 0, 0) < 40).all()
    assert pixels[100, 240].min() > 200  # no larger than it was drawn


def test_the_report_shows_what_the_family_says(tmp_path):
    fake_cell(tmp_path, "mgl", [0.0], weight=1.0)
    metrics = tmp_path / "seed-0000/metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"evaluation_action_size": 0.0', '"evaluation_action_size": 0.5'))
    (panel,) = content(collect(tmp_path))["panels"]
    assert panel["weight_map"]["title"] == "the paper's figure 5d"
    assert not panel["effort"]
    view = WeightMap("mine", 0, 1, 1.0, 1.0, (0.0, 0.0))
    both = ("evaluation_return", "evaluation_action_size")
    _FAMILIES["cartpole"] = replace(find_family("cartpole"), weight_map=view, measures=both)
    (panel,) = content(collect(tmp_path))["panels"]
    assert panel["weight_map"] == view._asdict()
    assert panel["effort"]


def test_the_command_line_lists_and_follows_families(capsys):
    assert main(["list"]) == 0
    assert "cartpole, cartpole-continuous, CartPole-v1, HalfCheetah-v5" in capsys.readouterr().out


def test_the_example_trains_as_a_script_and_from_the_command_line(tmp_path, monkeypatch, capfd):
    assert len(EXAMPLE.read_text().splitlines()) <= 60
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.partition("of 50: ")[2].partition(";")[0]) > 25

    monkeypatch.chdir(EXAMPLE.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = EXAMPLE.stem
    arguments = ["train", "--env", f"{module}:PointMass-v0", "--term", f"import:{module}.nearer"]
    assert main([*arguments, "--steps", "1024", "--out", str(tmp_path)]) == 0
    agent = bipars.BiPaRS.load(tmp_path / "seed-0000")
    assert agent.config.ppo.update_period == 1024
    assert input_names(agent.config.env, 2, 1) == ["position", "velocity", "action"]
