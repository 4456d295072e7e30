"""The settings that every environment starts from, unless the paper's are asked for. No environment is named here.

docs/research/recipe.md has the measurements.
"""

from dataclasses import replace

from bipars.settings.config import Config, DDPGConfig, DPBAConfig, PPOConfig, UpperConfig

TD3 = DDPGConfig(twin_critics=True, policy_delay=2, target_noise=0.2)
LARGE_POTENTIAL = DPBAConfig(hidden=(64, 64), max_grad_norm=10.0)
"""The potential's network, of the paper's MuJoCo tasks as well."""

PPO = Config(
    steps=300_000,
    evaluation_episodes=10,
    evaluation_every=5,
    ppo=PPOConfig(
        policy_hidden=(64, 64),
        value_hidden=(64, 64),
        activation="tanh",
        initial="orthogonal",
        initial_std=None,
        num_envs=8,
        update_period=2048,
        gradient_steps=320,
        batch_size=64,
        clip=0.2,
        gamma=0.99,
        policy_learning_rate=3e-4,
        value_learning_rate=1e-3,
        target_kl=0.02,
        adam_epsilon=1e-5,
        max_grad_norm=0.5,
        normalise_observations=True,
        normalise_returns=True,
    ),
    upper=UpperConfig(horizon="gamma-lambda", control_group=True),
    dpba=LARGE_POTENTIAL,
)
DDPG = Config(
    steps=50_000,
    evaluation_episodes=10,
    evaluation_every=5,
    ddpg=replace(TD3, num_envs=4, gradient_steps=1_000, exploration_noise=0.1),
)


def recipe(learner: str) -> Config:
    return DDPG if learner == "ddpg" else PPO
