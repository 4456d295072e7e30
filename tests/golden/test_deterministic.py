"""DDPG and its options: targets by hand, what is remembered, and units."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bipars
from bipars.lower.ddpg import follow, smoothed, td_target
from bipars.lower.replay import Replay, Transitions, Units, bytes_per_transition
from bipars.methods import METHODS
from bipars.nets.deterministic import ExploringPolicy, init_deterministic
from bipars.nets.mlp import ravel
from bipars.program import build, complete, configure, preset
from bipars.rollout.batch import Batch
from bipars.settings.config import Config, DDPGConfig, DDPGUpperConfig, WeightConfig
from problems import assert_same

TINY = DDPGConfig(
    policy_hidden=(8,), value_hidden=(8, 8), num_envs=4, update_period=40, gradient_steps=4, batch_size=16,
    warmup_steps=40,
)  # fmt: skip


def tiny(method="ddpg-mgl", rounds=6, second_order="none", **changes):
    settings = Config(
        env="cartpole-continuous",
        terms=("harmful", "beneficial"),
        method=method,
        steps=40 * rounds,
        evaluation_episodes=2,
        checkpoint_every=2,
        weights=WeightConfig(hidden=(3,)),
        ddpg=replace(TINY, **changes),
        ddpg_upper=DDPGUpperConfig(second_order=second_order),
    )
    return complete(settings)


def test_targets_by_hand():
    """Nothing follows a termination; a truncated episode is worth what follows it; of twins the smaller counts."""
    reward, terminated = jnp.array([1.0, -1.0, 0.5]), jnp.array([False, True, False])
    one = td_target(reward, [jnp.array([2.0, 9.0, -4.0])], terminated, 0.9)
    np.testing.assert_allclose(one, [1 + 1.8, -1.0, 0.5 - 3.6], rtol=1e-6)
    two = td_target(reward, [jnp.array([2.0, 9.0, -4.0]), jnp.array([1.0, -9.0, 6.0])], terminated, 0.9)
    np.testing.assert_allclose(two, [1 + 0.9, -1.0, 0.5 - 3.6], rtol=1e-6)


def test_smoothing_by_hand():
    action, noise = jnp.array([0.0, 0.9, -0.2]), jnp.array([1.0, 2.0, -9.0])
    np.testing.assert_allclose(smoothed(action, noise, 0.2), [0.2, 1.0, -0.7], rtol=1e-6)
    np.testing.assert_array_equal(smoothed(action, noise, 0.0), action)


def test_target_networks_follow():
    np.testing.assert_allclose(follow(jnp.array([1.0]), jnp.array([3.0]), 0.25), [1.5])


def some_rows():
    """Transitions of which every third terminates; one that was cut off is stored as one that goes on."""
    keys = jax.random.split(jax.random.key(1), 5)
    obs, next_obs, terms = (jax.random.normal(k, (40, size)) for k, size in zip(keys, (4, 4, 2), strict=False))
    action = jax.random.uniform(keys[3], (40, 1), minval=-1.0, maxval=1.0)
    return Transitions(obs, action, next_obs, jax.random.normal(keys[4], (40,)), terms, jnp.arange(40) % 3 == 0)


@pytest.mark.parametrize(("method", "td3"), [("ddpg-ns", False), ("ddpg-em", True), ("ddpg-mgl", False)])
def test_the_loops_critics_learn_towards_these_targets(method, td3):
    changes = {"twin_critics": True, "policy_delay": 2, "target_noise": 0.3} if td3 else {}
    algorithm = build(tiny(method, **changes)).algorithm
    state = algorithm.init_networks(jax.random.key(0), None, None)
    unit, size = jnp.array([0.5, 0.1]), 3.0
    learner, weights = state.learner._replace(units=Units(jnp.asarray(size), unit)), state.weights
    # Target networks that are not the networks, so that a mistake of one for the other shows.
    shake = lambda tree: jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), tree)  # noqa: E731
    learner = learner._replace(target_policy=shake(learner.target_policy), target_critics=shake(learner.target_critics))
    data, learns, em = some_rows(), method != "ddpg-ns", method == "ddpg-em"

    @jax.jit
    def both(noise):
        after, log = algorithm.lower.critic_step(learner, weights, data, noise)
        _, later = algorithm.lower.critic_step(
            after._replace(target_critics=learner.target_critics, target_policy=learner.target_policy),
            weights, data, noise,
        )  # fmt: skip
        z, next_z = weights(data.obs, data.action) / unit, weights(data.next_obs, data.action) / unit
        reward, terms, alive = data.reward / size, data.terms * unit / size, 1 - data.terminated
        seen = jnp.concatenate([data.next_obs, next_z * unit], -1) if em else data.next_obs
        smoothing = jnp.clip(0.3 * noise.smoothing, -0.75, 0.75) if td3 else 0.0
        next_action = jnp.clip(learner.target_policy(seen) + smoothing, -1, 1)

        def outputs(critics, obs, action):
            return jnp.stack([c.net(jnp.concatenate([obs, action], -1)) for c in critics])

        def error(now, target):
            return jnp.sum(jnp.mean((now - target) ** 2, axis=1))

        q = outputs(learner.critics.base, data.obs, data.action)[..., 0]
        next_q = outputs(learner.target_critics.base, data.next_obs, next_action)[..., 0]
        assert len(q) == 1 + td3
        shaped = reward + (z * terms).sum(-1)
        if not learns:
            return list(log.values()), list(later.values()), [error(q, shaped + 0.99 * alive * next_q.min(0))]
        added = outputs(learner.critics.added, data.obs, data.action)
        next_added = outputs(learner.target_critics.added, data.next_obs, next_action)
        now = q + added[..., 0] + (z * added[..., 1:]).sum(-1)
        then = next_q + next_added[..., 0] + (next_z * next_added[..., 1:]).sum(-1)
        values = jnp.where((then[0] <= then[-1])[:, None], next_added[0, :, 1:], next_added[-1, :, 1:])
        expected = [
            error(now, shaped + 0.99 * alive * then.min(0)),
            error(added[..., 1:], terms + 0.99 * alive[:, None] * values),
            error(q, reward + 0.99 * alive * next_q.min(0)),
        ]
        return list(log.values()), list(later.values()), expected

    noise = algorithm.lower.draw_noise(jax.random.key(3), (40,))
    assert (noise.shift is not None) == em
    found, later, expected = both(noise)
    assert len(learner.critics.added) == learns * (1 + td3)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert sum(later) < sum(found)


def test_the_true_critic_learns_from_true_rewards_alone():
    """Q is a part of Q~, but what the terms are worth must not leak into it."""
    algorithm = build(tiny()).algorithm
    state = algorithm.init_networks(jax.random.key(0), None, None)
    noise = algorithm.lower.draw_noise(jax.random.key(3), (40,))
    plain = some_rows()
    steps = [
        algorithm.lower.critic_step(state.learner, state.weights, rows, noise)[0].critics
        for rows in (plain, plain._replace(terms=9 * plain.terms))
    ]
    jax.tree.map(np.testing.assert_array_equal, steps[0].base, steps[1].base)
    assert not np.array_equal(steps[0].added[0].net.layers[0].weight, steps[1].added[0].net.layers[0].weight)


def test_units_are_the_sizes_of_what_was_experienced():
    replay = Replay.empty(10, 2, 1, 2).add(batch_of([3, -3, 3, 3]))
    units = Units.measured(replay)
    np.testing.assert_allclose(units.reward, 3.0)
    np.testing.assert_allclose(units.weights, [0.1, 0.1])
    small = replay._replace(rows=replay.rows._replace(terms=replay.rows.terms * jnp.array([1e-3, 0.0])))
    np.testing.assert_allclose(Units.measured(small).weights, [1.0, 1.0])
    nothing = replay._replace(rows=replay.rows._replace(reward=jnp.zeros(10)))
    np.testing.assert_allclose(Units.measured(nothing).reward, 1.0)
    odd = replay._replace(rows=replay.rows._replace(reward=replay.rows.reward / 300, terms=replay.rows.terms * 0))
    np.testing.assert_allclose(Units.measured(odd).weights, [1.0, 1.0])
    huge = replay._replace(rows=replay.rows._replace(terms=replay.rows.terms * 1e20))
    np.testing.assert_allclose(Units.measured(huge).weights, [1e-21, 1e-21], rtol=1e-4)
    rows = units.of(replay.rows)
    z = jnp.array([0.2, -0.7])
    modified = rows.reward + (z / units.weights * rows.terms).sum(-1)
    np.testing.assert_allclose(modified * 3.0, replay.rows.reward + (z * replay.rows.terms).sum(-1), atol=1e-5)


@pytest.mark.parametrize("method", ["ddpg-mgl", "ddpg-imgl"])
def test_it_makes_no_difference_in_which_units_a_large_term_is_given(method):
    """Terms 1024 times as large whose weights start 1024 times as small: the same policy.

    To the last bit, as long as XLA rounds alike in two programs that differ in a constant, which it does not promise.
    """
    large, huge = 16.0, 16.0 * 1024
    learned = []
    for size in (large, huge):
        config = tiny(method)
        config = replace(config, weights=replace(config.weights, initial=large / size))
        algorithm = build(complete(config)).algorithm
        state = algorithm.init(jnp.uint32(0))
        _, batch = algorithm.sampler.run(algorithm.acting(state), state.env, jax.random.key(1))
        batch = batch._replace(reward=batch.obs[..., 0], terms=size * batch.obs[..., :2])
        learner, data = algorithm.lower.prepare(state.learner, state.weights, batch, 0.0)
        upper, learner, _ = algorithm.upper.update(state.upper, learner, data, jax.random.key(2))
        learned.append((ravel(learner.policy), size * upper.weights(batch.obs, None), learner.units))
    assert float(learned[0][2].weights.max()) < 1
    for one, other in zip(learned[0][:2], learned[1][:2], strict=True):
        assert_same(one, other, 1e-6)


def test_units_are_measured_once_when_the_warm_up_is_over():
    program = build(tiny(rounds=6, warmup_steps=160))  # by then, some pole has fallen
    state, units = program.init(0), []
    for _ in range(6):
        state, _ = program.iterate(state, 0)
        units.append(np.asarray(state.learner.units.reward))
    assert units[0] == units[1] == units[2] == 1
    assert units[3] != 1
    assert units[3] == units[4] == units[5]
    np.testing.assert_array_equal(state.weights.range.unit, state.learner.units.weights)


def batch_of(values):
    """A batch whose every number tells which transition it belongs to."""
    x = jnp.asarray(values, float).reshape(-1, 2)
    wide = jnp.stack([x, -x], axis=-1)
    return Batch(wide, x[..., None], x, wide + 0.5, x, x % 2 == 0, x > 0, wide * 10, jnp.zeros((), bool))


def test_the_replay_keeps_the_newest_and_never_mixes_two_transitions():
    replay = Replay.empty(10, 2, 1, 2)
    for first in (0, 6, 12):
        replay = replay.add(batch_of(range(first, first + 6)))
    assert int(replay.added) == 18
    kept = np.asarray(replay.rows.reward)
    assert sorted(kept) == list(range(8, 18))
    np.testing.assert_array_equal(replay.rows.obs, np.stack([kept, -kept], -1))
    np.testing.assert_array_equal(replay.rows.next_obs, np.stack([kept, -kept], -1) + 0.5)
    np.testing.assert_array_equal(replay.rows.terms, 10 * np.stack([kept, -kept], -1))
    np.testing.assert_array_equal(replay.rows.action[:, 0], kept)
    np.testing.assert_array_equal(replay.rows.terminated, kept % 2 == 0)


def test_only_what_was_experienced_is_drawn():
    replay = Replay.empty(100, 2, 1, 2).add(batch_of(range(1, 7)))
    drawn = replay.at(replay.draw(jax.random.key(0), (500,))).reward
    assert set(np.asarray(drawn).tolist()) == {1, 2, 3, 4, 5, 6}


def test_warm_up_acts_at_random_and_learns_nothing():
    program = build(tiny(rounds=4, warmup_steps=80))
    state = program.init(0)
    first, stats = program.iterate(state, 0)
    assert stats.log["true_critic_loss"] == 0
    jax.tree.map(np.testing.assert_array_equal, first.learner.critics, state.learner.critics)
    actions = np.asarray(first.learner.replay.rows.action)[:40, 0]
    assert actions.min() < -0.7
    assert actions.max() > 0.7
    second, stats = program.iterate(first, 0)
    assert stats.log["true_critic_loss"] > 0
    assert not np.allclose(second.learner.policy.net.layers[0].weight, state.learner.policy.net.layers[0].weight)


def test_exploration_is_noise_around_the_policy():
    policy, _ = init_deterministic(jax.random.key(0), TINY, 4, 1, 0, None)
    exploring = ExploringPolicy(policy, jnp.asarray(0.3), jnp.asarray(False))
    obs = jnp.zeros((4000, 4))
    action = exploring.sample(obs, exploring.draw_noise(jax.random.key(0), (4000,)))
    assert np.std(action) == pytest.approx(0.3, rel=0.1)
    np.testing.assert_array_equal(exploring.mode(obs), policy(obs))


def test_imgl_with_a_constant_critic_starts_every_round_with_one_direct_term():
    """Without it, h would stay 0 for ever."""
    program = build(tiny("ddpg-imgl", second_order="constant-critic"))
    state = program.init(0)
    for _ in range(3):
        state, stats = program.iterate(state, 0)
        if int(state.round) > 1:
            assert stats.log["weight_gradient_norm"] > 0
            assert np.abs(state.upper.estimator).max() > 0


def test_an_agent_in_an_environment_stepped_from_python():
    """Pendulum's actions reach from -2 to 2."""
    agent = bipars.BiPaRS("Pendulum-v1", terms=["torque"], method="ddpg-mgl", ddpg=TINY, evaluation_episodes=1)
    agent.learn(120)
    obs = np.zeros((200, 3), np.float32)
    action, _ = agent.predict(obs)
    assert action.shape == (200, 1)
    assert np.abs(action).max() <= 2
    assert np.std(action) > 0.1
    assert np.std(agent.predict(obs, deterministic=True)[0]) == 0
    assert agent.weights(obs, action).shape == (200, 1)
    # All the transitions of both episodes' middles: never terminated, each the start of the next.
    replay = agent._state.learner.replay
    assert int(replay.added) == 120
    assert not np.asarray(replay.rows.terminated).any()
    np.testing.assert_array_equal(replay.rows.next_obs[:36], replay.rows.obs[4:40])


def test_weights_leave_with_their_unit(tmp_path):
    large = bipars.RewardTerm("large", lambda obs, action, next_obs, info: 50.0 * obs[0])
    agent = bipars.BiPaRS("Pendulum-v1", terms=[large], method="ddpg-mgl", ddpg=TINY, evaluation_episodes=1).learn(80)
    unit = agent._state.weights.range.unit
    assert 0 < unit[0] < 0.5
    z = agent.weight_function()
    again = bipars.LearnedWeightFunction.load(z.save(tmp_path / "weights.safetensors"))
    obs, action = np.array([[1.0, 0.0, 2.0], [0.2, 0.9, -1.0]], np.float32), np.zeros((2, 1), np.float32)
    np.testing.assert_array_equal(again(obs, action), z(obs, action))
    np.testing.assert_allclose(z(obs, action), agent._state.weights.at_state(obs), rtol=1e-4)


def test_saved_agents_go_on_with_what_they_remember(tmp_path):
    agent = bipars.BiPaRS("cartpole-continuous", ["harmful"], "ddpg-em", ddpg=TINY, evaluation_episodes=1).learn(80)
    again = bipars.BiPaRS.load(agent.save(tmp_path / "agent"))
    jax.tree.map(np.testing.assert_array_equal, again._state.learner.replay, agent._state.learner.replay)
    assert agent.learn(40).metrics[-1] == again.learn(40).metrics[-1]


def test_the_default_capacity_keeps_checkpoints_small():
    for env, terms in (("cartpole-continuous", ("harmful",)), ("HalfCheetah-v5", ("torque",)), ("Humanoid-v5", ())):
        config = complete(configure({"env": env, "terms": terms, "method": "ddpg", "steps": 10**6}))
        sizes = {"cartpole-continuous": (4, 1, 1), "HalfCheetah-v5": (17, 6, 1), "Humanoid-v5": (348, 17, 0)}[env]
        replay = jax.eval_shape(lambda sizes=sizes, config=config: Replay.empty(config.ddpg.replay_capacity, *sizes))
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(replay.rows))
        assert size == config.ddpg.replay_capacity * bytes_per_transition(*sizes)
        assert 40 * 2**20 < size <= 64 * 2**20


def test_the_method_decides_which_learner_it_trains():
    for name, row in METHODS.items():
        assert isinstance(preset("cartpole-continuous", name).lower, DDPGConfig) == row.deterministic
