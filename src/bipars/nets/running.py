"""Running statistics that put observations and returns on a common scale. They are part of the training state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bipars.nets.mlp import clip, namespace

LIMIT = 10.0
"""Normalised observations are clipped to this, either way."""
EPSILON = 1e-8


class Scale(NamedTuple):
    """What is subtracted and what is divided by."""

    mean: Float[Array, "..."]
    std: Float[Array, "..."]

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return clip((x - self.mean) / self.std, -LIMIT, LIMIT)


class RunningMoments(NamedTuple):
    """Mean and variance of all batches so far; before the first, those of a standard normal."""

    mean: Float[Array, "..."]
    var: Float[Array, "..."]
    size: Float[Array, ""]
    """How many samples they are of."""

    @staticmethod
    def fresh(shape: tuple[int, ...]) -> "RunningMoments":
        return RunningMoments(jnp.zeros(shape), jnp.ones(shape), jnp.zeros(()))

    def update(self, batch: Float[Array, "sample ..."]) -> "RunningMoments":
        """Chan's rule for joining the moments of two samples."""
        new = batch.shape[0]
        mean, var = jnp.mean(batch, axis=0), jnp.var(batch, axis=0)
        total = self.size + new
        delta = mean - self.mean
        joined = self.var * self.size + var * new + delta**2 * (self.size * new / total)
        return RunningMoments(self.mean + delta * (new / total), joined / total, total)

    @property
    def scale(self) -> Scale:
        return Scale(self.mean, namespace(self.var).sqrt(self.var + EPSILON))

    def normalise(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.scale(x)


class ReturnScale(NamedTuple):
    """The size of discounted returns. Dividing a reward by it puts the critic's targets near one."""

    moments: RunningMoments
    running: Float[Array, "env ..."]
    """Discounted sum of each episode under way."""

    @staticmethod
    def fresh(num_envs: int, *columns: int) -> "ReturnScale":
        return ReturnScale(RunningMoments.fresh(columns), jnp.zeros((num_envs, *columns)))

    def update(
        self, reward: Float[Array, "time env ..."], done: Bool[Array, "time env"], gamma: float
    ) -> "ReturnScale":
        def add(running: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            total = gamma * running + now[0]
            return jnp.where(now[1].reshape(-1, *(1,) * (total.ndim - 1)), 0.0, total), total

        running, totals = jax.lax.scan(add, self.running, (reward, done))
        return ReturnScale(self.moments.update(totals.reshape(-1, *totals.shape[2:])), running)

    @property
    def std(self) -> Float[Array, ""]:
        return jnp.sqrt(self.moments.var + EPSILON)
