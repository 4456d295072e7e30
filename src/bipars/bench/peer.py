"""Stable-Baselines3's PPO, to compare with."""

from typing import Any


def make_peer(env: str, num_envs: int, steps: int, threads: int, net_arch: Any, **settings: Any) -> Any:
    """As the paper's settings have it: 50 gradient steps on every batch of `steps`."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(threads)
    network = {"net_arch": net_arch, "activation_fn": torch.nn.ReLU} | settings.pop("policy_kwargs", {})
    return stable_baselines3.PPO(
        "MlpPolicy",
        make_vec_env(env, n_envs=num_envs, seed=0),
        n_steps=steps // num_envs,
        batch_size=800,  # they must divide the batch: ours have 1024 samples
        n_epochs=2,
        gamma=0.999,
        learning_rate=1e-4,
        policy_kwargs=network,
        device="cpu",
        **settings,
    )
