"""Meta-gradient learning (section 4.2): theta' depends on phi through the last step alone.

d theta'/d phi = alpha * sum_i grad ratio_i (x) dA~_i/dphi is an n x m matrix. It is never built: multiplying from the
left by v = grad J(theta') first leaves one number per sample, v . grad ratio_i.
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float

from bipars.lower.policies import Scores
from bipars.lower.ppo import Samples, probability_ratio, unclipped
from bipars.shaping.weights import WeightFunction
from bipars.upper.base import (
    LowerStep,
    Memoryless,
    Theta,
    modified_gradient,
    penalise_noise,
    true_gradient,
    unravel_like,
)


def pull_back(v: Theta, step: LowerStep, clip: float) -> Float[Array, " phi"]:
    """v^T d theta'/d phi for one lower-level step, per unit of its learning rate."""
    samples = step.samples
    assert samples.credit is not None
    ratio = probability_ratio(step.policy, samples)
    slope = ratio * Scores.of(step.policy, samples.obs, samples.action).along(v)
    per_sample = slope * unclipped(ratio, samples.modified_advantage, clip)
    return per_sample @ samples.credit / per_sample.size


@dataclass(frozen=True)
class MetaGradient(Memoryless):
    clip: float
    noise_penalty: float = 0.0
    needs_credit: bool = True

    def update(
        self, h: Any, step: LowerStep, policy: Theta, weights: WeightFunction, samples: Samples
    ) -> tuple[WeightFunction, Any]:
        v = true_gradient(policy, samples, self.clip)
        if self.noise_penalty:
            v = penalise_noise(v, modified_gradient(step, self.clip), self.noise_penalty)
        return unravel_like(weights, pull_back(v, step, self.clip)), h
