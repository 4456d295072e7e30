"""Suites that take seconds, what their runs left, and the command as a process of its own."""

import json
import subprocess
import sys

from bipars.suite.manifest import read_manifest

SMALL = """
title = "small"
seeds = "0-1"
steps = 4000
[[grid]]
env = ["cartpole", "cartpole-continuous"]
term = ["harmful"]
method = ["ns", "mgl"]
settings.ppo = {update_period = 2000, num_envs = 10, gradient_steps = 4, batch_size = 64}
[[grid]]
env = ["cartpole"]
term = ["harmful"]
method = ["mgl"]
label = "again"
weights_from = "{env}/harmful/mgl"
settings.ppo = {update_period = 2000, num_envs = 10, gradient_steps = 4, batch_size = 64}
"""

NAMES_CODE = """
seeds = "0"
steps = 2000
[[grid]]
env = "cartpole"
term = ["import:stranger.term"]
name = "t"
method = ["ns"]
settings.evaluation_episodes = 1
settings.ppo = {update_period = 1000, num_envs = 10, gradient_steps = 2, batch_size = 64}
"""
"""One that names code, in a module called `stranger`."""

ROUNDS = 60
GRID = """
[[grid]]
env = {envs}
term = ["harmful"]
method = {methods}
settings.checkpoint_every = 4
settings.evaluation_episodes = 2
settings.ppo = {{update_period = 1000, num_envs = 10, gradient_steps = 4, batch_size = 64}}
"""


def write(tmp_path, text):
    path = tmp_path / "my.toml"
    path.write_text(text)
    return str(path)


def suite_file(tmp_path, envs, methods, seeds, rounds=ROUNDS, more=""):
    path = tmp_path / "small.toml"
    head = f'seeds = "{seeds}"\nsteps = {rounds * 1000}\n'
    path.write_text(head + GRID.format(envs=json.dumps(envs), methods=json.dumps(methods)) + more)
    return path


def bipars(*arguments):
    """The command as a process of its own."""
    command = [sys.executable, "-m", "bipars.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def planned(root):
    return read_manifest(root).runs(root)


def outcome(root):
    """The bytes of every run that must not depend on what happened to it."""
    return {
        f"{run.path.relative_to(root)}/{file.name}": file.read_bytes()
        for run in planned(root)
        for file in (
            run.directory.metrics_file,
            run.directory.result_file,
            max(run.directory.checkpoints.glob("*.safetensors")),
        )
    }
