"""What networks are built for: how many numbers an observation has, and which actions there are."""

from typing import NamedTuple, Protocol


class DiscreteActions(NamedTuple):
    """Actions 0, 1, ..., n - 1."""

    n: int


class BoxActions(NamedTuple):
    """Vectors of `size` numbers in [-1, 1]; what lies outside is clipped before it acts."""

    size: int


ActionSpace = DiscreteActions | BoxActions


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
