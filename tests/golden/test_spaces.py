"""Spaces as the learner sees them, and back."""

import json

import jax
import numpy as np
import pytest
from gymnasium import spaces

from bipars.envs import spaces as codec
from bipars.errors import UsageError


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-2, 3, (2, 3), np.float64),
        spaces.Discrete(4, start=-1),
        spaces.MultiBinary(3),
        spaces.MultiDiscrete([2, 3], start=[1, 0]),
        spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(-1, 1, (2,), np.float32)}),
        spaces.Tuple((spaces.Discrete(2), spaces.Dict({"x": spaces.Box(0, 1, (1,), np.float32)}))),
    ],
)
def test_observations_are_flattened_and_come_back(space):
    space.seed(3)
    for _ in range(5):
        value = space.sample()
        flat = codec.flatten(space, value, lead=0)
        assert flat.shape == (codec.observation_size(space),)
        np.testing.assert_allclose(flat, spaces.flatten(space, value), rtol=1e-6)
        back = codec.unflatten(space, flat)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), [back], [value])
        assert not codec.batched(space, value)
    again = codec.from_description(codec.describe(space))
    assert again == space


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([4.0, 1.0], np.float32)),
        spaces.Discrete(5, start=2),
        spaces.MultiDiscrete([2, 3], start=[1, 0]),
        spaces.MultiBinary(3),
    ],
)
def test_actions_go_there_and_back(space):
    space.seed(1)
    batch = np.stack([space.sample() for _ in range(20)])
    there = codec.policy_action(space, batch)
    back = codec.native_action(space, np.asarray(there))
    np.testing.assert_allclose(back, batch, rtol=1e-5, atol=1e-6)
    assert all(space.contains(action) for action in back)


def test_box_actions_reach_both_ends_of_their_range():
    space = spaces.Box(np.float32(-2), np.float32(4), (1,))
    np.testing.assert_array_equal(codec.native_action(space, np.array([[-1.0], [0.0], [1.0]])), [[-2], [1], [4]])


def test_unsupported_spaces_are_named_with_what_is_supported():
    with pytest.raises(UsageError, match=r"observation space\['name'\] is Text.*supported are Box, Discrete"):
        codec.observation_size(spaces.Dict({"name": spaces.Text(3)}))
    with pytest.raises(UsageError, match="without finite bounds.*TransformAction"):
        codec.action_space(spaces.Box(-np.inf, np.inf, (2,)))
    with pytest.raises(UsageError, match="action space is Tuple.*not supported"):
        codec.action_space(spaces.Tuple((spaces.Discrete(2),)))


def test_keys_of_a_dict_keep_their_order():
    space = spaces.Dict({"zeta": spaces.Box(0, 1, (1,)), "alpha": spaces.Box(2, 3, (1,))}, sort_keys=False)
    again = codec.from_description(json.loads(json.dumps(codec.describe(space))))
    assert list(again.spaces) == ["zeta", "alpha"]
