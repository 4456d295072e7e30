"""Weights by evidence: how much of the true gradient does each term's gradient explain?

Every part of a batch has a policy gradient of the true reward, g_0, and one of each term, g_k. The mean of g_0 is the
true gradient v; a batch gives noisy estimates of it and of the terms' gradients. Of all combinations of the g's, the
one that is closest to v on average,

    min over beta of E |v - sum_j beta_j g_j|^2:      M beta = b,      M_jl = E <g_j, g_l>,      b_j = E <v, g_j>,

tells what each term is worth beside the reward: z_k = beta_k / beta_0, the signs of beta being those of b. A term that
points up the true return and is less noisy than the reward gets a large weight, one that points down a negative one,
and noise none. b_j is estimated by products of *different* parts of a batch: noise then agrees with nothing, however
large it is.

Meta-gradient learning climbs the same, d J(theta') / d z_k = <v, g_k>. Penalised by the squared length of the step, it
has a best point, which is taken at once, without a step size.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.compiling import compiled
from bipars.lower.advantages import TermAdvantages, UpdateData
from bipars.lower.control import CONTROL, UNDECIDED, Groups, choose
from bipars.nets.mlp import ravel
from bipars.nets.policies import Theta, log_prob_gradients
from bipars.nets.weights import DeviatingWeights, WeightFunction
from bipars.upper.base import Updated, UpperLevel

PARTS = 16
"""Into how many parts a batch is split, at least: stretches of time in one environment."""
PAIRED = 32
"""Parts at most whose pairs are used to estimate how much pairs vary."""
MEMORY = 0.95
"""Of earlier batches, from one that tells something to the next."""
CLEAR = 2.0
"""Standard errors from which on the true gradient is told from noise. Below, nothing is learned of the terms."""
PRIOR = 0.5
"""Prior standard deviation of a weight about its start, in units of the reward; the start adds to it in quadrature."""
RIDGE = 0.05
"""Of M's diagonal: terms that say the same share their weight."""
LARGEST = 5.0
"""Largest size of a weight, in units of the true reward."""
SWEEPS = 500
"""Most sweeps of coordinate descent over all terms ..."""
SETTLED = 1e-5
"""... which ends when no coefficient changes by more than this part of the largest."""
SMALLEST_OWN = 0.05
"""Least beta_0, for a reward that is nearly all noise."""


class Agreement(NamedTuple):
    """Of the gradients of different parts of a batch, one number per reward; summed over batches, old ones fading."""

    total: Float[Array, " reward"]
    variance: Float[Array, " reward"]

    def add(self, new: "Agreement", size: Float[Array, "..."], heard: Bool[Array, "..."]) -> "Agreement":
        """`new` in units of `size`, where it was `heard`; nothing fades otherwise."""
        return Agreement(
            jnp.where(heard, MEMORY * self.total + new.total / size, self.total),
            jnp.where(heard, MEMORY**2 * self.variance + new.variance / size**2, self.variance),
        )

    @property
    def t(self) -> Float[Array, " reward"]:
        """In standard errors."""
        return self.total / jnp.sqrt(jnp.maximum(self.variance, 1e-12))


class Evidence(NamedTuple):
    """Sums over batches, old ones fading; rewards on the axes, the true one first. Each batch in units of its noise."""

    gram: Float[Array, "reward reward"]
    agreement: Agreement
    """With the true gradient."""
    direction: Agreement
    """The same for terms less their means, and in units of both gradients: late batches, in which a term says as much
    as ever but the reward hardly anything, do not drown what was known. The verdict rests on this."""
    with_itself: Agreement
    """Of each gradient: a reward that no choice of action changes has no agreement."""
    batches: Float[Array, ""]

    @staticmethod
    def none(num_terms: int) -> "Evidence":
        rewards = num_terms + 1
        nothing = Agreement(jnp.zeros(rewards), jnp.zeros(rewards))
        return Evidence(jnp.zeros((rewards, rewards)), nothing, nothing, nothing, jnp.zeros(()))

    def add(
        self,
        gradients: Float[Array, "part reward theta"],
        own: Float[Array, " part"],
        beyond: Float[Array, "part reward theta"] | None = None,
    ) -> "Evidence":
        """`beyond`: the gradients without what the terms pay for the length of episodes."""
        beyond = gradients if beyond is None else beyond
        gram, agreement, _ = products(gradients, own)
        _, direction, with_itself = products(beyond, own)
        # By the parts' own length: by that of their sum, batches would count for more in which they happen to disagree.
        sizes = jnp.sum(beyond**2, axis=(0, 2)) / own.sum() ** 2
        heard = (sizes > 0) & (own.sum() > 2)
        sizes = jnp.where(heard, sizes, 1.0)
        return Evidence(
            jnp.where(heard[0], MEMORY * self.gram + gram / sizes[0], self.gram),
            self.agreement.add(agreement, sizes[0], heard[0]),
            self.direction.add(direction, jnp.sqrt(sizes[0] * sizes), heard[0] & heard),
            self.with_itself.add(with_itself, sizes, heard),
            jnp.where(heard[0], MEMORY * self.batches + 1, self.batches),
        )


class EvidenceState(NamedTuple):
    weights: DeviatingWeights
    evidence: Evidence
    decided: Bool[Array, ""]
    """The groups have been compared, so weights follow the evidence."""
    upper: Any
    """Of the level that learns where weights deviate."""


@dataclass(frozen=True, eq=False)
class WeightsByEvidence:
    """One number per term, by the evidence; `upper` learns where weights differ from it. Beside a control group.

    In a round, theta learns under the weights of its beginning, and under the deviation as `upper` moves it. Then the
    numbers follow the evidence, with this batch's, and the deviation is kept only once the groups have been compared
    and while the true gradient is known; else what `upper` did in this round is forgotten.
    """

    upper: UpperLevel
    initial: float = 1.0
    """Weight of every term at the start."""

    def init(self, weights: WeightFunction, learner: Groups) -> EvidenceState:
        assert isinstance(weights, DeviatingWeights)
        nothing, no = Evidence.none(weights.base.size), jnp.zeros((), bool)
        return EvidenceState(weights, nothing, no, self.upper.init(weights.deviation, learner))

    def update(self, state: EvidenceState, learner: Groups, data: UpdateData, key: PRNGKeyArray) -> Updated:
        evidence, found, log = self.weigh(state, learner, data)
        in_units = data.batch._replace(terms=data.terms * state.weights.unit)
        upper, learner, upper_log = self.upper.update(state.upper, learner, data._replace(batch=in_units), key)
        upper = choose(found.known & found.decided, upper, state.upper)
        weights = replace(state.weights, base=found.weights, unit=found.unit, deviation=upper.weights)
        return Updated(EvidenceState(weights, evidence, found.decided, upper), learner, upper_log | log)

    @compiled
    def weigh(
        self, state: EvidenceState, groups: Groups, data: UpdateData
    ) -> tuple[Evidence, "Found", dict[str, Array]]:
        """The evidence after one more batch, and the weights that follow from it."""
        assert data.by_term is not None
        gradients, own = part_gradients(groups.policy, data)
        gradients, beyond = with_means(gradients, data.by_term.offset)
        evidence = state.evidence.add(gradients, own, beyond)
        held = state.weights.base / state.weights.unit
        found = best_weights(evidence, data.by_term, self.initial, groups.leader, held, state.decided)
        return evidence, found, evidence_log(evidence) | {"evidence_added": jnp.any(gradients[:, 0] != 0).astype(float)}


def evidence_log(evidence: Evidence) -> dict[str, Array]:
    agreement, with_itself = evidence.direction.t, evidence.with_itself.t
    return {"agreement_t": agreement[1:], "term_gradient_t": with_itself[1:], "true_gradient_t": agreement[0]}


class Found(NamedTuple):
    weights: Float[Array, " term"]
    """Of the terms as they are written."""
    unit: Float[Array, " term"]
    """The weight at which each counts as much as the true reward."""
    known: Bool[Array, ""]
    """The true gradient is told from noise."""
    decided: Bool[Array, ""]


def best_weights(
    evidence: Evidence,
    advantages: TermAdvantages,
    initial: float,
    leader: Int[Array, ""],
    held: Float[Array, " term"],
    decided: Bool[Array, ""],
) -> Found:
    """Until the groups are compared, weights are `initial`; before there was a reward, all terms count alike. Then they
    follow the evidence. Terms that have lost start from 0 and have to earn what they get. Where nothing is known,
    weights are `held`.
    """
    reward = jnp.where(advantages.silent, jnp.min(advantages.units), advantages.true_unit)
    unit = reward / advantages.units
    naive = initial * jnp.where(advantages.silent, jnp.minimum(1.0, 1 / unit), 1 / unit)
    expected = jnp.where(leader == CONTROL, 0.0, naive)
    batches = jnp.maximum(evidence.batches, 1e-6)
    gram, agreement = evidence.gram / batches, evidence.agreement.total / batches
    size = jnp.maximum(jnp.diag(gram), 1e-9)
    beta = signed_regression(gram + RIDGE * jnp.diag(size), agreement)
    scale = jnp.maximum(beta[0], SMALLEST_OWN)
    best = jnp.clip(beta[1:] / scale, -LARGEST, LARGEST)
    error = jnp.sqrt(evidence.agreement.variance)[1:] / batches / size[1:] / scale
    prior = PRIOR**2 + expected**2
    certain = prior / (prior + error**2)
    known = evidence.agreement.t[0] > CLEAR
    zeta = jnp.where(known, certain * best + (1 - certain) * expected, jnp.where(decided, held, expected))
    now = leader != UNDECIDED
    return Found(jnp.where(now, zeta, naive) * unit, unit, known, now)


def signed_regression(
    gram: Float[Array, "reward reward"], agreement: Float[Array, " reward"]
) -> Float[Array, " reward"]:
    """min beta' M beta / 2 - b' beta, each beta_k 0 or with the sign of b_k, by coordinate descent.

    Without that, terms that say nearly the same get large weights of opposite signs, which the next batch reverses.
    """

    def one(k: Int[Array, ""], beta: Float[Array, " reward"]) -> Float[Array, " reward"]:
        best = beta[k] + (agreement[k] - gram[k] @ beta) / gram[k, k]
        return beta.at[k].set(jnp.where(agreement[k] > 0, jnp.maximum(best, 0.0), jnp.minimum(best, 0.0)))

    def sweep(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, beta, _ = state
        swept = jax.lax.fori_loop(0, agreement.size, one, beta)
        return number + 1, swept, jnp.max(jnp.abs(swept - beta)) > SETTLED * jnp.max(jnp.abs(swept))

    start = jnp.zeros((), jnp.int32), jnp.zeros_like(agreement), jnp.ones((), bool)
    return jax.lax.while_loop(lambda state: (state[0] < SWEEPS) & state[2], sweep, start)[1]


def part_gradients(policy: Theta, data: UpdateData) -> tuple[Float[Array, "part reward theta"], Float[Array, " part"]]:
    """Policy gradients of the true reward, of every term and of the length of episodes, of each part of the batch; and
    which parts are its own.
    """
    advantages, (time, envs) = data.by_term, data.done.shape
    assert advantages is not None
    signals = jnp.concatenate([advantages.true[:, None], advantages.terms, advantages.length[:, None]], axis=1)
    pieces = min(time, -(-PARTS // envs))
    length = time // pieces  # where that leaves a rest, the last steps are left out

    def split(x: Array) -> Array:
        by_env = jnp.swapaxes(x.reshape(time, envs, *x.shape[1:])[: pieces * length], 0, 1)
        return by_env.reshape(envs * pieces, length, *x.shape[1:])

    def one(part: tuple[Array, Array, Array]) -> Float[Array, "reward theta"]:
        obs, action, signal = part
        return jax.vmap(ravel)(log_prob_gradients(policy, obs, action).sums(signal.T / length))

    # One part at a time: all at once would leave the processor's cache.
    gradients = jax.lax.map(one, (split(data.samples.obs), split(data.samples.action), split(signals)))
    own = jnp.ones(envs * pieces) if data.own is None else split(data.own)[:, 0]
    return gradients, own


def with_means(
    gradients: Float[Array, "part reward_and_length theta"], offset: Float[Array, " term"]
) -> tuple[Float[Array, "part reward theta"], Float[Array, "part reward theta"]]:
    """The gradients of the rewards, and the same of each term less its mean, which are given.

    `offset` is what the mean of each term adds, per unit of the length's gradient: a term that is always negative pays
    for falling early, whatever it says of states, and that is its mean's doing.
    """
    beyond, length = gradients[:, :-1], gradients[:, -1:]
    return beyond + jnp.concatenate([jnp.zeros(1), offset])[:, None] * length, beyond


def products(
    g: Float[Array, "part reward theta"], own: Float[Array, " part"]
) -> tuple[Float[Array, "reward reward"], Agreement, Agreement]:
    """M, b, and how each gradient agrees with itself. Parts that are not the policy's own are 0.

    M contains the batch's noise; the others, means over pairs of different parts, do not.
    """
    sums = g.sum(axis=0)
    return sums @ sums.T / own.sum() ** 2, agree(g[:, :1], g, own), agree(g, g, own)


def agree(
    a: Float[Array, "part one_or_reward theta"], b: Float[Array, "part reward theta"], own: Float[Array, " part"]
) -> Agreement:
    """Mean over pairs of different parts of <a, b>, and the variance of that estimate.

    A pair is the mean, plus what either part adds to all its pairs, plus a rest of variance s^2. Of n parts, the
    jackknife counts the rest as 4 s^2 / n (n - 2), more than twice what it is, 2 s^2 / n (n - 1) (Efron and Stein,
    1981). Where there is only noise, there is only the rest. So the surplus is subtracted, down to that.
    """
    n, sum_a, sum_b = own.sum(), a.sum(axis=0), b.sum(axis=0)
    same = jnp.sum(a * b, axis=-1)
    pairs = jnp.sum(sum_a * sum_b, axis=-1) - same.sum(axis=0)
    mean = pairs / jnp.maximum(n * (n - 1), 1)
    of_part = (jnp.sum(a * sum_b + sum_a * b, axis=-1) - 2 * same) / 2  # the pairs that it is in
    adds = own[:, None] * (of_part - (n - 1) * mean) / jnp.maximum(n - 2, 1)
    jackknife = 4 * jnp.sum(adds**2, axis=0) / jnp.maximum(n * (n - 1), 1)

    few = slice(min(PAIRED, len(own)))
    pair = jnp.einsum("prt,qrt->rpq", jnp.broadcast_to(a, b.shape)[few], b[few])
    rest = (pair + jnp.swapaxes(pair, 1, 2)) / 2 - mean[:, None, None] - adds.T[:, few, None] - adds.T[:, None, few]
    both = own[few, None] * own[few] * (1 - jnp.eye(len(own[few])))
    s2 = jnp.sum(both * rest**2, axis=(1, 2)) / jnp.maximum(both.sum(), 1) * (n - 1) / jnp.maximum(n - 3, 1)
    surplus = 2 * s2 / jnp.maximum((n - 1) * (n - 2), 1)
    least = jackknife * (n - 2) / jnp.maximum(2 * (n - 1), 1)
    return Agreement(mean, jnp.maximum(jackknife - surplus, least))
