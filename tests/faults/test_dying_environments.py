"""Environments that die, hang, leave or answer something else: named, wherever they run."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from bipars.errors import BiparsError, EnvError, UsageError
from bipars.runs.directory import RunDirectory
from bipars.settings.config import Config
from dying import Dying
from envs_of_others import quick

HELPERS = Path(__file__).parents[1] / "helpers"


class Make:
    """A function that makes one, which another process can be given."""

    def __init__(self, how, at=5):
        self.how, self.at = how, at

    def __call__(self):
        return Dying(self.how, self.at)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("exit", r"environment Dying: step\(\) called sys.exit\(0\), in the 2 steps from 8 on. Mend the environment"),
        (
            "integer",
            r"environment Dying: step\(\) returned terminated 1; expected True or False, in the 2 steps from 8",
        ),
        ("array", r"returned terminated array\(\[False\]\); expected True or False"),
        ("none", "returned terminated None; expected True or False"),
    ],
)
def test_a_step_that_leaves_or_answers_something_else_is_named(how, message):
    agent = quick(Make(how))
    with pytest.raises(EnvError, match=message):
        agent.learn(64)


def test_booleans_of_numpy_are_booleans():
    class Numpy(Dying):
        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, np.bool_(terminated), np.array(truncated), info

    assert quick(Numpy).learn(64).num_timesteps == 64


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("kill", r"environment process \d died with signal 9 \(SIGKILL\), during step\(\), in the 2 steps from 8 on"),
        ("_exit 7", r"environment process \d ended with exit status 7, during step\(\)"),
        ("exit", r"environment process \d: environment Dying: step\(\) called sys.exit\(0\)"),
        ("raise", r"environment process \d: step\(\) raised NoWords: \('left', 'right'\)"),
        ("integer", r"environment process \d: environment Dying: step\(\) returned terminated 1"),
    ],
)
def test_a_process_that_ends_or_raises_is_named(how, message):
    agent = quick(Make(how), vector="async")
    with pytest.raises(EnvError, match=message):
        agent.learn(64)
    agent.close()


@pytest.mark.parametrize("vector", ["sync", "async"])
@pytest.mark.parametrize(("how", "where"), [("hang", "step"), ("slow reset", "reset")])
def test_a_step_or_reset_that_takes_too_long_is_named(vector, how, where):
    from bipars.envs.gym import GymnasiumEnvironment

    env = GymnasiumEnvironment(Make(how, at=2), 2, vector, timeout=1.5)
    who = "environment Dying" if vector == "sync" else r"environment process \d"
    env.reset(0)

    def steps():
        for _ in range(8):
            env.step(np.zeros((2, 1), np.float32))

    with pytest.raises(EnvError, match=rf"{who}: {where}\(\) took longer than 1.5 s \(--env-timeout\)"):
        steps()
    env.close()


def test_in_time_nothing_is_interrupted():
    agent = quick("Pendulum-v1", vector="sync")
    settings = {"ppo": {"num_envs": 2, "update_period": 64, "gradient_steps": 4, "batch_size": 32}}
    assert agent.config.env_timeout is None
    from bipars.program import complete, configure

    config = complete(configure({"env": "Pendulum-v1", "terms": ["noise"], "env_timeout": 30.0, **settings}))
    assert config.env_timeout == 30
    for timeout in (0.0, -1.0):
        with pytest.raises(UsageError, match=r"config.env_timeout is .*; expected a positive number"):
            Config(env_timeout=timeout)


QUICK = [
    "--ppo.update-period", "64", "--ppo.num-envs", "2", "--ppo.gradient-steps", "2", "--ppo.batch-size", "32",
    "--evaluation-episodes", "1", "--steps", "640", "--checkpoint-every", "1", "--term", "noise",
]  # fmt: skip


def train(tmp_path, how, at, *more):
    environment = os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{HELPERS}"}
    command = ["train", "--env", "dying:Dying-v0", "--env-option", f"how={how}", "--env-option", f"at={at}"]
    command += ["--out", str(tmp_path / "runs"), *QUICK, *more]
    return subprocess.run(
        [sys.executable, "-m", "bipars.cli", *command], capture_output=True, text=True, env=environment, timeout=300
    )


@pytest.mark.parametrize("how", ["_exit 0", "_exit 74", "_exit 75", "kill"])
def test_a_command_says_that_the_process_of_a_run_died(tmp_path, how):
    """Its first process dies after six rounds, with checkpoints in between; the second goes on, and ends it.

    What a worker itself would end with means nothing where it did not say so.
    """
    result = train(tmp_path, how, 200)
    seed = tmp_path / "runs" / "seed-0000"
    words = "signal SIGKILL" if how == "kill" else how.replace("_exit", "exit status")
    assert f"{seed}: its process died ({words}). It goes on from its last checkpoint" in result.stderr
    assert result.returncode == 0
    assert len(RunDirectory(seed).metrics) == 10


def test_a_run_whose_process_always_dies_fails(tmp_path):
    result = train(tmp_path, "_exit 0", 5)
    assert result.returncode == 1
    assert "its process died 3 times without a new checkpoint in between: exit status 0" in result.stderr


@pytest.mark.parametrize("how", ["_exit 3", "kill"])
def test_an_environment_that_ends_the_command_in_its_first_steps_is_named(tmp_path, how):
    result = train(tmp_path, how, 1)
    assert result.returncode == (-9 if how == "kill" else 3)
    assert "bipars: environment 'dying:Dying-v0' ended this process in its first steps" in result.stderr
    assert "ended this process" not in train(tmp_path, "fine", 1).stderr


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_a_command_names_an_environment_that_hangs(tmp_path, vector):
    result = train(tmp_path, "hang", 100, "--env-timeout", "3", "--vector", vector)
    assert result.returncode == 1
    assert "step() took longer than 3 s (--env-timeout)" in result.stderr


def test_an_environment_that_dies_while_it_is_made_is_named():
    from bipars.envs.gym import GymnasiumEnvironment

    with pytest.raises(BiparsError, match="an environment process ended while its environment was made"):
        GymnasiumEnvironment(DiesWhenMade(), 2, "async")


class DiesWhenMade:
    """Only in a process of its own."""

    def __init__(self):
        self.home = os.getpid()

    def __call__(self):
        if os.getpid() != self.home:
            os._exit(3)
        return gymnasium.make("Pendulum-v1")
