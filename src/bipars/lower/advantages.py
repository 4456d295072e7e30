"""What there is to learn from a batch: the advantages of both rewards, and how the modified ones move with phi."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.lower.ppo import Learner, Samples, values
from bipars.nets.mlp import MLP
from bipars.nets.running import ReturnScale, RunningMoments
from bipars.nets.weights import WeightFunction
from bipars.objective import discounted_suffix_sums, gae, normaliser
from bipars.rollout.batch import Batch
from bipars.settings.config import Config, PPOConfig
from bipars.signals import modified_reward
from bipars.upper.baseline import state_basis, unexplained
from bipars.upper.jacobian import advantage_credit, credited, gains_through_normaliser, through_normaliser


class Scales(NamedTuple):
    """Running statistics by which observations and rewards are normalised; none where they are not."""

    observations: RunningMoments | None
    returns: tuple[ReturnScale, ...]
    """Of the modified reward and, where the upper level learns, of the true one."""


class UpdateData(NamedTuple):
    """What one round's gradient steps are taken on."""

    samples: Samples
    draws: Int[Array, "step batch"]
    """The minibatch of every step of theta and the critics."""
    upper_draws: Int[Array, "step batch"]
    """That from which phi learns after it: another one, else a sample would meet itself in both factors of v^T h."""
    terms: Float[Array, "time env term"]
    done: Bool[Array, "time env"]
    scale: Float[Array, ""]
    """The unit of the modified advantages."""
    basis: Float[Array, "feature sample"] | None = None
    """Of what the state alone tells of the terms to come, where phi is spared that."""
    trusted: Float[Array, ""] | None = None
    """How far the policy believes the terms, where they must earn it."""

    def with_credit(self, credit: Float[Array, "sample phi"]) -> "UpdateData":
        return self._replace(samples=self.samples._replace(credit=credit))

    def judged(self, trusted: Float[Array, ""]) -> "UpdateData":
        """Without what the terms were judged by."""
        return self._replace(samples=self.samples._replace(weighted=None), trusted=trusted)

    def unexplained(self, x: Float[Array, "... sample"]) -> Float[Array, "... sample"]:
        """Without what the state alone tells, where there is a baseline."""
        return x if self.basis is None else unexplained(x, self.basis)

    def over_time(self, x: Float[Array, "... sample"]) -> Float[Array, "... time env"]:
        """Samples, which are the last axis, as they came."""
        return x.reshape(*x.shape[:-1], *self.done.shape)


def draw_minibatches(
    key: PRNGKeyArray, ppo: PPOConfig, total: int, shared: bool
) -> tuple[Int[Array, "step batch"], Int[Array, "step batch"]]:
    """Of `total` samples, for theta and, after each of its steps, for phi: theta's next one, where it is `shared`."""
    steps, batch = ppo.gradient_steps, ppo.batch_size
    if shared:
        chain = jax.random.randint(key, (steps + 1, batch), 0, total)
        return chain[:-1], chain[1:]
    pairs = jax.random.randint(key, (steps, 2, batch), 0, total)
    return pairs[:, 0], pairs[:, 1]


def upper_discount(config: Config) -> float:
    """How much of later weighted terms an action is credited with, from step to step."""
    return config.ppo.gamma * (config.ppo.gae_lambda if config.upper.horizon == "gamma-lambda" else 1.0)


def compute_advantages(
    config: Config,
    learner: Learner,
    weights: WeightFunction,
    scales: Scales,
    batch: Batch,
    terms: Float[Array, "time env term"] | None,
    to_judge: bool,
) -> tuple[Samples, Float[Array, "time env term"], Scales, Float[Array, ""]]:
    """Advantages of both rewards; z of every transition; newer scales; the unit of the modified advantages.

    Without `terms`, only the true reward's side is filled in: that is all the upper level asks for. Where there is one
    critic, there is no upper level. `to_judge`: with what the weighted terms are judged by.
    """
    ppo, obs, next_obs = config.ppo, batch.obs, batch.next_obs
    if scales.observations is not None:
        obs, next_obs = scales.observations.normalise(obs), scales.observations.normalise(next_obs)
    returns = list(scales.returns)

    def advantages(reward: Array, critic: int, correction: Array | None = None) -> tuple[Array, Array, Array]:
        """Normalised advantages, what the critic should say, and one over the unit of the advantages."""
        unit = jnp.ones(())
        if returns:
            running = returns[critic]._replace(running=jnp.where(batch.restarted, 0.0, returns[critic].running))
            returns[critic] = running.update(reward, batch.done, ppo.gamma)
            unit = returns[critic].std
        value, next_value = values(learner.critics[critic], obs, next_obs, batch.done)
        advantage, target = gae(
            reward / unit, value, next_value, batch.terminated, batch.done, ppo.gamma, ppo.gae_lambda
        )
        if correction is not None:
            advantage = advantage + correction / unit
        mean, std = normaliser(advantage)
        return (advantage - mean) / std, target, std * unit

    modified_advantage, z = jnp.zeros_like(batch.reward), jnp.zeros((*batch.reward.shape, 0))
    true_advantage = weighted = None
    scale = jnp.ones(())
    targets = []
    if terms is not None:
        z = weights(obs, batch.action)
        reward = modified_reward(batch._replace(terms=terms), z)
        modified_advantage, target, scale = advantages(reward, 0, batch.advice and batch.advice.correction)
        targets.append(target)
        if to_judge:
            weighted = discounted_suffix_sums(jnp.sum(z * terms, axis=-1), batch.done, upper_discount(config)) / scale
    if len(learner.critics) > 1:
        true_advantage, target, _ = advantages(batch.reward, 1)
        targets.append(target)
    samples = Samples(
        obs, batch.action, batch.log_prob, modified_advantage, true_advantage, tuple(targets), weighted=weighted
    )
    moments = scales.observations
    if moments is not None and terms is not None and config.weights_from is None:
        moments = moments.update(batch.obs.reshape(-1, batch.obs.shape[-1]))
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)
    return flat, z, Scales(moments, tuple(returns)), scale


def with_baseline(config: Config, critic: MLP, lesson: UpdateData, to_go: Int[Array, "time env"]) -> UpdateData:
    """The lesson without what the state alone tells of the terms to come, by what the critic's last layer is given.

    `to_go`: how many steps there could at most be from each on.
    """
    samples = lesson.samples
    basis = state_basis(critic.inputs(samples.obs)[-1], to_go.reshape(-1), upper_discount(config))
    lesson = lesson._replace(basis=basis)
    if samples.weighted is None:
        return lesson
    return lesson._replace(samples=samples._replace(weighted=lesson.unexplained(samples.weighted)))


def credit_of(config: Config, weights: WeightFunction, lesson: UpdateData) -> Float[Array, "sample phi"]:
    """How the modified advantage of every sample moves with phi."""
    samples, shape = lesson.samples, lesson.done.shape
    obs, action = (x.reshape(*shape, *x.shape[1:]) for x in (samples.obs, samples.action))
    credit = advantage_credit(
        weights, obs, action, lesson.terms, lesson.done, upper_discount(config), lesson.scale
    ).reshape(samples.log_prob.size, -1)
    credit = lesson.unexplained(credit.T).T
    return through_normaliser(credit, samples.modified_advantage) if config.upper.through_normaliser else credit


def gradients_of(
    config: Config, weights: WeightFunction, lesson: UpdateData, gains: Float[Array, "step sample"]
) -> WeightFunction:
    """Of the true return with respect to phi, one per row of `gains`: what it gains by each modified advantage."""
    samples = lesson.samples
    if config.upper.through_normaliser:
        gains = gains_through_normaliser(gains, samples.modified_advantage)
    gains = lesson.unexplained(gains)
    return credited(
        weights,
        samples.obs,
        samples.action,
        lesson.terms,
        lesson.done,
        upper_discount(config),
        lesson.scale,
        lesson.over_time(gains),
    )
