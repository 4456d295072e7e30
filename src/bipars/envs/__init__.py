"""Where transitions come from. To load a family's file is to register it; none of them needs JAX or MuJoCo for that."""

from bipars.envs import gym, mujoco  # noqa: F401
from bipars.envs.cartpole import CartPole
from bipars.envs.registry import EnvironmentFamily, WeightMap, families, find_family, register

__all__ = ["CartPole", "EnvironmentFamily", "WeightMap", "families", "find_family", "register"]
