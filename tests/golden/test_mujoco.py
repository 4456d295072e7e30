import sys
from itertools import pairwise

import gymnasium
import jax
import numpy as np
import pytest

from bipars.envs.mujoco import MujocoEnvironment
from bipars.envs.mujoco_tasks import TASKS
from bipars.envs.spaces import native_actions
from bipars.errors import UsageError
from bipars.nets.network import Network

pytest.importorskip("mujoco.batch")

SEED = 3
FALLING = ("Hopper-v5", "Walker2d-v5", "Humanoid-v5")


@pytest.fixture(autouse=True)
def log_elsewhere(tmp_path, monkeypatch):
    """Under Gymnasium, MuJoCo leaves a log in the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make():
    made = []

    def build(*args, **options):
        made.append(MujocoEnvironment(*args, **options))
        return made[-1]

    yield build
    for env in made:
        env.close()


class Gymnasiums:
    """The same task by Gymnasium, one by one; episodes start from the random numbers that ours start from."""

    def __init__(self, name, num_envs, **options):
        self.envs = [gymnasium.make(name, disable_env_checker=True, **options) for _ in range(num_envs)]
        self.episodes = [-1] * num_envs

    def reset(self, i):
        self.episodes[i] += 1
        self.envs[i].unwrapped.np_random = np.random.default_rng((SEED, i, self.episodes[i]))
        return self.envs[i].reset()[0].astype(np.float32)


def random_actions(env, count, dtype=np.float32):
    shape = (count, env.num_envs, env.action_size)
    return np.random.default_rng(SEED).uniform(env.action_low, env.action_high, shape).astype(dtype)


def assert_equal_steps(one, other):
    for name, a, b in zip(one._fields, one, other, strict=True):
        if name != "info":
            np.testing.assert_array_equal(a, b, name)
    assert one.info.keys() == other.info.keys()
    for name in one.info:
        np.testing.assert_array_equal(one.info[name], other.info[name], name)


def assert_equals_gymnasium(env, theirs, actions):
    """Every number of every step, to the last bit; returns how many episodes ended by falling and by time."""
    fell = timed_out = 0
    for action in actions:
        step = env.step(action)
        for i, gym in enumerate(theirs.envs):
            obs, reward, terminated, truncated, info = gym.step(action[i])
            np.testing.assert_array_equal(step.next_obs[i], obs.astype(np.float32))
            assert (step.reward[i], step.terminated[i], step.truncated[i]) == (reward, terminated, truncated)
            assert step.info.keys() == info.keys()
            for key, value in info.items():
                np.testing.assert_array_equal(step.info[key][i], value, key)
            expected = theirs.reset(i) if terminated or truncated else step.next_obs[i]
            np.testing.assert_array_equal(step.obs[i], expected)
            fell, timed_out = fell + terminated, timed_out + truncated
    return fell, timed_out


@pytest.mark.parametrize("name", TASKS)
def test_a_thousand_steps_equal_gymnasiums_to_the_last_bit(name, make):
    env, theirs = make(name, 2), Gymnasiums(name, 2)
    assert env.action_space == theirs.envs[0].action_space
    assert env.observation_space == theirs.envs[0].observation_space
    np.testing.assert_array_equal((env.action_low, env.action_high), (env.action_space.low, env.action_space.high))
    obs = env.reset(SEED)
    assert obs.shape == (2, env.observation_size)
    assert obs.dtype == np.float32
    np.testing.assert_array_equal(obs, [theirs.reset(i) for i in range(2)])
    fell, timed_out = assert_equals_gymnasium(env, theirs, random_actions(env, 1000))
    assert (fell > 20, timed_out) == ((True, 0) if name in FALLING else (False, 2))


@pytest.mark.parametrize("name", FALLING)
def test_a_fallen_body_that_struggles_on_equals_gymnasiums(name, make):
    options = {"terminate_when_unhealthy": False, "healthy_reward": 0.5, "ctrl_cost_weight": 0.2}
    env, theirs = make(name, 1, max_steps=300, **options), Gymnasiums(name, 1, max_episode_steps=300, **options)
    env.reset(SEED)
    theirs.reset(0)
    fell, timed_out = assert_equals_gymnasium(env, theirs, random_actions(env, 700, np.float64))
    assert (fell, timed_out) == (0, 2)


@pytest.mark.parametrize("name", TASKS)
def test_states_can_be_set_in_the_middle_of_an_episode(name, make):
    env, theirs = make(name, 1), Gymnasiums(name, 1)
    env.reset(SEED)
    theirs.reset(0)
    assert_equals_gymnasium(env, theirs, random_actions(env, 5))
    inner = theirs.envs[0].unwrapped
    qpos, qvel = inner.init_qpos + 0.01, inner.init_qvel - 0.1
    inner.set_state(qpos, qvel)
    env._qpos[:], env._qvel[:] = qpos, qvel
    env._batch.forward()
    obs = env._remember(env._observe())
    np.testing.assert_array_equal(obs[0], inner._get_obs().astype(np.float32))
    assert_equals_gymnasium(env, theirs, random_actions(env, 30))


@pytest.mark.parametrize("name", TASKS)
def test_a_snapshot_goes_on_to_the_last_bit_elsewhere(name, make):
    env, other = make(name, 3, max_steps=40), make(name, 3, max_steps=40)
    env.reset(SEED)
    other.reset(SEED + 1)
    actions = random_actions(env, 60)
    for action in actions[:25]:
        step = env.step(action)
        other.step(action[::-1])
    saved = env.snapshot()
    expected = [env.step(action) for action in actions[25:]]
    for again in (other, env):
        np.testing.assert_array_equal(again.restore(saved), step.obs)
        for action, follows in zip(actions[25:], expected, strict=True):
            assert_equal_steps(again.step(action), follows)


@pytest.mark.parametrize("name", ["Hopper-v5", "Humanoid-v5"])
def test_neither_threads_nor_companions_change_an_environment(name, make):
    few, many = make(name, 3), make(name, 8, 3)
    actions = random_actions(many, 60)
    np.testing.assert_array_equal(few.reset(SEED), many.reset(SEED)[:3])
    for action in actions:
        step = many.step(action)
        assert_equal_steps(few.step(action[:3]), jax.tree.map(lambda x: x[:3], step))


def random_network(env, hidden, relu, limit):
    """Large enough weights for actions beyond their bounds."""
    rng, sizes = np.random.default_rng(SEED), (env.observation_size, *hidden, env.action_size)
    numbers = lambda *shape: rng.normal(0, 0.5, shape).astype(np.float32)  # noqa: E731
    weights = tuple(numbers(*shape) for shape in pairwise(sizes))
    biases = tuple(numbers(size) for size in sizes[1:])
    mean, std = numbers(sizes[0]), 1 + np.square(numbers(sizes[0]))
    return Network(mean, std, np.float32(limit), weights, biases, relu, np.full(sizes[-1], 0.3, np.float32))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(("threads", "hidden", "relu", "limit"), [(1, (8,), True, 2.0), (3, (5, 4), False, np.inf)])
def test_a_run_is_step_after_step_to_the_last_bit(name, threads, hidden, relu, limit, make):
    """Two runs, so that one goes on from the other; between them a step, so that both ways go on from each other."""
    one, other = make(name, 5, threads, max_steps=70), make(name, 5, max_steps=70)
    network = random_network(one, hidden, relu, limit)
    noise = np.random.default_rng(SEED).normal(size=(150, 5, one.action_size)).astype(np.float32)
    to_native, ended = native_actions(one.action_space), 0
    one.reset(SEED)
    obs = other.reset(SEED)
    for part in np.split(noise, [100]):
        steps = one.run(everywhere(one, network), part)
        for t, action in enumerate(steps.action):
            np.testing.assert_array_equal(steps.obs[t], obs)
            np.testing.assert_allclose(action, act(network, obs) + 0.3 * part[t], rtol=2e-4, atol=2e-4)
            step = other.step(to_native(np.clip(action, -1, 1)))
            for field in ("next_obs", "reward", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(steps, field)[t], getattr(step, field), field)
            assert steps.infos[t].keys() == step.info.keys()
            for key, value in step.info.items():
                np.testing.assert_array_equal(steps.infos[t][key], value, key)
            obs, ended = step.obs, ended + (step.terminated | step.truncated).sum()
        np.testing.assert_array_equal(steps.last, obs)
        assert np.abs(steps.action).max() > 1
        still = np.zeros((5, one.action_size), np.float32)
        step = other.step(still)
        assert_equal_steps(one.step(still), step)
        obs = step.obs
    saved = other.snapshot()
    for key, value in one.snapshot().items():
        np.testing.assert_array_equal(value, saved[key], key)
    assert ended >= 10


def everywhere(env, network):
    return [(network, range(env.num_envs))]


def act(network, obs):
    x = np.clip((obs - network.mean) / network.std, -network.limit, network.limit)
    for weight, bias in zip(network.weights[:-1], network.biases[:-1], strict=True):
        x = x @ weight + bias
        x = np.maximum(x, 0) if network.relu else np.tanh(x)
    return x @ network.weights[-1] + network.biases[-1]


@pytest.mark.parametrize("name", ["Hopper-v5", "Humanoid-v5"])
def test_neither_threads_nor_companions_change_a_run(name, make):
    noise = np.random.default_rng(SEED).normal(size=(60, 5, make(name, 1).action_size)).astype(np.float32)
    runs = []
    for count, threads in ((5, 1), (5, 3), (3, 1)):
        env = make(name, count, threads)
        env.reset(SEED)
        runs.append(env.run(everywhere(env, random_network(env, (64, 64), True, 10.0)), noise[:, :count]))
    for other, count in zip(runs[1:], (5, 3), strict=True):
        np.testing.assert_array_equal(runs[0].action[:, :count], other.action)
        np.testing.assert_array_equal(runs[0].next_obs[:, :count], other.next_obs)


@pytest.mark.parametrize("threads", [1, 3])
def test_two_networks_act_in_environments_of_their_own(threads):
    """Each as if it had acted in all of them."""
    noise = np.random.default_rng(0).normal(size=(30, 6, 3)).astype(np.float32)
    networks = [random_network(MujocoEnvironment("Hopper-v5", 6), (8,), True, 10.0)]
    networks.append(networks[0]._replace(biases=tuple(bias + 0.5 for bias in networks[0].biases)))
    alone = []
    for network in networks:
        env = MujocoEnvironment("Hopper-v5", 6)
        env.reset(1)
        alone.append(env.run(everywhere(env, network), noise).action)
    env = MujocoEnvironment("Hopper-v5", 6, threads)
    env.reset(1)
    both = env.run([(networks[0], range(4)), (networks[1], range(4, 6))], noise).action
    np.testing.assert_array_equal(both[:, :4], alone[0][:, :4])
    np.testing.assert_array_equal(both[:, 4:], alone[1][:, 4:])
    assert not np.array_equal(alone[0], alone[1])


def test_a_network_of_other_sizes_is_refused(make):
    env = make("Hopper-v5", 2)
    env.reset(SEED)
    network, noise = random_network(env, (4, 4), True, 10.0), np.zeros((3, 2, 3), np.float32)
    wrong = {
        "mean": network.mean[:5],
        "weights": (network.weights[0][:8], *network.weights[1:]),
        "biases": (*network.biases[:-1], network.biases[-1][:1]),
        "spread": network.spread[:1],
    }
    for part, array in wrong.items():
        with pytest.raises(UsageError, match="expected .* for 11 observations and 3 actions"):
            env.run(everywhere(env, network._replace(**{part: array})), noise)
    for shape in ((3, 2, 1), (3, 1, 3), (3, 3, 3)):
        with pytest.raises(UsageError, match=r"noise has shape .*; expected \(time, 2, 3\)"):
            env.run(everywhere(env, network), np.zeros(shape, np.float32))


def test_a_run_that_is_interrupted_leaves_the_environments_where_they_were(make):
    env = make("Hopper-v5", 2, 2)
    env.reset(SEED)
    before, asked = env.snapshot(), []

    def starts(envs, episode):
        asked.append(envs)
        if len(asked) > 2:
            raise KeyboardInterrupt
        return type(env)._next_starts(env, envs, episode)

    env._next_starts = starts
    with pytest.raises(KeyboardInterrupt):
        env.run(everywhere(env, random_network(env, (4,), True, 10.0)), np.zeros((100_000, 2, 3), np.float32))
    assert len(asked) < 100
    for name, array in env.snapshot().items():
        np.testing.assert_array_equal(array, before[name], name)


def test_starts_drawn_ahead_are_those_of_the_seed_after_a_reset(make):
    """Every step ends an episode: more starts are needed than are drawn at a time."""
    env = make("Hopper-v5", 2, max_steps=1)
    network = random_network(env, (3,), True, 10.0)
    noise = np.zeros((40, 2, 3), np.float32)

    def starts(seed):
        env.reset(seed)
        return env.run(everywhere(env, network), noise).obs

    once, others = starts(1), starts(2)
    np.testing.assert_array_equal(starts(1), once)
    assert len(np.unique(np.concatenate([once, others]).reshape(160, -1), axis=0)) == 160


def test_episodes_are_drawn_from_the_seed_and_never_repeat(make):
    env = make("Hopper-v5", 4, max_steps=2)

    def starts(seed):
        first, still = env.reset(seed), np.zeros((4, 3))
        return np.concatenate([first, *[env.step(still).obs for _ in range(4)][1::2]])

    once = starts(1)
    np.testing.assert_array_equal(starts(1), once)
    assert len(np.unique(np.concatenate([once, starts(2)]), axis=0)) == 24


def test_an_episode_that_ends_gives_its_last_observation_and_the_first_of_the_next(make):
    env = make("Hopper-v5", 2, max_steps=7)
    env.reset(SEED)
    for count in range(1, 7):
        step = env.step(np.zeros((2, 3)))
        assert not step.truncated.any(), count
        np.testing.assert_array_equal(step.obs, step.next_obs)
    before = step.next_obs
    step = env.step(np.zeros((2, 3)))
    assert step.truncated.all()
    assert not step.terminated.any()
    assert np.abs(step.next_obs - before).max() > 0.01, "the body has been falling"
    assert np.abs(step.obs[:, 1:]).max() <= 0.005 * 1.0001, "a new episode starts almost upright and at rest"


def test_arrays_given_out_do_not_change_later(make):
    env = make("Humanoid-v5", 2)
    env.reset(SEED)
    first, second = (env.step(action) for action in random_actions(env, 2))
    kept = [np.copy(part) for part in (*first[:-1], *first.info.values())]
    env.step(random_actions(env, 1)[0])
    for array, copy in zip((*first[:-1], *first.info.values()), kept, strict=True):
        np.testing.assert_array_equal(array, copy)
    assert not np.array_equal(first.obs, second.obs)


def test_wrong_use_is_explained(make, monkeypatch):
    with pytest.raises(UsageError, match="Did you mean 'Hopper-v5'"):
        make("Hopper-v4", 1)
    with pytest.raises(UsageError, match="unknown option of Swimmer-v5 'healthy_reward'"):
        make("Swimmer-v5", 1, healthy_reward=1.0)
    with pytest.raises(UsageError, match="threads is 0"):
        make("Swimmer-v5", 1, 0)
    env = make("Swimmer-v5", 2)
    with pytest.raises(UsageError, match=r"action has shape \(2,\); expected \(2, 2\)"):
        env.step(np.zeros(2))
    with pytest.raises(UsageError, match="'state' has shape"):
        env.restore(make("Swimmer-v5", 3).snapshot())
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(UsageError, match=r"pip install 'bipars\[mujoco\]'"):
        make("Swimmer-v5", 1)
