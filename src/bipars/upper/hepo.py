"""Heuristic enhanced policy optimisation (HEPO; Lee, Hong and Agrawal, arXiv 2507.05328), for comparison.

Two policies act, each in half of the environments. pi_H learns from the heuristic reward alone, here the sum of all
terms. pi maximises J + H, the true return and the heuristic one, subject to J(pi) >= J(pi_H):

    max over pi, min over alpha >= 0:   (1 + alpha) J(pi) + H(pi) - alpha J(pi_H)

Both learn from all samples, by the advantages of the policy that acted and the ratio to it. Only proportions matter to
a normalised advantage, so A_r + z A_h with z = 1 / (1 + alpha) stands for (1 + alpha) A_r + A_h: the multiplier is one
weight of all terms.

As in the authors' code, A_r and A_h are normalised separately; the gradient of alpha is the median of its newest
estimates, clipped; and Adam steps on it. Their multiplier may become negative, ours is that of an inequality.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from bipars.compiling import compiled
from bipars.lower.advantages import UpdateData, estimate_advantages, normalise, normalise_advantages, update_data
from bipars.lower.base import ALONE, Hook, Learned
from bipars.lower.ppo import PPO, Learner
from bipars.nets.policies import GroupedPolicy, Policy
from bipars.nets.running import RunningMoments
from bipars.nets.weights import ScalarWeights, WeightFunction
from bipars.objective import Objective
from bipars.rollout.batch import Batch
from bipars.upper.base import Updated

HEURISTIC, TRUE = range(2)
"""The two rewards, in the order of their critics."""
ESTIMATES = 8
"""Of the gradient of alpha, whose median counts."""
LARGEST = 1.0
"""What it is clipped to."""
RATE = 0.01
"""Adam's step size of alpha, per round."""


class Pair(NamedTuple):
    own: Learner
    """pi."""
    heuristic: Learner
    """pi_H."""

    @property
    def policy(self) -> Any:
        return self.own.policy

    @property
    def observations(self) -> RunningMoments | None:
        return self.own.observations


class PairData(NamedTuple):
    """What both learn from, and how far pi is ahead."""

    own: UpdateData
    heuristic: UpdateData
    gap: Float[Array, ""]
    """J(pi) - J(pi_H), in standard deviations of the true advantage."""
    z: Float[Array, "time env term"]
    log: dict[str, Array]


@dataclass(frozen=True, eq=False)
class PolicyPair:
    """PPO twice: both have a critic of the heuristic reward and one of the true reward."""

    ppo: PPO

    @property
    def half(self) -> int:
        """pi acts in the first so many environments."""
        return self.ppo.config.num_envs // 2

    @property
    def objective(self) -> Objective:
        return self.ppo.objective

    def init(self, key: PRNGKeyArray, weights: WeightFunction, observations: RunningMoments | None) -> Pair:
        keys = key, jax.random.fold_in(key, 2**31)
        return Pair(*(self.ppo.init(k, weights, observations) for k in keys))

    def act(self, pair: Pair, weights: WeightFunction) -> Policy:
        return self.ppo.act(pair.own, weights)

    def behaviour(self, pair: Pair, weights: WeightFunction) -> Policy:
        own, heuristic = (self.ppo.act(learner, weights) for learner in pair)
        return GroupedPolicy(own, heuristic, self.half)

    def prepare(
        self, pair: Pair, weights: WeightFunction, batch: Batch, progress: Float[Array, ""]
    ) -> tuple[Pair, PairData]:
        scales, data = self._prepare(pair, weights, batch, progress)
        learners = (learner._replace(scales=newer) for learner, newer in zip(pair, scales, strict=True))
        return Pair(*learners), data

    @compiled
    def _prepare(
        self, pair: Pair, weights: WeightFunction, batch: Batch, progress: Float[Array, ""]
    ) -> tuple[tuple[Any, Any], PairData]:
        # Both have seen the same observations, so they are normalised alike.
        obs, config = normalise(pair.own.scales, batch.obs), self.ppo.config
        z = weights(obs, batch.action)
        rewards = jnp.stack([batch.terms.sum(axis=-1), batch.reward], axis=-1)
        (own, own_targets, _, own_scales), (other, other_targets, _, other_scales) = (
            estimate_advantages(config, learner.critics, learner.scales, batch, obs, rewards, False) for learner in pair
        )
        first = (jnp.arange(config.num_envs) < self.half).astype(float)
        acted = jnp.where(first[:, None] > 0, own, other)
        heuristic, _ = normalise_advantages(acted[..., HEURISTIC], None)
        true, unit = normalise_advantages(acted[..., TRUE], None)
        both, _ = normalise_advantages(combined(true, heuristic, z[..., 0].reshape(-1)), None)

        def data(advantage: Array, targets: Array, mask: Array) -> UpdateData:
            split = tuple(jnp.split(targets.reshape(-1, 2), 2, axis=1))
            found = update_data(obs, batch, advantage, true, split, z, jnp.ones(()), {}, mask)
            return found._replace(progress=progress)

        gap = improvement(own[..., TRUE], other[..., TRUE], first) / unit
        halves = data(both, own_targets, first), data(heuristic, other_targets, 1 - first)
        return (own_scales, other_scales), PairData(*halves, gap, z, {"improvement": gap})

    def learn(self, pair: Pair, upper: Any, data: PairData, key: PRNGKeyArray, hook: Hook) -> Learned:
        learned = self.ppo.learn(pair.own, upper, data.own, key, hook)
        other = self.ppo.learn(pair.heuristic, upper, data.heuristic, jax.random.fold_in(key, 2**31), ALONE)
        return learned._replace(learner=Pair(learned.learner, other.learner))

    def empty_minibatch(self, weights: WeightFunction, jacobian: bool) -> Any:
        return self.ppo.empty_minibatch(weights, jacobian)


def combined(true: Array, heuristic: Array, z: Array) -> Array:
    """(1 + alpha) A_r + A_h, up to the factor 1 + alpha."""
    return true + z * heuristic


def improvement(
    own: Float[Array, "time env"], other: Float[Array, "time env"], first: Float[Array, " env"]
) -> Float[Array, ""]:
    """J(pi) - J(pi_H), by the true advantages of pi (`own`) and of pi_H (`other`).

    It is the mean of the latter where pi acts, and minus that of the former where pi_H does; both say it, and are
    averaged. The performance difference lemma has a factor of 1 / (1 - gamma), which Adam does not see.
    """
    ahead = jnp.average(other.mean(axis=0), weights=first)
    behind = jnp.average(own.mean(axis=0), weights=1 - first)
    return (ahead - behind) / 2


class ImprovementState(NamedTuple):
    weights: ScalarWeights
    alpha: Float[Array, ""]
    optimiser: optax.OptState
    gaps: Float[Array, " estimate"]
    """The newest; nan before there are as many."""


@dataclass(frozen=True, eq=False)
class ImprovementMultiplier:
    """alpha falls while pi earns more than pi_H, and rises while it earns less."""

    lower: PolicyPair

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return optax.adam(RATE)

    def init(self, weights: ScalarWeights, learner: Any) -> ImprovementState:
        alpha = jnp.zeros(())
        return ImprovementState(weights, alpha, self.optimiser.init(alpha), jnp.full(ESTIMATES, jnp.nan))

    def update(self, state: ImprovementState, learner: Pair, data: PairData, key: PRNGKeyArray) -> Updated:
        learned = self.lower.learn(learner, state, data, key, ALONE)
        return Updated(self.step(state, data.gap), learned.learner, learned.log)

    @compiled
    def step(self, state: ImprovementState, gap: Float[Array, ""]) -> ImprovementState:
        """alpha <- max(0, alpha - Adam's step along dL/dalpha = J(pi) - J(pi_H)), once per round."""
        gaps = jnp.roll(state.gaps, 1).at[0].set(gap)
        slope = jnp.clip(jnp.nanmedian(gaps), -LARGEST, LARGEST)
        move, optimiser = self.optimiser.update(slope, state.optimiser)
        alpha = jnp.maximum(state.alpha + move, 0.0)
        value = jnp.full_like(state.weights.value, 1 / (1 + alpha) - state.weights.range.initial)  # type: ignore[union-attr]
        return ImprovementState(replace(state.weights, value=value), alpha, optimiser, gaps)
