"""The true rewards, terms and potentials of the suite `misspecified`, on environments that nobody here wrote.

A suite names them as import:bipars.terms.misspecified.pendulum_up. All take many transitions at once. What each is
meant to be, helpful or not, stands in the suite, beside the pair it belongs to.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bipars.terms.term import TermFunction

OfState = Callable[[np.ndarray], Any]
"""One number for every observation."""


def vectorised(fn: Any) -> Any:
    """Marks a function that takes many transitions, or many observations, on a leading axis."""
    fn.vectorised = True
    return fn


def reached(value: OfState) -> TermFunction:
    """A term, or a true reward, of the state that a step leads to."""

    @vectorised
    def term(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
        return value(np.asarray(next_obs))

    return term


def entry(index: int, factor: float) -> TermFunction:
    """One number of the state, times a factor."""
    return reached(lambda obs: factor * obs[..., index])


def size(index: int, factor: float) -> TermFunction:
    """Its absolute value, times a factor."""
    return reached(lambda obs: factor * np.abs(obs[..., index]))


def constant(value: float) -> TermFunction:
    """The same at every step; where it is negative, a living cost."""
    return reached(lambda obs: np.full(len(obs), value))


def effort(factor: float) -> TermFunction:
    """The mean absolute action, times a factor."""

    @vectorised
    def term(obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any]) -> Any:
        return factor * np.abs(np.asarray(action)).mean(axis=-1)

    return term


# CartPole-v1: position, velocity, angle, angular velocity.
cartpole_cost = constant(-2.0)
cartpole_edge = size(0, 1000.0)
cartpole_centre, cartpole_off = size(0, -5.0), size(0, 5.0)

# Pendulum-v1: cosine and sine of the angle (upright: 1, 0), angular velocity.
COSINE, SINE, SPIN = range(3)
pendulum_held = reached(lambda obs: 1.0 * ((obs[..., COSINE] > np.cos(0.25)) & (np.abs(obs[..., SPIN]) < 1.0)))
pendulum_height = vectorised(lambda obs: np.asarray(obs)[..., COSINE])
pendulum_up, pendulum_down = entry(COSINE, 1.0), entry(COSINE, -1.0)
pendulum_hang = entry(COSINE, -5.0)
pendulum_up_small = entry(COSINE, 0.005)
pendulum_swing = size(SPIN, 0.3)

# MountainCar: position, velocity; the goal is at 0.45 on a hill that speed alone climbs.
mountain_car_speed = size(1, 10.0)
mountain_car_left, mountain_car_brake = entry(0, -1.0), size(1, -5.0)
continuous_car_speed = size(1, 5.0)


@vectorised
def mountain_car_energy(obs: Any) -> Any:
    """Height and speed, in units in which the goal is about 1: what the car has to gather."""
    position, velocity = np.asarray(obs)[..., 0], np.asarray(obs)[..., 1]
    return 0.5 * np.sin(3 * position) + 200.0 * velocity**2


# Acrobot-v1: cosine and sine of the two angles, their velocities.
def tip_height(obs: np.ndarray) -> np.ndarray:
    cos_1, sin_1, cos_2, sin_2 = (obs[..., i] for i in range(4))
    return -cos_1 - (cos_1 * cos_2 - sin_1 * sin_2)


acrobot_potential = vectorised(lambda obs: tip_height(np.asarray(obs)))
acrobot_height, acrobot_height_again = (reached(lambda obs: 0.3 * tip_height(obs)) for _ in range(2))
acrobot_low = reached(lambda obs: -tip_height(obs))
acrobot_speed = reached(lambda obs: 0.5 * np.abs(obs[..., 4:6]).sum(axis=-1))
acrobot_calm = reached(lambda obs: -0.3 * np.abs(obs[..., 4:6]).sum(axis=-1))
acrobot_knee_high = entry(0, -0.3)
acrobot_stretched, acrobot_folded = entry(2, 0.1), entry(2, -0.1)
acrobot_left, acrobot_right = entry(1, 0.1), entry(1, -0.1)
acrobot_elbow_left, acrobot_elbow_right = entry(3, 0.1), entry(3, -0.1)
acrobot_clockwise, acrobot_counterclockwise = entry(4, 0.05), entry(4, -0.05)
acrobot_hurry = constant(-0.1)

# InvertedPendulum-v5: position, angle, their velocities. InvertedDoublePendulum-v5: 9 numbers, the position first.
inverted_small = size(1, -0.001)
inverted_edge = size(0, 5.0)
double_cost = constant(-12.0)


# Reacher-v5: 10 numbers, the last two the way from the target to the fingertip.
def reacher_distance(obs: np.ndarray) -> np.ndarray:
    return np.linalg.norm(obs[..., 8:10], axis=-1)


reacher_reached = reached(lambda obs: 1.0 * (reacher_distance(obs) < 0.03))
reacher_closeness = vectorised(lambda obs: -reacher_distance(np.asarray(obs)))
reacher_near, reacher_near_again = (reached(lambda obs: -reacher_distance(obs)) for _ in range(2))
reacher_far = reached(reacher_distance)
reacher_far_large = reached(lambda obs: 1000.0 * reacher_distance(obs))

# Swimmer-v5: 3 angles, then the velocities: forwards, sideways, of the angles.
swimmer_moving = reached(lambda obs: 1.0 * (obs[..., 3] > 0.15))
swimmer_fast = entry(3, 1.0)

# Hopper-v5: height, pitch, 3 angles, then velocities: forwards, upwards, of the angles. Walker2d-v5: alike.
hopper_still = size(5, -3.0)
walker_cost = constant(-3.0)

# HalfCheetah-v5: height, pitch, 6 angles, then velocities: forwards, upwards, of pitch and angles.
cheetah_forward, cheetah_backward = entry(8, 1.0), entry(8, -3.0)
cheetah_level, cheetah_flip = size(1, -0.3), entry(1, 3.0)
cheetah_high = entry(0, 0.3)
cheetah_no_bounce = size(9, -0.1)
cheetah_no_pitching = size(10, -0.05)
cheetah_effort = effort(-0.1)
cheetah_back_thigh, cheetah_back_shin, cheetah_back_foot = (size(i, -0.1) for i in (2, 3, 4))
cheetah_front_thigh, cheetah_front_shin, cheetah_front_foot = (size(i, -0.1) for i in (5, 6, 7))


# FrozenLake-v1: the number of the square; the start is the first, the goal the last.
def lake_closeness(square: Any, width: int) -> Any:
    """From 0 at the start to 1 at the goal."""
    return (np.asarray(square) // width + np.asarray(square) % width) / (2 * width - 2)


lake_back = reached(lambda square: -0.3 * lake_closeness(square, 4))
large_lake_potential = vectorised(lambda square: lake_closeness(square, 8))
large_lake_near = reached(lambda square: 0.005 * lake_closeness(square, 8))

# Which of 16 terms are poison or noise, and which are useful. Of those in neither list, such as "to the left" on a task
# that is its own mirror image, there is no right or wrong.
POISON = {
    "Acrobot-v1, sixteen": ("acrobot_low", "acrobot_calm", "noise:1", "noise:0.5"),
    "HalfCheetah-v5, sixteen": ("cheetah_backward", "cheetah_flip", "noise:1", "noise:0.5"),
}
USEFUL = {
    "Acrobot-v1, sixteen": ("acrobot_height", "acrobot_knee_high", "acrobot_speed", "acrobot_hurry"),
    "HalfCheetah-v5, sixteen": ("cheetah_forward", "cheetah_level", "cheetah_high", "cheetah_effort"),
}
