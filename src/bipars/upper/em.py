"""Explicit mapping (section 4.1): the policy takes z_phi(s) as an input, so the chain rule does the rest."""

from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, Float

from bipars.lower.ppo import Samples, surrogate
from bipars.nets.policies import HyperPolicy
from bipars.nets.weights import WeightFunction
from bipars.upper.base import LowerStep, Memoryless, Theta


@dataclass(frozen=True)
class ExplicitMapping(Memoryless):
    clip: float
    needs_credit: bool = False

    def update(
        self, h: Any, step: LowerStep, policy: Theta, weights: WeightFunction, samples: Samples
    ) -> tuple[WeightFunction, Any]:
        def true_return(phi: WeightFunction) -> Float[Array, ""]:
            assert samples.true_advantage is not None
            return surrogate(HyperPolicy(policy, phi), samples, samples.true_advantage, self.clip)

        return jax.grad(true_return)(weights), h
