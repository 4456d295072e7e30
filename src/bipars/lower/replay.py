"""What was experienced, kept on the device: a ring buffer that is part of the training state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.rollout.batch import Batch


class Transitions(NamedTuple):
    """Steps of the environment in no particular order. The modified reward is computed when they are drawn."""

    obs: Float[Array, "sample obs"]
    action: Float[Array, "sample action"]
    next_obs: Float[Array, "sample obs"]
    reward: Float[Array, " sample"]
    """The true reward."""
    terms: Float[Array, "sample term"]
    terminated: Bool[Array, " sample"]
    """The episode ended here; where it was only cut off, the value of `next_obs` still counts."""


class Replay(NamedTuple):
    rows: Transitions
    added: Int[Array, ""]
    """Transitions added so far; those beyond the capacity have replaced the oldest."""

    @staticmethod
    def empty(capacity: int, observation_size: int, action_size: int, num_terms: int) -> "Replay":
        rows = Transitions(
            obs=jnp.zeros((capacity, observation_size)),
            action=jnp.zeros((capacity, action_size)),
            next_obs=jnp.zeros((capacity, observation_size)),
            reward=jnp.zeros(capacity),
            terms=jnp.zeros((capacity, num_terms)),
            terminated=jnp.zeros(capacity, bool),
        )
        return Replay(rows, jnp.zeros((), jnp.int32))

    @property
    def capacity(self) -> int:
        return self.rows.reward.size

    def add(self, batch: Batch) -> "Replay":
        """With all steps of the batch, of which there must not be more than the capacity."""
        given = Transitions(batch.obs, batch.action, batch.next_obs, batch.reward, batch.terms, batch.terminated)
        place = (self.added + jnp.arange(batch.reward.size)) % self.capacity

        def write(rows: Array, new: Array) -> Array:
            return rows.at[place].set(new.reshape(place.size, *new.shape[2:]).astype(rows.dtype), unique_indices=True)

        return Replay(jax.tree.map(write, self.rows, given), self.added + batch.reward.size)

    def draw(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Int[Array, "..."]:
        """Places of transitions, with replacement."""
        return jax.random.randint(key, shape, 0, jnp.minimum(self.added, self.capacity))

    def at(self, place: Int[Array, " sample"]) -> Transitions:
        return jax.tree.map(lambda rows: rows[place], self.rows)


class Units(NamedTuple):
    """The sizes (root mean squares) of what was experienced at random, in which critics learn.

    A term a hundred times as large as the reward would else be all that a network of both has eyes for.
    """

    reward: Float[Array, ""]
    weights: Float[Array, " term"]
    """The weight at which each term is as large as the reward, 1 at most."""

    @staticmethod
    def plain(num_terms: int) -> "Units":
        return Units(jnp.ones(()), jnp.ones(num_terms))

    @staticmethod
    def measured(replay: Replay) -> "Units":
        def size(x: Array) -> Array:
            largest = jnp.max(jnp.abs(x), axis=0)
            of_one = x / jnp.where(largest > 0, largest, 1.0)  # whose squares no number is too large for
            # Rows that nothing was written to yet are zeros.
            return largest * jnp.sqrt(jnp.sum(of_one**2, axis=0) / jnp.minimum(replay.added, replay.capacity))

        reward, terms = size(replay.rows.reward), size(replay.rows.terms)
        reward = jnp.where(reward > 0, reward, 1.0)
        return Units(reward, jnp.where(terms > reward, reward / terms, 1.0))

    def of(self, rows: Transitions) -> Transitions:
        """With rewards and terms in their units; `weights in their units . terms` is in units of the reward."""
        return rows._replace(reward=rows.reward / self.reward, terms=rows.terms * self.weights / self.reward)


def bytes_per_transition(observation_size: int, action_size: int, num_terms: int) -> int:
    return 4 * (2 * observation_size + action_size + 1 + num_terms) + 1
