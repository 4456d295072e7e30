"""A policy's network as plain arrays, for environments that act in compiled code."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bipars.errors import UsageError


class Network(NamedTuple):
    """A Gaussian policy as NumPy's arrays, for code that knows nothing of policies."""

    mean: np.ndarray
    std: np.ndarray
    limit: np.float32
    """Observations are taken in units of `std` from `mean`, and at most so large."""
    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]
    relu: bool
    """Between layers; else it is tanh."""
    spread: np.ndarray
    """(action,): the standard deviation of actions."""

    def check(self, observations: int, actions: int) -> None:
        """That it maps so many numbers to so many: compiled code looks at no shape."""
        sizes = (observations, *(bias.size for bias in self.biases))
        expected = [(observations,)] * 2 + [*pairwise(sizes)] + [(size,) for size in sizes[1:]] + [(actions,)] * 2
        found = [self.mean, self.std, *self.weights, *self.biases, self.biases[-1], self.spread]
        if [part.shape for part in found] != expected:
            raise UsageError(
                f"the network's arrays have shapes {[part.shape for part in found]}; expected {expected}, for "
                f"{observations} observations and {actions} actions"
            )


Networks = list[tuple[Network, range]]
"""Each with the environments that it acts in."""
