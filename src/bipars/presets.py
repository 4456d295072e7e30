"""Defaults that follow the environment: the paper's for its own tasks, and ones that work for everybody else's."""

from dataclasses import replace

from bipars.envs import find_compiled
from bipars.settings.config import Config, DDPGConfig, DPBAConfig, PPOConfig, UpperConfig, WeightConfig

TORQUE_WEIGHTS = {"Swimmer-v5": 20, "Hopper-v5": 16, "Humanoid-v5": 20, "Walker2d-v5": 10, "HalfCheetah-v5": 100}
"""w of the torque term, which brings it to the scale of the task's reward (the paper's table of appendix D)."""

LARGE_POTENTIAL = DPBAConfig(hidden=(64, 64), max_grad_norm=10.0)
"""The potential's network of the paper's MuJoCo tasks, and of everything that is no cart-pole."""


def preset(env: str, method: str = "mgl") -> Config:
    """A configuration for the environment and method, every setting open to change."""
    if method.startswith("ddpg"):
        return _deterministic(env, method)
    if find_compiled(env) is not None:
        upper = UpperConfig(noise_penalty=1.0, memory=0.5, earned_trust=True)  # docs/results.md has the measurements
        return Config(env=env, method=method, weights=_weights(method), upper=upper)
    if env in TORQUE_WEIGHTS:
        return _mujoco(env, method)
    return Config(
        env=env,
        method=method,
        total_steps=300_000,
        evaluation_episodes=10,
        ppo=PPOConfig(
            policy_hidden=(64, 64),
            value_hidden=(64, 64),
            activation="tanh",
            initial_std=1.0,
            num_envs=8,
            update_period=4096,
            gradient_steps=320,
            batch_size=128,
            clip=0.2,
            gamma=0.99,
            policy_learning_rate=3e-4,
            value_learning_rate=1e-3,
            max_grad_norm=0.5,
            normalise_observations=True,
            normalise_returns=True,
        ),
        weights=_weights(method),
        # docs/results-environments.md has the measurements
        upper=UpperConfig(noise_penalty=1.0, memory=0.5, baseline=True),
        dpba=LARGE_POTENTIAL,
    )


def _weights(method: str) -> WeightConfig:
    """A network gets away from its start in the first rounds, before the policy has learned much from it."""
    return WeightConfig(head_start=20.0 if method in ("mgl", "imgl", "unrolled") else 0.0)


def _mujoco(env: str, method: str) -> Config:
    """Appendix D of the paper, with what it does not mention: observations and returns normalised, noise penalised,
    trust that must be earned."""
    config = Config(
        env=env,
        method=method,
        total_steps=4_800_000 if env == "Walker2d-v5" else 3_200_000,
        ppo=PPOConfig(
            policy_hidden=(64, 64, 64),
            value_hidden=(64, 64, 64),
            clip=0.2,
            max_grad_norm=1.0,
            normalise_observations=True,
            normalise_returns=True,
        ),
        upper=UpperConfig(noise_penalty=1.0, earned_trust=True),  # docs/results-environments.md has the measurements
        weights=WeightConfig(
            low=-1.0, high=1.0, max_grad_norm=10.0, learning_rate=1e-3 if method in ("mgl", "imgl") else None
        ),
        dpba=LARGE_POTENTIAL,
    )
    if method == "imgl" and env == "Humanoid-v5":
        config = replace(
            config,
            ppo=replace(config.ppo, policy_hidden=(32, 32)),
            upper=replace(config.upper, second_order="none"),
        )
    return config


def _deterministic(env: str, method: str) -> Config:
    """DDPG with TD3's additions, and a smaller policy on cart-pole where IMGL keeps an n x m matrix."""
    settings = DDPGConfig(twin_critics=True, policy_delay=2, target_noise=0.2)
    imgl = method == "ddpg-imgl"
    if imgl:
        settings = replace(settings, noise_penalty=0.0)  # docs/deterministic.md has the measurements
    if find_compiled(env) is not None:
        small = replace(settings, policy_hidden=(16, 16)) if imgl else settings
        return Config(env=env, method=method, total_steps=100_000, ddpg=small)
    settings = replace(settings, num_envs=4, gradient_steps=1_000, exploration_noise=0.1)
    config = Config(
        env=env, method=method, total_steps=50_000, evaluation_episodes=10, evaluation_every=5, ddpg=settings
    )
    if env not in TORQUE_WEIGHTS:
        return config
    return replace(
        config,
        total_steps=300_000,
        checkpoint_every=50,
        evaluation_every=10,
        weights=WeightConfig(low=-1.0, high=1.0, max_grad_norm=10.0, learning_rate=3e-5),
        ddpg=replace(settings, warmup_steps=10_000, batch_size=256),
    )


def task_term(spec: str, env: str) -> str:
    """The torque term without a number takes the paper's w of its task."""
    return f"torque:{TORQUE_WEIGHTS[env]}" if spec == "torque" and env in TORQUE_WEIGHTS else spec
