"""From a batch to advantages: of the modified reward and of the true one, or of the true one and of every term."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bipars.nets.mlp import MLP
from bipars.nets.running import ReturnScale, RunningMoments
from bipars.nets.weights import DeviatingWeights, WeightFunction
from bipars.objective import Samples, gae, normaliser
from bipars.rollout.batch import Batch, modified_reward
from bipars.settings.config import PPOConfig

ANY = 1e30
"""More than a reward ever is."""
LENGTH, TRUE = -3, -1
"""Places of two rewards, after those of the terms: 1 at every step, and the true one."""
LEAST_VARIED = 0.1
"""Unit of the length's returns at least, in units of their mean: those of one-step episodes never vary."""
CONSTANT = 0.01
"""Standard deviation of a term, in units of its mean, below which it pays for the length of episodes and no more."""
SMALL = 0.03
"""Standard deviation of advantages, in units of returns, below which there is next to nothing to gain."""


class Scales(NamedTuple):
    """Running statistics by which observations and rewards are normalised; none where they are not."""

    observations: RunningMoments | None
    returns: ReturnScale | None
    """Of every reward that has a critic."""
    low: Float[Array, " reward"]
    """The least that each of these rewards has ever been ..."""
    high: Float[Array, " reward"]
    """... and the most; -`ANY` before the first batch, and `ANY` once an episode has terminated after rewards, which is
    news, too."""
    terms: RunningMoments | None = None
    """Of the terms, where each has a critic."""

    @property
    def never_varied(self) -> Bool[Array, " reward"]:
        return self.low == self.high

    @property
    def never_seen(self) -> Bool[Array, " reward"]:
        """Always 0 so far."""
        return self.never_varied & (self.low == 0)


class TermAdvantages(NamedTuple):
    """Advantages of the true reward and of every term, each in units of its own returns.

    They are not centred: their mean over a batch would tie its parts together, which evidence takes for independent.
    """

    true: Float[Array, " sample"]
    """0 until the reward has varied, of a batch without news of it, and where next to nothing is left to gain: all that
    would be the critic's errors."""
    terms: Float[Array, "sample term"]
    """Less their means over the batch; of terms that are next to nothing else, with it."""
    length: Float[Array, " sample"]
    """Of a reward of 1 at every step; 0 until an episode has terminated, since nothing is paid for length."""
    offset: Float[Array, " term"]
    """How much of `length` is in each term besides, through its mean."""
    true_unit: Float[Array, ""]
    units: Float[Array, " term"]
    """Of the terms with their means."""
    silent: Bool[Array, ""]
    """The true reward has never varied."""


class UpdateData(NamedTuple):
    """What the gradient steps of one round are taken on."""

    samples: Samples
    """All of the batch, time and environment on one axis."""
    value_targets: tuple[Float[Array, "sample reward"], ...]
    """What each critic should say."""
    z: Float[Array, "time env term"]
    scale: Float[Array, ""]
    """The unit of the modified advantages: what they were divided by."""
    log: dict[str, Array]
    batch: Batch
    own: Float[Array, " sample"] | None = None
    """1 for the learner's own samples, 0 for another policy's, where there are such."""
    by_term: TermAdvantages | None = None
    """Where every term has a critic."""
    progress: Float[Array, ""] = 0.0  # type: ignore[assignment]
    """How much of the run is over."""
    rate: Float[Array, ""] = 1.0  # type: ignore[assignment]
    """How long the policy's steps should be: shorter where there is next to nothing to gain."""

    @property
    def terms(self) -> Float[Array, "time env term"]:
        return self.batch.terms

    @property
    def done(self) -> Bool[Array, "time env"]:
        return self.batch.done

    def with_jacobian(self, jacobian: Float[Array, "sample phi"]) -> "UpdateData":
        return self._replace(samples=self.samples._replace(advantage_jacobian=jacobian))


def estimate_advantages(
    config: PPOConfig,
    critics: tuple[MLP, ...],
    scales: Scales,
    batch: Batch,
    obs: Float[Array, "time env obs"],
    rewards: Float[Array, "time env reward"],
    hold: bool,
    own: Float[Array, " env"] | None = None,
) -> tuple[Float[Array, "time env reward"], Float[Array, "time env reward"], Float[Array, " reward"], Scales]:
    """Advantages and value targets of several rewards, the unit that each is in, and newer scales."""
    value, next_value = values(critics, obs, normalise(scales, batch.next_obs), batch.done)
    advantage, target, unit, newer = advantages_by_values(config, value, next_value, scales, batch, rewards, own)
    moments = scales.observations
    if moments is not None and not hold:
        moments = moments.update(batch.obs.reshape(-1, batch.obs.shape[-1]))
    return advantage, target, unit, newer._replace(observations=moments)


def advantages_by_values(
    config: PPOConfig,
    value: Float[Array, "time env reward"],
    next_value: Float[Array, "time env reward"],
    scales: Scales,
    batch: Batch,
    rewards: Float[Array, "time env reward"],
    own: Float[Array, " env"] | None = None,
) -> tuple[Float[Array, "time env reward"], Float[Array, "time env reward"], Float[Array, " reward"], Scales]:
    """The same, given the values of the states left and of the states reached.

    A reward that was never seen says nothing: its advantages would be its critic's errors, and are 0 instead. A reward
    that is always the same says something: after -1 at every step, a critic rates states that it does not know above
    those that it does, so the policy explores.
    """
    unit, returns = jnp.ones(rewards.shape[-1]), scales.returns
    if returns is not None:
        running = jnp.where(batch.restarted, 0.0, returns.running)
        returns = returns._replace(running=running).update(rewards, batch.done, config.gamma)
        unit = returns.std
        if scales.terms is not None:
            least = LEAST_VARIED * jnp.abs(returns.moments.mean[LENGTH])
            unit = unit.at[LENGTH].max(least)
    advantage, target = gae(
        rewards / unit, value, next_value, batch.terminated, batch.done, config.gamma, config.gae_lambda
    )
    mine = jnp.ones(rewards.shape[1], bool) if own is None else own > 0
    least = jnp.where(mine[:, None], rewards, ANY).min(axis=(0, 1))
    most = jnp.where(mine[:, None], rewards, -ANY).max(axis=(0, 1))
    low = jnp.minimum(scales.low, least)
    high = jnp.maximum(scales.high, most)
    ended = jnp.any(batch.terminated & mine) & ((low != 0) | (high != 0))
    high = jnp.where(ended, ANY, high)
    newer = scales._replace(returns=returns, low=low, high=high)
    return jnp.where(newer.never_seen, 0.0, advantage), target, unit, newer


def normalise(scales: Scales, obs: Float[Array, "time env obs"]) -> Float[Array, "time env obs"]:
    return obs if scales.observations is None else scales.observations.normalise(obs)


def normalise_advantages(
    advantage: Float[Array, "time env"], own: Float[Array, " env"] | None
) -> tuple[Float[Array, " sample"], Float[Array, ""]]:
    """Zero-mean and unit-variance over the learner's own samples, 0 elsewhere; and what they were divided by."""
    mean, std = normaliser(advantage, own)
    advantage = (advantage - mean) / std
    return (advantage if own is None else own * advantage).reshape(-1), std


def compute_advantages(
    config: PPOConfig,
    critics: tuple[MLP, ...],
    weights: WeightFunction,
    scales: Scales,
    batch: Batch,
    hold: bool,
    own: Float[Array, " env"] | None = None,
) -> tuple[UpdateData, Scales]:
    """What there is to learn from a batch, without the batch itself, and newer scales.

    With one critic, no weights are learned, and nobody asks for the true reward's advantages. `hold` leaves the
    statistics of observations as they are; `own` says in which environments the learner has acted itself.
    """
    obs = normalise(scales, batch.obs)
    z = weights(obs, batch.action)
    rewards = jnp.stack([modified_reward(batch, z), batch.reward][: len(critics)], axis=-1)
    advantage, target, unit, newer = estimate_advantages(config, critics, scales, batch, obs, rewards, hold, own)
    names = ("modified", "true")[: len(critics)]
    log = {f"{name}_explained_variance": explained(advantage[..., i], target[..., i]) for i, name in enumerate(names)}
    modified = advantage[..., 0]
    if batch.potential is not None and batch.potential.correction is not None:
        modified = modified + batch.potential.correction / unit[0]
    modified, std = normalise_advantages(modified, own)
    true = normalise_advantages(advantage[..., 1], own)[0] if len(critics) > 1 else None
    targets = tuple(jnp.split(target.reshape(-1, len(critics)), len(critics), axis=1))
    data = update_data(obs, batch, modified, true, targets, z, std * unit[0], log, own)
    return data._replace(rate=shorten(scales, std)), newer


def compute_term_advantages(
    config: PPOConfig,
    critics: tuple[MLP, ...],
    weights: WeightFunction,
    scales: Scales,
    batch: Batch,
    hold: bool,
    own: Float[Array, " env"] | None = None,
) -> tuple[UpdateData, Scales]:
    """The same by a critic of the true reward and one with an output for each term, the length and the deviation.

    Advantages add up as rewards do, so the modified one follows the weights at once, however far they jump. What the
    weights do beyond one number per term (`deviation`) is one more reward, and so is 1 at every step: the critics have
    the terms less their means, and the means count through it. So evidence tells what a term rewards from how long it
    is paid.
    """
    assert isinstance(weights, DeviatingWeights)
    obs = normalise(scales, batch.obs)
    z, base = weights(obs, batch.action), weights.base
    deviation = jnp.sum((z - base) * batch.terms, axis=-1, keepdims=True)
    rewards, scales = critics_rewards(scales, batch, deviation)
    advantage, target, unit, newer = estimate_advantages(config, critics, scales, batch, obs, rewards, hold, own)
    log = {"true_explained_variance": explained(advantage[..., -1], target[..., -1])}
    counts = counted(base, scales) * unit
    modified, std = normalise_advantages(advantage @ counts, own)
    true, true_std = normalise_advantages(advantage[..., -1], own)
    flat = target.reshape(-1, target.shape[-1])
    data = update_data(obs, batch, modified, true, (flat[:, :-1], flat[:, -1:]), z, std, log, own)
    each = advantage if own is None else own[:, None] * advantage
    by_term = term_advantages(each.reshape(-1, advantage.shape[-1]), true_std, unit, newer, batch, own)
    return data._replace(by_term=by_term, rate=shorten(scales, std / jnp.sum(jnp.abs(counts)))), newer


def critics_rewards(
    scales: Scales, batch: Batch, deviation: Float[Array, "time env 1"]
) -> tuple[Float[Array, "time env reward"], Scales]:
    """All rewards that have a critic, the terms less their running means first; and scales that know these."""
    assert scales.terms is not None
    moments = scales.terms.update(batch.terms.reshape(-1, batch.terms.shape[-1]))
    rewards = [batch.terms - moments.mean, jnp.ones_like(deviation), deviation, batch.reward[..., None]]
    return jnp.concatenate(rewards, axis=-1), scales._replace(terms=moments)


def counted(base: Float[Array, " term"], scales: Scales) -> Float[Array, " reward"]:
    """How much each counts in the modified reward."""
    assert scales.terms is not None
    return jnp.concatenate([base, (base @ scales.terms.mean)[None], jnp.array([1.0, 1.0])])


def term_advantages(
    each: Float[Array, "sample reward"],
    true_std: Float[Array, ""],
    unit: Float[Array, " reward"],
    scales: Scales,
    batch: Batch,
    own: Float[Array, " env"] | None = None,
) -> TermAdvantages:
    """Of rewards in the order of `counted`, whose advantages spread by `true_std` in the true one.

    The critics have the terms less their running means. Evidence is of terms less their means over the batch, so the
    rest goes to the length's account here; of a term that is next to nothing but its mean, it is of the whole term.
    """
    assert scales.terms is not None
    silent = scales.never_varied[TRUE]
    settled = False if scales.returns is None else true_std < SMALL
    heard = jnp.where(has_news(batch, own) & ~silent & ~settled, each[:, TRUE], 0.0)
    means, std = scales.terms.mean, jnp.sqrt(scales.terms.var)
    units = jnp.hypot(unit[:LENGTH], means * unit[LENGTH])
    units = jnp.where(scales.never_varied[:LENGTH] & (means == 0), unit[TRUE], units)  # of a term that is always 0
    some_end = ~scales.never_varied[LENGTH]
    length = jnp.where(some_end, each[:, LENGTH], 0.0)
    batch_mean = jnp.average(batch.terms.mean(axis=0), axis=0, weights=own)
    taken_off = jnp.where(std > CONSTANT * jnp.abs(means), batch_mean, 0.0)
    terms = each[:, :LENGTH] * unit[:LENGTH] - (taken_off - means) * unit[LENGTH] * length[:, None]
    return TermAdvantages(heard, terms / units, length, taken_off * unit[LENGTH] / units, unit[TRUE], units, silent)


def has_news(batch: Batch, own: Float[Array, " env"] | None) -> Bool[Array, ""]:
    """Whether the true reward varied in the batch, or an episode terminated: all else is the critic's opinion."""
    mine = jnp.ones(batch.done.shape[1], bool) if own is None else own > 0
    least, most = (f(jnp.where(mine, batch.reward, x)) for f, x in ((jnp.min, ANY), (jnp.max, -ANY)))
    return (most > least) | jnp.any(batch.terminated & mine)


def update_data(
    obs: Float[Array, "time env obs"],
    batch: Batch,
    modified: Float[Array, " sample"],
    true: Float[Array, " sample"] | None,
    targets: tuple[Array, ...],
    z: Float[Array, "time env term"],
    scale: Float[Array, ""],
    log: dict[str, Array],
    own: Float[Array, " env"] | None,
) -> UpdateData:
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (obs, batch.action, batch.log_prob))
    samples = Samples(*flat, modified, true)  # type: ignore[call-arg]
    of_each = None if own is None else jnp.broadcast_to(own, batch.done.shape).reshape(-1)
    return UpdateData(samples, targets, z, scale, log, None, of_each)  # type: ignore[arg-type]


def shorten(scales: Scales, std: Float[Array, ""]) -> Float[Array, ""]:
    """The length of steps on advantages that varied by so many units of the returns.

    Normalised advantages are as large as ever when a policy has nothing left to learn, and so are Adam's steps: the
    policy would walk at random on the critic's errors, until it falls.
    """
    return jnp.ones(()) if scales.returns is None else jnp.minimum(std / SMALL, 1.0)


def explained(advantage: Array, target: Array) -> Float[Array, ""]:
    """The share of the returns' variance that the critic predicted."""
    return 1 - jnp.var(advantage) / (jnp.var(target) + 1e-8)


def values(
    critics: tuple[MLP, ...],
    obs: Float[Array, "time env obs"],
    next_obs: Float[Array, "time env obs"],
    done: Bool[Array, "time env"],
) -> tuple[Float[Array, "time env reward"], Float[Array, "time env reward"]]:
    """V of the states left and of the states reached. Most states reached are the next ones to be left."""

    def every(x: Float[Array, "... obs"]) -> Float[Array, "... reward"]:
        return jnp.concatenate([critic(x) for critic in critics], axis=-1)

    value = every(obs)
    ended = done.at[-1].set(True).reshape(-1)
    some = max(ended.size // 8, 1)

    def of_ended() -> Float[Array, "sample reward"]:
        (index,) = jnp.nonzero(ended, size=some, fill_value=0)
        return jnp.roll(value, -1, axis=0).reshape(-1, value.shape[-1]).at[index].set(every(flat[index]))

    flat = next_obs.reshape(-1, next_obs.shape[-1])
    reached = jax.lax.cond(ended.sum() <= some, of_ended, lambda: every(flat))
    return value, reached.reshape(value.shape)
