"""The lower level of appendix C: a deterministic policy that climbs a critic of the modified reward.

Plain DDPG; twin critics, delayed policy steps and smoothed targets (TD3) are settings.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bipars.config import DDPGConfig
from bipars.lower.policies import Policy
from bipars.lower.ppo import adam
from bipars.lower.replay import Replay, Transitions
from bipars.networks import MLP, make_mlp, module, namespace, uniform

SMALL = uniform(3e-3)
"""First actions and values near zero: a policy that starts at the bounds has no gradient there."""


@module
class DeterministicPolicy:
    """mu(s): one action per state, in [-1, 1]."""

    net: MLP

    def __call__(self, obs: Float[Array, "... obs"]) -> Float[Array, "... action"]:
        return namespace(obs).tanh(self.net(obs))

    def draw_noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "... action"]:
        return jax.random.normal(key, (*shape, self.net.layers[-1].bias.size))

    def sample(self, obs: Float[Array, "... obs"], noise: Array) -> Array:
        return self(obs)

    def mode(self, obs: Float[Array, "... obs"]) -> Array:
        return self(obs)

    def log_prob(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "..."]:
        """Nobody asks for it; a world reports it with every batch."""
        return jnp.zeros(obs.shape[:-1])


@module
class ExploringPolicy:
    """The policy as it gathers experience: with noise, and at first at random."""

    policy: Policy
    std: Float[Array, ""]
    random: Bool[Array, ""]
    """Warm-up: actions are uniform and the policy is not asked."""

    def draw_noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "... action"]:
        normal = self.policy.draw_noise(key, shape)
        return jnp.where(self.random, jax.random.uniform(key, normal.shape, minval=-1.0, maxval=1.0), normal)

    def sample(self, obs: Float[Array, "... obs"], noise: Float[Array, "... action"]) -> Array:
        xp = namespace(obs)
        chosen = xp.where(self.random, noise, self.policy.mode(obs) + self.std * noise)
        return xp.clip(chosen, -1.0, 1.0)

    def mode(self, obs: Float[Array, "... obs"]) -> Array:
        return self.policy.mode(obs)

    def log_prob(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "..."]:
        return self.policy.log_prob(obs, action)


@module
class Critic:
    """Q(s, a), or Q~(s, a, z) = A(s, a) + sum_k z_k B_k(s, a) where the weights of the terms are an input.

    Rewards are linear in the weights, and so are values of a given policy: adding a number to z_k everywhere adds that
    number times B_k, the value of term k. A network that took z as one more input could not have ReLU units: piecewise
    linear, it has no mixed derivative in a and z, and that derivative is what the upper level lives on.
    """

    net: MLP

    def __call__(
        self,
        obs: Float[Array, "... obs"],
        action: Float[Array, "... action"],
        z: Float[Array, "... term"] | None = None,
    ) -> Float[Array, "..."]:
        out = self.net(jnp.concatenate([obs, action], axis=-1))
        return out[..., 0] if z is None else out[..., 0] + jnp.sum(z * out[..., 1:], axis=-1)


class Critics(NamedTuple):
    """One network each, or two (twin critics)."""

    modified: tuple[Critic, ...]
    true: tuple[Critic, ...] = ()
    """Empty where no upper level asks."""


class DeterministicLearner(NamedTuple):
    """theta and the critics, their slowly following copies, their optimisers' state, and the experience."""

    policy: DeterministicPolicy
    policy_optimiser: optax.OptState
    critics: Critics
    critic_optimiser: optax.OptState
    target_policy: DeterministicPolicy
    target_critics: Critics
    replay: Replay


def init_deterministic(
    key: PRNGKeyArray, config: DDPGConfig, observation_size: int, action_size: int, hints: int, z_inputs: int | None
) -> tuple[DeterministicPolicy, Critics]:
    """`hints`: weights that the policy is shown. `z_inputs`: weights that Q~ is shown; none means no true critic."""
    keys = jax.random.split(key, 5)
    sizes = (observation_size + hints, *config.policy_hidden, action_size)
    policy = DeterministicPolicy(make_mlp(keys[0], sizes, config.activation, output=SMALL))

    def make(key: PRNGKeyArray, z_inputs: int) -> Critic:
        sizes = (observation_size + action_size, *config.value_hidden, 1 + z_inputs)
        return Critic(make_mlp(key, sizes, config.activation, output=SMALL))

    count = 1 + config.twin_critics
    modified = tuple(make(k, z_inputs or 0) for k in keys[1 : 1 + count])
    true = () if z_inputs is None else tuple(make(k, 0) for k in keys[3 : 3 + count])
    return policy, Critics(modified, true)


def policy_adam(config: DDPGConfig) -> optax.GradientTransformation:
    return adam(config.policy_learning_rate, None)


def critic_adam(config: DDPGConfig) -> optax.GradientTransformation:
    return adam(config.value_learning_rate, None)


def smoothed(
    action: Float[Array, "sample action"], noise: Float[Array, "sample action"], std: float
) -> Float[Array, "sample action"]:
    """TD3's target action: with noise cut off at 2.5 deviations, so that Q has to be flat in a neighbourhood."""
    return jnp.clip(action + std * jnp.clip(noise, -2.5, 2.5), -1.0, 1.0)


def td_target(
    reward: Float[Array, " sample"],
    next_values: list[Float[Array, " sample"]],
    terminated: Bool[Array, " sample"],
    gamma: float,
) -> Float[Array, " sample"]:
    """r + gamma Q(s', mu(s')), of two critics the smaller. Nothing follows a termination."""
    smallest = jnp.min(jnp.stack(next_values), axis=0)
    return jax.lax.stop_gradient(reward + gamma * jnp.where(terminated, 0.0, smallest))


def squared_error(
    critics: tuple[Critic, ...],
    rows: Transitions,
    target: Float[Array, " sample"],
    z: Float[Array, "sample term"] | None = None,
) -> Float[Array, ""]:
    """Of all critics of one reward together."""
    values = jnp.stack([critic(rows.obs, rows.action, z) for critic in critics])
    return jnp.sum(jnp.mean((values - target) ** 2, axis=-1))


def follow(target: Any, source: Any, rate: float) -> Any:
    """Polyak averaging: the copy moves a small part of the way."""
    return jax.tree.map(lambda a, b: a + rate * (b - a), target, source)
