"""Potential-based shaping: its arithmetic by hand, what theory promises, and its place in a run."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bipars
from bipars.config import Config, DPBAConfig, PPOConfig
from bipars.envs.base import BoxActions, DiscreteActions, Spaces
from bipars.envs.world import Batch
from bipars.errors import NonFiniteError, TermError, UsageError
from bipars.lower.policies import make_policy
from bipars.lower.ppo import Samples, surrogate
from bipars.methods import find_method
from bipars.program import Objects, build, complete
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import execute
from bipars.shaping.dpba import LearnedPotential, make_potential
from bipars.shaping.given import Potential
from bipars.shaping.given import make_potential as given_potential
from bipars.shaping.potentials import Moment, next_actions, potential_difference
from test_tabular import HORIZON, STATES, TRUE, TablePolicy, every_episode, exact_return

GAMMA = 0.9
ACTIONS = {False: DiscreteActions(2), True: BoxActions(1)}
TINY = PPOConfig(update_period=200, num_envs=4, gradient_steps=3, batch_size=32)


def make_batch(continuous, time=6, envs=3, seed=0):
    """Random transitions of cart-pole's shape; some end, by either cause."""
    keys = jax.random.split(jax.random.key(seed), 6)
    obs = jax.random.normal(keys[0], (time + 1, envs, 4))
    shape = (time, envs, 1) if continuous else (time, envs)
    action = jax.random.normal(keys[1], shape) if continuous else jax.random.randint(keys[1], shape, 0, 2)
    terminated = jnp.zeros((time, envs), bool).at[1, 0].set(True).at[3, 1].set(True)
    done = terminated.at[2, 2].set(True)
    reward, zeros = jax.random.normal(keys[2], (time, envs)), jnp.zeros((time, envs))
    terms = jax.random.normal(keys[3], (time, envs, 2))
    return Batch(obs[:-1], action, zeros, obs[1:], reward, terminated, done, terms, jnp.zeros((), bool))


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


@pytest.mark.parametrize("continuous", [False, True])
def test_the_shaping_of_an_episode_adds_up_to_what_its_first_state_was_worth(continuous):
    """sum gamma^t F = -Phi(s_0, a_0) where the episode terminated, whatever Phi is in between."""
    spaces = Spaces(4, ACTIONS[continuous])
    shaping = LearnedPotential(DPBAConfig(hidden=(5, 4), learning_rate=0.1), replace(TINY, gamma=GAMMA))
    state = shaping.init(jax.random.key(3), spaces)
    policy = make_policy(jax.random.key(1), PPOConfig(), spaces)
    batch = make_batch(continuous)
    key = jax.random.key(2)
    state, advice = shaping.shape(state, batch, Moment(None, policy, None, 0), key)
    potential = np.asarray(state.net(batch.obs, batch.action)[..., 0])
    discount = GAMMA ** np.arange(4)
    assert abs(potential).min() > 1e-3
    np.testing.assert_allclose(discount[:2] @ np.asarray(advice.shaping)[:2, 0], -potential[0, 0], rtol=1e-5)
    np.testing.assert_allclose(discount @ np.asarray(advice.shaping)[:4, 1], -potential[0, 1], rtol=1e-5)
    # A truncated episode keeps the potential of the state it reached.
    last = state.net(batch.next_obs[2, 2], next_actions(policy, batch, jax.random.split(key)[0])[2, 2])[0]
    expected = -potential[0, 2] + GAMMA**3 * last
    np.testing.assert_allclose(discount[:3] @ np.asarray(advice.shaping)[:3, 2], expected, rtol=1e-5)
    assert advice.correction is None


@pytest.mark.parametrize("td_lambda", [0.0, 0.95])
def test_the_learned_potential_is_the_value_of_minus_f_and_its_differences_are_f(td_lambda):
    """A corridor of three states that ends after the third; every sequence of two actions, once each."""
    spaces = Spaces(3, DiscreteActions(2))
    config = DPBAConfig(hidden=(16,), learning_rate=3e-3, td_lambda=td_lambda)
    shaping = LearnedPotential(config, PPOConfig(gamma=GAMMA, gradient_steps=10, batch_size=500))
    term = np.array([[0.2, -0.4], [1.0, 0.0], [-0.3, 0.7]])
    action = jnp.array(list(itertools.product([0, 1], repeat=3))).T
    obs = jnp.broadcast_to(jnp.eye(3)[:, None], (3, 8, 3))
    ends = jnp.zeros((3, 8), bool).at[2].set(True)
    terms = jnp.asarray(term)[jnp.arange(3)[:, None], action][..., None]
    zeros = jnp.zeros((3, 8))
    batch = Batch(obs, action, zeros, jnp.roll(obs, -1, axis=0), zeros, ends, ends, terms, jnp.zeros((), bool))
    moment = Moment(None, make_policy(jax.random.key(1), PPOConfig(), spaces), None, 0)

    def update(state, key):
        state, advice = shaping.shape(state, batch, moment, key)
        return state, (state.net(obs, action)[..., 0], advice.shaping)

    keys = jax.random.split(jax.random.key(2), 500)
    _, later = jax.lax.scan(update, shaping.init(jax.random.key(0), spaces), keys)
    potential, shaped = (np.asarray(x)[-200:].mean(axis=0) for x in later)  # Adam keeps moving about
    expected = np.zeros((3, 2))  # backwards in time, the two next actions equally likely
    expected[2] = -term[2]
    expected[1] = -term[1] + GAMMA * expected[2].mean()
    expected[0] = -term[0] + GAMMA * expected[1].mean()
    for time, a in itertools.product(range(3), [0, 1]):
        taken = np.asarray(action)[time] == a
        np.testing.assert_allclose(potential[time][taken], expected[time, a], atol=0.02)
        np.testing.assert_allclose(shaped[time][taken].mean(), term[time, a], atol=0.02)


def test_the_network_has_one_output_per_discrete_action():
    for actions, inputs, outputs in ((DiscreteActions(2), 4, 2), (BoxActions(1), 5, 1)):
        net = make_potential(jax.random.key(0), (16, 8), Spaces(4, actions))
        sizes = [layer.weight.shape for layer in net.net.layers]
        assert sizes == [(inputs, 16), (16, 8), (8, outputs)]
        assert net.net.activation == "tanh"


def test_the_papers_two_sizes():
    small, large = Config.from_dict({"env": "cartpole"}).dpba, Config.from_dict({"env": "Hopper-v5"}).dpba
    assert (small.hidden, small.learning_rate, small.max_grad_norm) == ((16, 8), 5e-4, None)
    assert (large.hidden, large.learning_rate, large.max_grad_norm) == ((64, 64), 5e-4, 10.0)


def test_metrics_say_what_the_potential_added():
    agent = bipars.BiPaRS("cartpole", terms=["beneficial"], method="dpba", ppo=replace(TINY, update_period=2000))
    agent.learn(10_000)
    row = agent.metrics[-1]
    assert row["potential_loss"] > 0 > row["potential"]  # the value of a term that is never negative, negated
    assert row["potential_shaping"] != 0
    np.testing.assert_allclose(row["modified_return"], row["true_return"] + row["potential_shaping"], rtol=1e-4)
    assert row["weighted_term/beneficial"] == 0 != row["term/beneficial"]


def never():
    return False


@pytest.mark.parametrize("env", ["cartpole", "CartPole-v1"])
def test_a_stopped_run_is_resumed_to_the_same_bytes(env, tmp_path):
    config = complete(
        Config(
            env=env,
            terms=("beneficial",),
            method="dpba",
            total_steps=6 * 200,
            evaluation_episodes=2,
            checkpoint_every=2,
            ppo=replace(TINY, normalise_observations=env == "CartPole-v1"),
        )
    )
    calm = RunDirectory.create(tmp_path / "calm", config)
    assert execute(calm, never)
    stops = iter([False, False, False, True])  # in the middle, at a checkpoint
    stopped = RunDirectory.create(tmp_path / "stopped", config)
    assert not execute(stopped, lambda: next(stops))
    assert len(stopped.metrics) == 4
    assert execute(stopped, never)
    assert stopped.result_file.read_bytes() == calm.result_file.read_bytes()
    assert stopped.metrics_file.read_bytes() == calm.metrics_file.read_bytes()


def test_dpba_without_a_term_is_an_error():
    with pytest.raises(UsageError, match="method 'dpba' learns from reward terms; give at least one"):
        complete(Config(method="dpba"))
    with pytest.raises(UsageError, match="dpba.learning_rate is 0.*positive"):
        DPBAConfig(learning_rate=0.0)


def test_the_correction_takes_the_potential_out_of_the_advantage_again():
    """With lambda = 1 nothing but the critic's error is left of the shaping, and both critics start equal."""
    ppo = replace(TINY, gae_lambda=1.0, gamma=GAMMA)
    advantages = {}
    for name, dpba in (
        ("plain", DPBAConfig(learning_rate=0.1)),
        ("corrected", DPBAConfig(learning_rate=0.1, correct=True)),
    ):
        config = complete(Config(method="dpba", terms=("harmful",), ppo=ppo, dpba=dpba))
        loop = build(config).algorithm
        state = loop.init(jnp.uint32(0))
        _, batch = loop.world.run(loop.acting(state), state.env, jax.random.key(1))
        moment = Moment(loop.world, loop.acting(state), None, state.round)
        _, advice = loop.potential.shape(state.potential, batch, moment, jax.random.key(2))
        terminated = np.asarray(batch.done) & np.asarray(batch.terminated)
        advantages[name] = loop.learn_from(state, batch._replace(advice=advice), batch.terms)[0].modified_advantage
        true = loop.learn_from(state, batch, batch.terms)[0].modified_advantage  # weights are zero
        assert terminated.sum() > 5
    # Rows whose episode terminated inside the batch: their return holds the whole shaping.
    ends = np.flip(np.logical_or.accumulate(np.flip(terminated, 0), 0), 0)
    inside = ends.reshape(-1)

    def correlation(a, b):
        return np.corrcoef(np.asarray(a)[inside], np.asarray(b)[inside])[0, 1]

    assert correlation(advantages["corrected"], true) > 0.999999
    assert correlation(advantages["plain"], true) < 0.99


# Potentials that a person wrote down.


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
    """Just enough of a world."""
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
        moment = Moment(world_of(compiled, continuous), policy, None, jnp.asarray(round))
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
            np.testing.assert_allclose(advice.shaping[time, env], expected, rtol=1e-4, atol=1e-4)
            if method == "pba":
                np.testing.assert_allclose(advice.correction[time, env], now, rtol=1e-4, atol=1e-5)
            else:
                assert advice.correction is None


def test_vectorised_potentials_give_the_same():
    batch, key = make_batch(False), jax.random.key(5)
    for compiled in (True, False):
        moment = Moment(world_of(compiled, False), None, None, jnp.asarray(0))
        alone = shaping_of("pbrs", lean).shape((), batch, moment, key)[1]
        together = shaping_of("pbrs", lambda obs: lean(obs.T), vectorised=True).shape((), batch, moment, key)[1]
        np.testing.assert_allclose(alone.shaping, together.shaping, rtol=1e-5)


# What theory promises, exactly, on a small MDP: every episode of test_tabular's, each once.


def tabular_gradient(shaping, correction=0.0):
    """The policy gradient of rewards r + F over all episodes, times the length of an episode."""
    policy = TablePolicy(jnp.zeros((HORIZON, STATES, 2)))
    obs, action, reward, _ = every_episode()
    flat = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
    returns = jnp.cumsum((reward + shaping)[::-1], axis=0)[::-1] + correction
    obs = obs.astype(float)
    samples = Samples(flat(obs), flat(action), policy.log_prob(flat(obs), flat(action)), flat(returns))
    gradient = jax.grad(surrogate)(policy, samples, samples.modified_advantage, 0.2)
    return np.asarray(HORIZON * gradient.logits)


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
    true = jax.grad(lambda p: exact_return(p, TRUE))(TablePolicy(jnp.zeros((HORIZON, STATES, 2)))).logits
    now, following, terminated = tabular_ends(10.0 * TABLES[method](jax.random.key(seed)))
    shaping = potential_difference(now, following, terminated, 1.0)
    np.testing.assert_allclose(tabular_gradient(shaping, now if method == "pba" else 0.0), true, atol=1e-12)
    if method == "pba":
        assert np.abs(tabular_gradient(shaping) - true).max() > 0.1


@pytest.mark.usefixtures("float64")
def test_a_plain_term_does_change_the_policy_gradient():
    true = jax.grad(lambda p: exact_return(p, TRUE))(TablePolicy(jnp.zeros((HORIZON, STATES, 2)))).logits
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


def test_bad_potentials_are_named_before_training():
    def check(match, fn, method="pbrs", env="cartpole", error=UsageError, vectorised=False):
        with pytest.raises(error, match=match):
            complete(Config(env=env, method=method, potential="p"), Objects(potential=Potential("p", fn, vectorised)))

    check(r"potential 'p' returned shape \(4,\); return a single number", lambda obs: obs)
    check(r"potential 'p' returned shape \(\); return \(2,\)", lambda obs: 1.0, vectorised=True)
    check("potential 'p' is nan on a first observation", lambda obs: jnp.nan)
    check("potential 'p' failed on a first observation: ZeroDivisionError", lambda obs: 1 / 0)
    check(r"cannot be called with \(obs, action\), as method 'pba' does", lambda obs: 1.0, "pba")
    check(r"cannot be called with \(obs\), as method 'pbrs' does", lambda obs, action: 1.0)
    check(r"potential 'p' returned shape \(4,\) at step 0.*return a single number", lambda obs: obs,
          env="CartPole-v1", error=TermError)  # fmt: skip
    check("potential 'p' is inf at step 0", lambda obs: np.inf, env="CartPole-v1", error=NonFiniteError)
    check("potential 'p' failed at step 0: ZeroDivisionError", lambda obs: 1 / 0, env="CartPole-v1", error=TermError)
    with pytest.raises(UsageError, match="unknown potential 'uprigt'.*Did you mean 'upright'"):
        complete(Config(method="pbrs", potential="uprigt"))
    with pytest.raises(UsageError, match="method 'mgl' uses no potential; got 'upright'. Use one of pbrs, pba"):
        complete(Config(method="mgl", terms=("harmful",), potential="upright"))
    with pytest.raises(UsageError, match="method 'pbrs' needs a potential: --potential"):
        complete(Config(env="Pendulum-v1", method="pbrs"))
    with pytest.raises(UsageError, match="potential 'upright' is written for cart-pole"):
        complete(Config(env="Pendulum-v1", method="pbrs", potential="upright"))
    with pytest.raises(UsageError, match=r"potential 'import:nowhere.fn': cannot read 'nowhere.fn': No module"):
        complete(Config(method="pbrs", potential="import:nowhere.fn"))
    with pytest.raises(UsageError, match=r"give the function a name: Potential\('lean', lean\)"):
        bipars.BiPaRS("cartpole", method="pbrs", potential=lean)
    with pytest.raises(UsageError, match="a potential needs a name"):
        Potential("", lean)


def test_a_potential_that_stops_being_a_number_stops_the_run():
    later = Potential("later", lambda obs, step: jnp.where(step > 300, jnp.nan, 0.0))
    agent = bipars.BiPaRS("cartpole", method="dynamic-pbrs", potential=later, ppo=TINY).learn(200)
    with pytest.raises(NonFiniteError, match="the potential's shaping is nan at step"):
        agent.learn(200)


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
