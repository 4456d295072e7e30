"""Reward constrained policy optimisation (Tessler et al., 2019), the paper's baseline on MuJoCo.

The policy maximises r - lambda c with the cost c = mean |a|; lambda rises while the mean cost is above its limit and
falls while it is below. As a weight function: one scalar weight lambda of the term f = -c.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bipars.compiling import compiled
from bipars.lower.base import ALONE
from bipars.nets.weights import WeightFunction
from bipars.upper.base import Updated


class MultiplierState(NamedTuple):
    weights: WeightFunction
    round: Int[Array, ""]


@dataclass(frozen=True, eq=False)
class Multiplier:
    lower: Any
    limit: float
    """Mean cost above which lambda rises."""
    rate: float = 5e-5
    decay: float = 1 - 1e-9
    """Factor of the rate per update."""
    highest: float = 1e4

    def init(self, weights: WeightFunction, learner: Any) -> MultiplierState:
        return MultiplierState(weights, jnp.zeros((), jnp.int32))

    def update(self, state: MultiplierState, learner: Any, data: Any, key: PRNGKeyArray) -> Updated:
        learned = self.lower.learn(learner, state, data, key, ALONE)
        weights = self.step(state.weights, data.batch.terms, state.round)
        return Updated(MultiplierState(weights, state.round + 1), learned.learner, learned.log)

    @compiled
    def step(
        self, weights: WeightFunction, terms: Float[Array, "time env term"], round: Int[Array, ""]
    ) -> WeightFunction:
        """lambda <- clip(lambda + eta (mean c - limit), 0, highest), once per round."""
        rate = self.rate * jnp.exp(math.log(self.decay) * round)  # in float32, 1 - 1e-9 itself would be 1
        excess: Array = -terms.mean(axis=(0, 1)) - self.limit
        value = jnp.clip(weights.value + rate * excess, 0.0, self.highest)  # type: ignore[attr-defined]
        return replace(weights, value=value)  # type: ignore[type-var]
