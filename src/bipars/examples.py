"""Reward terms for environments that nobody here wrote: one that helps and one that harms each, as people write them.

On the command line: `bipars train --env Pendulum-v1 --term import:bipars.examples.pendulum_upright ...`
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


def pendulum_upright(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Helps: the cosine of the angle, highest where the pendulum stands."""
    return 5.0 * next_obs[..., 0]


def pendulum_calm(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Harms: "move slowly". Without speed the pendulum never swings up."""
    return -5.0 * np.abs(next_obs[..., 2])


def acrobot_height(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Helps: the height of the tip, which must be swung above a line."""
    cos_1, sin_1, cos_2, sin_2 = (next_obs[..., i] for i in range(4))
    return -cos_1 - (cos_1 * cos_2 - sin_1 * sin_2)


def acrobot_calm(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Harms: "move slowly". Without speed the tip stays low."""
    return -0.5 * np.abs(next_obs[..., 4:]).sum(axis=-1)


def cartpole_upright(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Helps: a small angle."""
    return 1.0 - np.abs(next_obs[..., 2]) / 0.21


def cartpole_hurry(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Harms: "be quick". A cost of every step, larger than what the step earns, makes an early fall pay."""
    return np.full(np.shape(next_obs)[:-1], -3.0)[()]


for _term in list(globals().values()):
    if callable(_term) and getattr(_term, "__module__", "") == __name__:
        _term.vectorised = True
