import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from bipars.envs.cartpole import CartPole, advance
from bipars.envs.registry import make_environment
from bipars.errors import UsageError
from bipars.program import complete
from bipars.settings.config import Config

KEY = jax.random.key(0)


def reference_steps(count, seed=0):
    """(state, action, next state, terminated) of Gymnasium's own cart-pole under random actions."""
    env = gymnasium.make("CartPole-v1").unwrapped
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    rows = []
    for _ in range(count):
        state, action = np.array(env.state, np.float64), int(rng.integers(2))
        _, _, terminated, _, _ = env.step(action)
        rows.append((state, action, np.array(env.state, np.float64), terminated))
        if terminated:
            env.reset()
    return [np.array(column) for column in zip(*rows, strict=True)]


def test_physics_equal_gymnasiums_over_ten_thousand_steps():
    state, action, following, terminated = reference_steps(10_000)
    ours = advance(state, 10.0 * (2.0 * action - 1.0), np)
    np.testing.assert_allclose(ours, following, rtol=0, atol=1e-14)
    keys = jax.random.split(KEY, len(state))
    in_jax, reward, fell, *_ = jax.vmap(CartPole().step)(keys, jnp.asarray(state, jnp.float32), jnp.asarray(action))
    np.testing.assert_allclose(in_jax, following, atol=2e-6)
    # Where float32 and float64 fall on two sides of the limit there is nothing to compare.
    clear = np.abs(np.abs(following[:, [0, 2]]) - [2.4, 12 * 2 * np.pi / 360]).min(axis=1) > 1e-5
    np.testing.assert_array_equal(np.asarray(fell)[clear], terminated[clear])
    np.testing.assert_array_equal(reward, np.where(fell, -1.0, 0.0))
    assert terminated.sum() > 300


def test_continuous_action_is_clipped_and_scaled_by_the_force():
    state = jnp.array([0.1, 0.2, 0.03, -0.1])
    env = CartPole(continuous=True, force=10.0)
    full = env.step(KEY, state, jnp.array([1.0])).state
    beyond = env.step(KEY, state, jnp.array([7.0])).state
    np.testing.assert_array_equal(full, beyond)
    np.testing.assert_array_equal(full, CartPole().step(KEY, state, jnp.array(1)).state)
    half = CartPole(continuous=True, force=20.0).step(KEY, state, jnp.array([0.5])).state
    np.testing.assert_allclose(half, full)


@pytest.mark.parametrize("name", ["bipars/CartPole-v0", "bipars/CartPoleContinuous-v0", "cartpole"])
@pytest.mark.filterwarnings("ignore:.*Box observation space.*")
def test_registered_environments_pass_gymnasiums_checker(name):
    env = gymnasium.make(name)
    check_env(env.unwrapped, skip_render_check=True)
    assert env.spec.max_episode_steps == 200


def test_registered_environment_is_the_jax_environment():
    env, ours = gymnasium.make("bipars/CartPoleContinuous-v0"), make_environment("bipars/CartPoleContinuous-v0", {})
    obs, _ = env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(50):
        action = rng.uniform(-1, 1, 1).astype(np.float32)
        state, reward, terminated, *_ = ours.step(KEY, jnp.asarray(obs), jnp.asarray(action))
        obs, their_reward, their_terminated, _, _ = env.step(action)
        np.testing.assert_allclose(state, obs, atol=1e-6)
        assert (float(reward), bool(terminated)) == (their_reward, their_terminated)
        if their_terminated:
            break


def test_bad_environments_are_named():
    with pytest.raises(UsageError, match="unknown environment 'cartpol'.*Did you mean 'cartpole'"):
        complete(Config(env="cartpol"))
    with pytest.raises(UsageError, match="does not take the options.*gravity"):
        make_environment("cartpole", {"gravity": 3})
    with pytest.raises(UsageError, match="force is -1"):
        make_environment("cartpole", {"force": -1})
