"""Small random problems for the gradient tests, with everything awkward in their batches."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bipars.nets.policies import make_policy
from bipars.nets.spaces import ActionSpace, BoxActions, DiscreteActions, MultiDiscreteActions, Spaces
from bipars.nets.weights import make_weights
from bipars.objective import ClippedObjective, Samples, gae, normaliser
from bipars.settings.config import PPOConfig
from bipars.settings.resolved import ResolvedWeights
from bipars.upper.mgl import advantage_jacobian
from bipars.upper.schedule import Pending

CLIP = 0.2
CLIPPED = ClippedObjective(CLIP)


def unclipped(log_ratio, advantage):
    """An objective without a clip."""
    return jnp.exp(log_ratio) * advantage


def kl_penalised(log_ratio, advantage):
    """An objective with a penalty of the KL divergence in place of the clip."""
    ratio = jnp.exp(log_ratio)
    return ratio * advantage - 0.7 * (ratio - 1 - log_ratio)


OBJECTIVES = (CLIPPED, unclipped, kl_penalised)
GAMMA, LAMBDA = 0.97, 0.9
CONTINUOUS, DISCRETE, SEVERAL = BoxActions(1), DiscreteActions(2), MultiDiscreteActions((3, 2, 2, 4))


class Problem(NamedTuple):
    policy: object
    weights: object
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    reward: jax.Array
    terms: jax.Array
    terminated: jax.Array
    done: jax.Array
    value: jax.Array
    next_value: jax.Array
    true_advantage: jax.Array

    def modified_advantage(self, weights, stop=jax.lax.stop_gradient):
        """A~ as a function of phi: rewards move, the critic and the normaliser are held."""
        reward = self.reward + jnp.sum(weights(self.obs, self.action) * self.terms, axis=-1)
        # lambda = 1: with V~ held constant the derivative is then the plain discounted sum of equation 8.
        advantage, _ = gae(reward, self.value, self.next_value, self.terminated, self.done, GAMMA, 1.0)
        mean, std = normaliser(advantage)
        return ((advantage - stop(mean)) / stop(std)).reshape(-1)

    def scale(self):
        reward = self.reward + jnp.sum(self.weights(self.obs, self.action) * self.terms, axis=-1)
        return normaliser(gae(reward, self.value, self.next_value, self.terminated, self.done, GAMMA, 1.0)[0])[1]

    def samples(self, weights=None):
        weights = self.weights if weights is None else weights
        flat = jax.tree.map(
            lambda x: x.reshape(-1, *x.shape[2:]),
            Samples(self.obs, self.action, self.log_prob, self.reward, self.true_advantage),
        )
        jacobian = advantage_jacobian(weights, self.data(flat), GAMMA)
        return flat._replace(modified_advantage=self.modified_advantage(weights), advantage_jacobian=jacobian)

    def data(self, samples):
        """What dA~/dphi is computed from."""
        return Pending(self.policy, samples, self.terms, self.done, self.scale(), jnp.ones((), bool))


def make_problem(
    actions: ActionSpace, num_terms: int, form: str, seed: int = 0, extra_inputs: int = 0, simplex=False
) -> Problem:
    env = Spaces(4, actions)
    keys = jax.random.split(jax.random.key(seed), 12)
    config = PPOConfig(policy_hidden=(5, 4), activation="tanh")
    policy = make_policy(keys[0], config, env, extra_inputs)
    weights = make_weights(keys[1], ResolvedWeights(form=form, hidden=(4, 3), simplex=simplex), env, num_terms)
    jitter = lambda tree, key, size: jax.tree.map(  # noqa: E731
        lambda x, k: x + size * jax.random.normal(k, x.shape),
        tree,
        jax.tree.unflatten(jax.tree.structure(tree), list(jax.random.split(key, len(jax.tree.leaves(tree))))),
    )
    weights, policy = jitter(weights, keys[2], 0.3), jitter(policy, keys[3], 0.1)
    time, envs = 12, 3
    obs = jax.random.normal(keys[4], (time, envs, 4))
    if isinstance(actions, BoxActions):
        action = jax.random.normal(keys[5], (time, envs, actions.size))
    else:
        options = jnp.array(getattr(actions, "sizes", 2))
        action = jax.random.randint(keys[5], (time, envs, *actions.shape), 0, options)
    # The behaviour policy differs enough for some samples to be clipped, on both sides.
    seen = jnp.concatenate([obs, weights.at_state(obs)], -1) if extra_inputs else obs
    log_prob = policy.log_prob(seen, action) + 0.3 * jax.random.normal(keys[6], (time, envs))
    terminated = jax.random.uniform(keys[7], (time, envs)) < 0.15
    done = terminated | (jax.random.uniform(keys[8], (time, envs)) < 0.1)
    value, next_value = jax.random.normal(keys[9], (2, time, envs))
    return Problem(
        policy, weights, obs, action, log_prob,
        jax.random.normal(keys[10], (time, envs)),
        jax.random.normal(keys[11], (time, envs, num_terms)),
        terminated, done, value, next_value,
        jax.random.normal(jax.random.key(seed + 100), (time, envs)),
    )  # fmt: skip


def assert_same(found, expected, relative=1e-8):
    """Equal to a relative tolerance of the whole vector's size."""
    from bipars.nets.mlp import ravel

    found, expected = np.asarray(ravel(found)), np.asarray(ravel(expected))
    size = np.linalg.norm(expected)
    assert size > 1e-6, "the reference is zero: this comparison could not fail"
    assert np.linalg.norm(found - expected) <= relative * size
