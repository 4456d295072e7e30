"""Where transitions come from. To load a family's file is to register it; none of them needs JAX or MuJoCo for that."""

from typing import TYPE_CHECKING, Any

from bipars.envs import gym, mujoco  # noqa: F401
from bipars.envs.cartpole import CartPole
from bipars.envs.registry import EnvironmentFamily, WeightMap, families, find_family, register

if TYPE_CHECKING:
    from bipars.envs.adapters import from_brax, from_gymnax

__all__ = [
    "CartPole", "EnvironmentFamily", "WeightMap", "families", "find_family", "from_brax", "from_gymnax", "register",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loads JAX for the adapters only."""
    if name not in ("from_brax", "from_gymnax"):
        raise AttributeError(f"module 'bipars.envs' has no attribute '{name}'")
    from bipars.envs import adapters

    return getattr(adapters, name)
