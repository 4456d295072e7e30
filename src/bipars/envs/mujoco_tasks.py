"""What distinguishes Gymnasium's v5 MuJoCo tasks from each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Task:
    """What distinguishes one task from another."""

    model: str
    frame_skip: int
    options: Mapping[str, Any]
    """Gymnasium's keywords with its defaults."""
    unseen: int = 1
    """How many leading coordinates, the place in the sampler, are left out of the observation."""
    height: int = 1
    """Which coordinate `healthy_z_range` is about."""
    max_velocity: float | None = None
    """Where observed velocities are clipped."""
    normal_start: bool = False
    """Velocities start normally distributed instead of uniformly."""
    bodies: bool = False
    """The bodies' inertias, velocities and contact forces are observed, and contacts cost reward."""
    torque: float = 20
    """w of the torque term, which brings it to the scale of the task's reward (the paper's table of appendix D)."""
    steps: int = 3_200_000
    """Of a run."""
    simple_imgl: bool = False
    """IMGL's n x m matrix takes a smaller policy, and no second order."""
    observations: tuple[str, ...] = ()
    """What the numbers of an observation are called."""


def _sides(first: str, second: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{side} {name}" for side in (first, second) for name in names)


_SPEEDS = ("forward speed", "upward speed", "torso speed")

TASKS = {
    "Swimmer-v5": Task(
        "swimmer.xml",
        frame_skip=4,
        options={"forward_reward_weight": 1.0, "ctrl_cost_weight": 1e-4, "reset_noise_scale": 0.1},
        unseen=2,
        observations=(
            *("front angle", "joint 1 angle", "joint 2 angle"),
            *("x speed", "y speed", "front speed", "joint 1 speed", "joint 2 speed"),
        ),
    ),
    "HalfCheetah-v5": Task(
        "half_cheetah.xml",
        frame_skip=5,
        options={"forward_reward_weight": 1.0, "ctrl_cost_weight": 0.1, "reset_noise_scale": 0.1},
        normal_start=True,
        torque=100,
        observations=(
            *("height", "torso angle", *_sides("back", "front", "thigh angle", "shin angle", "foot angle")),
            *(*_SPEEDS, *_sides("back", "front", "thigh speed", "shin speed", "foot speed")),
        ),
    ),
    "Hopper-v5": Task(
        "hopper.xml",
        frame_skip=4,
        options={
            "forward_reward_weight": 1.0,
            "ctrl_cost_weight": 1e-3,
            "reset_noise_scale": 5e-3,
            "healthy_reward": 1.0,
            "terminate_when_unhealthy": True,
            "healthy_state_range": (-100.0, 100.0),
            "healthy_z_range": (0.7, np.inf),
            "healthy_angle_range": (-0.2, 0.2),
        },
        max_velocity=10.0,
        torque=16,
        observations=(
            *("height", "torso angle", "thigh angle", "leg angle", "foot angle"),
            *(*_SPEEDS, "thigh speed", "leg speed", "foot speed"),
        ),
    ),
    "Walker2d-v5": Task(
        "walker2d_v5.xml",
        frame_skip=4,
        options={
            "forward_reward_weight": 1.0,
            "ctrl_cost_weight": 1e-3,
            "reset_noise_scale": 5e-3,
            "healthy_reward": 1.0,
            "terminate_when_unhealthy": True,
            "healthy_z_range": (0.8, 2.0),
            "healthy_angle_range": (-1.0, 1.0),
        },
        max_velocity=10.0,
        torque=10,
        steps=4_800_000,
        observations=(
            *("height", "torso angle", *_sides("right", "left", "thigh angle", "leg angle", "foot angle")),
            *(*_SPEEDS, *_sides("right", "left", "thigh speed", "leg speed", "foot speed")),
        ),
    ),
    "Humanoid-v5": Task(
        "humanoid.xml",
        frame_skip=5,
        options={
            "forward_reward_weight": 1.25,
            "ctrl_cost_weight": 0.1,
            "reset_noise_scale": 1e-2,
            "healthy_reward": 5.0,
            "terminate_when_unhealthy": True,
            "healthy_z_range": (1.0, 2.0),
            "contact_cost_weight": 5e-7,
            "contact_cost_range": (-np.inf, 10.0),
        },
        unseen=2,
        height=2,
        bodies=True,
        simple_imgl=True,
    ),
}
