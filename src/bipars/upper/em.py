"""Explicit mapping (section 4.1): the policy takes z_phi(s) as an input, so the chain rule does the rest."""

from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, Float

from bipars.lower.base import After, LowerStep
from bipars.nets.policies import HyperPolicy
from bipars.nets.weights import WeightFunction
from bipars.objective import Objective, surrogate
from bipars.upper.base import Memoryless


@dataclass(frozen=True)
class ExplicitMapping(Memoryless):
    objective: Objective
    needs_jacobian: bool = False

    def update(self, state: Any, step: LowerStep, after: After, weights: WeightFunction) -> tuple[WeightFunction, Any]:
        samples = after.samples

        def true_return(phi: WeightFunction) -> Float[Array, ""]:
            return surrogate(HyperPolicy(after.policy, phi), samples, samples.true_advantage, self.objective)

        return jax.grad(true_return)(weights), state
