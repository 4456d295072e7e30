"""A state-dependent baseline of dA~/dphi: what depends on the state alone favours no action.

A term that is 1 at every step, say, adds up to less and less towards a time limit, whatever the policy does. In a
policy gradient this is the noise that a value function removes; dA~/dphi, in which V~ is held constant, has none.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.compiling import compiled
from bipars.lower.advantages import UpdateData
from bipars.lower.ppo import Learner
from bipars.nets.mlp import MLP
from bipars.nets.weights import WeightFunction
from bipars.upper.base import Updated, UpperLevel


class Clock(NamedTuple):
    """How much time the running episodes have had, and how much they get."""

    age: Int[Array, " env"]
    """Steps of every running episode so far."""
    limit: Int[Array, ""]
    """Steps after which episodes are truncated: the most at which one was; 0 before that."""

    @classmethod
    def started(cls, num_envs: int) -> "Clock":
        return cls(jnp.zeros(num_envs, jnp.int32), jnp.zeros((), jnp.int32))

    def advance(
        self, terminated: Bool[Array, "time env"], done: Bool[Array, "time env"], restarted: Bool[Array, ""]
    ) -> tuple["Clock", Int[Array, "time env"]]:
        """The clock after a batch; and for each of its steps, how many there could at most be from there on.

        At most: where an episode terminates is up to the policy, and no baseline may know it.
        """

        def tick(age: Array, ended: Array) -> tuple[Array, Array]:
            return jnp.where(ended, 0, age + 1), age

        left, ages = jax.lax.scan(tick, jnp.where(restarted, 0, self.age), done)
        limit = jnp.maximum(self.limit, jnp.max(jnp.where(done & ~terminated, ages + 1, 0)))
        of_batch = jnp.arange(len(done), 0, -1)[:, None]
        of_episode = jnp.where(limit > 0, jnp.maximum(limit - ages, 1), len(done))
        return Clock(left, limit), jnp.minimum(of_batch, of_episode)


class BaselineState(NamedTuple):
    upper: Any
    clock: Clock

    @property
    def weights(self) -> WeightFunction:
        return self.upper.weights


@dataclass(frozen=True, eq=False)
class Baseline:
    """An upper level whose dA~/dphi has a baseline."""

    upper: UpperLevel
    num_envs: int
    discount: float

    def init(self, weights: WeightFunction, learner: Learner) -> BaselineState:
        return BaselineState(self.upper.init(weights, learner), Clock.started(self.num_envs))

    def update(self, state: BaselineState, learner: Learner, data: UpdateData, key: PRNGKeyArray) -> Updated:
        batch = data.batch
        ends = batch.terminated, batch.done, batch.restarted
        clock, basis = self.basis(state.clock, learner.critics[0], data.samples.obs, ends)
        upper, learner, log = self.upper.update(state.upper, learner, data._replace(basis=basis), key)
        return Updated(BaselineState(upper, clock), learner, log)

    @compiled
    def basis(
        self, clock: Clock, critic: MLP, obs: Float[Array, "sample obs"], ends: tuple[Array, Array, Array]
    ) -> tuple[Clock, Float[Array, "feature sample"]]:
        """Of what depends on the state alone, by what the last layer of V~'s network is given."""
        clock, to_go = clock.advance(*ends)
        return clock, state_basis(critic.inputs(obs)[-1], to_go.reshape(-1), self.discount)


def state_basis(
    features: Float[Array, "feature sample"], to_go: Int[Array, " sample"], discount: float
) -> Float[Array, "feature+1 sample"]:
    """A basis of what depends on the state alone: features of it, and what a reward of 1 until the end adds up to.

    The rows are orthonormal but for a ridge: what is fitted is drawn to 0 as if there were as many more samples as
    features, in which nothing was to be seen. So small batches are not explained away.
    """
    ones_to_come = to_go if discount == 1 else (1 - discount**to_go) / (1 - discount)
    rows = jnp.concatenate([features, ones_to_come[None].astype(features.dtype)])
    rows = rows - rows.mean(axis=1, keepdims=True)
    deviation = rows.std(axis=1, keepdims=True)
    rows = jnp.where(deviation > 1e-6, rows / jnp.maximum(deviation, 1e-6), 0.0)
    rows = rows - rows.mean(axis=1, keepdims=True)  # once more: the mean of large numbers was rounded
    total = rows.shape[1]
    gram = (rows @ rows.T + len(rows) * jnp.eye(len(rows))) / total
    return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(gram), rows, lower=True) / jnp.sqrt(total)


def subtract_baseline(
    x: Float[Array, "... sample"], basis: Float[Array, "feature sample"] | None
) -> Float[Array, "... sample"]:
    """What is left of x without its mean and its least-squares fit by the basis, where there is one.

    The fit is symmetric: sum_i x_i y_i is the same whether it is taken out of x or of y.
    """
    if basis is None:
        return x
    x = x - x.mean(axis=-1, keepdims=True)
    return x - (x @ basis.T) @ basis
