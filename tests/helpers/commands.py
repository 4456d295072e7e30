"""The commands as a person types them, and a training that takes seconds."""

import subprocess
import sys

QUICK = [
    "--ppo.update-period", "2000", "--ppo.num-envs", "10", "--ppo.gradient-steps", "4", "--ppo.batch-size", "64"
]  # fmt: skip


def run(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "bipars.cli", *map(str, arguments)], capture_output=True, text=True, cwd=cwd
    )


def train(out, *more):
    return ["train", "--term", "harmful", "--out", str(out), "--steps", "6000", *QUICK, *map(str, more)]
