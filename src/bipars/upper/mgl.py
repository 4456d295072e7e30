"""Meta-gradient learning (section 4.2): theta' depends on phi through the last step alone.

d theta'/d phi = alpha * sum_i grad ratio_i (x) dA~_i/dphi is an n x m matrix. It is never built: multiplying from the
left by v = grad J(theta') first leaves one number per sample, v . grad ratio_i.

Nor need dA~/dphi, N x m, be built, unless the modified advantages follow phi: what is gained by each sample's advantage
is then all that phi needs of a step, and it may take its own when theta has taken all of the round's.
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float

from bipars.lower.ppo import Samples, scored, unclipped
from bipars.nets.weights import WeightFunction
from bipars.upper.base import (
    LowerStep,
    Memoryless,
    Theta,
    modified_gradient,
    penalise_noise,
    true_gradient,
    unravel_like,
)


def gains(v: Theta, step: LowerStep, clip: float) -> Float[Array, " sample"]:
    """v^T d theta'/d A~_i of one lower-level step, per unit of its learning rate."""
    ratio, scores = scored(step.policy, step.samples)
    return ratio * scores.along(v) * unclipped(ratio, step.samples.modified_advantage, clip) / ratio.size


def pull_back(v: Theta, step: LowerStep, clip: float) -> Float[Array, " phi"]:
    """v^T d theta'/d phi: the same, with d A~_i/d phi."""
    assert step.samples.credit is not None
    return gains(v, step, clip) @ step.samples.credit


@dataclass(frozen=True)
class MetaGradient(Memoryless):
    clip: float
    noise_penalty: float = 0.0
    needs_credit: bool = True

    @property
    def defers(self) -> bool:
        return not self.needs_credit

    def update(
        self, h: Any, step: LowerStep, policy: Theta, weights: WeightFunction, samples: Samples
    ) -> tuple[WeightFunction, Any]:
        return unravel_like(weights, pull_back(self.climbed(step, policy, samples), step, self.clip)), h

    def gains(self, step: LowerStep, policy: Theta, samples: Samples) -> Float[Array, " sample"]:
        return gains(self.climbed(step, policy, samples), step, self.clip)

    def climbed(self, step: LowerStep, policy: Theta, samples: Samples) -> Theta:
        """v, or what the noise penalty leaves of it."""
        v = true_gradient(policy, samples, self.clip)
        if self.noise_penalty:
            v = penalise_noise(v, modified_gradient(step, self.clip), self.noise_penalty)
        return v
