"""From a batch to advantages of both rewards, the modified one's and the true one's."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bipars.nets.mlp import MLP
from bipars.nets.running import ReturnScale, RunningMoments
from bipars.nets.weights import WeightFunction
from bipars.objective import Samples, gae, normaliser
from bipars.rollout.batch import Batch, modified_reward
from bipars.settings.config import PPOConfig


class Scales(NamedTuple):
    """Running statistics by which observations and rewards are normalised; none where they are not."""

    observations: RunningMoments | None
    returns: tuple[ReturnScale, ...]
    """Of the modified reward and, where the upper level learns, of the true one."""


class UpdateData(NamedTuple):
    """What the gradient steps of one round are taken on."""

    samples: Samples
    """All of the batch, time and environment on one axis."""
    value_targets: tuple[Float[Array, " sample"], ...]
    """What each critic should say."""
    z: Float[Array, "time env term"]
    scale: Float[Array, ""]
    """The unit of the modified advantages: what they were divided by."""
    log: dict[str, Array]
    batch: Batch
    basis: Float[Array, "feature sample"] | None = None
    """Of functions of the state alone, where dA~/dphi has a baseline; see `upper/baseline.py`."""
    trust: Float[Array, ""] | None = None
    """How far the policy follows the modified advantages, where terms must earn it; see `upper/trust.py`."""

    @property
    def terms(self) -> Float[Array, "time env term"]:
        return self.batch.terms

    @property
    def done(self) -> Bool[Array, "time env"]:
        return self.batch.done

    def with_jacobian(self, jacobian: Float[Array, "sample phi"]) -> "UpdateData":
        return self._replace(samples=self.samples._replace(advantage_jacobian=jacobian))


def compute_advantages(
    config: PPOConfig, critics: tuple[MLP, ...], weights: WeightFunction, scales: Scales, batch: Batch, hold: bool
) -> tuple[UpdateData, Scales]:
    """What there is to learn from a batch, without the batch itself, and newer scales.

    Where there is one critic, there is no upper level, and nobody asks for the true reward's. `hold` leaves the
    statistics of observations as they are.
    """
    obs, next_obs = batch.obs, batch.next_obs
    if scales.observations is not None:
        obs, next_obs = scales.observations.normalise(obs), scales.observations.normalise(next_obs)
    returns = list(scales.returns)
    targets, log = [], {}

    def advantages(reward: Array, critic: int, correction: Array | None = None) -> tuple[Array, Array]:
        """Normalised advantages, and the unit that they are in."""
        unit = jnp.ones(())
        if returns:
            running = returns[critic]._replace(running=jnp.where(batch.restarted, 0.0, returns[critic].running))
            returns[critic] = running.update(reward, batch.done, config.gamma)
            unit = returns[critic].std
        value, next_value = values(critics[critic], obs, next_obs, batch.done)
        advantage, target = gae(
            reward / unit, value, next_value, batch.terminated, batch.done, config.gamma, config.gae_lambda
        )
        targets.append(target.reshape(-1))
        log[f"{('modified', 'true')[critic]}_explained_variance"] = 1 - jnp.var(advantage) / (jnp.var(target) + 1e-8)
        if correction is not None:
            advantage = advantage + correction / unit
        mean, std = normaliser(advantage)
        return ((advantage - mean) / std).reshape(-1), std * unit

    z = weights(obs, batch.action)
    correction = None if batch.potential is None else batch.potential.correction
    modified, scale = advantages(modified_reward(batch, z), 0, correction)
    true = advantages(batch.reward, 1)[0] if len(critics) > 1 else None
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (obs, batch.action, batch.log_prob))
    moments = scales.observations
    if moments is not None and not hold:
        moments = moments.update(batch.obs.reshape(-1, batch.obs.shape[-1]))
    data = UpdateData(Samples(*flat, modified, true), tuple(targets), z, scale, log, None)  # type: ignore[arg-type, call-arg]
    return data, Scales(moments, tuple(returns))


def values(
    critic: MLP,
    obs: Float[Array, "time env obs"],
    next_obs: Float[Array, "time env obs"],
    done: Bool[Array, "time env"],
) -> tuple[Float[Array, "time env"], Float[Array, "time env"]]:
    """V of the states left and of the states reached. Most states reached are the next ones to be left."""
    value = critic(obs)[..., 0]
    ended = done.at[-1].set(True).reshape(-1)
    some = max(ended.size // 8, 1)

    def of_ended() -> Float[Array, " sample"]:
        (index,) = jnp.nonzero(ended, size=some, fill_value=0)
        return jnp.roll(value, -1, axis=0).reshape(-1).at[index].set(critic(flat[index])[..., 0])

    flat = next_obs.reshape(-1, next_obs.shape[-1])
    reached = jax.lax.cond(ended.sum() <= some, of_ended, lambda: critic(flat)[..., 0])
    return value, reached.reshape(done.shape)
