"""Runs that are stopped and go on end with the same bytes as undisturbed ones."""

from dataclasses import replace

import pytest

from bipars.program import _build, complete, configure
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import execute
from bipars.settings.config import Config, DDPGConfig, WeightConfig
from envs_of_others import QUICK
from transitions import TINY


def never():
    return False


@pytest.mark.parametrize(
    ("env", "stops"),
    [("Pendulum-v1", [2, 4]), ("Hopper-v5", [1, 2, 5])],  # MuJoCo is saved in mid-episode, others when they restart
)
def test_a_run_in_gymnasium_goes_on_to_the_same_bytes(env, stops, tmp_path):
    if env == "Hopper-v5":
        pytest.importorskip("mujoco")
    data = {"env": env, "terms": ["noise"], "steps": 384, "checkpoint_every": 2, "evaluation_episodes": 1}
    config = complete(configure(data | {"ppo": QUICK, "env_options": {}}))
    calm = RunDirectory.create(tmp_path / "calm", config)
    assert execute(calm, never)
    broken = RunDirectory.create(tmp_path / "broken", config)
    for stop in stops:
        _build.cache_clear()  # another process would have another sampler
        rounds = iter(range(len(broken.metrics) + 1, 7))
        assert not execute(broken, lambda rounds=rounds, stop=stop: next(rounds) == stop)
    _build.cache_clear()
    assert execute(broken, never)
    assert len(calm.metrics) == 6
    assert broken.metrics_file.read_bytes() == calm.metrics_file.read_bytes()
    assert broken.result == calm.result
    snapshots = [{p.name: p.read_bytes() for p in run.snapshots.iterdir()} for run in (calm, broken)]
    assert snapshots[0] == snapshots[1]
    assert len(snapshots[0]) == 6


@pytest.mark.parametrize("env", ["cartpole", "CartPole-v1"])
def test_a_run_of_dpba_goes_on_to_the_same_bytes(env, tmp_path):
    config = complete(
        Config(
            env=env,
            terms=("beneficial",),
            method="dpba",
            steps=6 * 200,
            evaluation_episodes=2,
            checkpoint_every=2,
            ppo=replace(TINY, normalise_observations=env == "CartPole-v1"),
        )
    )
    calm = RunDirectory.create(tmp_path / "calm", config)
    assert execute(calm, never)
    stops = iter([False, False, False, True])  # in the middle, at a checkpoint
    stopped = RunDirectory.create(tmp_path / "stopped", config)
    assert not execute(stopped, lambda: next(stops))
    assert len(stopped.metrics) == 4
    assert execute(stopped, never)
    assert stopped.result_file.read_bytes() == calm.result_file.read_bytes()
    assert stopped.metrics_file.read_bytes() == calm.metrics_file.read_bytes()


def test_a_run_of_ddpg_goes_on_to_the_same_bytes(tmp_path):
    ddpg = DDPGConfig(
        policy_hidden=(8,), value_hidden=(8, 8), num_envs=4, update_period=40, gradient_steps=4, batch_size=16,
        warmup_steps=40, replay_capacity=100, twin_critics=True, policy_delay=2,
    )  # fmt: skip
    config = complete(
        Config(
            env="cartpole-continuous",
            terms=("harmful", "beneficial"),
            method="ddpg-imgl",
            steps=6 * 40,
            evaluation_episodes=2,
            checkpoint_every=2,
            weights=WeightConfig(hidden=(3,)),
            ddpg=ddpg,
        )
    )
    calm, stopped = (RunDirectory.create(tmp_path / name, config) for name in ("calm", "stopped"))
    assert execute(calm, never)
    answers = iter([False, False, True])
    assert not execute(stopped, lambda: next(answers))
    assert execute(stopped, never)
    newest = [max(run.checkpoints.glob("*.safetensors")).read_bytes() for run in (calm, stopped)]
    assert newest[0] == newest[1]
    assert calm.metrics_file.read_bytes() == stopped.metrics_file.read_bytes()
