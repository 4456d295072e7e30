"""The lower level: one PPO gradient step on the modified reward (equations 3 and 6 of the paper)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.nets.mlp import MLP, make_mlp
from bipars.nets.per_sample import PerSampleGradients
from bipars.nets.policies import Policy, Theta, scores
from bipars.nets.spaces import BoxActions, HasSpaces
from bipars.settings.config import PPOConfig


class Samples(NamedTuple):
    """What both levels learn from. Built once per update, then drawn from in minibatches."""

    obs: Float[Array, "sample obs"]
    action: Array
    log_prob: Float[Array, " sample"]
    """Under the policy that acted."""
    modified_advantage: Float[Array, " sample"]
    true_advantage: Float[Array, " sample"] | None = None
    value_targets: tuple[Float[Array, " sample"], ...] = ()
    """What each critic should say."""
    credit: Float[Array, "sample phi"] | None = None
    """Derivative of the modified advantage with respect to phi."""
    weighted: Float[Array, " sample"] | None = None
    """Weighted terms to come, in units of the modified advantage: what they are judged by."""
    scores: PerSampleGradients | None = None
    """Under the policy that learns from them just now, where they are known already."""

    def at(self, index: Int[Array, " batch"]) -> "Samples":
        """Some of them: a minibatch."""
        return jax.tree.map(lambda x: x[index], self)


def no_samples(size: int, env: HasSpaces, credit: int | None) -> Samples:
    """Zeros in the shapes of `size` samples."""
    nothing, actions = jnp.zeros(size), env.actions
    action = jnp.zeros((size, actions.size)) if isinstance(actions, BoxActions) else jnp.zeros(size, jnp.int32)
    obs = jnp.zeros((size, env.observation_size))
    slopes = None if credit is None else jnp.zeros((size, credit))
    return Samples(obs, action, nothing, nothing, nothing, (), slopes)


class Learner(NamedTuple):
    """theta and the value functions, each with its optimiser's state."""

    policy: Theta
    policy_optimiser: optax.OptState
    critics: tuple[MLP, ...]
    """V~ of the modified reward and, where the upper level learns, V of the true one."""
    critic_optimisers: tuple[optax.OptState, ...]


ADAM = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}


def adam(
    learning_rate: optax.ScalarOrSchedule, max_grad_norm: float | None, eps: float = ADAM["eps"]
) -> optax.GradientTransformation:
    optimiser = optax.adam(learning_rate, **ADAM | {"eps": eps})
    return optimiser if max_grad_norm is None else optax.chain(optax.clip_by_global_norm(max_grad_norm), optimiser)


def init_learner(
    key: PRNGKeyArray,
    config: PPOConfig,
    observation_size: int,
    policy: Theta,
    num_critics: int,
) -> Learner:
    sizes = (observation_size, *config.value_hidden, 1)
    critics = tuple(make_mlp(k, sizes, config.activation) for k in jax.random.split(key, num_critics))
    policy_adam = adam(config.policy_learning_rate, config.max_grad_norm)
    value_adam = adam(config.value_learning_rate, config.max_grad_norm)
    return Learner(policy, policy_adam.init(policy), critics, tuple(value_adam.init(critic) for critic in critics))


def probability_ratio(policy: Policy, samples: Samples) -> Float[Array, " sample"]:
    return jnp.exp(policy.log_prob(samples.obs, samples.action) - samples.log_prob)


def scored(policy: Theta, samples: Samples) -> tuple[Float[Array, " sample"], PerSampleGradients]:
    """The probability ratio of every sample, and its score."""
    known = scores(policy, samples.obs, samples.action) if samples.scores is None else samples.scores
    return jnp.exp(known.value - samples.log_prob), known


def surrogate(policy: Policy, samples: Samples, advantage: Float[Array, " sample"], clip: float) -> Float[Array, ""]:
    """PPO's clipped objective; a sample beyond the clip contributes no gradient."""
    ratio = probability_ratio(policy, samples)
    return jnp.mean(jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage))


def surrogate_gradients(
    policy: Theta,
    samples: Samples,
    advantages: tuple[Float[Array, " sample"], ...],
    clip: float,
    equal: Bool[Array, ""] | bool = False,
) -> list[Theta]:
    """Of `surrogate`, for several advantages of the same samples, for little more than the price of one.

    Where they are `equal`, for the price of one.
    """
    ratio, slopes = scored(policy, samples)
    pulls = jnp.stack([ratio * unclipped(ratio, advantage, clip) * advantage / ratio.size for advantage in advantages])
    gradients = jax.lax.cond(
        equal,
        lambda: jax.tree.map(lambda x: jnp.broadcast_to(x, (len(pulls), *x.shape[1:])), slopes.sums(pulls[:1])),
        lambda: slopes.sums(pulls),
    )
    return [jax.tree.map(lambda x, i=i: x[i], gradients) for i in range(len(pulls))]


def unclipped(
    ratio: Float[Array, " sample"], advantage: Float[Array, " sample"], clip: float
) -> Float[Array, " sample"]:
    """1 where `surrogate` has a gradient, 0 where the clip has cut it off."""
    beyond = ((advantage > 0) & (ratio > 1 + clip)) | ((advantage < 0) & (ratio < 1 - clip))
    return jnp.where(beyond, 0.0, 1.0).astype(ratio.dtype)


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


def critic_loss(
    critic: MLP, obs: Float[Array, "sample obs"], target: Float[Array, " sample"], relative: bool
) -> Float[Array, ""]:
    """Squared error, or the fraction of the target's variance that it leaves unexplained (`relative`).

    Returns of a sparse reward shrink by orders of magnitude as the policy improves, and with them the gradients that
    Adam remembers; the relative loss keeps its size, so the critic keeps learning.
    """
    error = jnp.mean((critic(obs)[..., 0] - target) ** 2)
    return error / (jnp.var(target) + 1e-8) if relative else error
