"""Potentials that a person wrote down: their arithmetic by hand, and their place in a run."""

from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bipars
from bipars.errors import UsageError
from bipars.methods import find_method
from bipars.nets.policies import make_policy
from bipars.nets.spaces import Spaces
from bipars.program import complete
from bipars.settings.config import Config, PPOConfig
from bipars.shaping.given import Potential
from bipars.shaping.given import make_potential as given_potential
from bipars.shaping.potential_based import ShapingContext, next_actions, potential_difference
from transitions import ACTIONS, GAMMA, TINY, make_batch


def test_shaping_by_hand():
    now, following = jnp.array([[1.0], [2.0], [4.0]]), jnp.array([[2.0], [4.0], [8.0]])
    terminated = jnp.array([[False], [True], [False]])
    found = potential_difference(now, following, terminated, 0.5)
    np.testing.assert_allclose(found[:, 0], [0.5 * 2 - 1, 0 - 2, 0.5 * 8 - 4])


@pytest.mark.parametrize("continuous", [False, True])
def test_the_next_action_is_the_one_taken_or_a_fresh_one_of_the_policy_where_nothing_followed(continuous):
    batch = make_batch(continuous)
    policy = make_policy(jax.random.key(1), PPOConfig(), Spaces(4, ACTIONS[continuous]))
    key = jax.random.key(2)
    found = np.asarray(next_actions(policy, batch, key))
    fresh = np.asarray(policy.sample(batch.next_obs, policy.draw_noise(key, batch.done.shape)))
    done = np.asarray(batch.done)
    for time, env in np.ndindex(done.shape):
        followed = time + 1 < len(done) and not done[time, env]
        expected = np.asarray(batch.action)[time + 1, env] if followed else fresh[time, env]
        np.testing.assert_array_equal(found[time, env], expected)


def lean(obs):
    """Nothing sensible: falling over looks good."""
    return 5.0 * obs[2] ** 2 - 0.3 * obs[0]


def lean_towards(obs, action):
    force = action[0] if jnp.ndim(action) else 2.0 * action - 1.0
    return lean(obs) + 0.7 * force * obs[1]


def lean_later(obs, step):
    return lean(obs) * (1.0 + step / 500.0)


KINDS = {"pbrs": lean, "pba": lean_towards, "dynamic-pbrs": lean_later}


def shaping_of(method, fn, vectorised=False, gamma=GAMMA):
    config = Config(method=method, ppo=replace(TINY, gamma=gamma))
    return find_method(method).shaping(config, Potential("p", fn, vectorised))


def world_of(compiled, continuous):
    """Just enough of a sampler."""
    box = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    force = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else gymnasium.spaces.Discrete(2)
    return SimpleNamespace(compiled=compiled, actions=ACTIONS[continuous], observation_space=box, action_space=force)


@pytest.mark.parametrize("method", KINDS)
@pytest.mark.parametrize("continuous", [False, True])
def test_given_potentials_by_hand_in_jax_and_on_the_host(method, continuous):
    batch, key, round = make_batch(continuous), jax.random.key(5), 3
    policy = make_policy(jax.random.key(1), PPOConfig(), Spaces(4, ACTIONS[continuous]))
    shaping = shaping_of(method, KINDS[method])
    found = {}
    for compiled in (True, False):
        moment = ShapingContext(world_of(compiled, continuous), policy, None, jnp.asarray(round))
        found[compiled] = shaping.shape((), batch, moment, key)[1]
    act = lambda x: np.clip(np.asarray(x), -1, 1) if continuous else np.asarray(x)  # noqa: E731
    action, following_action = act(batch.action), act(next_actions(policy, batch, key))
    obs, next_obs = np.asarray(batch.obs), np.asarray(batch.next_obs)
    for time, env in np.ndindex(batch.done.shape):
        step = round * TINY.update_period + 3 * time
        second = {"pbrs": ((), ()), "pba": ((action[time, env],), (following_action[time, env],)),
                  "dynamic-pbrs": ((step,), (step + 3,))}[method]  # fmt: skip
        now, after = KINDS[method](obs[time, env], *second[0]), KINDS[method](next_obs[time, env], *second[1])
        expected = GAMMA * (0 if batch.terminated[time, env] else after) - now
        for advice in found.values():
            np.testing.assert_allclose(advice.reward[time, env], expected, rtol=1e-4, atol=1e-4)
            if method == "pba":
                np.testing.assert_allclose(advice.correction[time, env], now, rtol=1e-4, atol=1e-5)
            else:
                assert advice.correction is None


def test_vectorised_potentials_give_the_same():
    batch, key = make_batch(False), jax.random.key(5)
    for compiled in (True, False):
        moment = ShapingContext(world_of(compiled, False), None, None, jnp.asarray(0))
        alone = shaping_of("pbrs", lean).shape((), batch, moment, key)[1]
        together = shaping_of("pbrs", lambda obs: lean(obs.T), vectorised=True).shape((), batch, moment, key)[1]
        np.testing.assert_allclose(alone.reward, together.reward, rtol=1e-5)


def test_built_in_potentials_are_the_default_on_cartpole():
    for method, name in (("pbrs", "upright"), ("pba", "push"), ("dynamic-pbrs", "fading")):
        assert complete(Config(method=method)).potential == name
    obs = np.array([0.0, 0.0, 12 * np.pi / 180, 0.0])
    assert given_potential("upright").fn(obs) == pytest.approx(0.0, abs=1e-6)
    assert given_potential("upright").fn(obs * [0, 0, 0.5, 0]) == pytest.approx(0.075)
    assert given_potential("upright").fn(np.array([0.0, 0.0, -obs[2], 4 * obs[2]])) == pytest.approx(0.1)
    assert given_potential("push").fn(obs, 1) == pytest.approx(0.1)
    assert given_potential("push").fn(obs, np.array([-0.2])) == 0.0
    assert given_potential("fading").fn(np.zeros(4), 200_000) == pytest.approx(0.05)


def test_an_agent_with_a_potential_of_its_own_is_saved_and_asks_for_it_again(tmp_path):
    """In an environment that is stepped from Python, with an action."""
    own = Potential("own", lambda obs, action: -float(abs(obs[2])) + 0.1 * float(action[0]))
    agent = bipars.BiPaRS("Pendulum-v1", method="pba", potential=own, ppo=TINY, evaluation_episodes=1).learn(200)
    agent.save(tmp_path / "agent")
    with pytest.raises(UsageError, match="trained with a potential of your own, 'own'"):
        bipars.BiPaRS.load(tmp_path / "agent")
    with pytest.raises(UsageError, match="shapes by a potential; it has no weights"):
        agent.shaped_env(gymnasium.make("Pendulum-v1"))
    again = bipars.BiPaRS.load(tmp_path / "agent", potential=own)
    obs = np.array([0.3, -0.8, 1.0], np.float32)
    assert again.predict(obs, deterministic=True) == agent.predict(obs, deterministic=True)
    again.learn(200)
    assert again.num_timesteps == 400
    assert again.metrics[-1]["potential"] < 0
