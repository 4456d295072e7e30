"""The commands as a person types them, and a training that takes seconds."""

import subprocess
import sys

from bipars.program import complete
from bipars.settings.config import Config, PPOConfig

QUICK = [
    "--ppo.update-period", "2000", "--ppo.num-envs", "10", "--ppo.gradient-steps", "4", "--ppo.batch-size", "64"
]  # fmt: skip

SMALL = complete(
    Config(
        terms=("harmful",),
        steps=2_000,
        evaluation_episodes=1,
        ppo=PPOConfig(update_period=1_000, num_envs=10, gradient_steps=2, batch_size=64),
    )
)
"""The same, as the settings of a run."""


def run(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "bipars.cli", *map(str, arguments)], capture_output=True, text=True, cwd=cwd
    )


def train(out, *more):
    return ["train", "--term", "harmful", "--out", str(out), "--steps", "6000", *QUICK, *map(str, more)]
