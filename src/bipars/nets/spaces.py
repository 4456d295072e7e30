"""What networks are built for: how many numbers an observation has, and which actions there are."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np


@dataclass(frozen=True)
class DiscreteActions:
    """Actions 0, 1, ..., n - 1."""

    n: int
    dtype: ClassVar[type] = np.int32

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one action."""
        return ()

    @property
    def width(self) -> int:
        """Numbers by which a network says one, or is told one."""
        return self.n

    def __str__(self) -> str:
        return f"{self.n} discrete ones"


@dataclass(frozen=True)
class MultiDiscreteActions:
    """Several choices at once: choice i is one of 0, 1, ..., sizes[i] - 1."""

    sizes: tuple[int, ...]
    dtype: ClassVar[type] = np.int32

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)

    @property
    def width(self) -> int:
        return sum(self.sizes)

    def __str__(self) -> str:
        return f"{len(self.sizes)} discrete choices at once"


@dataclass(frozen=True)
class BoxActions:
    """Vectors of `size` numbers in [-1, 1]; what lies outside is clipped before it acts."""

    size: int
    dtype: ClassVar[type] = np.float32

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,)

    @property
    def width(self) -> int:
        return self.size

    def __str__(self) -> str:
        return "continuous"


ActionSpace = DiscreteActions | MultiDiscreteActions | BoxActions


class Spaces(NamedTuple):
    """The two sizes that networks are built from."""

    observation_size: int
    actions: ActionSpace


class HasSpaces(Protocol):
    """Anything that knows them."""

    @property
    def observation_size(self) -> int: ...
    @property
    def actions(self) -> ActionSpace: ...
