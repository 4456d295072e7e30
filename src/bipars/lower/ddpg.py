"""The lower level of appendix C: a deterministic policy that climbs a critic of the modified reward.

Plain DDPG; twin critics, delayed policy steps and smoothed targets (TD3) are settings.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bipars.lower.ppo import adam
from bipars.lower.replay import Replay, Transitions
from bipars.nets.mlp import MLP, make_mlp, module, namespace, uniform
from bipars.nets.policies import Policy
from bipars.settings.config import DDPGConfig

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
        """Nobody asks for it; a sampler reports it with every batch."""
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


class Units(NamedTuple):
    """The sizes (root mean squares) of what was experienced at random, in which critics learn.

    A term a hundred times as large as the reward would else be all that a network of both has eyes for.
    """

    reward: Float[Array, ""]
    weights: Float[Array, " term"]
    """The weight at which each term is as large as the reward, 1 at most."""

    @staticmethod
    def plain(num_terms: int) -> "Units":
        return Units(jnp.ones(()), jnp.ones(num_terms))

    @staticmethod
    def measured(replay: Replay) -> "Units":
        def size(x: Array) -> Array:
            largest = jnp.max(jnp.abs(x), axis=0)
            of_one = x / jnp.where(largest > 0, largest, 1.0)  # whose squares no number is too large for
            # Rows that nothing was written to yet are zeros.
            return largest * jnp.sqrt(jnp.sum(of_one**2, axis=0) / jnp.minimum(replay.added, replay.capacity))

        reward, terms = size(replay.rows.reward), size(replay.rows.terms)
        reward = jnp.where(reward > 0, reward, 1.0)
        return Units(reward, jnp.where(terms > reward, reward / terms, 1.0))

    def of(self, rows: Transitions) -> Transitions:
        """With rewards and terms in their units; `weights in their units . terms` is in units of the reward."""
        return rows._replace(reward=rows.reward / self.reward, terms=rows.terms * self.weights / self.reward)


@module
class Critic:
    """Q(s, a); or, where its network has several outputs, several such values at once."""

    net: MLP

    def outputs(self, obs: Float[Array, "... obs"], action: Float[Array, "... action"]) -> Float[Array, "... output"]:
        return self.net(jnp.concatenate([obs, action], axis=-1))

    def __call__(self, obs: Float[Array, "... obs"], action: Float[Array, "... action"]) -> Float[Array, "..."]:
        return self.outputs(obs, action)[..., 0]


@module
class ModifiedCritic:
    """Q~(s, a, z) = Q(s, a) + sum_k z_k B_k(s, a) + D(s, a), with z in its units.

    B_k is the value of term k. With the same weights everywhere, Q and B_k would be all: rewards are linear in the
    weights, and so are the values of a given policy. D is what comes of weights that change along the way, and of what
    the other parts miss.

    A network that took z as one more input could not have ReLU units: piecewise linear, it has no mixed derivative in a
    and z, and that derivative is what the upper level lives on.
    """

    true: Critic
    added: Critic
    """D first, then one output B_k per term."""
    unit: Float[Array, " term"]

    def slopes(self, obs: Float[Array, "... obs"], action: Float[Array, "... action"]) -> Float[Array, "... term"]:
        """B: how Q~ grows with each weight in its unit."""
        return self.added.outputs(obs, action)[..., 1:]

    def weighted(
        self, obs: Float[Array, "... obs"], action: Float[Array, "... action"], z: Float[Array, "... term"]
    ) -> Float[Array, "..."]:
        """sum_k z_k B_k: the part of Q~ that the weights are in."""
        return jnp.sum(z / self.unit * self.slopes(obs, action), axis=-1)

    def __call__(
        self, obs: Float[Array, "... obs"], action: Float[Array, "... action"], z: Float[Array, "... term"]
    ) -> Float[Array, "..."]:
        return self.true(obs, action) + self.added(obs, action) + self.weighted(obs, action, z)


class Critics(NamedTuple):
    """One network each, or two (twin critics)."""

    base: tuple[Critic, ...]
    """Q; where no upper level asks for it, Q~."""
    added: tuple[Critic, ...] = ()
    """What the terms add to Q; empty where no upper level asks."""

    def modified(self, units: Units) -> tuple[ModifiedCritic, ...]:
        return tuple(map(ModifiedCritic, self.base, self.added, [units.weights] * len(self.base)))


class DeterministicLearner(NamedTuple):
    """theta and the critics, their slowly following copies, their optimisers' state, and the experience."""

    policy: DeterministicPolicy
    policy_optimiser: optax.OptState
    critics: Critics
    critic_optimiser: optax.OptState
    target_policy: DeterministicPolicy
    target_critics: Critics
    replay: Replay
    units: Units


def init_deterministic(
    key: PRNGKeyArray, config: DDPGConfig, observation_size: int, action_size: int, hints: int, z_inputs: int | None
) -> tuple[DeterministicPolicy, Critics]:
    """`hints`: weights that the policy is shown. `z_inputs`: weights that Q~ is shown; none means no upper level."""
    keys = jax.random.split(key, 5)
    sizes = (observation_size + hints, *config.policy_hidden, action_size)
    policy = DeterministicPolicy(make_mlp(keys[0], sizes, config.activation, output=SMALL))

    def make(key: PRNGKeyArray, outputs: int) -> Critic:
        sizes = (observation_size + action_size, *config.value_hidden, outputs)
        return Critic(make_mlp(key, sizes, config.activation, output=SMALL))

    count = 1 + config.twin_critics
    base = tuple(make(k, 1) for k in keys[1 : 1 + count])
    added = () if z_inputs is None else tuple(make(k, 1 + z_inputs) for k in keys[3 : 3 + count])
    return policy, Critics(base, added)


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
    reward: Float[Array, "sample ..."],
    next_values: list[Float[Array, "sample ..."]],
    terminated: Bool[Array, "sample ..."],
    gamma: float,
) -> Float[Array, "sample ..."]:
    """r + gamma Q(s', mu(s')), of two critics the smaller. Nothing follows a termination."""
    smallest = jnp.min(jnp.stack(next_values), axis=0)
    return jax.lax.stop_gradient(reward + gamma * jnp.where(terminated, 0.0, smallest))


def squared_error(values: list[Float[Array, "sample ..."]], target: Float[Array, "sample ..."]) -> Float[Array, ""]:
    """Mean over samples; of all critics of one reward and of all terms together."""
    return jnp.sum(jnp.mean((jnp.stack(values) - target) ** 2, axis=1))


def follow(target: Any, source: Any, rate: float) -> Any:
    """Polyak averaging: the copy moves a small part of the way."""
    return jax.tree.map(lambda a, b: a + rate * (b - a), target, source)
