"""Small environments and models for the tests of `bipars.sb3`."""

import gymnasium
import numpy as np
from gymnasium import spaces

import bipars


class Reach(gymnasium.Env):
    """Episodes of `life` steps whose reward is the action; observations of several kinds. `limit` truncates."""

    def __init__(self, kind="box", life=8, limit=None, actions="box"):
        self.kind, self.life, self.limit = kind, life, limit
        clock, image = spaces.Box(-50, 50, (2,), np.float32), spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.observation_space = {
            "box": clock, "image": image, "dict": spaces.Dict({"clock": clock, "image": image}),
            "discrete": spaces.Discrete(9),
        }[kind]  # fmt: skip
        self.action_space = {
            "box": spaces.Box(-2, 2, (1,), np.float32), "discrete": spaces.Discrete(3),
            "multi": spaces.MultiDiscrete([3, 2]),
        }[actions]  # fmt: skip

    def _obs(self):
        clock = np.array([self.time, self.where], np.float32)
        image = np.full((36, 36, 1), 20 * (self.time % 8), np.uint8)
        return {"box": clock, "image": image, "dict": {"clock": clock, "image": image},
                "discrete": self.time % 9}[self.kind]  # fmt: skip

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.where = 0, float(self.np_random.uniform(-1, 1))
        return self._obs(), {}

    def step(self, action):
        self.time += 1
        push = float(np.asarray(action).reshape(-1)[0])
        info = {"push": push, "cost": -push}
        return self._obs(), push, self.time >= self.life, self.time == self.limit, info


COST = bipars.RewardTerm.from_info("cost")
"""The opposite of the reward."""
QUICK = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "seed": 0, "device": "cpu"}


def shaped(env, terms=COST, policy="MlpPolicy", **settings):
    import bipars.sb3

    return bipars.sb3.ShapedPPO(policy, env, terms=terms, **QUICK | settings)
