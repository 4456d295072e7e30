"""Cart-pole with the paper's sparse true reward: -1 when the pole falls or the cart leaves, else 0.

One formula for the physics serves JAX (training) and NumPy (`CartPoleEnv`, for any other library).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from bipars.envs import gym
from bipars.envs.registry import EnvironmentFamily, WeightMap, register
from bipars.errors import UsageError
from bipars.nets.spaces import ActionSpace, BoxActions, DiscreteActions
from bipars.settings.config import Config
from bipars.settings.recipe import TD3

if TYPE_CHECKING:  # loading JAX takes longer than answering --help
    from jaxtyping import Array, Float, PRNGKeyArray

    from bipars.envs.base import StepResult

GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
POLE_HALF_LENGTH = 0.5
SECONDS_PER_STEP = 0.02
POSITION_LIMIT = 2.4
ANGLE_LIMIT = 12 * 2 * math.pi / 360
RESET_RANGE = 0.05


def advance(state: Any, force: Any, xp: ModuleType = np) -> Any:
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

    def reset(self, key: PRNGKeyArray) -> Float[Array, 4]:
        import jax

        return jax.random.uniform(key, (4,), minval=-RESET_RANGE, maxval=RESET_RANGE)

    def observe(self, state: Float[Array, 4]) -> Float[Array, 4]:
        return state

    def step(self, key: PRNGKeyArray, state: Float[Array, 4], action: Array) -> StepResult:
        import jax.numpy as jnp

        from bipars.envs.base import StepResult

        push = jnp.clip(action[0], -1.0, 1.0) if self.continuous else 2.0 * action - 1.0
        state = advance(state, self.force * push, jnp)
        terminated = fallen(state)
        return StepResult(state, jnp.where(terminated, -1.0, 0.0), terminated)


class CartPoleEnv(gymnasium.Env[np.ndarray, Any]):
    """Sparse reward: -1 on the step that ends the episode by falling, else 0. Truncated at 200 steps by Gymnasium."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own declaration)

    def __init__(self, continuous: bool = False, force: float = 10.0) -> None:
        self.continuous, self.force = continuous, force
        limit = np.full(4, np.inf, np.float32)
        self.observation_space = gymnasium.spaces.Box(-limit, limit)
        self.action_space = (
            gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else gymnasium.spaces.Discrete(2)
        )
        self.state = np.zeros(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-RESET_RANGE, RESET_RANGE, 4)
        return self.state.astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        push = float(np.clip(action[0], -1.0, 1.0)) if self.continuous else 2.0 * int(action) - 1.0
        self.state = advance(self.state, self.force * push)
        terminated = bool(fallen(self.state))
        return self.state.astype(np.float32), -1.0 if terminated else 0.0, terminated, False, {}


def draw(state: np.ndarray, size: int = 480) -> np.ndarray:
    """The cart on its track and the pole on the cart; drawn at twice the size, for smooth edges."""
    from PIL import Image, ImageDraw

    whole = 2 * size
    image = Image.new("RGB", (whole, whole), "#ffffff")
    pen = ImageDraw.Draw(image)
    unit, ground = whole / (2.4 * POSITION_LIMIT), 0.72 * whole
    x = whole / 2 + float(state[0]) * unit
    for limit in (-POSITION_LIMIT, POSITION_LIMIT):
        edge = whole / 2 + limit * unit
        pen.line([(edge, ground - 30), (edge, ground + 30)], "#5b6570", 3)
    pen.line([(0, ground), (whole, ground)], "#d9dee4", 6)
    pen.rounded_rectangle([x - 0.3 * unit, ground - 0.2 * unit, x + 0.3 * unit, ground + 0.1 * unit], 12, "#1b2027")
    angle, length, hinge = float(state[2]), 1.6 * unit, ground - 0.1 * unit
    top = (x + length * math.sin(angle), hinge - length * math.cos(angle))
    pen.line([(x, hinge), top], "#D55E00" if abs(angle) > ANGLE_LIMIT else "#0072B2", 20)
    pen.ellipse([x - 12, hinge - 12, x + 12, hinge + 12], "#E69F00")
    return np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))


def paper(method: str, learner: str = "ppo") -> Config:
    """Appendix D of the paper; of deterministic policies it says nothing, so these are ours."""
    if learner == "ppo":
        return Config()
    # IMGL keeps an n x m matrix.
    ddpg = replace(TD3, policy_hidden=(16, 16)) if method == "ddpg-imgl" else TD3
    return Config(steps=100_000, ddpg=ddpg)


OBSERVATIONS = ("cart position", "cart velocity", "pole angle", "pole angular velocity")
POTENTIALS = {"nothing": "upright", "action": "push", "step": "fading"}

for name, alias, continuous in (
    ("cartpole", "bipars/CartPole-v0", False),
    ("cartpole-continuous", "bipars/CartPoleContinuous-v0", True),
):
    register(
        EnvironmentFamily(
            name,
            {"paper": paper},
            aliases=(alias,),
            make_jax=partial(CartPole, continuous=continuous),
            observations=OBSERVATIONS,
            potentials=POTENTIALS,
            draw=draw,
            measures=("evaluation_length",),
            weight_map=WeightMap("the paper's figure 5d", 0, 2, POSITION_LIMIT, ANGLE_LIMIT, (0.0, 1.0, 0.0, 0.01)),
        )
    )
    for known in (name, alias):
        gymnasium.register(known, f"{__name__}:CartPoleEnv", max_episode_steps=200, kwargs={"continuous": continuous})
register(replace(gym.GYMNASIUM, name="CartPole-v1", observations=OBSERVATIONS, potentials=POTENTIALS))
