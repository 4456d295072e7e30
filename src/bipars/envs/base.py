"""What the training loop needs from an environment written in JAX.

An environment is a frozen description; its state is a pytree that the caller keeps.
Randomness is passed in as numbers drawn beforehand: drawing inside the rollout's loop costs more than the physics.
"""

from typing import NamedTuple, Protocol

from jaxtyping import Array, Bool, Float


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


class Environment(Protocol):
    """Pure functions on one environment; the rollout vectorises them."""

    @property
    def observation_size(self) -> int: ...
    @property
    def actions(self) -> ActionSpace: ...
    @property
    def max_steps(self) -> int:
        """Length at which an episode is truncated (not terminated)."""
        ...

    @property
    def noise_size(self) -> int:
        """How many uniform numbers a reset consumes."""
        ...

    def reset(self, noise: Float[Array, " noise"]) -> Float[Array, " state"]: ...
    def observe(self, state: Float[Array, " state"]) -> Float[Array, " obs"]: ...
    def step(
        self, state: Float[Array, " state"], action: Array
    ) -> tuple[Float[Array, " state"], Float[Array, ""], Bool[Array, ""]]:
        """The next state, the true reward and whether the episode terminated."""
        ...
