"""What a round reports: raw numbers on the device, from which `metrics` makes the row that a person reads."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bipars.rollout.batch import Batch, Evaluation, modified_reward

Sums = dict[str, Array]
"""Sums over an episode by name; of terms, with one column each."""


class Visited(NamedTuple):
    """Some of the transitions of a round, evenly spread over it."""

    obs: Float[Array, "sample obs"]
    action: Array
    terms: Float[Array, "sample term"]


class RoundStats(NamedTuple):
    reward: Float[Array, "time env"]
    terms: Float[Array, "time env term"]
    z: Float[Array, "time env term"]
    ended: Bool[Array, "time env"]
    sums: Sums
    """Of every episode up to each step; they mean something where it `ended`."""
    visited: Visited
    log: dict[str, Array]
    """What the levels report of themselves."""
    evaluation: Evaluation
    potential: Float[Array, "time env"] | None = None
    """F of a potential."""


def addends(batch: Batch, z: Float[Array, "time env term"]) -> Sums:
    """What is summed over every episode."""
    potential = {} if batch.potential is None else {"potential_shaping": batch.potential.reward}
    return {
        "true_return": batch.reward,
        "modified_return": modified_reward(batch, z),
        "term": batch.terms,
        "weighted_term": z * batch.terms,
    } | potential


def no_sums(num_envs: int, num_terms: int, has_potential: bool) -> Sums:
    """Of episodes that have not begun."""
    zeros, columns = jnp.zeros(num_envs), jnp.zeros((num_envs, num_terms))
    potential = {"potential_shaping": zeros} if has_potential else {}
    return {"true_return": zeros, "modified_return": zeros, "term": columns, "weighted_term": columns} | potential


def episode_sums(running: Sums, batch: Batch, z: Float[Array, "time env term"]) -> tuple[Sums, Sums]:
    """Sums of every episode up to each step, and of the episodes that go on after the batch."""

    def restart(ended: Array, sums: Sums) -> Sums:
        return jax.tree.map(lambda x: jnp.where(ended.reshape(-1, *(1,) * (x.ndim - 1)), 0.0, x), sums)

    def add(running: Sums, now: tuple[Sums, Array]) -> tuple[Sums, Sums]:
        total = jax.tree.map(jnp.add, running, now[0])
        return restart(now[1], total), total

    start = restart(batch.restarted, running)
    left, sums = jax.lax.scan(add, start, (addends(batch, z), batch.done), unroll=8)
    return sums, left


SAMPLE = 512
SAMPLE_NUMBERS = 65_536
"""At most so many transitions of a round are kept, and so many numbers of their observations."""


def sample_visited(batch: Batch) -> Visited:
    total, size = batch.reward.size, batch.obs.shape[-1]
    count = min(SAMPLE, max(1, SAMPLE_NUMBERS // max(1, size)), total)
    index = np.arange(count) * total // count

    def pick(x: Array) -> Array:
        return x.reshape(total, *x.shape[2:])[index]

    return Visited(pick(batch.obs), pick(batch.action), pick(batch.terms))
