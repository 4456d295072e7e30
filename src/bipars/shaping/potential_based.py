"""Potential-based shaping: F = gamma Phi(s', a') - Phi(s, a) moves reward about in time and adds none in the end.

One protocol for every kind of it, so that the loop needs no names: `init` makes its state, and `shape` learns from a
fresh batch what there is to learn, then says what the potential adds to it.
"""

from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.nets.policies import Policy
from bipars.nets.running import RunningMoments
from bipars.rollout.batch import Batch, PotentialReward, Sampler


class ShapingContext(NamedTuple):
    """Where the run stands when a batch has just been sampled."""

    sampler: Sampler
    policy: Policy
    """The one that acted, as the environment met it."""
    observations: RunningMoments | None
    """By which observations are normalised."""
    round: Int[Array, ""]


class PotentialShaping(Protocol):
    """Where a potential comes from, and how it learns."""

    @property
    def shapes(self) -> bool:
        """Whether there is one at all."""
        ...

    def init(self, key: PRNGKeyArray, sampler: Sampler) -> Any: ...

    def shape(
        self, state: Any, batch: Batch, context: ShapingContext, key: PRNGKeyArray
    ) -> tuple[Any, PotentialReward | None]:
        """The next state, and what the potential adds to the batch."""
        ...


class NoPotential:
    """Rewards as they are."""

    shapes = False

    def init(self, key: PRNGKeyArray, sampler: Sampler) -> tuple[()]:
        return ()

    def shape(self, state: Any, batch: Batch, context: ShapingContext, key: PRNGKeyArray) -> tuple[Any, None]:
        return state, None


def potential_difference(
    now: Float[Array, "time env"],
    following: Float[Array, "time env"],
    terminated: Bool[Array, "time env"],
    gamma: float,
) -> Float[Array, "time env"]:
    """F. Nothing is carried over a termination, where Phi is 0. A truncated episode would have gone on: Phi counts."""
    return gamma * jnp.where(terminated, 0.0, following) - now


def next_actions(policy: Policy, batch: Batch, key: PRNGKeyArray) -> Array:
    """a' of every transition: the action that followed, or a fresh one where the episode or the batch ended."""
    fresh = policy.sample(batch.next_obs, policy.draw_noise(key, batch.done.shape)).astype(batch.action.dtype)
    ended = batch.done.at[-1].set(True)
    ended = ended.reshape(ended.shape + (1,) * (batch.action.ndim - ended.ndim))
    return jnp.where(ended, fresh, jnp.roll(batch.action, -1, axis=0))
