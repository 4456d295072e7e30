"""A method of one's own: weights that move by the sign of the meta-gradient, one number per term.

    python examples/own_method.py         # half a minute
    bipars train --env cartpole --term harmful --preset paper --method import:examples.own_method.sign --out runs/sign

An estimator has `init` and `update`. `update` is given the step that the policy just took and the gradient of the true
return after it, and returns a gradient of phi. When phi steps, and on which samples, is not its business.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import bipars
from bipars.lower.base import After, LowerStep
from bipars.methods import Method, by_estimator
from bipars.upper.mgl import pull_back


@dataclass(frozen=True)
class SignOfMetaGradient:
    """Remembers an average of meta-gradients, and goes by its sign."""

    objective: Any
    """What the policy climbs: a function of a sample's log ratio and advantage."""
    memory: float = 0.9
    needs_jacobian: bool = True
    """Samples carry the derivative of their modified advantage with respect to phi."""

    def init(self, policy: Any, weights: Any, minibatch: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, weights)

    def update(self, average: Any, step: LowerStep, after: After, weights: Any) -> tuple[Any, Any]:
        flat = pull_back(after.gradient, step, self.objective)  # v^T d theta'/d phi
        newest = jax.tree.unflatten(jax.tree.structure(weights), [flat])  # one number per term: one leaf
        average = jax.tree.map(lambda old, new: self.memory * old + (1 - self.memory) * new, average, newest)
        return jax.tree.map(jnp.sign, average), average


sign = Method(
    "one weight per term, moved by the sign of its meta-gradient",
    upper=lambda config, lower: by_estimator(config, lower, SignOfMetaGradient(lower.objective)),
    learns_weights=True,
    settings=("horizon",),
    learning_rate=1e-2,
    name="sign",
)


def main(steps=200_000):
    agent = bipars.BiPaRS("cartpole", terms=["harmful"], method=sign, preset="paper")
    agent.learn(steps, progress_bar=True)
    print(f"the harmful term's weight went from 1 to {agent.metrics[-1]['weight/harmful']:.2f}")


if __name__ == "__main__":
    main()
