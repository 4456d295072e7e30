"""Reward terms for environments that nobody here wrote: one that helps and one that harms each, as people write them.

On the command line: `bipars train --env Pendulum-v1 --term import:bipars.examples.pendulum_upright ...`
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bipars.terms.term import TermFunction


def vectorised(fn: TermFunction) -> TermFunction:
    """Marks a function that takes many transitions at once, on a leading axis."""
    fn.vectorised = True  # type: ignore[attr-defined]
    return fn


@vectorised
def pendulum_upright(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Helps: the cosine of the angle, highest where the pendulum stands."""
    return 5.0 * next_obs[..., 0]


@vectorised
def pendulum_calm(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Harms: "move slowly". Without speed the pendulum never swings up."""
    return -5.0 * np.abs(next_obs[..., 2])


@vectorised
def acrobot_height(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Helps: the height of the tip, which must be swung above a line."""
    cos_1, sin_1, cos_2, sin_2 = (next_obs[..., i] for i in range(4))
    return -cos_1 - (cos_1 * cos_2 - sin_1 * sin_2)


@vectorised
def acrobot_calm(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Harms: "move slowly". Without speed the tip stays low."""
    return -0.5 * np.abs(next_obs[..., 4:]).sum(axis=-1)


@vectorised
def cartpole_upright(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Helps: a small angle."""
    return 1.0 - np.abs(next_obs[..., 2]) / 0.21


@vectorised
def cartpole_hurry(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Harms: "be quick". A cost of every step, larger than what the step earns, makes an early fall pay."""
    return np.full(len(next_obs), -3.0)
