"""What the training loop needs from an environment written in JAX.

An environment is a frozen description; its state is a pytree that the caller keeps.
Randomness is passed in as numbers drawn beforehand: drawing inside the rollout's loop costs more than the physics.
"""

from typing import Protocol

from jaxtyping import Array, Bool, Float

from bipars.nets.spaces import ActionSpace


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
