"""Gymnasium's spaces as the learner sees them: observations are flat vectors, actions numbers or vectors in [-1, 1].

Every function takes any number of leading axes, so one serves a transition, a step of all environments and a batch.
"""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from bipars.errors import UsageError
from bipars.nets.spaces import ActionSpace, BoxActions, DiscreteActions, MultiDiscreteActions

SUPPORTED_OBSERVATIONS = "Box, Discrete, MultiDiscrete and MultiBinary, alone or in Dict and Tuple"
SUPPORTED_ACTIONS = "Box with finite bounds, Discrete, MultiDiscrete and MultiBinary"
SMALLEST_IMAGE = 1024
"""Numbers below which an array of pixels is as good as any other input."""
NUMBERS = "fiub"
"""Kinds of NumPy's types that are numbers."""


def is_number(value: Any) -> bool:
    """A single one; text is none, even if it reads like one."""
    if isinstance(value, (float, int)):
        return True
    try:
        array = np.asarray(value)
    except ValueError:  # a list of lists of different lengths
        return False
    return array.shape == () and array.dtype.kind in NUMBERS


class HasGymnasiumSpaces:
    """Sizes and bounds that follow from an environment's two spaces."""

    observation_space: Space[Any]
    action_space: Space[Any]

    @cached_property
    def observation_size(self) -> int:
        return observation_size(self.observation_space)

    @cached_property
    def actions(self) -> ActionSpace:
        return action_space(self.action_space)

    @cached_property
    def observation_low(self) -> np.ndarray:
        return observation_bounds(self.observation_space)[0]

    @cached_property
    def observation_high(self) -> np.ndarray:
        return observation_bounds(self.observation_space)[1]


def observation_size(space: Space[Any], where: str = "observation space") -> int:
    """How many numbers an observation becomes. An unsupported space is an error that names it."""
    match space:
        case spaces.Box():
            if space.dtype is not None and space.dtype.kind not in NUMBERS:
                raise UsageError(f"{where} is {space}; boxes must hold numbers")
            if 0 in space.shape:
                raise UsageError(f"{where} is {space}, which holds no number at all; give it at least one")
            return math.prod(space.shape)
        case spaces.Discrete():
            return int(space.n)
        case spaces.MultiBinary():
            return math.prod(space.shape)
        case spaces.MultiDiscrete():
            return int(space.nvec.sum())
        case spaces.Dict() | spaces.Tuple():
            return sum(observation_size(part, f"{where}[{key!r}]") for key, part in _parts(space))
        case _:
            raise UsageError(f"{where} is {space}, which is not supported; supported are {SUPPORTED_OBSERVATIONS}")


def _parts(space: spaces.Dict | spaces.Tuple) -> list[tuple[Any, Space[Any]]]:
    """Each with the key under which an observation has it."""
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def without_unusable(space: Space[Any], where: str = "observation") -> tuple[Space[Any], list[str]]:
    """A Dict without the keys that hold no numbers, and those keys; any other space as it is."""
    if not isinstance(space, spaces.Dict):
        return space, []
    kept: dict[str, Space[Any]] = {}
    dropped = []
    for key, part in space.spaces.items():
        name = f"{where}[{key!r}]"
        inner, inside = without_unusable(part, name)
        try:
            observation_size(inner)
        except UsageError:
            dropped.append(f"{name} ({type(part).__name__})")
        else:
            kept[key] = inner
            dropped += inside
    if not kept or not dropped:  # where nothing is left, who asks for its size names the first
        return space, []
    return spaces.Dict(kept, sort_keys=False), dropped


def images(space: Space[Any], where: str = "observation") -> list[tuple[str, int]]:
    """The pictures in an observation, and how many numbers each has."""
    match space:
        case spaces.Box():
            size, axes = math.prod(space.shape), len(space.shape)
            picture = axes == 3 or (axes == 2 and space.dtype == np.uint8)
            return [(where, size)] if picture and size >= SMALLEST_IMAGE else []
        case spaces.Dict() | spaces.Tuple():
            return [image for key, part in _parts(space) for image in images(part, f"{where}[{key!r}]")]
    return []


def flatten(space: Space[Any], value: Any, lead: int = 1, xp: Any = np) -> Any:
    """(..., obs) as float32 from observations with `lead` leading axes; `xp` is numpy or jax.numpy."""
    match space:
        case spaces.Box() | spaces.MultiBinary():
            array = xp.asarray(value, xp.float32)
            return array.reshape(*array.shape[:lead], -1)
        case spaces.Discrete():
            return _one_hot(xp.asarray(value) - space.start, int(space.n))
        case spaces.MultiDiscrete():
            shifted = (xp.asarray(value) - space.start).reshape(*np.shape(value)[:lead], -1)
            parts = [_one_hot(shifted[..., i], int(n)) for i, n in enumerate(space.nvec.reshape(-1))]
            return xp.concatenate(parts, axis=-1)
        case spaces.Dict() | spaces.Tuple():
            parts = [flatten(part, value[key], lead, xp) for key, part in _parts(space)]
            return xp.concatenate(parts, axis=-1)
    raise AssertionError(space)


def unflatten(space: Space[Any], flat: Any, xp: Any = np) -> Any:
    """Observations in the space's own form, with the leading axes of `flat`."""
    lead = flat.shape[:-1]
    match space:
        case spaces.Box() | spaces.MultiBinary():
            return _cast(flat.reshape(*lead, *space.shape), space)
        case spaces.Discrete():
            return flat.argmax(axis=-1) + space.start
        case spaces.MultiDiscrete():
            ends = np.cumsum(space.nvec.reshape(-1))
            chosen = [part.argmax(axis=-1) for part in xp.split(flat, ends[:-1], axis=-1)]
            return xp.stack(chosen, axis=-1).reshape(*lead, *space.shape) + space.start
        case spaces.Dict() | spaces.Tuple():
            ends = np.cumsum([observation_size(part) for _, part in _parts(space)])
            pieces = zip(_parts(space), xp.split(flat, ends[:-1], axis=-1), strict=True)
            found = {key: unflatten(part, piece, xp) for (key, part), piece in pieces}
            return found if isinstance(space, spaces.Dict) else tuple(found.values())
    raise AssertionError(space)


def _cast(values: Any, space: Space[Any]) -> Any:
    """To the type of the space; JAX keeps the precision that it computes in."""
    assert space.dtype is not None
    if not isinstance(values, np.ndarray) and space.dtype.kind == "f":
        return values
    return values.astype(space.dtype, copy=False)


def observation_bounds(space: Space[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of a Box, flat; other spaces have none that mean anything."""
    if isinstance(space, spaces.Box):
        return space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32)
    size = observation_size(space)
    return np.full(size, -np.inf, np.float32), np.full(size, np.inf, np.float32)


def action_space(space: Space[Any]) -> ActionSpace:
    """How the policy acts. MultiDiscrete and MultiBinary are several choices at once."""
    match space:
        case spaces.Box():
            if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
                raise UsageError(
                    f"action space is {space}, without finite bounds; supported are {SUPPORTED_ACTIONS}. Give it "
                    "bounds, such as -1 and 1: env=lambda: gymnasium.wrappers.TransformAction(make_env(), "
                    f"lambda action: action, gymnasium.spaces.Box(-1.0, 1.0, {space.shape}))"
                )
            if 0 in space.shape:
                raise UsageError(
                    f"action space is {space}, which leaves nothing to choose; give it at least one number"
                )
            return BoxActions(math.prod(space.shape))
        case spaces.Discrete():
            return DiscreteActions(int(space.n))
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            return MultiDiscreteActions(_sizes(space))
        case _:
            raise UsageError(f"action space is {space}, which is not supported; supported are {SUPPORTED_ACTIONS}")


def native_actions(space: Space[Any]) -> Callable[[Any], Any]:
    """How actions become what the environment takes. What depends on the space alone is computed here, once."""
    match space:
        case spaces.Box():
            low, high, shape = space.low.reshape(-1), space.high.reshape(-1), space.shape
            span, flat = high - low, len(shape) == 1

            def box(action: np.ndarray) -> np.ndarray:
                return _cast(action if flat else action.reshape(*action.shape[:-1], *shape), space)

            return box if _unit(space) else lambda action: box(low + span * ((action + 1.0) / 2.0))
        case spaces.Discrete():
            return lambda action: action + space.start
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            start = space.start if isinstance(space, spaces.MultiDiscrete) else 0

            def choices(action: np.ndarray) -> np.ndarray:
                return (action.reshape(*action.shape[:-1], *space.shape) + start).astype(space.dtype)

            return choices
    raise AssertionError(space)


def native_action(space: Space[Any], action: Any) -> Any:
    return native_actions(space)(action)


def policy_action(space: Space[Any], action: Any) -> np.ndarray:
    """The inverse of `native_action`: what the policy would have said."""
    match space:
        case spaces.Box():
            array = np.asarray(action, np.float32)
            flat = array.reshape(*array.shape[: array.ndim - len(space.shape)], -1)
            low, high = space.low.reshape(-1), space.high.reshape(-1)
            return flat if _unit(space) else ((flat - low) / (high - low) * 2.0 - 1.0).astype(np.float32)
        case spaces.Discrete():
            return _index(space, np.asarray(action) - space.start, int(space.n), action)
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            start = space.start if isinstance(space, spaces.MultiDiscrete) else 0
            shifted = np.asarray(action) - start
            choices = shifted.reshape(*shifted.shape[: shifted.ndim - len(space.shape)], -1)
            return _index(space, choices, np.asarray(_sizes(space)), action)
    raise AssertionError(space)


def _index(space: Space[Any], index: np.ndarray, size: Any, action: Any) -> np.ndarray:
    """`index`, which must be whole numbers in [0, size)."""
    if index.dtype.kind not in "iu" or (index < 0).any() or (index >= size).any():
        raise UsageError(f"action is {action!r:.80}, which is outside the action space {space}")
    return index


def _unit(space: spaces.Box) -> bool:
    return bool((space.low == -1).all() and (space.high == 1).all())


def _sizes(space: spaces.MultiDiscrete | spaces.MultiBinary) -> tuple[int, ...]:
    if isinstance(space, spaces.MultiBinary):
        return (2,) * math.prod(space.shape)
    return tuple(int(n) for n in space.nvec.reshape(-1))


def _one_hot(index: Any, size: int) -> Any:
    return (index[..., None] == np.arange(size)).astype(np.float32)


def batched(space: Space[Any], value: Any, what: str = "observation", many: bool = True) -> bool:
    """Whether `value` is many elements of the space, on a leading axis; an error where it is neither one nor many.

    Without `many` it must be one.
    """
    match space:
        case spaces.Dict():
            if not isinstance(value, Mapping) or not set(space.spaces) <= set(value):
                raise UsageError(f"{what} is {value!r:.80}; expected a dict with the keys {list(space.spaces)}")
        case spaces.Tuple():
            if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
                raise UsageError(f"{what} is {value!r:.80}; expected a tuple of {len(space.spaces)}")
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        found = [batched(part, value[key], f"{what}[{key!r}]", many) for key, part in _parts(space)]
        return all(found)
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in NUMBERS:
        raise UsageError(f"{what} is {value!r:.80}; expected numbers of {space}")
    shape, expected = array.shape, space.shape or ()
    if shape == expected:
        return False
    if many and shape[1:] == expected and len(shape) == len(expected) + 1:
        return True
    batch = f" or ({', '.join(map(str, ('batch', *expected)))})" if many else ""
    raise UsageError(f"{what}: got shape {shape} for {space}; expected {expected}{batch}")


def describe(space: Space[Any]) -> dict[str, Any]:
    """The space as plain JSON, to be read back by `from_description`."""
    match space:
        case spaces.Box():
            return {
                "kind": "Box",
                "low": [str(x) for x in space.low.reshape(-1)],
                "high": [str(x) for x in space.high.reshape(-1)],
                "shape": list(space.shape),
                "dtype": str(space.dtype),
            }
        case spaces.Discrete():
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiBinary():
            return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
        case spaces.MultiDiscrete():
            return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case spaces.Dict():
            return {"kind": "Dict", "spaces": {key: describe(part) for key, part in space.spaces.items()}}
        case spaces.Tuple():
            return {"kind": "Tuple", "spaces": [describe(part) for part in space.spaces]}
    raise AssertionError(space)


def from_description(data: Mapping[str, Any]) -> Space[Any]:
    match data["kind"]:
        case "Box":
            low, high = (np.array([float(x) for x in data[end]]).reshape(data["shape"]) for end in ("low", "high"))
            dtype = np.dtype(data["dtype"])
            return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"])
        case "MultiBinary":
            return spaces.MultiBinary(data["n"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(data["nvec"], start=data["start"])
        case "Dict":
            parts = {key: from_description(part) for key, part in data["spaces"].items()}
            return spaces.Dict(parts, sort_keys=False)
        case "Tuple":
            return spaces.Tuple([from_description(part) for part in data["spaces"]])
        case other:
            raise UsageError(f"unknown kind of space '{other}'")
