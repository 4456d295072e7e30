"""Reward terms for environments that nobody here wrote, one that helps and one that harms each.

On the command line: `bipars train --env Pendulum-v1 --term import:bipars.examples.pendulum_upright ...`
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


def pendulum_upright(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Helps: the cosine of the angle, highest where the pendulum stands."""
    return 5.0 * next_obs[..., 0]


def pendulum_hanging(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Harms: highest where it hangs."""
    return -10.0 * next_obs[..., 0]


def mountain_car_speed(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Helps: the car must swing to get up the hill."""
    return 10.0 * np.abs(next_obs[..., 1])


def mountain_car_rest(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Harms: a car at rest stays in the valley."""
    return -20.0 * np.abs(next_obs[..., 1])


def cartpole_upright(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Helps: little angle."""
    return -5.0 * np.abs(next_obs[..., 2])


def cartpole_leaning(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Harms: much angle, worth more than a step of life."""
    return 20.0 * np.abs(next_obs[..., 2])
