"""The upper level for deterministic policies against automatic differentiation through the inner loop, in float64."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.lower.base import After, LowerStep
from bipars.lower.ddpg import ValuedStates
from bipars.nets.deterministic import Critic, DeterministicPolicy, ModifiedCritic, init_deterministic
from bipars.nets.mlp import ravel
from bipars.nets.spaces import BoxActions, Spaces
from bipars.nets.weights import make_weights
from bipars.settings.config import DDPGConfig
from bipars.settings.resolved import ResolvedWeights
from bipars.upper.deterministic import (
    DeterministicIncremental,
    DeterministicMapping,
    DeterministicMetaGradient,
    second_order_term,
)
from problems import assert_same

pytestmark = pytest.mark.usefixtures("float64")

ALPHA = 0.05
CASES = [(1, 1, "state"), (3, 2, "state"), (2, 3, "scalar")]
"""Dimensions of the action, number of terms, form of the weight function."""


class Problem(NamedTuple):
    policy: DeterministicPolicy
    weights: object
    modified: ModifiedCritic
    true: Critic
    obs: list[jax.Array]
    """States of four minibatches."""

    def uphill(self, policy, obs, weights):
        """g~ of equation C.4."""
        return jax.grad(lambda theta: self.modified(obs, theta(obs), weights.at_state(obs)).mean())(policy)

    def climb(self, policy, obs, weights):
        """theta -> theta': one plain step up Q~."""
        return jax.tree.map(lambda p, g: p + ALPHA * g, policy, self.uphill(policy, obs, weights))

    def weighted(self, policy, obs, weights):
        """g~ less what it would be at weights of 0."""
        without = jax.grad(lambda theta: self.modified(obs, theta(obs), 0 * weights.at_state(obs)).mean())(policy)
        return jax.tree.map(jnp.subtract, self.uphill(policy, obs, weights), without)

    def step(self, policy, i):
        return LowerStep(policy, ValuedStates(self.obs[i], self.modified))

    def true_return(self, policy):
        return self.true(self.obs[-1], policy(self.obs[-1])).mean()

    @property
    def fresh(self):
        return ValuedStates(self.obs[-1], self.true)

    def reached(self, policy):
        return After(policy, self.fresh, jax.grad(self.true_return)(policy))


def make(action_size, num_terms, form, hints=0):
    keys = jax.random.split(jax.random.key(0), 5)
    config = DDPGConfig(policy_hidden=(5, 4), value_hidden=(6, 5), activation="tanh")
    policy, critics = init_deterministic(keys[0], config, 4, action_size, hints, num_terms)
    spaces = Spaces(4, BoxActions(action_size))
    weights = make_weights(keys[1], ResolvedWeights(form=form, hidden=(4, 3)), spaces, num_terms)

    def shake(tree, key):
        leaves, structure = jax.tree.flatten(tree)
        moved = [x + 0.4 * jax.random.normal(jax.random.fold_in(key, i), x.shape) for i, x in enumerate(leaves)]
        return jax.tree.unflatten(structure, moved)

    policy, critics, weights = (shake(x, k) for x, k in zip((policy, critics, weights), keys[2:], strict=True))
    obs = [jax.random.normal(jax.random.key(i + 10), (12, 4)) for i in range(4)]
    unit = jnp.linspace(0.4, 1.0, num_terms)
    return Problem(policy, weights, critics.modified(unit)[0], critics.base[0], obs)


@pytest.mark.parametrize(("action_size", "num_terms", "form"), CASES)
def test_mgl_is_the_derivative_through_one_step(action_size, num_terms, form):
    problem = make(action_size, num_terms, form)

    @jax.jit
    def both(weights):
        expected = jax.grad(lambda w: problem.true_return(problem.climb(problem.policy, problem.obs[0], w)))(weights)
        after = problem.climb(problem.policy, problem.obs[0], weights)
        step = problem.step(problem.policy, 0)
        found, _ = DeterministicMetaGradient().update((), step, problem.reached(after), weights)
        return jax.tree.map(lambda x: ALPHA * x, found), expected

    assert_same(*both(problem.weights))


@pytest.mark.parametrize(("action_size", "num_terms", "form"), CASES)
def test_the_penalty_is_the_derivative_of_the_squared_length_of_what_the_weights_add(action_size, num_terms, form):
    problem, kappa = make(action_size, num_terms, form), 0.7

    @jax.jit
    def both(weights):
        after = problem.climb(problem.policy, problem.obs[0], weights)
        v = ravel(jax.grad(problem.true_return)(after))

        def climbed(weights):
            g = ravel(problem.uphill(problem.policy, problem.obs[0], weights))
            added = ravel(problem.weighted(problem.policy, problem.obs[0], weights))
            return v @ g - kappa / 2 * added @ added

        step = problem.step(problem.policy, 0)
        found, _ = DeterministicMetaGradient(kappa).update((), step, problem.reached(after), weights)
        return found, jax.grad(climbed)(weights)

    assert_same(*both(problem.weights))


@pytest.mark.parametrize("form", ["exact", "none", "constant-critic"])
@pytest.mark.parametrize(("action_size", "num_terms", "weights_form"), CASES)
def test_imgl_is_the_derivative_through_all_steps_with_what_its_form_holds_constant(
    action_size, num_terms, weights_form, form
):
    problem = make(action_size, num_terms, weights_form)
    hold = jax.lax.stop_gradient

    @jax.jit
    def both(weights):
        def true_return(weights):
            policy = problem.policy
            for i, obs in enumerate(problem.obs[:3]):
                held = hold(policy) if form == "none" else policy
                seen = hold(weights) if form == "constant-critic" and i else weights
                step = jax.tree.map(lambda a, b: b - a, held, problem.climb(held, obs, seen))
                policy = jax.tree.map(jnp.add, policy, step)
            return problem.true_return(policy)

        estimator = DeterministicIncremental(ALPHA, form, 0.0)
        policy, h = problem.policy, estimator.init(problem.policy, weights, None)
        for i in range(3):
            after = problem.climb(policy, problem.obs[i], weights)
            step = problem.step(policy, i)
            found, h = estimator.update(h, step, problem.reached(after), weights)
            policy = after
        return found, jax.grad(true_return)(weights)

    assert_same(*both(problem.weights))


@pytest.mark.parametrize(("action_size", "num_terms", "form"), CASES)
def test_em_is_the_derivative_through_the_policys_input(action_size, num_terms, form):
    problem = make(action_size, num_terms, form, hints=num_terms)
    obs = problem.obs[-1]
    z = problem.weights.at_state(obs)
    action = problem.policy(jnp.concatenate([obs, z], -1))
    by_action = jax.grad(lambda a: problem.true(obs, a).sum())(action)
    by_input = jax.vmap(jax.jacfwd(lambda s, z: problem.policy(jnp.concatenate([s, z])), argnums=1))(obs, z)
    by_phi = jax.jacrev(lambda w: w.at_state(obs))(problem.weights)
    along = jnp.einsum("ia,iak->ik", by_action, by_input) / obs.shape[0]
    expected = jax.tree.map(lambda leaf: jnp.tensordot(along, leaf, 2), by_phi)
    found, _ = DeterministicMapping().update((), None, After(problem.policy, problem.fresh, None), problem.weights)
    assert_same(found, expected)


@pytest.mark.parametrize("action_size", [1, 3])
def test_hessian_product_from_either_side_is_the_hessian(action_size):
    problem = make(action_size, 2, "state")
    flat, unravel = jax.flatten_util.ravel_pytree(problem.policy)
    obs, z = problem.obs[0], problem.weights.at_state(problem.obs[0])
    hessian = jax.jit(jax.hessian(lambda t: problem.modified(obs, unravel(t)(obs), z).mean()))(flat)
    step = problem.step(problem.policy, 0)
    for columns in (3, flat.size + 10):
        h = jax.random.normal(jax.random.key(columns), (flat.size, columns))
        assert_same(jax.jit(lambda h: second_order_term(step, problem.weights, h))(h), hessian @ h, 1e-10)


def test_a_critic_of_relu_units_still_has_a_mixed_derivative():
    """Piecewise linear in (s, a, z), it would have none: that z multiplies an output is what makes it learn."""
    config = DDPGConfig(policy_hidden=(5,), value_hidden=(16, 16), activation="relu")
    _, critics = init_deterministic(jax.random.key(0), config, 4, 2, 0, 1)
    s, a, z = jnp.ones(4), jnp.full(2, 0.3), jnp.ones(1)
    critic = critics.modified(jnp.ones(1))[0]
    mixed = jax.jacfwd(jax.grad(critic, argnums=1), argnums=2)(s, a, z)
    assert np.abs(ravel(mixed)).min() > 0
