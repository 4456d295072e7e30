"""An environment of one's own that the library knows by name: its defaults, and what the report calls its numbers.

Run it as a script, which takes half a minute; or go into its folder and give the command line the name of the module:

    bipars train --env own_environment_family:PointMass-v0 --term import:own_environment_family.nearer --out runs
"""

from dataclasses import replace

import gymnasium
import numpy as np

import bipars
from bipars.envs import EnvironmentFamily, register
from bipars.settings.recipe import recipe


class PointMass(gymnasium.Env):
    """A mass on a line is pushed to the middle; the reward is 1 where it stays there."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.array([self.np_random.uniform(-1, 1), 0.0], np.float32)
        return self.state, {}

    def step(self, action):
        position, velocity = self.state
        velocity = 0.9 * velocity + 0.1 * float(action[0])
        self.state = np.clip([position + velocity, velocity], -10, 10).astype(np.float32)
        return self.state, float(abs(self.state[0]) < 0.1), False, False, {}


def nearer(obs, action, next_obs, info):
    """A reward term: how much closer the step came."""
    return abs(obs[0]) - abs(next_obs[0])


def preset(method, learner):
    """As for any other environment, but with small updates, and few of them."""
    usual = recipe(learner)
    if learner == "ppo":
        usual = replace(usual, ppo=replace(usual.ppo, update_period=1024, gradient_steps=80))
    return replace(usual, steps=20_480, evaluation_episodes=5)


gymnasium.register("PointMass-v0", PointMass, max_episode_steps=50)
register(EnvironmentFamily("PointMass-v0", {"default": preset}, observations=("position", "velocity")))


def main(steps=20_480):
    agent = bipars.BiPaRS("PointMass-v0", terms=[bipars.RewardTerm("nearer", nearer)])
    agent.learn(steps, progress_bar=True)
    print(f"steps in the middle, of 50: {agent.evaluate()[0]:.1f}; weights: {agent.weights([0.5, 0.0], [-1.0])}")


if __name__ == "__main__":
    main()
