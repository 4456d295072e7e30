"""An environment that goes wrong at one of its steps. `python -m` finds it by the name of this module."""

import os
import signal
import sys
import time
from contextlib import suppress

import gymnasium
import numpy as np


class NoWords(Exception):  # noqa: N818
    """One that cannot be made from a single argument, so that other processes cannot raise it again."""

    def __init__(self, a, b):
        super().__init__(a, b)


class Dying(gymnasium.Env):
    """`how` it goes wrong, at step `at` of its process, or at its `at`-th reset."""

    def __init__(self, how="fine", at=5):
        self.how, self.at, self.steps, self.resets = how, at, 0, 0
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        if self.how == "slow reset" and self.resets == self.at:
            time.sleep(60)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        terminated = self.steps % 4 == 0
        if self.steps == self.at:
            match self.how:
                case leave if leave.startswith("_exit"):
                    os._exit(int(leave.removeprefix("_exit")))
                case "exit":
                    sys.exit(0)
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "raise":
                    raise NoWords("left", "right")
                case "hang":
                    while True:
                        with suppress(Exception):  # an environment may catch all of them
                            time.sleep(60)
                case "integer":
                    terminated = 1
                case "array":
                    terminated = np.array([False])
                case "none":
                    terminated = None
        return np.zeros(2, np.float32), 1.0, terminated, False, {}


if "Dying-v0" not in gymnasium.registry:
    gymnasium.register("Dying-v0", "dying:Dying")
