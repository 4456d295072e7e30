"""Small environments and terms written after the recipe was fixed, to try it on what nothing was tuned on."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class PointGoal(gym.Env):
    """2D point, sparse 1 at the goal, which ends the episode."""

    observation_space = spaces.Box(-2, 2, (4,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.p, self.g, self.t = self.np_random.uniform(-1, 1, 2), self.np_random.uniform(-1, 1, 2), 0
        return self.obs(), {}

    def obs(self):
        return np.concatenate([self.p, self.g - self.p]).astype(np.float32).clip(-2, 2)

    def step(self, a):
        self.p = np.clip(self.p + 0.1 * np.clip(a, -1, 1), -1, 1)
        self.t += 1
        hit = np.linalg.norm(self.p - self.g) < 0.12
        return self.obs(), float(hit), bool(hit), self.t >= 60, {}


class Maze(gym.Env):
    """7 x 7 with a wall that has one hole; 1 at the far corner."""

    W = ("S......", ".......", ".......", "######.", ".......", ".......", "G......")
    observation_space = spaces.Discrete(49)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.r = self.c = self.t = 0
        return 0, {}

    def step(self, a):
        dr, dc = [(0, 1), (1, 0), (0, -1), (-1, 0)][int(a)]
        r, c = self.r + dr, self.c + dc
        if 0 <= r < 7 and 0 <= c < 7 and self.W[r][c] != "#":
            self.r, self.c = r, c
        self.t += 1
        hit = self.W[self.r][self.c] == "G"
        return self.r * 7 + self.c, float(hit), hit, self.t >= 100, {}


class KeyDoor(gym.Env):
    """A corridor of 15: fetch the key at the left end, then out at the right end."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.k, self.t = 7, 0, 0
        return self.obs(), {}

    def obs(self):
        return np.array([self.x / 7 - 1, self.k, 1 - self.k], np.float32)

    def step(self, a):
        self.x = int(np.clip(self.x + (1 if a else -1), 0, 14))
        self.t += 1
        got = self.x == 0 and not self.k
        self.k = self.k or int(self.x == 0)
        hit = bool(self.k and self.x == 14)
        return self.obs(), float(hit), hit, self.t >= 80, {"key": float(got)}


for name, kind in {"PointGoal": PointGoal, "Maze": Maze, "KeyDoor": KeyDoor}.items():
    gym.register(f"{name}-v0", kind)


def near(obs, action, next_obs, info):
    return -0.1 * float(np.linalg.norm(next_obs[2:]))


def far(obs, action, next_obs, info):
    return 0.1 * float(np.linalg.norm(next_obs[2:]))


def progress(obs, action, next_obs, info):
    return float(np.linalg.norm(obs[2:]) - np.linalg.norm(next_obs[2:]))


def centre(obs, action, next_obs, info):
    return -0.3 * float(np.linalg.norm(next_obs[:2]))


def maze_down(obs, action, next_obs, info):
    return 0.02 * (int(next_obs) // 7)


def maze_dist(obs, action, next_obs, info):
    return -0.02 * (6 - int(next_obs) // 7 + int(next_obs) % 7)


def maze_home(obs, action, next_obs, info):
    return -0.05 * (int(next_obs) // 7 + int(next_obs) % 7)


def right(obs, action, next_obs, info):
    return 0.1 * float(next_obs[0])


def left(obs, action, next_obs, info):
    return -0.1 * float(next_obs[0])


def key(obs, action, next_obs, info):
    return 0.5 * float(next_obs[1] - obs[1])


def fuel_large(obs, action, next_obs, info):
    return -100.0 * float(action != 0)


def hurry(obs, action, next_obs, info):
    return -5.0


def hover(obs, action, next_obs, info):
    return 2.0 * float(next_obs[1])


def tilt(obs, action, next_obs, info):
    return -abs(float(next_obs[4]))


def to_pad(obs, action, next_obs, info):
    return -float(np.hypot(next_obs[0], next_obs[1]))


def slow(obs, action, next_obs, info):
    return -abs(float(next_obs[3]))


def spin(obs, action, next_obs, info):
    return abs(float(next_obs[5]))


def legs(obs, action, next_obs, info):
    return float(next_obs[6] + next_obs[7])


def torque_large(obs, action, next_obs, info):
    return -1000.0 * float(action[0] ** 2)


def brake(obs, action, next_obs, info):
    return -5.0 * abs(float(next_obs[1]))


def car_left(obs, action, next_obs, info):
    return -float(next_obs[0])


def cliff_edge(obs, action, next_obs, info):
    return 2.0 * float(int(next_obs) // 12 >= 2)


def cliff_right(obs, action, next_obs, info):
    return 0.1 * float(int(next_obs) % 12)


def ant_high(obs, action, next_obs, info):
    return 3.0 * float(next_obs[0])


def ant_spin(obs, action, next_obs, info):
    return -1.0 * float(abs(next_obs[13]))


def ant_back(obs, action, next_obs, info):
    return -3.0 * float(next_obs[13])
