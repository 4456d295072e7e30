"""Observations with names: terms read the parts of a Dict as the environment gives them. Under a minute.

    python examples/dict_observations.py

A robot with a battery is to reach a charger before it is empty. The policy sees all numbers of the Dict side by side;
a term gets the Dict itself, and names what it needs.
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

import bipars


class Charger(gymnasium.Env):
    observation_space = Dict(
        {"position": Box(-2.0, 2.0, (2,), np.float32), "battery": Box(0.0, 1.0, (1,), np.float32), "gear": Discrete(2)}
    )
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.battery = self.np_random.uniform(-2, 2, 2), 1.0
        self.gear = int(self.np_random.integers(2))  # in the second gear a push takes it twice as far
        return self.look(), {}

    def step(self, action):
        self.position = np.clip(self.position + 0.1 * (1 + self.gear) * action, -2, 2)
        self.battery = max(0.0, self.battery - 0.01 - 0.02 * float(np.abs(action).mean()))
        charged = bool(np.linalg.norm(self.position) < 0.2)
        return self.look(), float(charged), charged or self.battery == 0.0, False, {}

    def look(self):
        parts = {"position": self.position.astype(np.float32), "battery": np.array([self.battery], np.float32)}
        return parts | {"gear": self.gear}


def nearer(obs, action, next_obs, info):
    return np.linalg.norm(obs["position"]) - np.linalg.norm(next_obs["position"])


def saving(obs, action, next_obs, info):
    """Punishes what a step takes from the battery. Each one takes some, so whoever arrives soon saves as well."""
    return float(next_obs["battery"][0] - obs["battery"][0])


def main(steps=80_000):
    terms = [bipars.RewardTerm("nearer", nearer), bipars.RewardTerm("saving", saving)]
    agent = bipars.BiPaRS(Charger, terms=terms)
    agent.learn(steps, progress_bar=True)
    for verdict in agent.report().verdicts:
        print(verdict)
    full = {"position": [1.0, 1.0], "battery": [1.0], "gear": 0}
    action, _ = agent.predict(full)
    print(f"Charged in {100 * agent.evaluate()[0]:.0f} % of the episodes.")
    weights = dict(zip(("nearer", "saving"), np.round(agent.weights(full, action), 2).tolist(), strict=True))
    print(f"From (1, 1) it pushes {np.round(action, 2)}; weights of the terms there: {weights}")


if __name__ == "__main__":
    main()
