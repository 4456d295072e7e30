"""Learned weights in another trainer: as a wrapper, as a file, and as plain numbers. About half a minute.

    python examples/taking_weights_away.py

The other trainer stands for yours. All that it gets is an ordinary Gymnasium environment.
"""

import tempfile
from pathlib import Path

import gymnasium

import bipars


def upright(obs, action, next_obs, info):
    return float(next_obs[0])  # the cosine of the angle


def calm(obs, action, next_obs, info):
    return -abs(float(next_obs[2]))


TERMS = [bipars.RewardTerm("upright", upright), bipars.RewardTerm("calm", calm)]


def another_trainer(env):
    """One episode of random actions; what it would have learned from."""
    env.reset(seed=0)
    env.action_space.seed(0)
    total = true = 0.0
    truncated = False
    while not truncated:
        _, reward, _, truncated, info = env.step(env.action_space.sample())
        total, true = total + reward, true + info["true_reward"]
    return f"{total:.0f} in an episode, of which {true:.0f} is the true reward"


def main(steps=60_000):
    agent = bipars.BiPaRS("Pendulum-v1", terms=TERMS)
    agent.learn(steps, progress_bar=True)
    print(agent)

    # 1. The whole weight function, which may differ from state to state.
    env = agent.shaped_env(gymnasium.make("Pendulum-v1"))
    print("weights by state:   ", another_trainer(env))

    # 2. One number per term, which fits into any configuration file.
    numbers = {term.name: round(agent.metrics[-1][f"weight/{term.name}"], 3) for term in TERMS}
    env = bipars.shaped_env(gymnasium.make("Pendulum-v1"), TERMS, numbers)
    print("one number per term:", another_trainer(env), numbers)

    # 3. Later, in another process: the agent, or its weight function alone.
    with tempfile.TemporaryDirectory() as folder:
        agent.save(Path(folder, "agent"))
        agent = bipars.BiPaRS.load(Path(folder, "agent"), terms=TERMS)  # functions are not stored: pass them again
        agent.weight_function().save(Path(folder, "weights.safetensors"))
        weights = bipars.LearnedWeightFunction.load(Path(folder, "weights.safetensors"))
    print("from a file, hanging down and pushed to the left:", weights([-1.0, 0.0, 0.0], [-2.0]))


if __name__ == "__main__":
    main()
