"""Every estimator against automatic differentiation through the whole inner loop, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.envs import CartPole
from bipars.lower.base import After, LowerStep
from bipars.nets.mlp import ravel
from bipars.nets.optimiser import adam, ascend
from bipars.nets.policies import HyperPolicy, log_prob_gradients
from bipars.nets.weights import make_weights
from bipars.objective import log_ratios, slopes, surrogate, surrogate_gradient
from bipars.settings.resolved import ResolvedWeights
from bipars.upper.base import hessian_product
from bipars.upper.em import ExplicitMapping
from bipars.upper.imgl import IncrementalMetaGradient, first_and_outer_product
from bipars.upper.mgl import MetaGradient, advantage_pull_back
from bipars.upper.unrolled import Unrolled
from problems import CLIP, CLIPPED, CONTINUOUS, DISCRETE, GAMMA, OBJECTIVES, SEVERAL, assert_same, make_problem

pytestmark = pytest.mark.usefixtures("float64")

ALPHA = 0.05
CASES = [
    (DISCRETE, 1, "per-action"),
    (DISCRETE, 3, "state"),
    (DISCRETE, 2, "scalar"),
    (CONTINUOUS, 3, "state-action"),
    (CONTINUOUS, 1, "state"),
    (CONTINUOUS, 2, "scalar"),
    (SEVERAL, 2, "state-action"),
]


every_objective = pytest.mark.parametrize("objective", OBJECTIVES, ids=["clipped", "unclipped", "kl-penalised"])
"""The estimators know the objective by its derivatives alone: whatever it is, they are those of brute force."""
CASES_AND_OBJECTIVES = [
    *((*case, CLIPPED) for case in CASES),
    *((*case, objective) for case in (CASES[0], CASES[3]) for objective in OBJECTIVES[1:]),
]


def sgd(policy, samples, advantage, objective=CLIPPED):
    """theta -> theta': one plain step up the modified objective."""
    gradient = jax.grad(surrogate)(policy, samples, advantage, objective)
    return jax.tree.map(lambda p, g: p + ALPHA * g, policy, gradient)


def reached(policy, samples, objective=CLIPPED):
    """theta', with v from these samples."""
    return After(policy, samples, jax.grad(surrogate)(policy, samples, samples.true_advantage, objective))


@every_objective
@pytest.mark.parametrize("actions", [DISCRETE, CONTINUOUS, SEVERAL])
def test_the_gradient_by_samples_is_that_of_the_whole(actions, objective):
    problem = make_problem(actions, 1, "state")
    samples = problem.samples()
    found = jax.jit(surrogate_gradient, static_argnames="objective")
    for advantage in (samples.true_advantage, samples.modified_advantage, samples.modified_advantage**2):
        gradient = found(problem.policy, samples, advantage, objective=objective)
        jax.tree.map(assert_same, gradient, jax.grad(surrogate)(problem.policy, samples, advantage, objective))


@pytest.mark.parametrize("actions", [DISCRETE, CONTINUOUS, SEVERAL])
def test_gradients_along_a_direction_are_its_products_with_each_of_them(actions):
    problem = make_problem(actions, 1, "state")
    policy, samples = problem.policy, problem.samples()
    v = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size)).reshape(x.shape), policy)
    _, expected = jax.jvp(lambda policy: policy.log_prob(samples.obs, samples.action), (policy,), (v,))
    found = log_prob_gradients(policy, samples.obs, samples.action)
    assert_same(found.along(v), expected)
    assert_same(found.value, policy.log_prob(samples.obs, samples.action), 1e-12)


def minibatches(count, size, total=36):
    return [np.random.default_rng(i).integers(0, total, size) for i in range(count)]


@pytest.mark.parametrize(("actions", "num_terms", "form", "objective"), CASES_AND_OBJECTIVES)
def test_mgl_is_the_derivative_through_one_step(actions, num_terms, form, objective):
    check_mgl(make_problem(actions, num_terms, form), objective)


@pytest.mark.parametrize(
    ("actions", "form"), [(DISCRETE, "per-action"), (CONTINUOUS, "state-action"), (CONTINUOUS, "scalar")]
)
def test_mgl_of_weights_that_sum_to_one(actions, form):
    check_mgl(make_problem(actions, 3, form, simplex=True))


def check_mgl(problem, objective=CLIPPED):
    @jax.jit
    def both(weights):
        samples = problem.samples()

        def true_return(weights):
            after = sgd(problem.policy, samples, problem.modified_advantage(weights), objective)
            return surrogate(after, samples, samples.true_advantage, objective)

        after = reached(sgd(problem.policy, samples, samples.modified_advantage, objective), samples, objective)
        found, _ = MetaGradient(objective).update((), LowerStep(problem.policy, samples), after, weights)
        return jax.tree.map(lambda x: ALPHA * x, found), jax.grad(true_return)(weights)

    assert_same(*both(problem.weights))


def test_the_problems_hold_clipped_and_unclipped_samples_and_episodes_that_end():
    for actions in (DISCRETE, CONTINUOUS, SEVERAL):
        problem = make_problem(actions, 1, "state")
        samples = problem.samples()
        log_ratio, _ = log_ratios(problem.policy, samples)
        alive = np.asarray(slopes(CLIPPED, log_ratio, samples.modified_advantage) != 0)
        assert 0 < alive.sum() < alive.size
        assert np.asarray(problem.done)[:-1].sum() > 0
        assert np.asarray(problem.done & ~problem.terminated).any()


@pytest.mark.parametrize(("actions", "num_terms", "form", "objective"), CASES_AND_OBJECTIVES)
def test_exact_imgl_is_the_derivative_through_all_steps(actions, num_terms, form, objective):
    problem = make_problem(actions, num_terms, form)
    draws = minibatches(4, 16)

    @jax.jit
    def both(weights):
        samples = problem.samples()
        take = lambda index: jax.tree.map(lambda x: x[index], samples)  # noqa: E731

        def true_return(weights):
            policy, advantage = problem.policy, problem.modified_advantage(weights)
            for index in draws:
                policy = sgd(policy, take(index), advantage[index], objective)
            return surrogate(policy, take(draws[-1]), samples.true_advantage[draws[-1]], objective)

        estimator = IncrementalMetaGradient(objective, ALPHA, "exact")
        policy, h = problem.policy, estimator.init(problem.policy, weights, samples)
        for index in draws:
            minibatch = take(index)
            step, policy = (
                LowerStep(policy, minibatch),
                sgd(policy, minibatch, minibatch.modified_advantage, objective),
            )
            found, h = estimator.update(h, step, reached(policy, minibatch, objective), weights)
        return found, jax.grad(true_return)(weights)

    assert_same(*both(problem.weights))


@pytest.mark.parametrize(
    ("actions", "num_terms", "form", "max_grad_norm", "steps", "objective"),
    [
        (DISCRETE, 1, "per-action", None, 5, CLIPPED),
        (DISCRETE, 2, "scalar", 0.2, 2, CLIPPED),
        (CONTINUOUS, 3, "state-action", 0.2, 5, CLIPPED),
        (CONTINUOUS, 1, "state", None, 2, CLIPPED),
        (DISCRETE, 1, "per-action", None, 2, OBJECTIVES[1]),
        (CONTINUOUS, 3, "state-action", 0.2, 5, OBJECTIVES[2]),
    ],
)
def test_unrolled_is_the_derivative_through_adams_own_steps(actions, num_terms, form, max_grad_norm, steps, objective):
    """K = 3: after five steps the ring has wrapped, and the first two are taken as they are; after two it is not full.

    Held: Adam's second moment, and the factor of the clipped norm.
    """
    problem = make_problem(actions, num_terms, form)
    draws, keep = minibatches(steps, 16), 3
    optimiser, hold = adam(ALPHA, max_grad_norm), jax.lax.stop_gradient

    @jax.jit
    def both(weights):
        samples = problem.samples()
        take = lambda index: jax.tree.map(lambda x: x[index], samples)  # noqa: E731

        def true_return(weights):
            policy, m = problem.policy, jax.tree.map(jnp.zeros_like, problem.policy)
            nu = m
            for t, index in enumerate(draws, 1):
                phi = weights if t > steps - keep else hold(weights)
                advantage = problem.modified_advantage(phi)[index]
                g = jax.grad(surrogate)(policy, take(index), advantage, objective)
                if max_grad_norm is not None:
                    shorter = hold(jnp.minimum(1.0, max_grad_norm / jnp.linalg.norm(ravel(g))))
                    g = jax.tree.map(lambda x, c=shorter: c * x, g)
                m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
                nu = jax.tree.map(lambda nu, g: 0.999 * nu + 0.001 * hold(g) ** 2, nu, g)
                step = jax.tree.map(
                    lambda m, nu, t=t: ALPHA * m / (1 - 0.9**t) / (jnp.sqrt(nu / (1 - 0.999**t)) + 1e-8), m, nu
                )
                policy = jax.tree.map(jnp.add, policy, step)
            return surrogate(policy, take(draws[0]), samples.true_advantage[draws[0]], objective), policy

        estimator = Unrolled(objective, ALPHA, max_grad_norm, keep)
        policy, state = problem.policy, optimiser.init(problem.policy)
        past = estimator.init(policy, weights, take(draws[0]))
        for index in draws:
            step, minibatch = LowerStep(policy, take(index)), take(index)
            gradient = jax.grad(surrogate)(policy, minibatch, minibatch.modified_advantage, objective)
            policy, state = ascend(policy, state, optimiser, gradient)
            after = reached(policy, take(draws[0]), objective)
            found, past = estimator.update(past, step._replace(optimiser=state), after, weights)
        expected, same_policy = jax.grad(true_return, has_aux=True)(weights)
        return found, expected, policy, same_policy

    found, expected, policy, same_policy = both(problem.weights)
    assert_same(policy, same_policy, 1e-12)
    assert_same(found, expected)


@pytest.mark.parametrize(("actions", "form"), [(DISCRETE, "per-action"), (DISCRETE, "scalar"), (CONTINUOUS, "state")])
def test_em_is_the_derivative_through_the_policys_input(actions, form):
    num_terms = 2
    width = num_terms * (2 if form == "per-action" else 1)
    problem = make_problem(actions, num_terms, form, extra_inputs=width)
    samples = problem.samples()

    def true_return(weights):
        """Theorem 1 with the ratio written out by hand."""
        seen = jnp.concatenate([samples.obs, weights.at_state(samples.obs)], -1)
        ratio = jnp.exp(problem.policy.log_prob(seen, samples.action) - samples.log_prob)
        a = samples.true_advantage
        beyond = jnp.where(a > 0, ratio > 1 + CLIP, ratio < 1 - CLIP)
        return jnp.sum(jnp.where(beyond, 0.0, ratio * a)) / a.size

    before = jax.tree.map(lambda x: 0.5 * x, problem.policy)
    after = After(problem.policy, samples, None)
    found, _ = ExplicitMapping(CLIPPED).update((), LowerStep(before, samples), after, problem.weights)
    assert_same(found, jax.grad(true_return)(problem.weights))
    assert HyperPolicy(problem.policy, problem.weights).mode(samples.obs).shape[0] == 36


@pytest.mark.parametrize("actions", [DISCRETE, CONTINUOUS, SEVERAL])
def test_hessian_product_from_either_side_is_the_hessian(actions):
    """h with fewer columns than parameters, and with more, takes different code."""
    problem = make_problem(actions, 1, "state")
    samples = problem.samples()
    flat, unravel = jax.flatten_util.ravel_pytree(problem.policy)
    hessian = jax.jit(jax.hessian(lambda t: surrogate(unravel(t), samples, samples.modified_advantage, CLIPPED)))(flat)
    climbed = lambda theta: surrogate(theta, samples, samples.modified_advantage, CLIPPED)  # noqa: E731
    for columns in (3, flat.size + 10):
        h = jax.random.normal(jax.random.key(columns), (flat.size, columns))
        product = jax.jit(lambda h: hessian_product(climbed, problem.policy, h))(h)
        assert_same(product, hessian @ h, 1e-10)


def test_opg_reads_the_hessian_of_log_pi_as_minus_its_outer_product():
    problem = make_problem(CONTINUOUS, 2, "state-action")
    samples = problem.samples()
    ratio = jnp.exp(problem.policy.log_prob(samples.obs, samples.action) - samples.log_prob)
    one = lambda theta, s, a: theta.log_prob(s, a)  # noqa: E731
    gradients = [ravel(jax.grad(one)(problem.policy, s, a)) for s, a in zip(samples.obs, samples.action, strict=True)]
    g, a = np.array(gradients), np.asarray(samples.modified_advantage)
    alive = np.where(a > 0, ratio <= 1 + CLIP, ratio >= 1 - CLIP)
    coefficient = alive * np.asarray(ratio) * a / ratio.size
    hessian = -sum(c * np.outer(gi, gi) for c, gi in zip(coefficient, g, strict=True))
    step = LowerStep(problem.policy, samples)
    h = jax.random.normal(jax.random.key(1), (g.shape[1], np.asarray(samples.advantage_jacobian).shape[1]))
    plain = IncrementalMetaGradient(CLIPPED, ALPHA, "none").follow(h, step)
    found = IncrementalMetaGradient(CLIPPED, ALPHA, "opg").follow(h, step)
    assert_same(found - plain, ALPHA * hessian @ np.asarray(h), 1e-9)


def test_first_imgl_step_is_mgl_times_alpha():
    """With h = 0 the second-order term vanishes, whatever its form."""
    problem = make_problem(DISCRETE, 2, "per-action")
    samples = problem.samples()
    step, after = LowerStep(problem.policy, samples), reached(problem.policy, samples)
    mgl, _ = MetaGradient(CLIPPED).update((), step, after, problem.weights)
    for second_order in ("exact", "opg", "none"):
        estimator = IncrementalMetaGradient(CLIPPED, ALPHA, second_order)
        h = estimator.init(problem.policy, problem.weights, samples)
        imgl, _ = estimator.update(h, step, after, problem.weights)
        assert_same(imgl, jax.tree.map(lambda x: ALPHA * x, mgl))


def test_bounded_weights_keep_their_gradient_at_the_bound():
    config = ResolvedWeights(form="scalar", low=-1.0, high=1.0, initial=1.0)
    weights = make_weights(jax.random.key(0), config, CartPole(), 1)
    obs = jnp.zeros((1, 4))
    slope = jax.grad(lambda w: w(obs, jnp.zeros(1, int)).sum())(weights)
    assert float(slope.value[0]) == 1.0
    raised = jax.tree.map(lambda x: x + 5.0, weights)
    assert float(raised(obs, jnp.zeros(1, int))[0, 0]) == 1.0


@pytest.mark.parametrize(
    ("actions", "num_terms", "form", "simplex"),
    [*((*case, False) for case in CASES), (DISCRETE, 3, "per-action", True), (CONTINUOUS, 2, "scalar", True)],
)
def test_cotangents_are_pulled_back_without_the_jacobian_of_all_advantages(actions, num_terms, form, simplex):
    problem = make_problem(actions, num_terms, form, simplex=simplex)
    samples = problem.samples()
    cotangents = jax.random.normal(jax.random.key(0), (5, samples.log_prob.size))
    found = advantage_pull_back(problem.weights, problem.data(samples), GAMMA, cotangents)
    for i in range(5):
        assert_same(jax.tree.map(lambda x, i=i: x[i], found), cotangents[i] @ samples.advantage_jacobian)


def test_outer_product_from_either_side():
    for n, m in ((5, 40), (40, 5)):
        g, h = jax.random.normal(jax.random.key(n), (20, n)), jax.random.normal(jax.random.key(m), (n, m))
        factor, first = jax.random.normal(jax.random.key(0), (20,)), jax.random.normal(jax.random.key(1), (20, m))
        expected = jnp.einsum("in,im->nm", g, first) - jnp.einsum("i,in,ik,km->nm", factor, g, g, h)
        assert_same(first_and_outer_product(g, first, factor, h), expected)
