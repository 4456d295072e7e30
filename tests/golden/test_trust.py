"""Terms that must earn the policy's trust: the evidence of a batch, how it adds up, and what comes of it."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.nets.mlp import MLP, Linear, ravel
from bipars.nets.policies import GaussianPolicy
from bipars.objective import Samples
from bipars.program import build, complete
from bipars.settings.config import Config, PPOConfig, UpperConfig
from bipars.upper.trust import MOST, EarnedTrust, agreement, part_gradients, pieces, trust, weigh_evidence

PARTS, SIZE = 20, 50
COMMON = np.random.default_rng(1000).normal(size=SIZE)


def gradients(seed, along=0.0):
    """Parts whose gradients are noise, and have a share of one direction in common."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=(PARTS, SIZE)) + along * COMMON)


def test_agreement_is_the_mean_over_pairs_of_different_parts_in_jackknife_errors():
    v, w = np.asarray(gradients(0, 0.2)), np.asarray(gradients(1, 0.1))

    def mean(parts):
        return np.mean([v[i] @ w[j] for i, j in itertools.permutations(parts, 2)])

    without = np.array([mean([j for j in range(PARTS) if j != i]) for i in range(PARTS)])
    error = np.sqrt((PARTS - 1) / PARTS * np.sum((without - without.mean()) ** 2))
    assert float(agreement(v, w)) == pytest.approx(mean(range(PARTS)) / error, rel=1e-4)


def test_agreement_has_a_sign_where_there_is_one_and_none_where_there_is_not():
    v = gradients(0, 0.5)
    assert agreement(v, gradients(1, 0.5)) > 4
    assert agreement(v, gradients(1, -0.5)) < -4
    # Noise that is the same in both: a part that met itself would take it for agreement.
    noise = [float(agreement(gradients(s), 100 * gradients(s))) for s in range(200)]
    assert abs(np.mean(noise)) < 0.3
    assert np.mean(np.abs(noise) > 3) < 0.03


def test_nothing_agrees_with_nothing():
    assert agreement(jnp.zeros((PARTS, SIZE)), gradients(0)) == 0
    assert agreement(gradients(0)[:2], gradients(0)[:2]) == 0


@pytest.mark.parametrize(("time", "envs", "parts"), [(509, 8, 16), (1999, 1, 16), (5, 1, 5), (100, 20, 20), (2, 1, 2)])
def test_a_batch_of_any_shape_has_few_parts(time, envs, parts):
    ones = jnp.ones(time * envs)
    samples, signals = Samples(jnp.ones((time * envs, 5)), ones[:, None], ones, ones), jnp.ones((time * envs, 2))
    assert envs * pieces(time, envs) == parts
    found = part_gradients(LINEAR, samples, signals, envs, jnp.arange(parts))
    assert [len(x) for x in found] == [parts, parts]


LINEAR = GaussianPolicy(MLP((Linear(jnp.zeros((5, 1)), jnp.zeros(1)),), "relu"), jnp.zeros(1))
"""The gradient of a 1's log-probability is the observation (and a 1, the bias's): any gradients one likes."""


def batch(true, terms, seed=0, scatter=1.0):
    """400 samples of 20 environments: what the true return and the terms have of one direction."""
    rng = np.random.default_rng(seed)
    obs, ones = rng.normal(size=(400, 5)), np.ones(400)
    signals = [along * obs[:, 0] + scatter * rng.normal(size=400) for along in (true, terms)]
    return Samples(obs, ones[:, None], ones, ones), np.stack([signals[0], signals[1] - signals[1].mean()], axis=-1)


one_more = jax.jit(
    lambda evidence, samples, signals: weigh_evidence(
        evidence, *part_gradients(LINEAR, samples, signals, 20, jnp.arange(20))
    )[0]
)


def after(evidence, *batches):
    for samples, signals in batches:
        evidence = one_more(jnp.asarray(evidence), samples, signals)
    return float(evidence)


def test_evidence_runs_out_for_noise_at_once_for_harm_and_not_for_help():
    assert after(MOST, *(batch(1, 1, s) for s in range(20))) == MOST
    assert trust(jnp.asarray(after(MOST, batch(1, -1, 0), batch(1, -1, 1)))) == 0
    noise = [after(MOST, *(batch(1, 0, s) for s in range(12 * k, 12 * k + 12))) for k in range(10)]
    assert np.mean(np.asarray(noise) <= 1) >= 0.8


def test_evidence_comes_back_within_two_rounds():
    assert trust(jnp.asarray(after(0.0, batch(1, 1, 0), batch(1, 1, 1)))) == 1


def test_a_batch_whose_true_gradient_is_noise_says_nothing():
    assert after(4.2, *(batch(0, -1, s) for s in range(3))) == pytest.approx(4.2)
    assert after(4.2, batch(0, 0, 0, scatter=0.0)) == pytest.approx(4.2)


def small(update_period=400, num_envs=4):
    config = Config(
        env="cartpole", method="mgl", terms=("noise",),
        ppo=PPOConfig(update_period=update_period, num_envs=num_envs, gradient_steps=4, batch_size=64),
        upper=UpperConfig(noise_penalty=1.0, earned_trust=True),
    )  # fmt: skip
    return build(complete(config)).algorithm


def with_evidence(state, evidence):
    return state._replace(upper=state.upper._replace(evidence=jnp.full((), evidence, float)))


def improve(loop, state, batch):
    """The state after all gradient steps of a round, and their log."""
    learner, data = loop.lower.prepare(state.learner, state.weights, batch)
    upper, learner, log = loop.upper.update(state.upper, learner, data, jax.random.key(1))
    return state._replace(learner=learner, upper=upper), log


def test_trust_mixes_the_advantages():
    """phi is told of full trust; the unit of dA~/dphi says that half of it reaches the mix."""
    loop = small()
    state = loop.init(jnp.uint32(0))
    _, batch = loop.sampler.run(loop.acting(state), state.env, jax.random.key(0))
    _, data = loop.lower.prepare(state.learner, state.weights, batch)
    nothing = [(jnp.zeros((PARTS, SIZE)), jnp.zeros((PARTS, SIZE)))]
    _, mixed, _ = loop.upper.judge(jnp.asarray(2.0), data, nothing)
    assert float(mixed.trust) == 0.5
    expected = (data.samples.modified_advantage + data.samples.true_advantage) / 2
    np.testing.assert_allclose(mixed.samples.modified_advantage, expected, rtol=1e-6)
    assert float(mixed.scale) == pytest.approx(2 * float(data.scale))


def test_where_nothing_was_earned_and_nothing_ended_nothing_is_judged():
    """The true advantages of such a batch are an untrained critic's errors, which all parts have in common."""
    loop = small(update_period=320, num_envs=40)  # eight steps each: no pole falls so soon
    state = with_evidence(loop.init(jnp.uint32(0)), 3.0)
    _, silent = loop.sampler.run(loop.acting(state), state.env, jax.random.key(0))
    assert not silent.done.any()
    assert not silent.reward.any()
    ends = silent.done.at[5, 0].set(True)
    ended = silent._replace(terminated=ends, done=ends)
    earned = silent._replace(reward=silent.reward.at[5, 0].set(0.1))
    for given, judged in ((silent, False), (ended, True), (earned, True)):
        after, log = improve(loop, state, given)
        assert (after.upper.evidence != 3) == judged
        assert abs(log["true_gradient_t"]) > 2


def test_a_round_is_compiled_once():
    iterate, loop = jax.jit(small().iterate), small()
    state = loop.init(jnp.uint32(0))
    for _ in range(2):
        state, _ = iterate(state, jnp.uint32(0))
    assert iterate._cache_size() == 1


def test_without_trust_the_policy_is_the_one_of_the_true_reward():
    """Not a number of the weighted terms reaches theta, however large they are."""

    def policy(scale):
        loop = small()
        state = with_evidence(loop.init(jnp.uint32(0)), 0.0)
        _, batch = loop.sampler.run(loop.acting(state), state.env, jax.random.key(0))
        state, log = improve(loop, state, batch._replace(terms=scale * batch.terms))
        return log["trust"], ravel(state.learner.policy), ravel(state.weights)

    (trust_one, policy_one, weights_one), (trust_other, policy_other, weights_other) = policy(1.0), policy(-7.0)
    assert trust_one == trust_other == 0
    np.testing.assert_array_equal(policy_one, policy_other)
    assert not np.array_equal(weights_one, weights_other)


def test_methods_without_a_use_for_it_go_without():
    for method in ("ppo", "ns", "em"):
        config = complete(Config(env="cartpole", method=method, terms=("noise",), upper=UpperConfig(earned_trust=True)))
        assert not isinstance(build(config).algorithm.upper, EarnedTrust)
