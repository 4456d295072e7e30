"""What theory promises of potentials, exactly, on small MDPs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.objective import ClippedObjective, Samples, surrogate
from bipars.shaping.potential_based import potential_difference
from tabular import HORIZON, STATES, TRUE, every_episode, exact_return, seen, table_policy
from transitions import GAMMA


def tabular_gradient(shaping, correction=0.0):
    """The policy gradient of rewards r + F over every episode of `tabular`, times the length of an episode."""
    policy = table_policy()
    obs, action, reward, _ = every_episode()
    flat = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
    returns = jnp.cumsum((reward + shaping)[::-1], axis=0)[::-1] + correction
    obs = seen(obs[..., 0], obs[..., 1])
    samples = Samples(flat(obs), flat(action), policy.log_prob(flat(obs), flat(action)), flat(returns))
    gradient = jax.grad(surrogate)(policy, samples, samples.modified_advantage, ClippedObjective(0.2))
    return HORIZON * as_table(gradient)


def as_table(policy):
    return np.asarray(policy.net.layers[0].weight).reshape(HORIZON, STATES, 2)


def tabular_ends(table):
    """Phi at both ends of every transition of every episode, from a table of time, state and action."""
    obs, action, _, _ = every_episode()
    now = table[obs[..., 0], obs[..., 1], action]
    return now, jnp.roll(now, -1, axis=0), jnp.zeros(action.shape, bool).at[-1].set(True)


TABLES = {
    "pbrs": lambda key: jnp.broadcast_to(jax.random.normal(key, (1, STATES, 1)), (HORIZON, STATES, 2)),
    "dynamic-pbrs": lambda key: jnp.broadcast_to(jax.random.normal(key, (HORIZON, STATES, 1)), (HORIZON, STATES, 2)),
    "pba": lambda key: jnp.broadcast_to(jax.random.normal(key, (1, STATES, 2)), (HORIZON, STATES, 2)),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", TABLES)
@pytest.mark.parametrize("seed", range(3))
def test_a_potential_does_not_change_the_policy_gradient(method, seed):
    """Of the exact return, whatever the potential; advice needs its correction for it."""
    true = as_table(jax.grad(lambda p: exact_return(p, TRUE))(table_policy()))
    now, following, terminated = tabular_ends(10.0 * TABLES[method](jax.random.key(seed)))
    shaping = potential_difference(now, following, terminated, 1.0)
    np.testing.assert_allclose(tabular_gradient(shaping, now if method == "pba" else 0.0), true, atol=1e-12)
    if method == "pba":
        assert np.abs(tabular_gradient(shaping) - true).max() > 0.1


@pytest.mark.usefixtures("float64")
def test_a_plain_term_does_change_the_policy_gradient():
    true = as_table(jax.grad(lambda p: exact_return(p, TRUE))(table_policy()))
    assert np.abs(tabular_gradient(every_episode()[3]) - true).max() > 0.1
    assert np.abs(tabular_gradient(jnp.zeros(())) - true).max() < 1e-12


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seed", range(5))
def test_the_best_policy_stays_the_best_under_every_potential_and_not_under_a_harmful_term(seed):
    """Q-iteration on a random MDP with terminations; potentials are ten times the rewards."""
    rng = np.random.default_rng(seed)
    states, actions = 6, 3
    transition = rng.dirichlet(np.ones(states + 1), (states, actions))  # the last one terminates
    reward = rng.normal(size=(states, actions))
    terminated = np.arange(states + 1) == states

    def best(shaping, choice):
        """Q~ and the greedy actions by `choice(Q~)`, where `shaping(a')` is F of (s, a, s') for next actions a'."""
        q = np.zeros((states, actions))
        for _ in range(400):
            greedy = np.append(choice(q).argmax(1), 0)
            value = np.append(q[np.arange(states), greedy[:-1]], 0.0)
            q = (transition * (reward[..., None] + shaping(greedy) + GAMMA * value)).sum(-1)
        return q, choice(q).argmax(1)

    def differences(table):
        """F from Phi(s, a), the last state's being arbitrary: it must not matter."""

        def shaping(greedy):
            following = np.broadcast_to(table[np.arange(states + 1), greedy], transition.shape)
            now = np.broadcast_to(table[:states, :, None], transition.shape)
            return np.asarray(potential_difference(now, following, terminated, GAMMA))

        return shaping

    plain = lambda q: q  # noqa: E731
    q, policy = best(lambda _: 0.0, plain)
    by_state = np.repeat(10 * rng.normal(size=(states + 1, 1)), actions, axis=1)
    shaped, found = best(differences(by_state), plain)
    np.testing.assert_array_equal(found, policy)
    np.testing.assert_allclose(shaped, q - by_state[:states], atol=1e-8)

    by_action = 10 * rng.normal(size=(states + 1, actions))
    shaped, found = best(differences(by_action), lambda q: q + by_action[:states])
    np.testing.assert_array_equal(found, policy)
    np.testing.assert_allclose(shaped, q - by_action[:states], atol=1e-8)
    assert (shaped.argmax(1) != policy).any()  # without the correction the policy is another

    harmful = np.where(np.arange(actions) == policy[:, None], -10.0, 0.0)[..., None]
    _, found = best(lambda _: np.broadcast_to(harmful, transition.shape), plain)
    assert (found != policy).any()


@pytest.mark.usefixtures("float64")
def test_no_policy_gains_on_another_by_a_potential_that_changes_with_time():
    """All 27 deterministic policies of a random MDP, over 30 steps with a new random potential at each."""
    rng = np.random.default_rng(0)
    states, actions, steps = 3, 3, 30
    transition, reward = rng.dirichlet(np.ones(states), (states, actions)), rng.normal(size=(states, actions))
    potential = 10 * rng.normal(size=(steps + 1, states))

    def value(policy, shaped):
        total, at = np.zeros(states), np.arange(states)
        for time in reversed(range(steps)):
            ends = np.broadcast_to(time == steps - 1, (states, states))
            now, following = potential[time][:, None], np.broadcast_to(potential[time + 1], (states, states))
            extra = np.asarray(potential_difference(now, following, ends, GAMMA)) if shaped else 0.0
            total = (transition[at, policy] * (reward[at, policy][:, None] + extra + GAMMA * total)).sum(-1)
        return total

    policies = [np.array(p) for p in itertools.product(range(actions), repeat=states)]
    gained = np.array([value(p, True) - value(p, False) for p in policies])
    np.testing.assert_allclose(gained, np.broadcast_to(-potential[0], gained.shape), atol=1e-9)
