"""Terms must earn the policy's trust: they count while there is evidence that they point up the true return.

Before anything learns from a round's batch, phi has not seen it. So ask it: does the policy gradient of the weighted
terms agree with that of the true return? The answer is a t-statistic per round, and over the rounds these add up as in
Page's test (CUSUM): evidence grows while they are clearly positive, and runs out when they no longer are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bipars.compiling import compiled, in_halves
from bipars.lower.advantages import UpdateData
from bipars.lower.ppo import Learner
from bipars.nets.mlp import ravel
from bipars.nets.policies import Theta, log_prob_gradients
from bipars.nets.weights import WeightFunction
from bipars.objective import Samples, discounted_suffix_sums
from bipars.upper.base import Updated, UpperLevel
from bipars.upper.baseline import subtract_baseline
from bipars.upper.noise_penalty import TINY

PARTS = 16
"""Into how many parts a batch is split, at least: one per environment, more where there are few."""
CLEAR = 2.0
"""Standard errors from which on the true gradient is told from noise. Below, a batch cannot judge terms by it."""
DRIFT = 1.0
"""What a round must show, in standard errors, for the evidence to grow."""
LOUDEST = 3.0
"""No single round says more than this."""
DOUBT, CERTAINTY = 1.0, 3.0
"""Evidence at which trust begins, and at which it is complete."""
SHARE = 0.5
"""Of the modified advantage in what a policy climbs that trusts the terms fully; the true one has the rest."""
MOST = 6.0
"""Evidence that can be saved up; what a run begins with, since people write terms that they believe in."""


class TrustState(NamedTuple):
    upper: Any
    evidence: Float[Array, ""]

    @property
    def weights(self) -> WeightFunction:
        return self.upper.weights


@dataclass(frozen=True, eq=False)
class EarnedTrust:
    """An upper level whose policy follows the terms as far as they have earned it.

    phi learns all the while as if trust were full: it asks what a step that follows the terms would come to.
    """

    upper: UpperLevel
    num_envs: int
    discount: float
    threads: int = 1

    def init(self, weights: WeightFunction, learner: Learner) -> TrustState:
        return TrustState(self.upper.init(weights, learner), jnp.full((), MOST, float))

    def update(self, state: TrustState, learner: Learner, data: UpdateData, key: PRNGKeyArray) -> Updated:
        signals = self.signals(data)
        count = self.num_envs * pieces(len(data.batch.done), self.num_envs)
        parts = in_halves(self.threads > 1, lambda some: self.parts(learner.policy, data.samples, signals, some), count)
        evidence, data, log = self.judge(state.evidence, data, parts)
        upper, learner, inner_log = self.upper.update(state.upper, learner, data, key)
        return Updated(TrustState(upper, evidence), learner, inner_log | log)

    @compiled
    def signals(self, data: UpdateData) -> Float[Array, "sample 2"]:
        """True advantages, and the weighted terms to come in units of the modified ones."""
        to_come = discounted_suffix_sums(jnp.sum(data.z * data.batch.terms, axis=-1), data.batch.done, self.discount)
        weighted = subtract_baseline((to_come / data.scale).reshape(-1), data.basis)
        assert data.samples.true_advantage is not None
        # A baseline: constants have no gradient on average, and only add variance.
        return jnp.stack([data.samples.true_advantage, weighted - weighted.mean()], axis=-1)

    @compiled
    def parts(self, policy: Theta, samples: Samples, signals: Array, some: Int[Array, " part"]) -> tuple[Array, Array]:
        return part_gradients(policy, samples, signals, self.num_envs, some)

    def judge(
        self, evidence: Float[Array, ""], data: UpdateData, parts: Sequence[tuple[Array, Array]]
    ) -> tuple[Float[Array, ""], UpdateData, dict[str, Array]]:
        """The evidence after a new batch, and the data as a policy learns from it that trusts the terms so far."""
        evidence, trust, at_full_trust, log = self._judge(evidence, data, parts)
        samples = data.samples._replace(modified_advantage=at_full_trust)
        return evidence, data._replace(samples=samples, trust=trust, scale=data.scale / SHARE), log

    @compiled
    def _judge(self, evidence: Array, data: UpdateData, parts: Any) -> tuple[Array, Array, Array, dict[str, Array]]:
        batch, samples = data.batch, data.samples
        assert samples.true_advantage is not None
        after, log = weigh_evidence(evidence, *(jnp.concatenate(x) for x in zip(*parts, strict=True)))
        # Where nothing was earned and nothing ended, the true advantages are the critic's errors and nothing else.
        silent = (jnp.ptp(batch.reward) == 0) & ~jnp.any(batch.terminated)
        evidence = jnp.where(silent, evidence, after)
        at_full_trust = SHARE * samples.modified_advantage + (1 - SHARE) * samples.true_advantage
        return evidence, trust(evidence), at_full_trust, log | {"trust": trust(evidence)}


def weigh_evidence(
    evidence: Float[Array, ""], v: Float[Array, "part theta"], w: Float[Array, "part theta"]
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Evidence after one more batch, given the gradients of its parts, and what is logged of it."""
    clear, agrees = agreement(v, v), agreement(v, w)
    more = jnp.clip(agrees, -LOUDEST, LOUDEST) - DRIFT
    evidence = jnp.where(clear > CLEAR, jnp.clip(evidence + more, 0.0, MOST), evidence)
    return evidence, {"true_gradient_t": clear, "agreement_t": agrees}


def agreement(v: Float[Array, "part theta"], w: Float[Array, "part theta"]) -> Float[Array, ""]:
    """Mean of <v_i, w_j> over pairs of *different* parts of a batch, in standard errors (jackknife).

    A part never meets itself, so the mean of noise has no sign, however large it is. Fewer than three say nothing.
    """
    parts, same = len(v), jnp.sum(v * w, axis=1)
    if parts < 3:
        return jnp.zeros(())
    sum_v, sum_w = v.sum(axis=0), w.sum(axis=0)
    pairs = sum_v @ sum_w - same.sum()
    # The same without part i: the pairs that it is in taken out.
    without = (pairs - v @ sum_w - w @ sum_v + 2 * same) / ((parts - 1) * (parts - 2))
    variance = (parts - 1) / parts * jnp.sum((without - without.mean()) ** 2)
    return pairs / (parts * (parts - 1)) / jnp.sqrt(jnp.maximum(variance, TINY))


def pieces(time: int, envs: int) -> int:
    """Into how many parts what happened in one environment is split."""
    return min(time, -(-PARTS // envs))


def part_gradients(
    policy: Theta, samples: Samples, signals: Float[Array, "sample 2"], envs: int, parts: Int[Array, " part"]
) -> tuple[Float[Array, "part theta"], Float[Array, "part theta"]]:
    """Of some parts of the batch: the policy gradient of each of the two signals."""
    time = samples.log_prob.size // envs
    count = pieces(time, envs)
    length = time // count  # where that leaves a rest, the last steps are left out

    def split(x: Array) -> Array:
        by_env = jnp.swapaxes(x.reshape(time, envs, *x.shape[1:])[: count * length], 0, 1)
        return by_env.reshape(envs * count, length, *x.shape[1:])[parts]

    def one(part: tuple[Array, Array, Array]) -> Float[Array, "2 theta"]:
        obs, action, signal = part
        return jax.vmap(ravel)(log_prob_gradients(policy, obs, action).sums(signal.T / length))

    # One part at a time: all at once would leave the processor's cache.
    both = jax.lax.map(one, (split(samples.obs), split(samples.action), split(signals)))
    return both[:, 0], both[:, 1]


def trust(evidence: Float[Array, ""]) -> Float[Array, ""]:
    """From 0, the policy climbs the true advantage alone, to 1, it climbs both alike."""
    return jnp.clip((evidence - DOUBT) / (CERTAINTY - DOUBT), 0.0, 1.0)


def trust_of(state: Any) -> float | None:
    """That of an upper level's state, whatever is wrapped around it; none where terms need not earn it."""
    while not isinstance(state, TrustState):
        if not hasattr(state, "upper"):
            return None
        state = state.upper
    return float(trust(state.evidence))
