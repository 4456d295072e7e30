"""Any Gymnasium environment: transitions, terms, true rewards, restarts."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import bipars
from bipars.envs.gym import GymnasiumEnvironment
from bipars.errors import TermError, UsageError
from bipars.program import complete, configure
from bipars.rollout.host_sampler import HostSampler
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import execute
from bipars.terms.true_reward import TrueReward
from envs_of_others import QUICK, Counter, Push, quick

# Transitions


class Fixed:
    """A policy that always pushes the same."""

    def draw_noise(self, key, shape):
        return jnp.zeros((*shape, 1))

    def sample(self, obs, noise):
        return np.full((*obs.shape[:-1], 1), 0.5, np.float32)

    def mode(self, obs):
        return self.sample(obs, None)

    def log_prob(self, obs, action):
        return jnp.zeros(obs.shape[:-1])


jax.tree_util.register_pytree_node(Fixed, lambda _: ((), None), lambda *_: Fixed())


def sampler(make, terms=(), reward="env", num_envs=3, steps=20, restart_every=10, mode="sync"):
    def host(count):
        return GymnasiumEnvironment(make, count, mode)

    return HostSampler(host, tuple(terms), TrueReward(reward), num_envs, steps, 2, restart_every)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_no_ghost_transitions_and_termination_apart_from_truncation(mode):
    for life, limit in ((7, None), (99, 5)):
        w = sampler(lambda life=life, limit=limit: Counter(life, limit), mode=mode)
        state = w.reset(jax.random.key(0))
        times = []
        for update in range(3):
            state, batch = w.run(Fixed(), state, jax.random.key(update))
            # Every transition is one tick of the same episode; a ghost would be (last time) -> 0 of the next.
            np.testing.assert_array_equal(batch.next_obs[..., 1], batch.obs[..., 1] + 1)
            np.testing.assert_array_equal(batch.next_obs[..., 0], batch.obs[..., 0])
            np.testing.assert_array_equal(batch.reward, 10 * batch.next_obs[..., 1])
            end = life if limit is None else limit
            np.testing.assert_array_equal(batch.done, batch.next_obs[..., 1] == end)
            np.testing.assert_array_equal(batch.terminated, (batch.next_obs[..., 1] == life))
            times.append(np.asarray(batch.obs[..., 1]))
        chain = np.concatenate(times)
        np.testing.assert_array_equal(chain[1:], (chain[:-1] + 1) % end)
        evaluation = w.evaluate(Fixed(), jax.random.key(9))
        assert evaluation.length.tolist() == [end, end]
        assert evaluation.true_return.tolist() == [10 * end * (end + 1) / 2] * 2
        assert float(evaluation.action_size) == 2.5  # 0.5 of the way up from the middle of [-2, 4]
        w.close()


def test_environments_restart_on_schedule_and_after_a_load():
    w = sampler(lambda: Counter(1000), restart_every=2)
    state = w.reset(jax.random.key(0))
    restarted = []
    for update in range(5):
        before = state
        state, batch = w.run(Fixed(), state, jax.random.key(update))
        restarted.append(bool(batch.restarted))
    assert restarted == [False, False, True, False, True]
    loaded = jax.tree.map(np.array, before)  # what a checkpoint gives back
    _, batch = w.run(Fixed(), loaded, jax.random.key(4))
    assert bool(batch.restarted)


# Terms and the true reward


def test_the_same_term_in_numpy_jax_vectorised_and_info():
    terms = [
        bipars.RewardTerm("numpy", lambda obs, action, next_obs, info: obs[1] * action[0] + info["time"]),
        bipars.RewardTerm("jax", lambda obs, action, next_obs, info: jnp.asarray(obs[1] * action[0] + info["time"])),
        bipars.RewardTerm(
            "many", lambda obs, action, next_obs, info: obs[:, 1] * action[:, 0] + info["time"], vectorised=True
        ),
        bipars.RewardTerm.from_info("action"),
    ]
    w = sampler(Counter, terms)
    _, batch = w.run(Fixed(), w.reset(jax.random.key(0)), jax.random.key(1))
    expected = batch.obs[..., 1] * 2.5 + batch.next_obs[..., 1]
    for k in range(3):
        np.testing.assert_allclose(batch.terms[..., k], expected)
    np.testing.assert_allclose(batch.terms[..., 3], 2.5)


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_terms_see_observations_as_the_environment_gives_them(kind):
    def phase(obs, action, next_obs, info):
        clock, phase = (obs["clock"], obs["phase"]) if kind == "dict" else (obs[0], obs[1] - 1)
        assert phase == clock[1] % 3
        return clock[1]

    def many(obs, action, next_obs, info):
        return (obs["clock"] if kind == "dict" else obs[0])[:, 1]

    terms = [bipars.RewardTerm("one", phase), bipars.RewardTerm("many", many, vectorised=True)]
    w = sampler(lambda: Counter(space=kind), terms)
    _, batch = w.run(Fixed(), w.reset(jax.random.key(0)), jax.random.key(1))
    assert batch.obs.shape[-1] == 5
    np.testing.assert_array_equal(batch.terms[..., 0], batch.obs[..., 1])
    np.testing.assert_array_equal(batch.terms[..., 1], batch.obs[..., 1])


def test_true_reward_of_every_kind():
    term = bipars.RewardTerm("time", lambda obs, action, next_obs, info: 3.0 * info["time"])
    expected = {
        "env": lambda time: 10 * time,
        "env-minus-terms": lambda time: 7 * time,
        "info:is_success": lambda time: time == 7,
    }
    for kind, value in expected.items():
        w = sampler(Counter, [term], kind)
        _, batch = w.run(Fixed(), w.reset(jax.random.key(0)), jax.random.key(1))
        np.testing.assert_allclose(batch.reward, value(batch.next_obs[..., 1]))
        evaluation = w.evaluate(Fixed(), jax.random.key(2))
        np.testing.assert_allclose(evaluation.true_return, sum(value(t) for t in range(1, 8)))
    agent = quick(Counter, [term], true_reward=lambda obs, action, next_obs, info: -obs[1])
    agent.learn(64)
    assert agent.metrics[-1]["true_return"] == -21
    assert agent.metrics[-1]["evaluation_return"] == -21
    assert agent.metrics[-1]["term/time"] == 3 * 28


# Agents


def test_an_id_an_instance_and_a_factory_are_the_same_environment():
    term = bipars.RewardTerm("still", lambda obs, action, next_obs, info: -abs(action[0]))
    made = [
        quick("Pendulum-v1", [term]),
        quick(gymnasium.make("Pendulum-v1"), [term]),
        quick(lambda: gymnasium.make("Pendulum-v1"), [term]),
    ]
    rows = [agent.learn(512).metrics[-1] for agent in made]
    np.testing.assert_equal(rows[1], rows[0])
    np.testing.assert_equal(rows[2], rows[0])
    assert np.isfinite(rows[0]["evaluation_return"])


class NoSpec(Push):
    pass


@pytest.mark.filterwarnings("ignore:term")
def test_an_instance_without_a_spec_is_copied():
    agent = quick(NoSpec(), [bipars.RewardTerm("t", lambda obs, action, next_obs, info: 0.0)]).learn(64)
    assert agent.config.env == "NoSpec"
    assert agent.metrics[-1]["episodes"] == 64


@pytest.mark.filterwarnings("ignore:term")
def test_every_term_is_logged_raw_and_weighted_even_at_weight_zero():
    term = bipars.RewardTerm("one", lambda obs, action, next_obs, info: 1.0)
    row = quick(Counter, [term], method="ppo").learn(64).metrics[-1]
    assert (row["term/one"], row["weighted_term/one"], row["weight/one"]) == (7.0, 0.0, 0.0)
    row = quick(Counter, [term], method="ns").learn(64).metrics[-1]
    assert (row["term/one"], row["weighted_term/one"], row["weight/one"]) == (7.0, 7.0, 1.0)


def test_discrete_observations_and_many_discrete_actions():
    class Grid(gymnasium.Env):
        observation_space = spaces.Discrete(5)
        action_space = spaces.MultiDiscrete([2, 3])

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return 2, {}

        def step(self, action):
            assert self.action_space.contains(action)
            return 4, float(action.sum()), True, False, {}

    agent = quick(Grid, [bipars.RewardTerm("first", lambda obs, action, next_obs, info: action[0])]).learn(64)
    action, _ = agent.predict(2, deterministic=True)
    assert Grid.action_space.contains(action)
    actions, _ = agent.policy.predict(np.array([0, 1, 2, 3]))
    assert actions.shape == (4, 2)
    assert agent.weights(2, action).shape == (1,)
    assert agent.weights(np.array([0, 1]), np.array([[0, 1], [1, 2]])).shape == (2, 1)


class Switches(gymnasium.Env):
    """2^40 combinations; the reward is one bit."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.MultiBinary((2, 20))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.zeros(2, np.float32), float(action[0, 3]), True, False, {}


OFF = bipars.RewardTerm("off", lambda obs, action, next_obs, info: -float(action[1, 4]))


def test_choices_of_which_there_are_too_many_to_count_their_combinations(tmp_path):
    agent = quick(Switches, [OFF], ppo={"gradient_steps": 20}).learn(640)
    action, _ = agent.predict(np.zeros(2, np.float32), deterministic=True)
    assert action.shape == (2, 20)
    assert action[0, 3] == 1
    agent.save(tmp_path / "agent")
    loaded = bipars.BiPaRS.load(tmp_path / "agent", env=Switches, terms=[OFF])
    np.testing.assert_array_equal(loaded.predict(np.zeros(2, np.float32), deterministic=True)[0], action)
    assert agent.report(tmp_path / "report.html").path.exists()


@pytest.mark.parametrize("method", ["em", "dpba"])
def test_methods_with_networks_of_their_own_take_many_choices(method):
    action, _ = quick(Switches, [OFF], method=method).learn(64).predict(np.zeros((3, 2), np.float32))
    assert action.shape == (3, 2, 20)


# Saving


def test_saved_statistics_come_back(tmp_path):
    agent = quick("Pendulum-v1").learn(128)
    moments = agent._state.observations
    assert float(moments.size) == 128
    agent.save(tmp_path / "agent")
    loaded = bipars.BiPaRS.load(tmp_path / "agent", env="Pendulum-v1")
    np.testing.assert_array_equal(loaded._state.observations.var, moments.var)
    obs = gymnasium.make("Pendulum-v1").reset(seed=0)[0]
    np.testing.assert_array_equal(agent.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    with pytest.raises(UsageError, match="trained on 'Pendulum-v1', not on 'CartPole-v1'"):
        bipars.BiPaRS.load(tmp_path / "agent", env="CartPole-v1")


# What a reviewer found


class Mixed(Push):
    """Reports a whole number in one episode and a fraction in the next."""

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"bonus": 0 if self.where[0] > 0 else 0.5, "words": "no number"}


def test_info_keeps_the_type_of_every_environment():
    w = sampler(Mixed, [bipars.RewardTerm.from_info("bonus")], num_envs=4)
    _, batch = w.run(Fixed(), w.reset(jax.random.key(0)), jax.random.key(1))
    np.testing.assert_array_equal(batch.terms[..., 0], np.where(batch.obs[..., 0] > 0, 0, 0.5))
    with pytest.raises(TermError, match=r"'words': info\['words'\] is .*no number.*; expected a single number"):
        quick(Mixed, [bipars.RewardTerm.from_info("words")])


def test_two_agents_do_not_share_environments():
    alone = quick("Pendulum-v1").learn(128).metrics
    first = quick("Pendulum-v1").learn(64)
    quick("Pendulum-v1", seed=1).learn(64)
    first.learn(64)
    np.testing.assert_equal(first.metrics, alone)


def test_an_episode_without_end_ends_its_evaluation(monkeypatch):
    monkeypatch.setattr("bipars.rollout.host_sampler.LONGEST", 50)
    w = sampler(lambda: Counter(10**9))
    assert w.evaluate(Fixed(), jax.random.key(0)).length.tolist() == [50, 50]


def test_rarely_evaluated_runs_finish_and_are_plotted(tmp_path):
    from bipars.report.curves import plot_curves
    from bipars.results.summary import summarise_runs, table

    data = {"env": "Pendulum-v1", "terms": ["noise"], "steps": 192, "evaluation_every": 2}
    config = complete(configure(data | {"ppo": QUICK, "evaluation_episodes": 1}))
    run = RunDirectory.create(tmp_path / "cell" / "seed-0000", config)
    assert execute(run, lambda: False)
    assert [row["evaluation_return"] is None for row in run.metrics] == [True, False, False]
    assert run.result["evaluations_averaged"] == 2
    assert "cell" in table(summarise_runs([run], tmp_path))
    plot_curves({"mgl": [run]}, "title", tmp_path / "curves.png")
    wide = _shape(tmp_path / "curves.png")

    still = RunDirectory.create(tmp_path / "still" / "seed-0000", config)
    still.metrics_file.write_bytes(run.metrics_file.read_bytes().replace(b"weight/noise", b"was/noise"))
    plot_curves({"ns": [still]}, "title", tmp_path / "still.png")  # no weight moved, no view of weights
    assert wide[1] - _shape(tmp_path / "still.png")[1] == 5 * 130


def _shape(picture):
    from matplotlib import pyplot as plt

    height, width, _ = plt.imread(picture).shape
    return height, width
