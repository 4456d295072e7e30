"""Vector environments of the user's own, observations that are no numbers, images, and actions without bounds."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import bipars
from bipars.envs.vector_env import VectorEnvironment
from bipars.errors import BiparsError, EnvError, UsageError
from bipars.rollout.host_sampler import HostSampler
from bipars.terms.term import RewardTerm
from bipars.terms.true_reward import TrueReward
from envs_of_others import Counter, Push, quick

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
every_mode = pytest.mark.parametrize("mode", MODES, ids=[mode.value for mode in MODES])


class Fixed:
    """Acts with the middle of the box, and says so with certainty."""

    def draw_noise(self, key, shape):
        return np.zeros((*shape, 1), np.float32)

    def sample(self, obs, noise):
        return noise

    def mode(self, obs):
        return np.zeros((len(obs), 1), np.float32)

    def log_prob(self, obs, action):
        return action[..., 0]


jax.tree_util.register_pytree_node(Fixed, lambda fixed: ((), None), lambda about, parts: Fixed())


def lives(*each, space="box", mode=AutoresetMode.NEXT_STEP):
    """Counters that live so long."""
    return SyncVectorEnv([lambda life=life: Counter(life, space=space) for life in each], autoreset_mode=mode)


def sampler(vector, terms=(), true_reward="env", steps=12, episodes=2):
    made = VectorEnvironment(vector)
    return HostSampler(lambda count: made, terms, TrueReward(true_reward), made.num_envs, steps, episodes, 10**9)


@every_mode
@pytest.mark.parametrize("space", ["box", "dict", "tuple"])
def test_no_step_between_two_episodes_is_learned_from(mode, space):
    """Episodes of 3, 5 and 12 steps: every row is a real transition, whichever way the next one is begun."""
    terms = (RewardTerm.from_info("time"), RewardTerm("clock", lambda o, a, n, info: info["time"] + info["action"]))
    w = sampler(lives(3, 5, 12, space=space, mode=mode), terms)
    state, batch = w.run(Fixed(), w.reset(jax.random.key(0)), jax.random.key(1))
    time = np.asarray(batch.obs)[..., 1]
    np.testing.assert_array_equal(time[:, 0], np.arange(12) % 3)
    np.testing.assert_array_equal(time[:, 1], np.arange(12) % 5)
    np.testing.assert_array_equal(time[:, 2], np.arange(12))
    np.testing.assert_array_equal(batch.next_obs[..., 1], time + 1)
    np.testing.assert_array_equal(batch.obs[..., 0], batch.next_obs[..., 0])  # of one episode
    np.testing.assert_array_equal(batch.terminated, time + 1 == [3, 5, 12])
    np.testing.assert_array_equal(batch.reward, 10 * (time + 1))
    np.testing.assert_array_equal(batch.terms[..., 0], time + 1)
    np.testing.assert_array_equal(batch.terms[..., 1], time + 2)  # the middle of -2 and 4 is 1
    _, batch = w.run(Fixed(), state, jax.random.key(2))
    assert not batch.restarted
    np.testing.assert_array_equal(batch.next_obs[..., 1], np.asarray(batch.obs)[..., 1] + 1)


@every_mode
def test_evaluations_take_turns_where_there_are_fewer_environments(mode):
    w = sampler(lives(3, 5, mode=mode), episodes=3, true_reward="info:time")
    state = w.reset(jax.random.key(0))
    evaluation = w.evaluate(Fixed(), jax.random.key(9))
    assert evaluation.length.tolist() == [3, 5, 3]
    assert evaluation.true_return.tolist() == [6.0, 15.0, 6.0]
    assert float(evaluation.action_size) == 1.0
    _, batch = w.run(Fixed(), state, jax.random.key(1))  # in the environments that were evaluated: they begin anew
    assert batch.restarted
    assert np.asarray(batch.obs)[0, :, 1].tolist() == [0, 0]


def test_a_vector_environment_and_a_function_that_makes_one_are_trained_in(tmp_path):
    """Both entry points of Gymnasium's CartPole: written for many at once, and many side by side."""
    vector = gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")
    agent = quick(vector, "noise", ppo={"num_envs": 4}).learn(128)
    assert agent.config.env == "CartPole-v1"
    assert agent.metrics[-1]["evaluation_length"] > 5
    agent.save(tmp_path / "agent")
    assert bipars.BiPaRS.load(tmp_path / "agent", env=vector).learn(64).num_timesteps == 192
    agent.close()
    vector.reset()  # a person's own stays open

    def make(num_envs):
        return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")

    counts = []
    agent = quick(lambda num_envs: counts.append(num_envs) or make(num_envs), "noise").learn(64)
    assert counts == [1, 2, 2, 1]  # the trial, two to train in, two to evaluate in, the report's episode
    assert agent.metrics[-1]["evaluation_length"] > 5


def test_the_number_of_environments_is_the_vector_environments_own():
    vector = SyncVectorEnv([Push] * 16)
    assert bipars.BiPaRS(vector, "noise").config.ppo.num_envs == 16
    with pytest.raises(UsageError, match=r"has 16 environments; num_envs is 2. Set it: ppo={'num_envs': 16}"):
        quick(vector)
    with pytest.raises(UsageError, match="has 3 environments; num_envs is 2"):
        quick(lambda: SyncVectorEnv([Push] * 3))
    with pytest.raises(UsageError, match="vector is 'sync', but environment 'SyncVectorEnv' is a vector environment"):
        quick(vector, vector="sync", ppo={"num_envs": 16})
    with pytest.raises(UsageError, match="returned 'no environment'; expected a gymnasium.Env"):
        quick(lambda: "no environment")


class Broken(VectorEnv):
    """Breaks one promise."""

    num_envs = 2
    single_observation_space = spaces.Box(-1, 1, (1,), np.float32)
    single_action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, mode=AutoresetMode.SAME_STEP, **wrong):
        self.metadata, self.wrong = {"autoreset_mode": mode}, wrong

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        good = {"obs": np.zeros((2, 1)), "reward": np.zeros(2), "terminated": np.zeros(2, bool)}
        return *(good | self.wrong).values(), np.zeros(2, bool), {}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"obs": np.zeros((2, 3))}, "step.. breaks its observation space: it returned .2, 3. numbers, expected .2, 1."),
        ({"reward": 1.0}, "returned reward array.1..; expected one float for each of 2 environments"),
        ({"terminated": np.zeros(2)}, "returned terminated .*expected one bool for each of 2"),
        ({"terminated": np.ones(2, bool)}, "has no 'final_obs', the observation in which it ended; its keys are none"),
    ],
)
def test_a_vector_environment_that_breaks_its_promises_is_named(wrong, message):
    with pytest.raises(EnvError, match=f"environment Broken.*{message}"):
        quick(Broken(**wrong))


class Told(gymnasium.Env):
    """Observes numbers, a sentence, and a graph two levels down."""

    graph = spaces.Graph(spaces.Box(0, 1, (1,)), None)
    inner = spaces.Dict({"graph": graph, "speed": spaces.Box(-1, 1, (1,), np.float32)})
    observation_space = spaces.Dict({"mission": spaces.Text(9), "place": spaces.Box(-1, 1, (2,)), "inner": inner})
    action_space = spaces.Discrete(2)

    def _obs(self):
        nodes = spaces.GraphInstance(np.zeros((1, 1), np.float32), None, None)
        return {
            "mission": "go",
            "place": np.zeros(2, np.float32),
            "inner": {"graph": nodes, "speed": np.ones(1, np.float32)},
        }

    def reset(self, *, seed=None, options=None):
        return self._obs(), {}

    def step(self, action):
        return self._obs(), float(action), True, False, {}


@pytest.mark.parametrize("env", [Told, Told(), lambda: SyncVectorEnv([Told, Told])])
def test_keys_that_are_no_numbers_are_dropped_with_one_warning(env):
    names = r"observation\['inner'\]\['graph'\] \(Graph\), observation\['mission'\] \(Text\): no numbers"
    term = RewardTerm("speed", lambda obs, action, next_obs, info: obs["inner"]["speed"][0] + action)
    with pytest.warns(UserWarning, match=names) as warned:
        agent = quick(env, [term])
    assert len(warned) == 1
    agent.learn(64)
    assert agent.predict(Told()._obs())[0] in (0, 1)
    shaped = agent.shaped_env(Told())
    shaped.reset()
    assert shaped.step(1)[4]["term/speed"] == 2.0


def test_a_dict_of_which_nothing_is_left_is_refused():
    class Silent(Told):
        observation_space = spaces.Dict({"mission": spaces.Text(9)})

    with pytest.raises(UsageError, match=r"observation space\['mission'\] is Text.*not supported"):
        quick(Silent)


class Pictures(gymnasium.Env):
    def __init__(self, shape=(96, 96, 3), dtype=np.uint8, key=None):
        box = spaces.Box(0, 255, shape, dtype)
        self.key, self.observation_space = key, box if key is None else spaces.Dict({key: box})
        self.action_space = spaces.Discrete(2)

    def _obs(self):
        space = self.observation_space
        return {self.key: np.zeros(space[self.key].shape, np.uint8)} if self.key else np.zeros(space.shape, space.dtype)

    def reset(self, *, seed=None, options=None):
        return self._obs(), {}

    def step(self, action):
        return self._obs(), 0.0, True, False, {}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Pictures, "observation is an image: 27,648 inputs, no convolution: use bipars.sb3.ShapedPPO with CnnPolicy"),
        (lambda: Pictures((84, 84)), "7,056 inputs"),
        (lambda: Pictures(key="camera"), r"observation\['camera'\] is an image.*with MultiInputPolicy"),
    ],
)
def test_images_are_warned_of(env, message):
    with pytest.warns(UserWarning, match=message):
        quick(env, ppo={"policy_hidden": (1,), "value_hidden": (1,)})


@pytest.mark.filterwarnings("error")
def test_small_arrays_are_no_images():
    quick(lambda: Pictures((4, 4, 3)))
    quick(lambda: Pictures((40, 40), np.float32), ppo={"policy_hidden": (1,), "value_hidden": (1,)})


def test_the_remedy_for_actions_without_bounds_works():
    class Free(Push):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    with pytest.raises(BiparsError, match="without finite bounds") as refused:
        quick(Free)
    remedy = str(refused.value).partition("env=")[2]
    agent = quick(eval(remedy, {"gymnasium": gymnasium, "make_env": Free}))
    assert abs(agent.learn(64).predict(np.zeros(1, np.float32))[0][0]) <= 1
