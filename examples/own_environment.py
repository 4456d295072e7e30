"""Five reward terms in an environment of your own, audited in one run: about a minute on one core.

    python examples/own_environment.py

A puck on a plane is to stop at a target, and the true reward is 1 for each step in which it rests there. Of the five
terms one helps, one is a copy of it in other units, one has the wrong sign, one is a broken sensor, and one has nothing
to do with the task. The run tells which is which.
"""

import gymnasium
import numpy as np

import bipars


class Puck(gymnasium.Env):
    """Observations: place (2), velocity (2), and a clock that nothing depends on."""

    observation_space = gymnasium.spaces.Box(-5.0, 5.0, (5,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.velocity = self.np_random.uniform(-1, 1, 2), np.zeros(2)
        self.clock = self.np_random.uniform(-1, 1)
        return self.look(), {}

    def step(self, action):
        self.velocity = 0.8 * self.velocity + 0.1 * action
        self.place = np.clip(self.place + self.velocity, -2, 2)
        self.clock = -self.clock
        at_rest = distance(self.look()) < 0.2 and np.linalg.norm(self.velocity) < 0.1
        return self.look(), float(at_rest), False, False, {}

    def look(self):
        return np.array([*self.place, *self.velocity, self.clock], np.float32)


def distance(obs):
    return float(np.linalg.norm(obs[:2]))


def nearer(obs, action, next_obs, info):
    """One transition in, one number out: how much closer this step came to the target."""
    return distance(obs) - distance(next_obs)


def nearer_in_cm(obs, action, next_obs, info):
    return 100 * nearer(obs, action, next_obs, info)


def centre(obs, action, next_obs, info):
    """Meant to reward being near the target. The minus sign was forgotten."""
    return distance(next_obs)


def clock(obs, action, next_obs, info):
    return float(obs[4])


def main(steps=150_000):
    terms = [bipars.RewardTerm(fn.__name__, fn) for fn in (nearer, nearer_in_cm, centre, clock)] + ["noise"]
    env = gymnasium.wrappers.TimeLimit(Puck(), 50)
    agent = bipars.BiPaRS(env, terms=terms, seed=0)
    agent.learn(steps, progress_bar=True)
    print(agent.report("report.html"))
    print(f"\nTrue return of the agent: {agent.evaluate()[0]:.1f} of 50 steps at rest. The page: report.html")


if __name__ == "__main__":
    main()
