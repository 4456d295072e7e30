"""Networks of appendix C: a deterministic policy, and critics of the true and of the modified reward."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

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

    def modified(self, unit: Float[Array, " term"]) -> tuple[ModifiedCritic, ...]:
        return tuple(map(ModifiedCritic, self.base, self.added, [unit] * len(self.base)))


def init_deterministic(
    key: PRNGKeyArray, config: DDPGConfig, observation_size: int, action_size: int, shown: int, num_terms: int | None
) -> tuple[DeterministicPolicy, Critics]:
    """`shown`: weights that the policy is shown. `num_terms`: of the weights that Q~ is shown; none: no upper level."""
    keys = jax.random.split(key, 5)
    sizes = (observation_size + shown, *config.policy_hidden, action_size)
    policy = DeterministicPolicy(make_mlp(keys[0], sizes, config.activation, output=SMALL))

    def make(key: PRNGKeyArray, outputs: int) -> Critic:
        sizes = (observation_size + action_size, *config.value_hidden, outputs)
        return Critic(make_mlp(key, sizes, config.activation, output=SMALL))

    count = 1 + config.twin_critics
    base = tuple(make(k, 1) for k in keys[1 : 1 + count])
    added = () if num_terms is None else tuple(make(k, 1 + num_terms) for k in keys[3 : 3 + count])
    return policy, Critics(base, added)
