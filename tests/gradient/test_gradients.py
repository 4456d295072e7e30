"""Every estimator against automatic differentiation through the whole inner loop, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.envs import CartPole
from bipars.lower.ppo import adam, probability_ratio, surrogate, surrogate_gradients, unclipped
from bipars.nets.mlp import ravel
from bipars.nets.policies import HyperPolicy, scores
from bipars.nets.weights import make_weights
from bipars.settings.config import WeightConfig
from bipars.train import ascend
from bipars.upper.base import LowerStep
from bipars.upper.em import ExplicitMapping
from bipars.upper.imgl import IncrementalMetaGradient, exact_hessian_product, first_and_outer_product
from bipars.upper.jacobian import credited, gains_through_normaliser, through_normaliser
from bipars.upper.mgl import MetaGradient
from bipars.upper.unrolled import Unrolled
from problems import CLIP, GAMMA, assert_same, make_problem

pytestmark = pytest.mark.usefixtures("float64")

ALPHA = 0.05
CASES = [
    (False, 1, "per-action"),
    (False, 3, "state"),
    (False, 2, "scalar"),
    (True, 3, "state-action"),
    (True, 1, "state"),
    (True, 2, "scalar"),
]


def sgd(policy, samples, advantage):
    """theta -> theta': one plain step up the clipped modified objective."""
    gradient = jax.grad(surrogate)(policy, samples, advantage, CLIP)
    return jax.tree.map(lambda p, g: p + ALPHA * g, policy, gradient)


@pytest.mark.parametrize("continuous", [False, True])
def test_gradients_of_several_advantages_at_once_are_those_of_each(continuous):
    problem = make_problem(continuous, 1, "state")
    samples = problem.samples()
    advantages = samples.true_advantage, samples.modified_advantage, samples.modified_advantage**2
    together = jax.jit(surrogate_gradients, static_argnames="clip")(problem.policy, samples, advantages, clip=CLIP)
    for gradient, advantage in zip(together, advantages, strict=True):
        jax.tree.map(assert_same, gradient, jax.grad(surrogate)(problem.policy, samples, advantage, CLIP))
    ratio = probability_ratio(problem.policy, samples)
    assert 0 < unclipped(ratio, advantages[0], CLIP).mean() < 1
    same = jax.jit(surrogate_gradients, static_argnames="clip")(
        problem.policy, samples, advantages[:1] * 2, clip=CLIP, equal=jnp.array(True)
    )
    for gradient in same:
        jax.tree.map(assert_same, gradient, together[0])


@pytest.mark.parametrize("continuous", [False, True])
def test_scores_along_a_direction_are_its_products_with_each_gradient(continuous):
    problem = make_problem(continuous, 1, "state")
    policy, samples = problem.policy, problem.samples()
    v = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size)).reshape(x.shape), policy)
    _, expected = jax.jvp(lambda policy: policy.log_prob(samples.obs, samples.action), (policy,), (v,))
    found = scores(policy, samples.obs, samples.action)
    assert_same(found.along(v), expected)
    assert_same(found.value, policy.log_prob(samples.obs, samples.action), 1e-12)


def minibatches(count, size, total=36):
    return [np.random.default_rng(i).integers(0, total, size) for i in range(count)]


@pytest.mark.parametrize(("continuous", "num_terms", "form"), CASES)
def test_mgl_is_the_derivative_through_one_step(continuous, num_terms, form):
    check_mgl(make_problem(continuous, num_terms, form))


@pytest.mark.parametrize(("continuous", "form"), [(False, "per-action"), (True, "state-action"), (True, "scalar")])
def test_mgl_of_weights_that_sum_to_one(continuous, form):
    check_mgl(make_problem(continuous, 3, form, simplex=True))


def check_mgl(problem):
    @jax.jit
    def both(weights):
        samples = problem.samples()

        def true_return(weights):
            after = sgd(problem.policy, samples, problem.modified_advantage(weights))
            return surrogate(after, samples, samples.true_advantage, CLIP)

        after = sgd(problem.policy, samples, samples.modified_advantage)
        found, _ = MetaGradient(CLIP).update((), LowerStep(problem.policy, samples), after, weights, samples)
        return jax.tree.map(lambda x: ALPHA * x, found), jax.grad(true_return)(weights)

    assert_same(*both(problem.weights))


def test_the_problems_hold_clipped_and_unclipped_samples_and_episodes_that_end():
    for continuous in (False, True):
        problem = make_problem(continuous, 1, "state")
        samples = problem.samples()
        alive = np.asarray(unclipped(probability_ratio(problem.policy, samples), samples.modified_advantage, CLIP))
        assert 0 < alive.sum() < alive.size
        assert np.asarray(problem.done)[:-1].sum() > 0
        assert np.asarray(problem.done & ~problem.terminated).any()


@pytest.mark.parametrize(("continuous", "num_terms", "form"), CASES)
def test_exact_imgl_is_the_derivative_through_all_steps(continuous, num_terms, form):
    problem = make_problem(continuous, num_terms, form)
    draws = minibatches(4, 16)

    @jax.jit
    def both(weights):
        samples = problem.samples()
        take = lambda index: jax.tree.map(lambda x: x[index], samples)  # noqa: E731

        def true_return(weights):
            policy, advantage = problem.policy, problem.modified_advantage(weights)
            for index in draws:
                policy = sgd(policy, take(index), advantage[index])
            return surrogate(policy, take(draws[-1]), samples.true_advantage[draws[-1]], CLIP)

        estimator = IncrementalMetaGradient(CLIP, ALPHA, "exact")
        policy, h = problem.policy, estimator.init(problem.policy, weights, samples)
        for index in draws:
            minibatch = take(index)
            after = sgd(policy, minibatch, minibatch.modified_advantage)
            found, h = estimator.update(h, LowerStep(policy, minibatch), after, weights, minibatch)
            policy = after
        return found, jax.grad(true_return)(weights)

    assert_same(*both(problem.weights))


@pytest.mark.parametrize(
    ("continuous", "num_terms", "form", "max_grad_norm", "steps", "penalty"),
    [
        (False, 1, "per-action", None, 5, 0.0),
        (False, 2, "scalar", 0.2, 2, 0.0),
        (True, 3, "state-action", 0.2, 5, 1.0),
        (True, 1, "state", None, 2, 0.4),
    ],
)
def test_unrolled_is_the_derivative_through_adams_own_steps(continuous, num_terms, form, max_grad_norm, steps, penalty):
    """K = 3: after five steps the ring has wrapped, and the first two are taken as they are; after two it is not full.

    Held: Adam's second moment, and the factor of the clipped norm. With a penalty it is that of <v, d> / |d|^penalty,
    times |d|^penalty, where d is the move over these steps and v, the true gradient after them, is held.
    """
    problem = make_problem(continuous, num_terms, form)
    draws, keep = minibatches(steps, 16), 3
    optimiser, hold = adam(ALPHA, max_grad_norm), jax.lax.stop_gradient

    @jax.jit
    def both(weights):
        samples = problem.samples()
        take = lambda index: jax.tree.map(lambda x: x[index], samples)  # noqa: E731

        def true_return(policy):
            return surrogate(policy, take(draws[0]), samples.true_advantage[draws[0]], CLIP)

        def train(weights):
            policy, m = problem.policy, jax.tree.map(jnp.zeros_like, problem.policy)
            nu, path = m, []
            for t, index in enumerate(draws, 1):
                path.append(policy)
                phi = weights if t > steps - keep else hold(weights)
                advantage = problem.modified_advantage(phi)[index]
                g = jax.grad(surrogate)(policy, take(index), advantage, CLIP)
                if max_grad_norm is not None:
                    shorter = hold(jnp.minimum(1.0, max_grad_norm / jnp.linalg.norm(ravel(g))))
                    g = jax.tree.map(lambda x, c=shorter: c * x, g)
                m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
                nu = jax.tree.map(lambda nu, g: 0.999 * nu + 0.001 * hold(g) ** 2, nu, g)
                step = jax.tree.map(
                    lambda m, nu, t=t: ALPHA * m / (1 - 0.9**t) / (jnp.sqrt(nu / (1 - 0.999**t)) + 1e-8), m, nu
                )
                policy = jax.tree.map(jnp.add, policy, step)
            return policy, hold(path[max(0, steps - keep)])

        def objective(weights):
            policy, start = train(weights)
            if not penalty:
                return true_return(policy), policy
            v, move = hold(ravel(jax.grad(true_return)(policy))), ravel(policy) - ravel(start)
            length = jnp.linalg.norm(move)
            return v @ move / length**penalty * hold(length) ** penalty, policy

        estimator = Unrolled(CLIP, ALPHA, max_grad_norm, keep, penalty)
        policy, state = problem.policy, optimiser.init(problem.policy)
        h = estimator.init(policy, weights, take(draws[0]))
        for index in draws:
            minibatch, before = take(index), policy
            gradient = jax.grad(surrogate)(policy, minibatch, minibatch.modified_advantage, CLIP)
            policy, state = ascend(policy, state, optimiser, gradient)
            found, h = estimator.update(h, LowerStep(before, minibatch, state), policy, weights, take(draws[0]))
        expected, same_policy = jax.grad(objective, has_aux=True)(weights)
        return found, expected, policy, same_policy

    found, expected, policy, same_policy = both(problem.weights)
    assert_same(policy, same_policy, 1e-12)
    assert_same(found, expected)


@pytest.mark.parametrize(("continuous", "form"), [(False, "per-action"), (False, "scalar"), (True, "state")])
def test_em_is_the_derivative_through_the_policys_input(continuous, form):
    num_terms = 2
    width = num_terms * (2 if form == "per-action" else 1)
    problem = make_problem(continuous, num_terms, form, extra_inputs=width)
    samples = problem.samples()

    def true_return(weights):
        """Theorem 1 with the ratio written out by hand."""
        seen = jnp.concatenate([samples.obs, weights.hint(samples.obs)], -1)
        ratio = jnp.exp(problem.policy.log_prob(seen, samples.action) - samples.log_prob)
        a = samples.true_advantage
        beyond = jnp.where(a > 0, ratio > 1 + CLIP, ratio < 1 - CLIP)
        return jnp.sum(jnp.where(beyond, 0.0, ratio * a)) / a.size

    before = jax.tree.map(lambda x: 0.5 * x, problem.policy)
    found, _ = ExplicitMapping(CLIP).update((), LowerStep(before, samples), problem.policy, problem.weights, samples)
    assert_same(found, jax.grad(true_return)(problem.weights))
    assert HyperPolicy(problem.policy, problem.weights).mode(samples.obs).shape[0] == 36


@pytest.mark.parametrize("continuous", [False, True])
def test_hessian_product_from_either_side_is_the_hessian(continuous):
    """h with fewer columns than parameters, and with more, takes different code."""
    problem = make_problem(continuous, 1, "state")
    samples = problem.samples()
    flat, unravel = jax.flatten_util.ravel_pytree(problem.policy)
    hessian = jax.jit(jax.hessian(lambda t: surrogate(unravel(t), samples, samples.modified_advantage, CLIP)))(flat)
    for columns in (3, flat.size + 10):
        h = jax.random.normal(jax.random.key(columns), (flat.size, columns))
        product = jax.jit(lambda h: exact_hessian_product(problem.policy, samples, CLIP, h))(h)
        assert_same(product, hessian @ h, 1e-10)


def test_opg_reads_the_hessian_of_log_pi_as_minus_its_outer_product():
    problem = make_problem(True, 2, "state-action")
    samples = problem.samples()
    ratio = jnp.exp(problem.policy.log_prob(samples.obs, samples.action) - samples.log_prob)
    one = lambda theta, s, a: theta.log_prob(s, a)  # noqa: E731
    gradients = [ravel(jax.grad(one)(problem.policy, s, a)) for s, a in zip(samples.obs, samples.action, strict=True)]
    g, a = np.array(gradients), np.asarray(samples.modified_advantage)
    alive = np.where(a > 0, ratio <= 1 + CLIP, ratio >= 1 - CLIP)
    coefficient = alive * np.asarray(ratio) * a / ratio.size
    hessian = -sum(c * np.outer(gi, gi) for c, gi in zip(coefficient, g, strict=True))
    step = LowerStep(problem.policy, samples)
    h = jax.random.normal(jax.random.key(1), (g.shape[1], np.asarray(samples.credit).shape[1]))
    plain = IncrementalMetaGradient(CLIP, ALPHA, "none").follow(h, step)
    found = IncrementalMetaGradient(CLIP, ALPHA, "opg").follow(h, step)
    assert_same(found - plain, ALPHA * hessian @ np.asarray(h), 1e-9)


@pytest.mark.parametrize(("memory", "penalty"), [(0.6, 1.0), (0.9, 0.4), (0.0, 1.0)])
def test_imgl_that_forgets_climbs_the_alignment_with_the_moves_it_remembers(memory, penalty):
    """That of <v, d> / |d|^penalty, times |d|^penalty, with d = sum_k memory^k g~ of k steps ago; theta is held."""
    problem, draws = make_problem(True, 2, "state-action"), minibatches(3, 16)
    samples = problem.samples()
    drawn = [jax.tree.map(lambda x, index=index: x[index], samples) for index in draws]
    estimator = IncrementalMetaGradient(CLIP, ALPHA, "none", penalty, memory=memory)
    policies, trace = [problem.policy], estimator.init(problem.policy, problem.weights, samples)
    for minibatch in drawn:
        policies.append(sgd(policies[-1], minibatch, minibatch.modified_advantage))
        step = LowerStep(policies[-2], minibatch)
        found, trace = estimator.update(trace, step, policies[-1], problem.weights, samples)
    v = ravel(jax.grad(surrogate)(policies[-1], samples, samples.true_advantage, CLIP))

    def move(weights):
        advantage = problem.modified_advantage(weights)
        d = jnp.zeros_like(v)
        for policy, minibatch, index in zip(policies[:-1], drawn, draws, strict=True):
            d = memory * d + ravel(jax.grad(surrogate)(policy, minibatch, advantage[index], CLIP))
        return d

    length = jnp.linalg.norm(move(problem.weights)) ** penalty
    alignment = jax.grad(lambda w: v @ move(w) / jnp.linalg.norm(move(w)) ** penalty)(problem.weights)
    assert_same(found, jax.tree.map(lambda x: ALPHA * length * x, alignment))


def test_first_imgl_step_is_mgl_times_alpha():
    """With h = 0 the second-order term vanishes, whatever its form."""
    problem = make_problem(False, 2, "per-action")
    samples = problem.samples()
    step = LowerStep(problem.policy, samples)
    mgl, _ = MetaGradient(CLIP).update((), step, problem.policy, problem.weights, samples)
    for second_order in ("exact", "opg", "none"):
        estimator = IncrementalMetaGradient(CLIP, ALPHA, second_order)
        h = estimator.init(problem.policy, problem.weights, samples)
        imgl, _ = estimator.update(h, step, problem.policy, problem.weights, samples)
        assert_same(imgl, jax.tree.map(lambda x: ALPHA * x, mgl))


def test_bounded_weights_keep_their_gradient_at_the_bound():
    config = WeightConfig(form="scalar", low=-1.0, high=1.0, initial=1.0)
    weights = make_weights(jax.random.key(0), config, CartPole(), 1)
    obs = jnp.zeros((1, 4))
    slope = jax.grad(lambda w: w(obs, jnp.zeros(1, int)).sum())(weights)
    assert float(slope.value[0]) == 1.0
    raised = jax.tree.map(lambda x: x + 5.0, weights)
    assert float(raised(obs, jnp.zeros(1, int))[0, 0]) == 1.0


@pytest.mark.parametrize("continuous", [False, True])
def test_credit_through_the_normaliser_is_the_derivative_of_the_normalised_advantage(continuous):
    """Nothing is held: mean and standard deviation move with phi, too."""
    problem = make_problem(continuous, 2, "state")
    advantage, credit = problem.modified_advantage(problem.weights), problem.samples().credit
    slopes = jax.jacrev(lambda w: problem.modified_advantage(w, stop=lambda x: x))(problem.weights)
    expected = jnp.concatenate([leaf.reshape(advantage.size, -1) for leaf in jax.tree.leaves(slopes)], axis=-1)
    found = through_normaliser(credit, advantage)
    assert_same(found, expected, 1e-6)
    gains = jax.random.normal(jax.random.key(0), (3, advantage.size))
    assert_same(gains_through_normaliser(gains, advantage) @ credit, gains @ found)


@pytest.mark.parametrize(
    ("continuous", "num_terms", "form", "simplex"),
    [*((*case, False) for case in CASES), (False, 3, "per-action", True), (True, 2, "scalar", True)],
)
def test_what_is_gained_is_credited_without_the_derivatives_of_all_advantages(continuous, num_terms, form, simplex):
    problem = make_problem(continuous, num_terms, form, simplex=simplex)
    time, envs = problem.done.shape
    gains = jax.random.normal(jax.random.key(0), (5, time, envs))
    flat = [x.reshape(time * envs, *x.shape[2:]) for x in (problem.obs, problem.action)]
    found = credited(problem.weights, *flat, problem.terms, problem.done, GAMMA, problem.scale(), gains)
    credit = problem.samples().credit
    for i in range(5):
        assert_same(jax.tree.map(lambda x, i=i: x[i], found), gains[i].reshape(-1) @ credit)


@pytest.mark.parametrize("penalty", [1.0, 0.4])
def test_noise_penalty_climbs_the_alignment_with_the_direction_of_the_step(penalty):
    """At 1, the derivative of <v, g~> / |g~|; below, of <v, g~> / |g~|^penalty. Both times |g~|^penalty."""
    problem = make_problem(True, 2, "state-action")
    samples = problem.samples()
    step = LowerStep(problem.policy, samples)
    after = jax.tree.map(lambda x: 0.9 * x, problem.policy)
    v = jax.grad(surrogate)(after, samples, samples.true_advantage, CLIP)

    def alignment(weights):
        g = ravel(jax.grad(surrogate)(problem.policy, samples, problem.modified_advantage(weights), CLIP))
        return ravel(v) @ g / jnp.linalg.norm(g) ** penalty

    length = jnp.linalg.norm(ravel(jax.grad(surrogate)(problem.policy, samples, samples.modified_advantage, CLIP)))
    found, _ = MetaGradient(CLIP, penalty).update((), step, after, problem.weights, samples)
    expected = jax.tree.map(lambda x: x * length**penalty, jax.grad(alignment)(problem.weights))
    assert_same(found, expected)
    estimator = IncrementalMetaGradient(CLIP, ALPHA, "none", penalty)
    imgl, _ = estimator.update(
        estimator.init(problem.policy, problem.weights, samples), step, after, problem.weights, samples
    )
    assert_same(imgl, jax.tree.map(lambda x: ALPHA * x, expected))


def test_outer_product_from_either_side():
    for n, m in ((5, 40), (40, 5)):
        g, h = jax.random.normal(jax.random.key(n), (20, n)), jax.random.normal(jax.random.key(m), (n, m))
        factor, first = jax.random.normal(jax.random.key(0), (20,)), jax.random.normal(jax.random.key(1), (20, m))
        expected = jnp.einsum("in,im->nm", g, first) - jnp.einsum("i,in,ik,km->nm", factor, g, g, h)
        assert_same(first_and_outer_product(g, first, factor, h), expected)
