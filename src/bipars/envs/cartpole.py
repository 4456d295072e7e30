"""Cart-pole with the paper's sparse true reward: -1 when the pole falls or the cart leaves, else 0.

One formula for the physics serves JAX (training) and NumPy (the Gymnasium environments of `gymnasium_cartpole`).
"""

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bipars.errors import UsageError
from bipars.nets.spaces import ActionSpace, BoxActions, DiscreteActions

GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
POLE_HALF_LENGTH = 0.5
SECONDS_PER_STEP = 0.02
POSITION_LIMIT = 2.4
ANGLE_LIMIT = 12 * 2 * math.pi / 360
RESET_RANGE = 0.05


def advance(state: Any, force: Any, xp: ModuleType = jnp) -> Any:
    """One Euler step of 0.02 s; `state` is (position, velocity, angle, angular velocity) on its last axis."""
    x, x_dot, angle, angle_dot = (state[..., i] for i in range(4))
    cos, sin = xp.cos(angle), xp.sin(angle)
    total_mass = CART_MASS + POLE_MASS
    pole_moment = POLE_MASS * POLE_HALF_LENGTH
    push = (force + pole_moment * angle_dot**2 * sin) / total_mass
    angle_acc = (GRAVITY * sin - cos * push) / (POLE_HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos**2 / total_mass))
    x_acc = push - pole_moment * angle_acc * cos / total_mass
    tau = SECONDS_PER_STEP
    return xp.stack(
        [x + tau * x_dot, x_dot + tau * x_acc, angle + tau * angle_dot, angle_dot + tau * angle_acc], axis=-1
    )


def fallen(state: Any) -> Any:
    return (abs(state[..., 0]) > POSITION_LIMIT) | (abs(state[..., 2]) > ANGLE_LIMIT)


@dataclass(frozen=True)
class CartPole:
    """The two cart-pole tasks of the paper."""

    continuous: bool = False
    force: float = 10.0
    """Newtons at action 1 (right); action 0 (discrete) or -1 (continuous) pushes left as hard."""
    max_steps: int = 200
    observation_size: int = 4
    noise_size: int = 4
    observation_low: tuple[float, ...] = (-POSITION_LIMIT, -3.0, -ANGLE_LIMIT, -3.0)
    """The part of the state space that a living pole visits; random terms lay their cells over it."""
    observation_high: tuple[float, ...] = (POSITION_LIMIT, 3.0, ANGLE_LIMIT, 3.0)

    def __post_init__(self) -> None:
        if not self.force > 0 or not math.isfinite(self.force):
            raise UsageError(f"cartpole: force is {self.force}; it must be a positive number of newtons")
        if self.max_steps < 1:
            raise UsageError(f"cartpole: max_steps is {self.max_steps}; it must be at least 1")

    @property
    def actions(self) -> ActionSpace:
        return BoxActions(1) if self.continuous else DiscreteActions(2)

    def reset(self, noise: Float[Array, "4"]) -> Float[Array, "4"]:
        return (2 * noise - 1) * RESET_RANGE

    def observe(self, state: Float[Array, "4"]) -> Float[Array, "4"]:
        return state

    def step(
        self, state: Float[Array, "4"], action: Array
    ) -> tuple[Float[Array, "4"], Float[Array, ""], Bool[Array, ""]]:
        push = jnp.clip(action[0], -1.0, 1.0) if self.continuous else 2.0 * action - 1.0
        state = advance(state, self.force * push)
        terminated = fallen(state)
        return state, jnp.where(terminated, -1.0, 0.0), terminated
