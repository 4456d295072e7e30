"""The loops themselves: what they hand to their estimators, and whole rounds written out by brute force."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from bipars import program
from bipars.lower.ppo import PPO, follow
from bipars.methods import weights_adam
from bipars.nets.mlp import ravel
from bipars.nets.optimiser import ascend
from bipars.objective import gae
from bipars.program import build, complete
from bipars.settings.config import Config, DDPGConfig, DDPGUpperConfig, PPOConfig, UpperConfig, WeightConfig
from bipars.upper.schedule import WeightState
from problems import assert_same, kl_penalised

pytestmark = pytest.mark.usefixtures("float64")

hold = jax.lax.stop_gradient
STEPS, BATCH, RATE, LONGEST = 6, 32, 0.03, 0.05
GAMMA, LAMBDA, CLIP = 0.97, 0.9, 0.2


def by_hand(key, steps, batch, follow):
    """Minibatches of theta and of phi, which takes theta's next one where theta does not depend on it."""
    if follow:
        return np.swapaxes(jax.random.randint(key, (steps, 2, batch), 0, 312), 0, 1)
    draws = jax.random.randint(key, (steps + 1, batch), 0, 312)
    return draws[:-1], draws[1:]


def improve(loop, state, batch, key):
    """The state after all gradient steps of a round."""
    learner, data = loop.lower.prepare(state.learner, state.weights, batch, jnp.zeros(()))
    upper, learner, _ = loop.upper.update(state.upper, learner, data, key)
    return state._replace(learner=learner, upper=upper)


@pytest.mark.parametrize(
    ("method", "times", "follow", "other_objective"),
    [
        ("mgl", 1.0, True, False),
        ("mgl", 1.0, False, False),
        ("mgl", 0.4, False, True),
        ("unrolled", 1.0, True, False),
        ("unrolled", 1.0, False, True),
        ("unrolled", 0.4, True, False),
        ("imgl", 1.0, True, False),
        ("imgl", 0.4, False, True),
    ],
)
def test_a_round_moves_theta_and_phi_as_brute_force_does(method, times, follow, other_objective, monkeypatch):
    """`times`: how long the steps of theta are, where a target KL has shortened them. `other_objective`: the one that
    PPO climbs is replaced, in its one place."""
    program._build.cache_clear()  # programs of the other objective
    if other_objective:
        monkeypatch.setattr(PPO, "objective", property(lambda self: kl_penalised))
    config = complete(
        Config(
            env="cartpole", method=method, terms=("harmful", "beneficial"),
            ppo=PPOConfig(
                update_period=3 * 104, num_envs=3, gamma=GAMMA, gae_lambda=LAMBDA, gradient_steps=STEPS, clip=CLIP,
                batch_size=BATCH, policy_hidden=(4,), activation="tanh", max_grad_norm=LONGEST,
                policy_learning_rate=RATE,
            ),
            weights=WeightConfig(hidden=(3,), learning_rate=0.05),
            upper=UpperConfig(unroll=3, second_order="exact", follow_weights=follow),
        )
    )  # fmt: skip
    loop, key = build(config).algorithm, jax.random.key(7)
    before = loop.init(jnp.uint32(0))
    before = before._replace(learner=before.learner._replace(rate=jnp.asarray(times)))
    _, batch = loop.sampler.run(loop.acting(before), before.env, jax.random.key(5))
    batch = batch._replace(action=batch.action.astype(jnp.int32))  # as it is in float32
    after = improve(loop, before, batch, key)

    draws, upper_draws = by_hand(key, STEPS, BATCH, follow)
    phi, as_weights = ravel_pytree(before.weights)
    theta, as_policy = ravel_pytree(before.learner.policy)
    first_phi, first_theta = phi, theta
    obs, action, log_prob = (x.reshape(-1, *x.shape[2:]) for x in (batch.obs, batch.action, batch.log_prob))

    def advantages(reward, critic, discount):
        values = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
        return gae(reward, *values, batch.terminated, batch.done, GAMMA, discount)[0].reshape(-1)

    def modified(phi, discount):
        z = as_weights(phi)(batch.obs, batch.action)
        return advantages(batch.reward + jnp.sum(z * batch.terms, axis=-1), before.learner.critics[0], discount)

    at_first = modified(first_phi, LAMBDA)
    slopes = jax.jit(jax.jacrev(lambda phi: modified(phi, 1.0)))(first_phi) / at_first.std()  # equation 8

    true = advantages(batch.reward, before.learner.critics[1], LAMBDA)
    true = (true - true.mean()) / true.std()

    def advantage(phi):
        moved = slopes @ (phi - (first_phi if follow else hold(phi)))
        return (at_first - at_first.mean()) / at_first.std() + moved

    def surrogate(theta, draw, advantage):
        ratio = jnp.exp(as_policy(theta).log_prob(obs[draw], action[draw]) - log_prob[draw])
        if other_objective:
            return jnp.mean(ratio * advantage[draw] - 0.7 * (ratio - 1 - jnp.log(ratio)))
        return jnp.mean(jnp.minimum(ratio * advantage[draw], jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage[draw]))

    uphill = jax.jit(lambda theta, phi, draw: jax.grad(surrogate)(theta, draw, advantage(phi)))
    true_gradient = jax.jit(lambda theta, draw: jax.grad(surrogate)(theta, draw, true))

    def shortened(gradient):
        return gradient * hold(jnp.minimum(1.0, LONGEST / jnp.linalg.norm(gradient)))

    def step(m, v, time):
        rate = times * RATE / (1 - 0.9**time) / (jnp.sqrt(v / (1 - 0.999**time)) + 1e-8)
        return jnp.where(v > 0, rate, 0.0) * m

    m, v = jnp.zeros_like(theta), jnp.zeros_like(theta)
    upper = optax.adam(0.05, eps=1e-16)
    upper_state = upper.init(phi)
    past, h, none = [], jnp.zeros((theta.size, phi.size)), jnp.zeros_like(phi)
    for time, (lower_draw, upper_draw) in enumerate(zip(draws, upper_draws, strict=True), 1):
        start, first_m = theta, m
        climbed = shortened(uphill(theta, phi, lower_draw))
        m, v = 0.9 * m + 0.1 * climbed, 0.999 * v + 0.001 * climbed**2
        theta = theta + step(m, v, time)
        past = [*past, (start, first_m, v, time, phi, lower_draw)][-3:]
        up = true_gradient(theta, upper_draw)

        def one_step(change, phi=phi, draw=lower_draw, start=start, up=up):
            return up @ uphill(start, phi + change, draw)

        def three_steps(change, past=past, up=up):
            """Each from where the policy really was, at the rate that Adam really had."""
            m, move = past[0][1], jnp.zeros_like(up)
            for at, _, v, time, phi, draw in past:
                m = 0.9 * m + 0.1 * shortened(uphill(at + move - hold(move), phi + change, draw))
                move = move + step(m, v, time)
            return up @ move

        def everything(change, h=h, phi=phi, draw=lower_draw, start=start):
            return uphill(start + h @ change, phi + change, draw)

        if method == "imgl":
            h = h + times * RATE * jax.jacfwd(everything)(none)
            slope = up @ h
        else:
            slope = jax.grad(one_step if method == "mgl" else three_steps)(none)
        change, upper_state = upper.update(-slope, upper_state)
        phi = phi + change
    assert_same(ravel(after.learner.policy) - first_theta, theta - first_theta, 1e-7)
    assert_same(ravel(after.weights) - first_phi, phi - first_phi, 1e-7)


@pytest.mark.parametrize(
    ("method", "second_order"),
    [("ddpg-mgl", "none"), ("ddpg-imgl", "exact"), ("ddpg-imgl", "none"), ("ddpg-em", "none")],
)
def test_a_round_of_a_deterministic_policy_moves_phi_as_brute_force_does(method, second_order):
    """Two steps of the policy with two of its critics before each. Critics and policy step as the loop's own do."""
    settings = DDPGConfig(
        policy_hidden=(6,), value_hidden=(8, 8), activation="tanh", num_envs=4, update_period=40, gradient_steps=4,
        batch_size=16, warmup_steps=0, policy_delay=2, target_noise=0.2, twin_critics=True,
    )  # fmt: skip
    config = Config(
        env="cartpole-continuous", method=method, terms=("harmful", "beneficial"),
        weights=WeightConfig(hidden=(3,), learning_rate=0.05), ddpg=settings,
        ddpg_upper=DDPGUpperConfig(size_penalty=0.6, second_order=second_order),
    )  # fmt: skip
    loop, key = build(complete(config)).algorithm, jax.random.key(4)
    before, _ = jax.jit(loop.iterate)(loop.init(jnp.uint32(0)), jnp.uint32(0))
    ddpg, adam = loop.lower, weights_adam(complete(config))
    fresh = WeightState(before.weights, adam.init(before.weights), jax.tree.map(jnp.zeros_like, before.upper.estimator))
    after = ddpg.learn(before.learner, fresh, None, key, hook=loop.upper.upper.hook).upper

    draw_key, noise_key = jax.random.split(key)
    replay, learner = before.learner.replay, before.learner._replace(replay=None)
    places = replay.draw(draw_key, (2, 3, 16))
    noise = ddpg.draw_noise(noise_key, places.shape)
    phi, as_weights = ravel_pytree(before.weights)
    theta, as_policy = ravel_pytree(learner.policy)
    h, none, optimiser = jnp.zeros((theta.size, phi.size)), jnp.zeros_like(phi), fresh.optimiser
    for turn in range(2):
        for number in range(2):
            drawn = jax.tree.map(lambda x, at=(turn, number): x[at], noise)
            learner, _ = jax.jit(ddpg.critic_step)(learner, as_weights(phi), replay.at(places[turn, number]), drawn)
        lower_obs, upper_obs = replay.rows.obs[places[turn, 1]], replay.rows.obs[places[turn, 2]]
        modified, true = learner.critics.modified(learner.units.weights)[0], learner.critics.base[0]
        theta = ravel(learner.policy)
        shift = None if noise.shift is None else noise.shift[turn, 2]
        learner, _ = ddpg.policy_step(learner, as_weights(phi), lower_obs, shift)
        theta_after = ravel(learner.policy)

        def true_return(theta, phi, q=true, s=upper_obs):
            z = as_weights(phi)(s, None)
            seen = jnp.concatenate([s, z], axis=-1) if method == "ddpg-em" else s
            return q(s, as_policy(theta)(seen)).mean()

        def uphill(theta, phi, q=modified, s=lower_obs):
            return jax.grad(lambda theta: q(s, as_policy(theta)(s), as_weights(phi)(s, None)).mean())(theta)

        def weighted(theta, phi, q=modified, s=lower_obs, uphill=uphill):
            return uphill(theta, phi) - jax.grad(lambda theta: q(s, as_policy(theta)(s), jnp.zeros(2)).mean())(theta)

        if method == "ddpg-em":
            slope = jax.grad(true_return, argnums=1)(theta_after, phi)
        elif method == "ddpg-mgl":
            v = jax.grad(true_return)(theta_after, phi) - 0.6 * weighted(theta, phi)
            slope = jax.grad(lambda phi, v=v, theta=theta, uphill=uphill: v @ uphill(theta, phi))(phi)
        else:
            v = jax.grad(true_return)(theta_after, phi) - 0.6 * weighted(theta, phi)

            def everything(change, h=h, theta=theta, phi=phi, uphill=uphill):
                return uphill(theta + (h @ change if second_order == "exact" else 0.0), phi + change)

            h = h + settings.policy_learning_rate * jax.jacfwd(everything)(none)
            slope = v @ h
        weights, optimiser = ascend(as_weights(phi), optimiser, adam, as_weights(slope))
        phi = ravel(weights)
    # Adam's first steps are steps by sign: its memory of the gradients says more than where phi is.
    memories = [optax.tree.get(state, "mu") for state in (after.optimiser, optimiser)]
    found, expected = (optax.tree.scale(1e4, memory) for memory in memories)  # critics this young are nearly flat
    assert_same(found, expected, 1e-7)


def with_jacobian(loop, learner, weights, batch):
    """The samples of a batch, as the policy learns from them."""
    _, data = loop.lower.prepare(learner, weights, batch, jnp.zeros(()))
    return data.samples._replace(advantage_jacobian=loop.upper.jacobian(weights, data))


@pytest.mark.parametrize("horizon", ["gamma", "gamma-lambda"])
def test_the_loops_own_jacobian_is_the_derivative_of_its_modified_advantage(horizon):
    """Through `prepare`, over several blocks of time, with episodes that end inside."""
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
    _, batch = loop.sampler.run(state.learner.policy, state.env, jax.random.key(1))
    terms = jax.random.normal(jax.random.key(2), (104, 3, 2))
    samples = with_jacobian(loop, state.learner, state.weights, batch._replace(terms=terms))
    critic = state.learner.critics[0]
    values = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]

    def advantage(weights, gae_lambda):
        reward = batch.reward + jnp.sum(weights(batch.obs, batch.action) * terms, axis=-1)
        return gae(reward, *values, batch.terminated, batch.done, 0.97, gae_lambda)[0].reshape(-1)

    scale = advantage(state.weights, 0.9).std()
    slopes = jax.jit(jax.jacrev(lambda w: advantage(w, 1.0 if horizon == "gamma" else 0.9) / scale))(state.weights)
    expected = jnp.concatenate([leaf.reshape(312, -1) for leaf in jax.tree.leaves(slopes)], axis=-1)
    assert np.asarray(batch.done).sum() > 5
    assert_same(samples.advantage_jacobian, expected, 1e-7)
    np.testing.assert_allclose(samples.true_advantage.mean(), 0, atol=1e-9)
    critic = state.learner.critics[1]
    values = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
    true = gae(batch.reward, *values, batch.terminated, batch.done, 0.97, 0.9)[0]
    assert_same(samples.true_advantage, ((true - true.mean()) / true.std()).reshape(-1), 1e-6)


@pytest.mark.parametrize("env", ["cartpole", "cartpole-continuous"])
def test_sampling_by_round_puts_the_new_policys_samples_against_the_whole_old_batch(env):
    """Two rounds of the loop itself: v from the fresh batch at theta', d theta'/d phi from all of the batch before."""
    config = complete(
        Config(
            env=env,
            terms=("harmful", "beneficial"),
            steps=2 * 312,
            ppo=PPOConfig(
                update_period=3 * 104, num_envs=3, gamma=0.97, gae_lambda=0.9, gradient_steps=4, batch_size=32
            ),
            weights=WeightConfig(hidden=(3, 2)),
            upper=UpperConfig(sampling="round"),
        )
    )
    loop = build(config).algorithm
    before, clip = loop.init(jnp.uint32(0)), config.ppo.clip
    _, old = loop.sampler.run(loop.acting(before), before.env, jax.random.key(5))
    after = improve(loop, before, old, jax.random.key(6))
    assert_same(ravel(after.weights), ravel(before.weights), 1e-12)
    _, new = loop.sampler.run(loop.acting(after), before.env, jax.random.key(7))
    stepped = improve(loop, after, new, jax.random.key(8))
    # Adam descends, and keeps a tenth of its first gradient.
    (found,) = [part.mu for part in jax.tree.leaves(stepped.upper.optimiser, is_leaf=_is_adam) if _is_adam(part)]

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
    _, batch = loop.sampler.run(loop.acting(state), state.env, jax.random.key(5))
    before = with_jacobian(loop, state.learner, state.weights, batch)
    moved = replace(state.weights, value=jnp.array([-0.7, 0.4]))
    after = with_jacobian(loop, state.learner, moved, batch)
    followed = follow(before, state.weights, moved).modified_advantage
    assert_same((followed - followed.mean()) / followed.std(), after.modified_advantage, 1e-4)
    assert jnp.abs(after.modified_advantage - before.modified_advantage).max() > 0.1
    assert loop.upper.hook.follows
    still = build(replace(config, upper=replace(config.upper, follow_weights=False))).algorithm
    assert not still.upper.hook.follows


def test_advantages_follow_unless_weights_are_bounded_or_somebody_says_so():
    free = Config(method="mgl", terms=("harmful",))
    bounded = replace(free, weights=WeightConfig(low=-1.0, high=1.0))
    assert complete(free).upper.follow_weights is True
    assert complete(bounded).upper.follow_weights is False
    assert complete(replace(bounded, upper=UpperConfig(follow_weights=True))).upper.follow_weights is True
    assert complete(complete(bounded)) == complete(bounded)


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("env", ["cartpole", "cartpole-continuous"])
def test_the_loop_puts_one_draw_at_theta_after_against_another_at_theta_before(env, follow):
    """One update with one gradient step, everything normalised: the loop's own gradient of phi, found again by hand."""
    settings = PPOConfig(
        update_period=3 * 104, num_envs=3, gamma=0.97, gae_lambda=0.9, gradient_steps=1, batch_size=32,
        normalise_observations=True, normalise_returns=True,
    )  # fmt: skip
    upper = UpperConfig(horizon="gamma-lambda", follow_weights=follow)
    config = complete(
        Config(env=env, terms=("harmful", "beneficial"), ppo=settings, weights=WeightConfig(hidden=(3, 2)), upper=upper)
    )
    loop, key = build(config).algorithm, jax.random.key(3)
    first, _ = jax.jit(loop.iterate)(loop.init(jnp.uint32(0)), jnp.uint32(0))  # so that the statistics are not trivial
    _, batch = jax.jit(lambda s: loop.sampler.run(loop.acting(s), s.env, jax.random.key(5)))(first)
    optimiser = weights_adam(config).init(first.weights)
    before = first._replace(upper=first.upper._replace(optimiser=optimiser))
    after = improve(loop, before, batch, key)
    (found,) = [part.mu for part in jax.tree.leaves(after.upper.optimiser, is_leaf=_is_adam) if _is_adam(part)]

    (lower_draw,), (upper_draw,) = by_hand(key, 1, 32, follow)
    moments = before.observations
    seen = lambda x: jnp.clip((x - moments.mean) / jnp.sqrt(moments.var + 1e-8), -10, 10)  # noqa: E731
    obs, next_obs = seen(batch.obs), seen(batch.next_obs)

    def advantages(reward, critic, unit):
        values = critic(obs)[..., 0], critic(next_obs)[..., 0]
        advantage = gae(reward / unit, *values, batch.terminated, batch.done, 0.97, 0.9)[0].reshape(-1)
        return (advantage - hold(advantage.mean())) / hold(advantage.std())

    def modified(weights):
        reward = batch.reward + jnp.sum(weights(obs, batch.action) * batch.terms, axis=-1)
        return advantages(reward, before.learner.critics[0], after.learner.scales.returns.std[0])

    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (obs, batch.action, batch.log_prob))

    def mean_of(policy, draw, advantage):
        s, a, log_prob = jax.tree.map(lambda x: x[draw], flat)
        ratio, clip = jnp.exp(policy.log_prob(s, a) - log_prob), config.ppo.clip
        return jnp.mean(jnp.minimum(ratio * advantage[draw], jnp.clip(ratio, 1 - clip, 1 + clip) * advantage[draw]))

    true = advantages(batch.reward, before.learner.critics[1], after.learner.scales.returns.std[1])
    v = jax.grad(mean_of)(after.learner.policy, upper_draw, true)
    gradient = lambda weights: jax.grad(mean_of)(before.learner.policy, lower_draw, modified(weights))  # noqa: E731
    expected = jax.jit(jax.grad(lambda weights: ravel(v) @ ravel(gradient(weights))))(before.weights)
    assert not np.array_equal(ravel(before.learner.policy), ravel(after.learner.policy))
    assert_same(found, jax.tree.map(lambda x: -0.1 * x, expected), 1e-5)


def _is_adam(part):
    return hasattr(part, "mu")
