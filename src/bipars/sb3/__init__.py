"""Weights learned inside Stable-Baselines3: `ShapedPPO`. Needs its package: pip install 'bipars[sb3]'."""

from importlib.util import find_spec
from typing import Any

from bipars.errors import UsageError

if find_spec("stable_baselines3") is None or find_spec("torch") is None:
    raise UsageError("bipars.sb3 needs packages that are not installed: pip install 'bipars[sb3]'")

from bipars.sb3.ppo import ShapedPPO

__all__ = ["ShapedPPO"]


def __getattr__(name: str) -> Any:
    if name.startswith("Shaped"):
        raise AttributeError(
            f"bipars.sb3 has no {name}: weights are learned through PPO's objective alone. Train a ShapedPPO, then any "
            "algorithm on model.shaped_env(env)"
        )
    raise AttributeError(f"module 'bipars.sb3' has no attribute '{name}'")
