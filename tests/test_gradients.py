"""Every estimator against automatic differentiation through the whole inner loop, in float64."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.config import Config, PPOConfig, UpperConfig, WeightConfig
from bipars.envs import CartPole
from bipars.lower.advantages import gae
from bipars.lower.policies import HyperPolicy
from bipars.lower.ppo import adam, probability_ratio, surrogate, unclipped
from bipars.networks import ravel
from bipars.program import build, complete
from bipars.shaping.weights import make_weights
from bipars.train import ascend
from bipars.upper.base import LowerStep
from bipars.upper.credit import through_normaliser
from bipars.upper.em import ExplicitMapping
from bipars.upper.imgl import IncrementalMetaGradient, exact_hessian_product, first_and_outer_product
from bipars.upper.mgl import MetaGradient
from bipars.upper.unrolled import Unrolled
from problems import CLIP, assert_same, make_problem

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


@pytest.mark.parametrize("horizon", ["gamma", "gamma-lambda"])
def test_the_loops_own_credit_is_the_derivative_of_its_modified_advantage(horizon):
    """Through `learn_from`, over several blocks of time, with episodes that end inside."""
    config = complete(
        Config(
            env="cartpole-continuous",
            terms=("harmful", "beneficial"),
            ppo=PPOConfig(update_period=3 * 104, num_envs=3, gamma=0.97, gae_lambda=0.9),
            weights=WeightConfig(hidden=(3, 2)),
            upper=UpperConfig(horizon=horizon),
        )
    )
    loop = build(config).algorithm
    state = loop.init(jnp.uint32(0))
    _, batch = loop.world.run(state.learner.policy, state.env, jax.random.key(1))
    terms = jax.random.normal(jax.random.key(2), (104, 3, 2))
    samples, _, _ = loop.learn_from(state, batch, terms)
    critic = state.learner.critics[0]
    values = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]

    def advantage(weights, gae_lambda):
        reward = batch.reward + jnp.sum(weights(batch.obs, batch.action) * terms, axis=-1)
        return gae(reward, *values, batch.terminated, batch.done, 0.97, gae_lambda)[0].reshape(-1)

    scale = advantage(state.weights, 0.9).std()
    slopes = jax.jit(jax.jacrev(lambda w: advantage(w, 1.0 if horizon == "gamma" else 0.9) / scale))(state.weights)
    expected = jnp.concatenate([leaf.reshape(312, -1) for leaf in jax.tree.leaves(slopes)], axis=-1)
    assert np.asarray(batch.done).sum() > 5
    assert_same(samples.credit, expected, 1e-7)
    np.testing.assert_allclose(samples.true_advantage.mean(), 0, atol=1e-9)
    critic = state.learner.critics[1]
    values = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
    true = gae(batch.reward, *values, batch.terminated, batch.done, 0.97, 0.9)[0]
    assert_same(samples.true_advantage, ((true - true.mean()) / true.std()).reshape(-1), 1e-6)


@pytest.mark.parametrize("env", ["cartpole", "cartpole-continuous"])
def test_sampling_by_round_puts_the_new_policys_samples_against_the_whole_old_batch(env):
    """One round of the loop itself: v from the fresh batch at theta', d theta'/d phi from all of the batch before."""
    config = complete(
        Config(
            env=env,
            terms=("harmful", "beneficial"),
            total_steps=2 * 312,
            ppo=PPOConfig(
                update_period=3 * 104, num_envs=3, gamma=0.97, gae_lambda=0.9, gradient_steps=4, batch_size=32
            ),
            weights=WeightConfig(hidden=(3, 2)),
            upper=UpperConfig(sampling="round"),
        )
    )
    loop = build(config).algorithm
    before = loop.init(jnp.uint32(0))
    after, _ = jax.jit(loop.iterate)(before, jnp.uint32(0))
    old, new, clip = before.batch, after.batch, config.ppo.clip
    # Adam descends, and keeps a tenth of its first gradient.
    (found,) = [part.mu for part in jax.tree.leaves(after.weights_optimiser, is_leaf=_is_adam) if _is_adam(part)]

    def advantages(reward, batch, critic, gae_lambda):
        values = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
        return gae(reward, *values, batch.terminated, batch.done, 0.97, gae_lambda)[0].reshape(-1)

    def modified(weights, gae_lambda):
        reward = old.reward + jnp.sum(weights(old.obs, old.action) * old.terms, axis=-1)
        return advantages(reward, old, before.learner.critics[0], gae_lambda)

    def mean_of(policy, batch, advantage):
        log_prob = policy.log_prob(batch.obs, batch.action)
        ratio = jnp.exp(log_prob - batch.log_prob).reshape(-1)
        return jnp.mean(jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage))

    true = advantages(new.reward, new, after.learner.critics[1], 0.9)
    v = jax.grad(mean_of)(after.learner.policy, new, (true - true.mean()) / true.std())
    acted = modified(before.weights, 0.9)
    held = (acted - acted.mean()) / acted.std()

    def step_along_v(weights):
        moved = (modified(weights, 1.0) - modified(before.weights, 1.0)) / acted.std()
        gradient = jax.grad(mean_of)(before.learner.policy, old, held + moved)
        return ravel(v) @ ravel(gradient)

    assert (np.asarray(new.obs) != np.asarray(old.obs)).any()
    assert_same(found, jax.tree.map(lambda x: -0.1 * x, jax.jit(jax.grad(step_along_v))(before.weights)), 1e-6)


def test_modified_advantages_follow_the_weights_within_a_round():
    """One number per term makes them linear in phi: following is then exact, up to the normaliser of the round."""
    settings = PPOConfig(update_period=3 * 104, num_envs=3, gamma=0.97, gae_lambda=0.9, batch_size=32)
    upper = UpperConfig(horizon="gamma-lambda")
    config = complete(Config(method="single", terms=("harmful", "beneficial"), ppo=settings, upper=upper))
    loop = build(config).algorithm
    state = loop.init(jnp.uint32(0))
    _, batch = loop.world.run(loop.acting(state), state.env, jax.random.key(5))
    before, _, _ = loop.learn_from(state, batch, batch.terms)
    moved = replace(state.weights, value=jnp.array([-0.7, 0.4]))
    after, _, _ = loop.learn_from(state._replace(weights=moved), batch, batch.terms)
    followed = loop.follow_weights(before, state.weights, moved).modified_advantage
    assert_same((followed - followed.mean()) / followed.std(), after.modified_advantage, 1e-4)
    assert jnp.abs(after.modified_advantage - before.modified_advantage).max() > 0.1

    still = build(replace(config, upper=replace(config.upper, follow_weights=False))).algorithm
    assert still.follow_weights(before, state.weights, moved) is before


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("env", ["cartpole", "cartpole-continuous"])
def test_following_is_how_advantages_move_up_to_second_order(env):
    """With the discount of the advantages themselves, through their normaliser: half the step, half the error."""
    settings = PPOConfig(update_period=3 * 104, num_envs=3, gamma=0.97, gae_lambda=0.9, batch_size=32)
    upper = UpperConfig(horizon="gamma-lambda", through_normaliser=True)
    config = complete(Config(env=env, method="mgl", terms=("harmful", "beneficial"), ppo=settings, upper=upper))
    loop = build(config).algorithm
    state = loop.init(jnp.uint32(0))
    _, batch = loop.world.run(loop.acting(state), state.env, jax.random.key(5))
    before, _, _ = loop.learn_from(state, batch, batch.terms)
    phi, as_weights = jax.flatten_util.ravel_pytree(state.weights)
    direction = jax.random.normal(jax.random.key(1), phi.shape)

    def relative_error(size):
        moved = as_weights(phi + size * direction)
        after, _, _ = loop.learn_from(state._replace(weights=moved), batch, batch.terms)
        exact = after.modified_advantage - before.modified_advantage
        followed = loop.follow_weights(before, state.weights, moved).modified_advantage - before.modified_advantage
        return float(jnp.linalg.norm(followed - exact) / jnp.linalg.norm(exact))

    coarse, fine = relative_error(2e-3), relative_error(1e-3)
    assert fine < 0.02
    assert coarse / fine == pytest.approx(2.0, rel=0.1)


def test_a_head_start_makes_the_first_steps_of_phi_larger():
    weights = WeightConfig(learning_rate=0.1, head_start=2.0)
    loop = build(complete(Config(method="mgl", terms=("harmful",), weights=weights))).algorithm
    state, phi, sizes = loop.weights_adam.init(jnp.zeros(1)), jnp.zeros(1), []
    for _ in range(81):  # Adam's step on a constant gradient is its step size
        (before, (phi, state)) = phi, ascend(phi, state, loop.weights_adam, jnp.ones(1))
        sizes.append(float(phi[0] - before[0]))
    np.testing.assert_allclose([sizes[0], sizes[40], sizes[80]], [0.3, 0.2, 0.15], rtol=1e-4)
    rounds = Config(method="mgl", terms=("harmful",), weights=weights, upper=UpperConfig(sampling="round"))
    assert complete(rounds).weights.head_start == 0.0


def test_advantages_follow_unless_weights_are_bounded_or_somebody_says_so():
    free = Config(method="mgl", terms=("harmful",))
    bounded = replace(free, weights=WeightConfig(low=-1.0, high=1.0))
    assert complete(free).upper.follow_weights is True
    assert complete(bounded).upper.follow_weights is False
    assert complete(replace(bounded, upper=UpperConfig(follow_weights=True))).upper.follow_weights is True
    assert complete(complete(bounded)) == complete(bounded)


@pytest.mark.parametrize("env", ["cartpole", "cartpole-continuous"])
def test_the_loop_puts_one_draw_at_theta_after_against_another_at_theta_before(env):
    """One update with one gradient step, everything normalised: the loop's own gradient of phi, found again by hand."""
    settings = PPOConfig(
        update_period=3 * 104, num_envs=3, gamma=0.97, gae_lambda=0.9, gradient_steps=1, batch_size=32,
        normalise_observations=True, normalise_returns=True,
    )  # fmt: skip
    upper = UpperConfig(horizon="gamma-lambda", through_normaliser=True, noise_penalty=0.5)
    config = complete(
        Config(env=env, terms=("harmful", "beneficial"), ppo=settings, weights=WeightConfig(hidden=(3, 2)), upper=upper)
    )
    loop, key = build(config).algorithm, jax.random.key(3)
    first, _ = jax.jit(loop.iterate)(loop.init(jnp.uint32(0)), jnp.uint32(0))  # so that the statistics are not trivial
    _, batch = jax.jit(lambda s: loop.world.run(loop.acting(s), s.env, jax.random.key(5)))(first)
    before = first._replace(env=None, batch=None, weights_optimiser=loop.weights_adam.init(first.weights))
    after, _, _ = loop.improve(before, batch, key)
    (found,) = [part.mu for part in jax.tree.leaves(after.weights_optimiser, is_leaf=_is_adam) if _is_adam(part)]

    lower_draw, upper_draw = jax.random.randint(key, (1, 2, 32), 0, 312)[0]
    moments = before.scales.observations
    seen = lambda x: jnp.clip((x - moments.mean) / jnp.sqrt(moments.var + 1e-8), -10, 10)  # noqa: E731
    obs, next_obs = seen(batch.obs), seen(batch.next_obs)

    def advantages(reward, critic, unit):
        values = critic(obs)[..., 0], critic(next_obs)[..., 0]
        advantage = gae(reward / unit, *values, batch.terminated, batch.done, 0.97, 0.9)[0].reshape(-1)
        return (advantage - advantage.mean()) / advantage.std()

    def modified(weights):
        reward = batch.reward + jnp.sum(weights(obs, batch.action) * batch.terms, axis=-1)
        return advantages(reward, before.learner.critics[0], after.scales.returns[0].std)

    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (obs, batch.action, batch.log_prob))

    def mean_of(policy, draw, advantage):
        s, a, log_prob = jax.tree.map(lambda x: x[draw], flat)
        ratio, clip = jnp.exp(policy.log_prob(s, a) - log_prob), config.ppo.clip
        return jnp.mean(jnp.minimum(ratio * advantage[draw], jnp.clip(ratio, 1 - clip, 1 + clip) * advantage[draw]))

    true = advantages(batch.reward, before.learner.critics[1], after.scales.returns[1].std)
    v = jax.grad(mean_of)(after.learner.policy, upper_draw, true)
    gradient = lambda weights: jax.grad(mean_of)(before.learner.policy, lower_draw, modified(weights))  # noqa: E731
    g = ravel(gradient(before.weights))
    kept = ravel(v) - 0.5 * (ravel(v) @ g) / (g @ g) * g
    expected = jax.jit(jax.grad(lambda weights: kept @ ravel(gradient(weights))))(before.weights)
    assert not np.array_equal(ravel(before.learner.policy), ravel(after.learner.policy))
    assert_same(found, jax.tree.map(lambda x: -0.1 * x, expected), 1e-5)


def _is_adam(part):
    return hasattr(part, "mu")


@pytest.mark.parametrize("continuous", [False, True])
def test_credit_through_the_normaliser_is_the_derivative_of_the_normalised_advantage(continuous):
    """Nothing is held: mean and standard deviation move with phi, too."""
    problem = make_problem(continuous, 2, "state")
    shape = problem.done.shape
    advantage = problem.modified_advantage(problem.weights).reshape(shape)
    credit = problem.samples().credit.reshape(*shape, -1)
    slopes = jax.jacrev(lambda w: problem.modified_advantage(w, stop=lambda x: x))(problem.weights)
    expected = jnp.concatenate([leaf.reshape(advantage.size, -1) for leaf in jax.tree.leaves(slopes)], axis=-1)
    assert_same(through_normaliser(credit, advantage).reshape(advantage.size, -1), expected, 1e-6)


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
