"""Small Gymnasium environments with known answers, and a quick agent for them."""

import gymnasium
import numpy as np
from gymnasium import spaces

import bipars


class Counter(gymnasium.Env):
    """Observes (episode, time). Ends by itself after `life` steps; `limit` truncates. Reports what it did in info."""

    def __init__(self, life=7, limit=None, space="box"):
        self.life, self.limit, self.kind = life, limit, space
        box = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = {
            "box": box,
            "dict": spaces.Dict({"clock": box, "phase": spaces.Discrete(3)}),
            "tuple": spaces.Tuple((box, spaces.Discrete(3, start=1))),
        }[space]
        self.action_space = spaces.Box(np.float32(-2), np.float32(4), (1,))
        self.episode, self.time = 0, 0

    def _obs(self):
        clock = np.array([self.episode, self.time], float)
        phase = self.time % 3
        return {"box": clock, "dict": {"clock": clock, "phase": phase}, "tuple": (clock, phase + 1)}[self.kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self._obs(), {"from_reset": True}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.time += 1
        info = {"time": self.time, "action": float(action[0]), "is_success": self.time == self.life}
        if self.time == 2:
            info["sometimes"] = 1.0
        return self._obs(), 10.0 * self.time, self.time >= self.life, self.time == self.limit, info


class Push(gymnasium.Env):
    """One step per episode, whose reward is the action."""

    def __init__(self):
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.where = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.where, {}

    def step(self, action):
        return self.where, float(action[0]), True, False, {}


QUICK = {"num_envs": 2, "update_period": 64, "gradient_steps": 4, "batch_size": 32, "policy_hidden": (4,)}


def quick(env, terms=("noise",), **settings):
    ppo = QUICK | settings.pop("ppo", {})
    return bipars.BiPaRS(env, terms=terms, ppo=ppo, evaluation_episodes=2, evaluation_every=1, **settings)
