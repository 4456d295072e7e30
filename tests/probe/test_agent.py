import threading

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import bipars
from bipars.errors import BiparsError, UsageError
from bipars.program import configure
from bipars.settings.config import PPOConfig, WeightConfig

QUICK = PPOConfig(update_period=2_000, num_envs=10, gradient_steps=5, batch_size=128)


def upright(obs, action, next_obs, info):
    return 0.1 * (1 - jnp.abs(obs[2]))


@pytest.fixture(scope="module")
def agent():
    terms = [bipars.RewardTerm("upright", upright), "harmful"]
    return bipars.BiPaRS("cartpole-continuous", terms=terms, method="mgl", seed=3, ppo=QUICK).learn(5_000)


def test_learn_counts_whole_updates_and_logs_every_term(agent):
    assert agent.num_timesteps == 6_000
    row = agent.metrics[-1]
    assert row["step"] == 6_000
    for name in ("upright", "harmful"):
        for key in ("term", "weighted_term", "weight", "weight_p10", "weight_p90"):
            assert np.isfinite(row[f"{key}/{name}"])
    assert row["weight_p10/harmful"] <= row["weight/harmful"] <= row["weight_p90/harmful"]
    assert row["modified_return"] == pytest.approx(
        row["true_return"] + row["weighted_term/upright"] + row["weighted_term/harmful"], rel=1e-3
    )


def test_predict_takes_one_observation_or_many(agent):
    one, state = agent.predict(np.zeros(4), deterministic=True)
    many, _ = agent.predict(np.zeros((7, 4)), deterministic=True)
    assert one.shape == (1,)
    assert many.shape == (7, 1)
    assert state is None
    np.testing.assert_allclose(many, np.broadcast_to(one, (7, 1)), rtol=1e-6)
    draws, _ = agent.predict(np.zeros((100, 4)))
    assert len(np.unique(draws)) > 50
    assert np.abs(draws).max() <= 1
    with pytest.raises(UsageError, match=r"got shape \(3,\) for Box.*expected \(4,\) or \(batch, 4\)"):
        agent.predict(np.zeros(3))
    with pytest.raises(UsageError, match=r"the observation is \[0.0, nan, 0.0, 0.0\]; a policy expects finite"):
        agent.predict([0.0, np.nan, 0.0, 0.0])


def test_weights_have_one_column_per_term(agent):
    assert agent.weights(np.zeros(4), np.zeros(1)).shape == (2,)
    assert agent.weights(np.zeros((5, 4)), np.zeros((5, 1))).shape == (5, 2)


def test_save_and_load_go_on_exactly_where_they_were(agent, tmp_path):
    agent.save(tmp_path / "agent")
    terms = [bipars.RewardTerm("upright", upright), "harmful"]
    loaded = bipars.BiPaRS.load(tmp_path / "agent", env="cartpole-continuous", terms=terms)
    obs = np.random.default_rng(0).normal(size=(6, 4))
    np.testing.assert_array_equal(agent.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    twin = bipars.BiPaRS("cartpole-continuous", terms=terms, method="mgl", seed=3, ppo=QUICK).learn(8_000)
    loaded.learn(2_000)
    assert loaded.num_timesteps == twin.num_timesteps == 8_000
    np.testing.assert_array_equal(twin.weights(obs, obs[:, :1]), loaded.weights(obs, obs[:, :1]))
    assert loaded.metrics[-1] == twin.metrics[-1]


def test_a_built_in_term_with_an_argument_is_saved_with_it(tmp_path):
    agent = bipars.BiPaRS("cartpole", terms=["random:3"], method="mgl", ppo=QUICK).learn(2_000)
    agent.save(tmp_path / "agent")
    loaded = bipars.BiPaRS.load(tmp_path / "agent")
    assert loaded.config.terms == ("random:3",)
    np.testing.assert_array_equal(agent.weights(np.ones(4), 1), loaded.weights(np.ones(4), 1))


def quick(terms=("harmful",), **settings):
    return bipars.BiPaRS("cartpole", terms=terms, method="mgl", ppo=QUICK, **settings)


def test_saving_again_replaces_what_was_saved(tmp_path):
    longer, shorter = quick().learn(4_000), quick().learn(2_000)
    longer.save(tmp_path / "agent")
    shorter.save(tmp_path / "agent")
    assert bipars.BiPaRS.load(tmp_path / "agent").num_timesteps == 2_000
    assert len(list((tmp_path / "agent" / "checkpoints").iterdir())) == 2
    with pytest.raises(BiparsError, match="holds an agent with other settings .seed: 0 there, 1 now") as refused:
        quick(seed=1).save(tmp_path / "agent")
    assert "--out" not in str(refused.value)


def test_load_wants_the_same_python_objects_again(tmp_path):
    mine = bipars.RewardTerm("harmful", upright)
    quick([mine]).save(tmp_path / "mine")
    for terms in (None, ["harmful"]):
        with pytest.raises(UsageError, match=r"terms of your own, \['harmful'\]; pass them again"):
            bipars.BiPaRS.load(tmp_path / "mine", terms=terms)
    loaded = bipars.BiPaRS.load(tmp_path / "mine", terms=mine)
    assert loaded.terms == (mine,)
    loaded.save(tmp_path / "again")
    with pytest.raises(UsageError, match="terms of your own"):
        bipars.BiPaRS.load(tmp_path / "again")

    quick().save(tmp_path / "built-in")
    with pytest.raises(UsageError, match=r"trained with the built-in terms \['harmful'\]"):
        bipars.BiPaRS.load(tmp_path / "built-in", terms=[mine])


def test_load_wants_the_same_environment_again(tmp_path):
    env = gymnasium.make("CartPole-v1")
    bipars.BiPaRS(env, method="ppo", ppo={"update_period": 64}).save(tmp_path / "agent")
    for name in (None, "CartPole-v1"):
        with pytest.raises(UsageError, match="environment of your own, 'CartPole-v1'; pass it: env="):
            bipars.BiPaRS.load(tmp_path / "agent", env=name)
    assert bipars.BiPaRS.load(tmp_path / "agent", env=env).num_timesteps == 0


def test_terms_may_stand_alone_and_functions_need_a_name():
    assert bipars.BiPaRS("cartpole", terms=None, method="ppo", ppo=QUICK).terms == ()
    assert [term.name for term in quick("harmful").terms] == ["harmful"]
    assert [term.name for term in quick(bipars.RewardTerm("upright", upright)).terms] == ["upright"]
    for terms in (upright, [upright]):
        with pytest.raises(UsageError, match=r"give the function a name: RewardTerm\('upright', upright\)"):
            quick(terms)
    with pytest.raises(UsageError, match="terms holds 3; expected RewardTerm objects"):
        quick(3)
    for name in (3, "", None):
        with pytest.raises(UsageError, match="a reward term needs a name; got .*, expected text"):
            bipars.RewardTerm(name, upright)


@pytest.mark.parametrize("steps", [float("inf"), float("nan"), 1.5, 0, -1, "many", None])
def test_learn_takes_whole_numbers_of_steps(agent, steps):
    with pytest.raises(UsageError, match=r"total_timesteps is .*; expected a whole number of at least 1"):
        agent.learn(steps)


def test_learn_takes_whole_floats_also_outside_the_main_thread():
    agent = quick()
    thread = threading.Thread(target=agent.learn, args=(2e3,))
    thread.start()
    thread.join()
    assert agent.num_timesteps == 2_000


def test_load_says_which_terms_it_misses(agent, tmp_path):
    agent.save(tmp_path / "agent")
    with pytest.raises(BiparsError, match="upright"):
        bipars.BiPaRS.load(tmp_path / "agent")
    with pytest.raises(UsageError, match="trained on 'cartpole-continuous', not on 'cartpole'"):
        bipars.BiPaRS.load(tmp_path / "agent", env="cartpole")
    with pytest.raises(BiparsError, match="is not a run of bipars"):
        bipars.BiPaRS.load(tmp_path / "nothing")


def test_methods_without_learning_keep_their_weights():
    for method, weight in (("ppo", 0.0), ("ns", 1.0)):
        agent = bipars.BiPaRS("cartpole", terms=["harmful"], method=method, ppo=QUICK).learn(4_000)
        assert agent.weights(np.ones(4), 1).tolist() == [weight]
        assert agent.metrics[-1]["term/harmful"] < 0


@pytest.mark.parametrize(
    ("method", "env", "sampling"),
    [
        *(
            (method, env, "interleaved")
            for method in ("em", "mgl", "imgl")
            for env in ("cartpole", "cartpole-continuous")
        ),
        ("single", "cartpole", "interleaved"),
        ("unrolled", "cartpole-continuous", "interleaved"),
        ("em", "cartpole-continuous", "round"),
        ("mgl", "cartpole", "round"),
        ("imgl", "cartpole-continuous", "round"),
    ],
)
def test_every_method_moves_the_weights(method, env, sampling):
    agent = bipars.BiPaRS(
        env, terms=["harmful", "noise"], method=method, ppo=QUICK, upper=bipars.UpperConfig(sampling=sampling)
    )
    obs = np.ones((3, 4), np.float32)
    action = np.zeros((3, 1), np.float32) if env.endswith("continuous") else np.zeros(3, int)
    before = agent.weights(obs, action)
    agent.learn(4_000)
    assert agent.weights(obs, action).shape == (3, 2)
    assert not np.array_equal(before, agent.weights(obs, action))
    assert agent.num_timesteps == 4_000


def test_terms_see_the_action_that_acted():
    force = bipars.RewardTerm("force", lambda obs, action, next_obs, info: jnp.abs(action[0]))
    wide = PPOConfig(update_period=2_000, num_envs=10, gradient_steps=1, batch_size=64, initial_std=5.0)
    agent = bipars.BiPaRS("cartpole-continuous", terms=[force], method="ns", ppo=wide).learn(2_000)
    row = agent.metrics[-1]
    assert 0.5 < row["term/force"] / (2_000 / row["episodes"]) < 1.05


def test_same_seed_same_result_other_seed_other_result():
    rows = [
        bipars.BiPaRS("cartpole", terms=["random"], method="mgl", seed=seed, ppo=QUICK).learn(4_000).metrics[-1]
        for seed in (1, 1, 2)
    ]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


@pytest.mark.parametrize(("method", "weight"), [("ppo", 0.0), ("dpba", 0.0), ("ns", 1.0)])
def test_bounds_do_not_move_weights_that_nobody_learns(method, weight):
    agent = bipars.BiPaRS("cartpole", terms=["harmful"], method=method, weights={"low": 0.2, "high": 1.5}, ppo=QUICK)
    np.testing.assert_array_equal(agent.weights(np.zeros((3, 4)), np.zeros(3, int)), np.full((3, 1), weight))


def test_a_replay_is_made_for_as_long_as_anybody_may_learn():
    agent = bipars.BiPaRS("cartpole-continuous", terms=["harmful"], method="ddpg-mgl")
    assert agent.config.ddpg.replay_capacity * 45 > 60 * 2**20
    assert agent.config.steps == 50_000


def test_numpy_numbers_become_pythons_and_infinite_means_no_bound():
    config = bipars.Config(
        seed=np.int64(3),
        env_options={"force": np.float32(2.5), "sizes": (1, 2)},
        ppo=PPOConfig(
            clip=np.float32(0.25), policy_hidden=[np.int32(4)], max_grad_norm=np.inf, normalise_returns=np.True_
        ),
        weights=WeightConfig(low=-np.inf, high=np.inf, initial=jnp.float32(0.5), max_grad_norm=float("inf")),
    )
    assert configure(config.to_dict()) == config
    assert [type(x) for x in (config.seed, config.ppo.clip, config.ppo.policy_hidden[0])] == [int, float, int]
    assert config.ppo.normalise_returns is True
    assert (config.weights.low, config.weights.high, config.weights.max_grad_norm) == (None, None, None)
    assert config.ppo.max_grad_norm is None
