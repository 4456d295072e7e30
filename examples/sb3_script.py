"""The weights inside a script of Stable-Baselines3: the class changes, and `terms` is new. About a minute.

    pip install 'bipars[sb3]'
    python examples/sb3_script.py

Swinging up a pendulum, with one term that is meant well and one whose sign is wrong. So short a run may leave the
second unsure.
"""

import gymnasium
import torch

import bipars
import bipars.sb3


def upright(obs, action, next_obs, info):
    return float(next_obs[0])  # the cosine of the angle


def hanging(obs, action, next_obs, info):
    """Meant to punish hanging down. The sign is wrong."""
    return float(next_obs[0] < -0.5)


def main(steps=40_000):
    torch.set_num_threads(1)  # networks this small are slower with more
    terms = [bipars.RewardTerm("upright", upright), bipars.RewardTerm("hanging", hanging)]

    # Before: model = stable_baselines3.PPO("MlpPolicy", "Pendulum-v1", n_steps=1024, gamma=0.9)
    model = bipars.sb3.ShapedPPO(
        "MlpPolicy", "Pendulum-v1", terms=terms, n_steps=1024, gamma=0.9, learning_rate=1e-3, seed=0, device="cpu"
    )
    model.learn(steps)
    print(model.report())

    env = model.shaped_env(gymnasium.make("Pendulum-v1"))  # frozen weights, for SAC, TD3 or whatever comes next
    env.reset(seed=0)
    _, reward, _, _, info = env.step(env.action_space.sample())
    print(f"\nFrozen weights, first step: reward {reward:.2f}, of which {info['true_reward']:.2f} is the true reward.")


if __name__ == "__main__":
    main()
