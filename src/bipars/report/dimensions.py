"""What the numbers of an observation are called, where that is known."""

CARTPOLE = ("cart position", "cart velocity", "pole angle", "pole angular velocity")
_LEG = ("thigh angle", "leg angle", "foot angle")
_LEG_SPEED = ("thigh speed", "leg speed", "foot speed")


def _sides(names: tuple[str, ...], first: str, second: str) -> tuple[str, ...]:
    return tuple(f"{side} {name}" for side in (first, second) for name in names)


NAMES: dict[str, tuple[str, ...]] = {
    "cartpole": CARTPOLE,
    "cartpole-continuous": CARTPOLE,
    "bipars/CartPole-v0": CARTPOLE,
    "bipars/CartPoleContinuous-v0": CARTPOLE,
    "CartPole-v1": CARTPOLE,
    "Pendulum-v1": ("cos(angle)", "sin(angle)", "angular velocity"),
    "Acrobot-v1": ("cos(angle 1)", "sin(angle 1)", "cos(angle 2)", "sin(angle 2)", "speed 1", "speed 2"),
    "MountainCar-v0": ("position", "velocity"),
    "MountainCarContinuous-v0": ("position", "velocity"),
    "Hopper-v5": ("height", "torso angle", *_LEG, "forward speed", "upward speed", "torso speed", *_LEG_SPEED),
    "Walker2d-v5": (
        "height",
        "torso angle",
        *_sides(_LEG, "right", "left"),
        "forward speed",
        "upward speed",
        "torso speed",
        *_sides(_LEG_SPEED, "right", "left"),
    ),
    "HalfCheetah-v5": (
        "height",
        "torso angle",
        *_sides(("thigh angle", "shin angle", "foot angle"), "back", "front"),
        "forward speed",
        "upward speed",
        "torso speed",
        *_sides(("thigh speed", "shin speed", "foot speed"), "back", "front"),
    ),
    "Swimmer-v5": (
        "front angle",
        "joint 1 angle",
        "joint 2 angle",
        "x speed",
        "y speed",
        "front speed",
        "joint 1 speed",
        "joint 2 speed",
    ),
}


def input_names(env: str, observations: int, actions: int) -> list[str]:
    """Observations first, then the parts of a continuous action."""
    known = NAMES.get(env, ())
    names = list(known) if len(known) == observations else [f"obs[{i}]" for i in range(observations)]
    return names + (["action"] if actions == 1 else [f"action[{i}]" for i in range(actions)])
