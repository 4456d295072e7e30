"""A whole round of each loop, several steps of both levels, against the same round written out by brute force."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.flatten_util import ravel_pytree

from bipars.config import Config, DDPGConfig, PPOConfig, UpperConfig, WeightConfig
from bipars.lower.advantages import gae
from bipars.networks import ravel
from bipars.program import build, complete
from problems import assert_same

hold = jax.lax.stop_gradient
STEPS, BATCH, RATE, LONGEST = 6, 32, 0.03, 0.05
GAMMA, LAMBDA, CLIP = 0.97, 0.9, 0.2


def aligned(v, move, kappa):
    """What phi climbs under the noise penalty, in units of <v, move>."""
    length = jnp.linalg.norm(move)
    return v @ move / length**kappa * hold(length) ** kappa


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("method", "kappa", "follow"),
    [("mgl", 1.0, True), ("mgl", 0.0, False), ("unrolled", 1.0, True), ("imgl", 0.5, True)],
)
def test_a_round_moves_theta_and_phi_as_brute_force_does(method, kappa, follow):
    config = complete(
        Config(
            env="cartpole", method=method, terms=("harmful", "beneficial"),
            ppo=PPOConfig(
                update_period=3 * 104, num_envs=3, gamma=GAMMA, gae_lambda=LAMBDA, gradient_steps=STEPS, clip=CLIP,
                batch_size=BATCH, policy_hidden=(4,), activation="tanh", max_grad_norm=LONGEST,
                policy_learning_rate=RATE,
            ),
            weights=WeightConfig(hidden=(3,), learning_rate=0.05),
            upper=UpperConfig(noise_penalty=kappa, unroll=3, second_order="exact", follow_weights=follow),
        )
    )  # fmt: skip
    loop, key = build(config).algorithm, jax.random.key(7)
    before = loop.init(jnp.uint32(0))
    _, batch = loop.world.run(loop.acting(before), before.env, jax.random.key(5))
    batch = batch._replace(action=batch.action.astype(jnp.int32))  # as it is in float32
    after, _, _ = loop.improve(before._replace(env=None), batch, key)

    draws = jax.random.randint(key, (STEPS, 2, BATCH), 0, 312)
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

    def advantage(phi):
        start = first_phi if follow else hold(phi)
        return (at_first - at_first.mean()) / at_first.std() + slopes @ (phi - start)

    true = advantages(batch.reward, before.learner.critics[1], LAMBDA)
    true = (true - true.mean()) / true.std()

    def surrogate(theta, draw, advantage):
        ratio = jnp.exp(as_policy(theta).log_prob(obs[draw], action[draw]) - log_prob[draw])
        return jnp.mean(jnp.minimum(ratio * advantage[draw], jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage[draw]))

    uphill = jax.jit(lambda theta, phi, draw: jax.grad(surrogate)(theta, draw, advantage(phi)))
    true_gradient = jax.jit(lambda theta, draw: jax.grad(surrogate)(theta, draw, true))

    def adam(theta, m, v, time, gradient):
        gradient = gradient * hold(jnp.minimum(1.0, LONGEST / jnp.linalg.norm(gradient)))
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * hold(gradient) ** 2
        step = RATE * m / (1 - 0.9**time) / (jnp.sqrt(v / (1 - 0.999**time)) + 1e-8)
        return theta + jnp.where(v > 0, step, 0.0), m, v

    m, v = jnp.zeros_like(theta), jnp.zeros_like(theta)
    upper = optax.adam(0.05)
    upper_state = upper.init(phi)
    past, h, none = [], jnp.zeros((theta.size, phi.size)), jnp.zeros_like(phi)
    for time, (lower_draw, upper_draw) in enumerate(draws, 1):
        start = theta
        past = [*past, (theta, m, v, time, phi, lower_draw)][-3:]
        gradient = uphill(theta, phi, lower_draw)
        theta, m, v = adam(theta, m, v, time, gradient)
        up = true_gradient(theta, upper_draw)

        def one_step(change, phi=phi, draw=lower_draw, start=start, up=up):
            return aligned(up, uphill(start, phi + change, draw), kappa)

        def three_steps(change, past=past, up=up):
            theta, m, v, *_ = past[0]
            for _, _, _, time, phi, draw in past:
                theta, m, v = adam(theta, m, v, time, uphill(theta, phi + change, draw))
            return aligned(up, theta - past[0][0], kappa)

        def everything(change, h=h, phi=phi, draw=lower_draw, start=start):
            return uphill(start + h @ change, phi + change, draw)

        if method == "imgl":
            h = h + RATE * jax.jacfwd(everything)(none)
            slope = (up - kappa * (up @ gradient) / (gradient @ gradient) * gradient) @ h
        else:
            slope = jax.grad(one_step if method == "mgl" else three_steps)(none)
        change, upper_state = upper.update(-slope, upper_state)
        phi = phi + change
    assert_same(ravel(after.learner.policy) - first_theta, theta - first_theta, 1e-7)
    assert_same(ravel(after.weights) - first_phi, phi - first_phi, 1e-7)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("method", "second_order"),
    [("ddpg-mgl", "none"), ("ddpg-imgl", "exact"), ("ddpg-imgl", "none"), ("ddpg-em", "none")],
)
def test_a_round_of_a_deterministic_policy_moves_phi_as_brute_force_does(method, second_order):
    """Two steps of the policy with two of its critics before each. Critics and policy step as the loop's own do."""
    settings = DDPGConfig(
        policy_hidden=(6,), value_hidden=(8, 8), activation="tanh", num_envs=4, update_period=40, gradient_steps=4,
        batch_size=16, warmup_steps=0, policy_delay=2, target_noise=0.2, twin_critics=True, second_order=second_order,
    )  # fmt: skip
    config = Config(
        env="cartpole-continuous", method=method, terms=("harmful", "beneficial"),
        weights=WeightConfig(hidden=(3,), learning_rate=0.05), ddpg=settings,
    )  # fmt: skip
    loop, key = build(complete(config)).algorithm, jax.random.key(4)
    before, _ = jax.jit(loop.iterate)(loop.init(jnp.uint32(0)), jnp.uint32(0))
    before = before._replace(
        weights_optimiser=loop.weights_adam.init(before.weights), h=jax.tree.map(jnp.zeros_like, before.h)
    )
    after, _ = jax.jit(loop.learn)(before, key)

    draw_key, noise_key = jax.random.split(key)
    replay, learner = before.learner.replay, before.learner._replace(replay=None)
    places = replay.draw(draw_key, (2, 3, 16))
    noise = loop.draw_noise(noise_key, places.shape)
    phi, as_weights = ravel_pytree(before.weights)
    theta, as_policy = ravel_pytree(learner.policy)
    h, none, optimiser = jnp.zeros((theta.size, phi.size)), jnp.zeros_like(phi), before.weights_optimiser
    for turn in range(2):
        for number in range(2):
            drawn = jax.tree.map(lambda x, at=(turn, number): x[at], noise)
            learner, _ = jax.jit(loop.critic_step)(learner, as_weights(phi), replay.at(places[turn, number]), drawn)
        lower_obs, upper_obs = replay.rows.obs[places[turn, 1]], replay.rows.obs[places[turn, 2]]
        modified, true, theta = learner.critics.modified[0], learner.critics.true[0], ravel(learner.policy)
        learner, _ = loop.policy_step(learner, as_weights(phi), lower_obs, noise.shift[turn, 2])
        theta_after = ravel(learner.policy)

        def true_return(theta, phi, q=true, s=upper_obs):
            z = as_weights(phi)(s, None)
            seen = jnp.concatenate([s, z], axis=-1) if method == "ddpg-em" else s
            return q(s, as_policy(theta)(seen)).mean()

        def uphill(theta, phi, q=modified, s=lower_obs):
            return jax.grad(lambda theta: q(s, as_policy(theta)(s), as_weights(phi)(s, None)).mean())(theta)

        if method == "ddpg-em":
            slope = jax.grad(true_return, argnums=1)(theta_after, phi)
        elif method == "ddpg-mgl":
            v = jax.grad(true_return)(theta_after, phi)
            slope = jax.grad(lambda phi, v=v, theta=theta, uphill=uphill: v @ uphill(theta, phi))(phi)
        else:
            v = jax.grad(true_return)(theta_after, phi)

            def everything(change, h=h, theta=theta, phi=phi, uphill=uphill):
                return uphill(theta + (h @ change if second_order == "exact" else 0.0), phi + change)

            h = h + settings.policy_learning_rate * jax.jacfwd(everything)(none)
            slope = v @ h
        weights, optimiser = loop.upper_step(as_weights(phi), optimiser, as_weights(slope))
        phi = ravel(weights)
    # Adam's first steps are steps by sign: its memory of the gradients says more than where phi is.
    memories = [optax.tree.get(state, "mu") for state in (after.weights_optimiser, optimiser)]
    found, expected = (optax.tree.scale(1e4, memory) for memory in memories)  # critics this young are nearly flat
    assert_same(found, expected, 1e-7)
