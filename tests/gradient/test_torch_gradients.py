"""Two frameworks, one formula: the meta-gradient in PyTorch equals the one in JAX on the same samples, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from bipars.envs import CartPole
from bipars.lower.base import After, LowerStep
from bipars.nets.mlp import ravel
from bipars.nets.policies import GaussianPolicy
from bipars.nets.spaces import BoxActions, DiscreteActions, Spaces
from bipars.nets.weights import make_weights
from bipars.objective import log_ratios, surrogate_gradient
from bipars.settings.resolved import ResolvedWeights
from bipars.upper.mgl import MetaGradient
from bipars.upper.mgl import discounted_prefix_sums as prefix_sums_in_jax
from problems import CLIP, CLIPPED, GAMMA, assert_same, make_problem

torch = pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")

from stable_baselines3.common.policies import ActorCriticPolicy  # noqa: E402

from bipars.sb3.meta_gradient import (  # noqa: E402
    LogProbability,
    Samples,
    advantage_cotangent,
    discounted_prefix_sums,
    true_gradient,
    weights_gradient,
)
from bipars.sb3.weights import Weights  # noqa: E402

pytestmark = pytest.mark.usefixtures("float64")

CASES = [
    (False, 1, "per-action"),
    (False, 3, "state"),
    (False, 2, "scalar"),
    (False, 2, "state-action"),
    (True, 3, "state-action"),
    (True, 1, "state"),
    (True, 2, "scalar"),
]


def tensor(x):
    return torch.as_tensor(np.array(x))


class InFloat64(ActorCriticPolicy):
    """Stable-Baselines3 makes single precision of every observation."""

    def extract_features(self, obs, features_extractor=None):
        return obs


def policy_in_torch(policy, continuous):
    """Stable-Baselines3's own policy with the parameters of ours."""
    box = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    actions = spaces.Box(-1, 1, (1,), np.float64) if continuous else spaces.Discrete(2)
    arch = [layer.bias.size for layer in policy.net.layers[:-1]]
    made = InFloat64(box, actions, lambda _: 1e-3, net_arch=arch).double()
    heads = [*made.mlp_extractor.policy_net[::2], made.action_net]
    with torch.no_grad():
        for mine, given in zip(heads, policy.net.layers, strict=True):
            mine.weight.copy_(tensor(given.weight.T))
            mine.bias.copy_(tensor(given.bias))
        if continuous:
            assert isinstance(policy, GaussianPolicy)
            made.log_std.copy_(tensor(policy.log_std))
    return made


def samples_in_torch(samples):
    return Samples(*map(tensor, (samples.obs, samples.action, samples.log_prob, samples.modified_advantage,
                                 samples.true_advantage)))  # fmt: skip


def moved(policy, key):
    """theta', somewhere else."""
    leaves, structure = jax.tree.flatten(policy)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        structure, [x + 0.02 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    )


@pytest.mark.parametrize(("continuous", "num_terms", "form"), CASES)
def test_the_meta_gradient_is_that_of_jax(continuous, num_terms, form):
    problem = make_problem(BoxActions(1) if continuous else DiscreteActions(2), num_terms, form)
    samples, after = problem.samples(), moved(problem.policy, jax.random.key(7))
    log_ratio, _ = log_ratios(problem.policy, samples)
    assert 0 < np.sum(np.abs(np.exp(log_ratio) - 1) > CLIP) < log_ratio.size
    v = surrogate_gradient(after, samples, samples.true_advantage, CLIPPED)
    step = LowerStep(problem.policy, samples)
    expected, _ = MetaGradient(CLIPPED).update((), step, After(after, samples, v), problem.weights)

    weights = torch_weights(problem.weights, continuous, num_terms, form)
    policies = [LogProbability(policy_in_torch(policy, continuous)) for policy in (problem.policy, after)]
    theta, theta_after = (log_prob.theta() for log_prob in policies)
    flat, total = samples_in_torch(samples), log_ratio.size
    halves = [Samples(*(x[part] for x in flat)) for part in (slice(0, 20), slice(20, None))]
    direction = true_gradient(policies[0], theta_after, halves, CLIP, total)
    cotangent = advantage_cotangent(policies[0], theta, halves, direction, CLIP, total)
    found = weights_gradient(
        weights.deviation,
        list(weights.deviation.parameters()),
        tensor(problem.obs),
        tensor(problem.action),
        tensor(problem.terms / problem.scale()),
        tensor(problem.done),
        cotangent.reshape(problem.done.shape),
        GAMMA,
    )
    in_order = [x.T if x.ndim == 2 else x for x in found]  # JAX keeps inputs first
    assert_same([np.asarray(x) for x in in_order], in_torch_order(expected))


def in_torch_order(tree):
    """Weight before bias, layer by layer."""
    if hasattr(tree, "value"):
        return [tree.value]
    return [x for layer in tree.net.layers for x in (layer.weight, layer.bias)]


def torch_weights(weights, continuous, num_terms, form):
    """Ours, in PyTorch."""
    env = CartPole(continuous=continuous)
    config = ResolvedWeights(form=form, hidden=(4, 3))
    made = Weights(config, Spaces(env.observation_size, env.actions), num_terms).double()
    made.take(weights)
    return made


@pytest.mark.parametrize("by_evidence", [False, True])
@pytest.mark.parametrize(("continuous", "num_terms", "form"), CASES)
def test_the_weight_function_is_that_of_jax_and_back(continuous, num_terms, form, by_evidence):
    env = CartPole(continuous=continuous)
    sizes = Spaces(env.observation_size, env.actions)
    config = ResolvedWeights(form=form, hidden=(4, 3), by_evidence=by_evidence, initial=0.125, low=-0.2, high=0.2)
    tree = make_weights(jax.random.key(3), config, sizes, num_terms)
    tree = jax.tree.map(lambda x: x + 0.5 * jax.random.normal(jax.random.key(x.size), x.shape), tree)
    made = Weights(config, sizes, num_terms).double()
    made.take(tree)
    obs = jax.random.normal(jax.random.key(4), (40, 4))
    action = jax.random.normal(jax.random.key(5), (40, 1)) if continuous else jnp.arange(40) % 2
    expected = np.asarray(tree(obs, action))
    assert np.abs(expected).max() == pytest.approx(0.2)
    np.testing.assert_allclose(made(tensor(obs), tensor(action)).detach().numpy(), expected, rtol=1e-12)
    np.testing.assert_array_equal(ravel(made.as_tree()), ravel(tree))


def test_sums_over_time_are_those_of_jax():
    values = np.random.default_rng(0).normal(size=(37, 3))
    done = np.random.default_rng(1).random((37, 3)) < 0.1
    expected = prefix_sums_in_jax(jnp.asarray(values)[None], jnp.asarray(done), 0.9)[:, 0]
    np.testing.assert_allclose(discounted_prefix_sums(tensor(values), tensor(done), 0.9), expected, rtol=1e-12)


@pytest.mark.parametrize("actions", [spaces.Discrete(3), spaces.Box(-1, 1, (2,))], ids=["discrete", "box"])
def test_log_probabilities_without_values_are_those_of_evaluate_actions(actions):
    policy = ActorCriticPolicy(spaces.Box(-1, 1, (4,)), actions, lambda _: 1e-3)
    obs, action = (
        torch.randn(8, 4, dtype=torch.float32),
        torch.as_tensor(np.stack([actions.sample() for _ in range(8)])),
    )
    found = LogProbability(policy)(obs, action)
    torch.testing.assert_close(found, policy.evaluate_actions(obs, action)[1])


def test_a_policy_with_features_of_its_own_is_asked_for_them():
    policy = InFloat64(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), lambda _: 1e-3).double()
    obs, action = torch.randn(8, 4, dtype=torch.float64), torch.zeros(8, dtype=torch.long)
    found = LogProbability(policy)(obs, action)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, policy.evaluate_actions(obs, action)[1])
