"""Stochastic policies. Each takes its random numbers as an argument, drawn by the caller."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bipars.nets.mlp import MLP, make_mlp, module, namespace, one_hot, one_hots, orthogonal, split_choices, static
from bipars.nets.network import Network, Networks
from bipars.nets.per_sample import PerSampleGradients
from bipars.nets.running import LIMIT, Scale
from bipars.nets.spaces import BoxActions, HasSpaces, MultiDiscreteActions
from bipars.nets.weights import WeightFunction
from bipars.settings.config import PPOConfig


class Policy(Protocol):
    """A pytree of parameters theta with a distribution over actions."""

    def draw_noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array: ...
    def sample(self, obs: Float[Array, "... obs"], noise: Array) -> Array: ...
    def mode(self, obs: Float[Array, "... obs"]) -> Array: ...
    def log_prob(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "..."]: ...


@module
class CategoricalPolicy:
    net: MLP

    def draw_noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "... action"]:
        return jax.random.gumbel(key, (*shape, self.net.layers[-1].bias.size))

    def sample(self, obs: Float[Array, "... obs"], noise: Float[Array, "... action"]) -> Array:
        return namespace(obs).argmax(self.net(obs) + noise, axis=-1)

    def mode(self, obs: Float[Array, "... obs"]) -> Array:
        return namespace(obs).argmax(self.net(obs), axis=-1)

    def log_prob(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "..."]:
        log_probs = jax.nn.log_softmax(self.net(obs))
        # A sum over one-hot rows: on CPU a gather costs more, and its transpose (a scatter) much more.
        return jnp.sum(log_probs * one_hot(action, log_probs.shape[-1], log_probs.dtype), axis=-1)

    def spread(self, obs: Float[Array, "sample obs"]) -> dict[str, Array]:
        """How much it still explores: its mean entropy and, where actions have a size, their deviation."""
        log_probs = jax.nn.log_softmax(self.net(obs))
        return {"entropy": -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1).mean()}


@module
class MultiCategoricalPolicy:
    """Several choices at once, independent of each other given the state: one head each, on one network."""

    net: MLP
    sizes: tuple[int, ...] = static()

    def draw_noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "... options"]:
        return jax.random.gumbel(key, (*shape, sum(self.sizes)))

    def sample(self, obs: Float[Array, "... obs"], noise: Float[Array, "... options"]) -> Int[Array, "... choice"]:
        return self._best(self.net(obs) + noise)

    def mode(self, obs: Float[Array, "... obs"]) -> Int[Array, "... choice"]:
        return self._best(self.net(obs))

    def _best(self, values: Float[Array, "... options"]) -> Int[Array, "... choice"]:
        xp = namespace(values)
        return xp.concatenate([xp.argmax(part, axis=-1) for part in split_choices(values, self.sizes)], axis=-1)

    def _log_probs(self, obs: Float[Array, "... obs"]) -> list[Float[Array, "... choice option"]]:
        return [jax.nn.log_softmax(part) for part in split_choices(self.net(obs), self.sizes)]

    def log_prob(self, obs: Float[Array, "... obs"], action: Int[Array, "... choice"]) -> Float[Array, "..."]:
        every = self._log_probs(obs)
        chosen = split_choices(one_hots(action, self.sizes, every[0].dtype), self.sizes)
        return sum(jnp.sum(part * hot, axis=(-2, -1)) for part, hot in zip(every, chosen, strict=True))  # type: ignore

    def spread(self, obs: Float[Array, "sample obs"]) -> dict[str, Array]:
        every = self._log_probs(obs)
        return {"entropy": -sum(jnp.sum(jnp.exp(part) * part, axis=(-2, -1)).mean() for part in every)}  # type: ignore


@module
class GaussianPolicy:
    """Mean from a network, one learned log standard deviation per dimension."""

    net: MLP
    log_std: Float[Array, " action"]

    def draw_noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "... action"]:
        return jax.random.normal(key, (*shape, self.log_std.size))

    def sample(self, obs: Float[Array, "... obs"], noise: Float[Array, "... action"]) -> Array:
        return self.net(obs) + namespace(obs).exp(self.log_std) * noise

    def mode(self, obs: Float[Array, "... obs"]) -> Array:
        return self.net(obs)

    def log_prob(self, obs: Float[Array, "... obs"], action: Float[Array, "... action"]) -> Float[Array, "..."]:
        return self.log_prob_of_noise((action - self.net(obs)) * jnp.exp(-self.log_std))

    def log_prob_of_noise(self, noise: Float[Array, "... action"]) -> Float[Array, "..."]:
        """Of the action that `sample` makes of it."""
        return jnp.sum(-0.5 * noise**2 - self.log_std - 0.5 * jnp.log(2 * jnp.pi), axis=-1)

    def spread(self, obs: Float[Array, "sample obs"]) -> dict[str, Array]:
        entropy = jnp.sum(self.log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e))
        return {"entropy": entropy, "policy_std": jnp.exp(self.log_std).mean()}


Theta = CategoricalPolicy | MultiCategoricalPolicy | GaussianPolicy
"""What the lower level learns."""


@module
class HyperPolicy:
    """Explicit mapping (section 4.1): the policy sees (s, z_phi(s)) instead of s."""

    policy: Policy
    weights: WeightFunction

    def _extend(self, obs: Float[Array, "... obs"]) -> Float[Array, "... obs_and_weights"]:
        return namespace(obs).concatenate([obs, self.weights.at_state(obs)], axis=-1)

    def draw_noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        return self.policy.draw_noise(key, shape)

    def sample(self, obs: Float[Array, "... obs"], noise: Array) -> Array:
        return self.policy.sample(self._extend(obs), noise)

    def mode(self, obs: Float[Array, "... obs"]) -> Array:
        return self.policy.mode(self._extend(obs))

    def log_prob(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "..."]:
        return self.policy.log_prob(self._extend(obs), action)

    def spread(self, obs: Float[Array, "sample obs"]) -> dict[str, Array]:
        return self.policy.spread(self._extend(obs))  # type: ignore[attr-defined]


@module
class NormalisedPolicy:
    """A policy that is shown observations in units of their running mean and standard deviation."""

    policy: Policy
    scale: Scale

    def draw_noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        return self.policy.draw_noise(key, shape)

    def sample(self, obs: Float[Array, "... obs"], noise: Array) -> Array:
        return self.policy.sample(self.scale(obs), noise)

    def mode(self, obs: Float[Array, "... obs"]) -> Array:
        return self.policy.mode(self.scale(obs))

    def log_prob(self, obs: Float[Array, "... obs"], action: Array) -> Float[Array, "..."]:
        return self.policy.log_prob(self.scale(obs), action)


@module
class GroupedPolicy:
    """Two policies side by side: `first` acts in the first `count` environments, `second` in the others."""

    first: Policy
    second: Policy
    count: int = static()

    def _each(self, ask: Callable[..., Array], obs: Float[Array, "... env obs"], *others: Array) -> Array:
        """What both policies answer, each for its own environments."""
        axis, space = obs.ndim - 2, namespace(obs)
        halves = zip(*(space.split(x, [self.count], axis) for x in (obs, *others)), strict=True)
        policies = self.first, self.second
        return space.concatenate([ask(policy, *half) for policy, half in zip(policies, halves, strict=True)], axis)

    def draw_noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        return self.first.draw_noise(key, shape)

    def sample(self, obs: Float[Array, "... env obs"], noise: Array) -> Array:
        return self._each(lambda policy, *x: policy.sample(*x), obs, noise)

    def mode(self, obs: Float[Array, "... env obs"]) -> Array:
        return self._each(lambda policy, x: policy.mode(x), obs)

    def log_prob(self, obs: Float[Array, "... env obs"], action: Array) -> Float[Array, "... env"]:
        return self._each(lambda policy, *x: policy.log_prob(*x), obs, action)

    def log_prob_of_sample(
        self, obs: Float[Array, "... env obs"], action: Array, noise: Array
    ) -> Float[Array, "... env"]:
        return self._each(log_prob_of_sample, obs, action, noise)


def as_networks(policy: Policy, num_envs: int) -> Networks | None:
    """Of a policy in NumPy, with the environments that each acts in. None where it is of another kind."""
    if isinstance(policy, GroupedPolicy):
        parts = policy.first, policy.second
        groups = range(policy.count), range(policy.count, num_envs)
    else:
        parts, groups = (policy,), (range(num_envs),)  # type: ignore[assignment]
    networks = [as_network(part) for part in parts]
    if any(network is None for network in networks):
        return None
    return [(network, envs) for network, envs in zip(networks, groups, strict=True) if network is not None and envs]


def as_network(policy: Policy) -> Network | None:
    """Of one policy."""
    inner, scale, limit = policy, None, np.inf
    if isinstance(policy, NormalisedPolicy):
        inner, scale, limit = policy.policy, policy.scale, LIMIT
    if type(inner) is not GaussianPolicy or inner.net.activation not in ("relu", "tanh"):
        return None

    def plain(x: Any) -> np.ndarray:
        return np.array(x, np.float32, order="C")

    layers = inner.net.layers
    inputs = len(layers[0].weight)
    mean, std = (np.zeros(inputs), np.ones(inputs)) if scale is None else scale
    return Network(
        plain(mean),
        plain(std),
        np.float32(limit),
        tuple(plain(layer.weight) for layer in layers),
        tuple(plain(layer.bias) for layer in layers),
        inner.net.activation == "relu",
        plain(np.exp(inner.log_std)),
    )


def log_prob_of_sample(
    policy: Policy, obs: Float[Array, "... obs"], action: Array, noise: Array
) -> Float[Array, "..."]:
    """`policy.log_prob(obs, action)` where action = `policy.sample(obs, noise)`: a Gaussian needs no network for it."""
    inner = policy
    while isinstance(inner, HyperPolicy | NormalisedPolicy):
        inner = inner.policy
    if isinstance(policy, GroupedPolicy):
        return policy.log_prob_of_sample(obs, action, noise)
    return inner.log_prob_of_noise(noise) if isinstance(inner, GaussianPolicy) else policy.log_prob(obs, action)


def log_prob_gradients(policy: Theta, obs: Float[Array, "sample obs"], action: Array) -> PerSampleGradients:
    """log pi(a_i | s_i) of every sample i, and its gradient."""
    return PerSampleGradients.of(policy, lambda policy: policy.log_prob(obs, action), obs)


def make_policy(key: PRNGKeyArray, config: PPOConfig, env: HasSpaces, extra_inputs: int = 0) -> Theta:
    """A Gaussian policy for Box actions, a categorical one for Discrete, one of several heads for MultiDiscrete."""
    actions = env.actions
    sizes = (env.observation_size + extra_inputs, *config.policy_hidden, actions.width)
    if config.initial == "orthogonal":
        net = make_mlp(key, sizes, config.activation, orthogonal(2**0.5), orthogonal(0.01))
    else:
        net = make_mlp(key, sizes, config.activation)
    if isinstance(actions, BoxActions):
        # With its type given: a weak one would become strong in the first round, and the second be compiled anew.
        std = actions.size**-0.5 if config.initial_std is None else config.initial_std
        return GaussianPolicy(net, jnp.full(actions.size, jnp.log(std), float))
    if isinstance(actions, MultiDiscreteActions):
        return MultiCategoricalPolicy(net, actions.sizes)
    return CategoricalPolicy(net)
