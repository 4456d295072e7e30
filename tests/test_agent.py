import os
import threading

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import bipars
from bipars.cli import main
from bipars.envs.spaces import policy_action
from bipars.errors import BiparsError, UsageError
from bipars.program import complete
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import execute
from bipars.runs.reuse import with_weights_from
from bipars.settings.config import Config, PPOConfig, WeightConfig

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


@pytest.mark.parametrize("crash_at", [".safetensors", "agent.json"])
def test_a_save_that_crashes_leaves_the_one_before_it(tmp_path, monkeypatch, crash_at):
    agent = quick().learn(2_000)
    agent.save(tmp_path / "agent")
    agent.learn(2_000)
    replace = os.replace

    def crash(source, target):
        if str(target).endswith(crash_at):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        agent.save(tmp_path / "agent")
    assert bipars.BiPaRS.load(tmp_path / "agent").num_timesteps == 2_000


def test_a_saved_agent_and_a_run_do_not_replace_each_other(tmp_path, capfd):
    agent = quick()
    run = RunDirectory.create(tmp_path / "run", agent.config)
    with pytest.raises(BiparsError, match="run is a training run, .* Save to another directory"):
        agent.save(run.path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(BiparsError, match="full exists and is not a run of bipars. Save to another directory"):
        agent.save(tmp_path / "full")
    agent.save(tmp_path / "agent")
    with pytest.raises(BiparsError, match="agent is a saved agent. Choose another --out"):
        RunDirectory.create(tmp_path / "agent", agent.config)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "agent").rglob("*")}
    assert main(["resume", str(tmp_path / "agent")]) == 2
    assert "is a saved agent, not a training run. Go on with it in Python: " in capfd.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "agent").rglob("*")}
    with pytest.raises(BiparsError, match="is a saved agent, not a training run"):
        execute(RunDirectory(tmp_path / "agent"), lambda: False)
    with pytest.raises(UsageError, match="is a saved agent; weights are reused from a finished run"):
        with_weights_from(agent.config, tmp_path / "agent", 0)


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


def test_weights_refuse_an_action_that_does_not_exist():
    agent = quick()
    for action in (2, -1, 0.5):
        with pytest.raises(UsageError, match=f"action is .*{action}.*, which is outside the action space Discrete"):
            agent.weights(np.zeros(4), action)
    for action in ("x", None, [[1], [1, 2]]):
        with pytest.raises(UsageError, match="action is .*; expected numbers of Discrete"):
            agent.weights(np.zeros(4), action)
    with pytest.raises(UsageError, match="observation is 'x'; expected numbers of Box"):
        agent.weights("x", 0)
    for seed in ("x", None, -1, 0.5):
        with pytest.raises(UsageError, match=r"seed is .*; expected a whole number in \[0, 2\^32\)"):
            agent.evaluate(seed)
    with pytest.raises(UsageError, match="outside the action space"):
        policy_action(gymnasium.spaces.MultiDiscrete([2, 3]), np.array([1, 3]))


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
    assert agent.num_timesteps == (6_000 if sampling == "round" else 4_000)


def test_a_round_that_meets_a_nan_is_discarded():
    fragile = bipars.RewardTerm("fragile", lambda obs, *_: jnp.where(abs(obs[0]) > 0.25, jnp.nan, 0.1))
    agent = bipars.BiPaRS("cartpole", terms=[fragile], method="mgl", ppo=QUICK)
    with pytest.raises(BiparsError, match="term 'fragile' is nan at step") as failure:
        agent.learn(200_000)
    assert "checkpoint" not in str(failure.value)
    assert np.isfinite(agent.weights(np.zeros(4), 0)).all()
    assert agent.num_timesteps == 2_000 * len(agent.metrics)
    assert agent.predict(np.zeros(4))[0] in (0, 1)


def test_round_sampling_needs_two_updates():
    config = bipars.Config(terms=("harmful",), total_steps=20_000, upper=bipars.UpperConfig(sampling="round"))
    with pytest.raises(UsageError, match="total_steps is 20000, one update"):
        complete(config)


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "pendulum"}, "unknown environment 'pendulum'"),
        ({"terms": ["upside"]}, "unknown term 'upside'"),
        ({"method": "sac"}, "unknown method 'sac'.*Known: .*em, .*mgl, .*ppo, .*unrolled"),
        (
            {"method": "unrolled", "upper": bipars.UpperConfig(sampling="round")},
            "'unrolled' follows every step of theta; upper.sampling is 'round'",
        ),
        ({"method": None}, "unknown method 'None'.*Known: .*em"),
        (
            {"terms": bipars.RewardTerm("choice", lambda obs, *_: 1.0 if obs[0] > 0 else 0.0)},
            r"term 'choice' failed on one transition.*Use jnp.where\(condition, a, b\) instead of if",
        ),
        (
            {"terms": bipars.RewardTerm("numpy", lambda obs, *_: np.float64(np.asarray(obs)[0]))},
            "term 'numpy' failed on one transition.*Use jax.numpy instead of numpy",
        ),
        (
            {"terms": bipars.RewardTerm("number", lambda obs, *_: float(obs[0]))},
            "term 'number' failed on one transition.*Leave out float",
        ),
        ({"terms": []}, "give at least one term"),
        ({"seed": -1}, "seed is -1"),
        ({"method": "em", "weight_function": WeightConfig(form="state-action")}, "state-action' does not have that"),
        (
            {"env": "cartpole-continuous", "weight_function": WeightConfig(form="per-action")},
            "'per-action' needs discrete actions; those of 'cartpole-continuous' are continuous. Use 'state-action'",
        ),
        (
            {"env": "cartpole-continuous", "method": "em", "weight_function": {"form": "per-action"}},
            "'per-action' needs discrete actions.*Use 'state' or 'scalar'",
        ),
        ({"weight_function": {"low": 2.0, "high": 3.0}}, "weights.initial is 1.0; expected a number from 2.0 to 3.0"),
        ({"upper": {"noise_penalty": -1.0}}, "upper.noise_penalty is -1.0; expected 0 or a positive number"),
        ({"method": "unrolled", "upper": {"unroll": 20_000}}, "upper.unroll is 20000; expected at most .* GiB"),
        ({"method": "ns", "weight_function": {"simplex": True}}, "for methods that learn weights; 'ns' does not"),
        ({"method": "mgl", "weight_function": {"simplex": True}}, r"two terms or more; terms are \['harmful'\]"),
        ({"ppo": "gamma"}, "settings are 'gamma'; expected a dictionary"),
        ({"method": "pba", "potential": "fading"}, "'fading' cannot be called with .obs, action.*is called 'step'"),
        ({"method": "dynamic-pbrs", "potential": "push"}, "'push' cannot be called with .obs, step.*called 'action'"),
        (
            {"method": "pbrs", "potential": bipars.Potential("three", lambda obs: obs[:3, 0], vectorised=True)},
            r"potential 'three' returned shape \(3,\)",
        ),
        (
            {"env": "cartpole-continuous", "method": "ddpg", "ddpg": {"replay_capacity": 10**10}},
            "ddpg.replay_capacity is 10000000000; expected at most",
        ),
    ],
)
def test_bad_arguments_are_named_before_any_work(arguments, message):
    with pytest.raises(UsageError, match=message):
        bipars.BiPaRS(**({"env": "cartpole", "terms": ["harmful"]} | arguments))


@pytest.mark.parametrize(("method", "weight"), [("ppo", 0.0), ("dpba", 0.0), ("ns", 1.0)])
def test_bounds_do_not_move_weights_that_nobody_learns(method, weight):
    agent = bipars.BiPaRS(
        "cartpole", terms=["harmful"], method=method, weight_function={"low": 0.2, "high": 1.5}, ppo=QUICK
    )
    np.testing.assert_array_equal(agent.weights(np.zeros((3, 4)), np.zeros(3, int)), np.full((3, 1), weight))


def test_a_replay_is_made_for_as_long_as_anybody_may_learn():
    agent = bipars.BiPaRS("cartpole-continuous", terms=["harmful"], method="ddpg-mgl")
    assert agent.config.ddpg.replay_capacity * 45 > 60 * 2**20
    assert agent.config.total_steps == 100_000


def test_more_steps_than_a_run_has_cannot_be_unrolled():
    config = Config(method="unrolled", terms=("harmful",), total_steps=40_000, upper=bipars.UpperConfig(unroll=101))
    with pytest.raises(UsageError, match="upper.unroll is 101; expected at most 100, the policy steps of 40000 steps"):
        complete(config)


def test_unrolling_needs_a_step():
    with pytest.raises(UsageError, match="upper.unroll is 0; expected a positive number"):
        bipars.UpperConfig(unroll=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": 0.0}, "ppo.clip is 0.0; expected a positive number"),
        ({"gamma": 1.5}, r"ppo.gamma is 1.5; expected a number in \[0, 1\]"),
        ({"update_period": 1001}, r"ppo.update_period is 1001; expected a multiple of ppo.num_envs \(20\)"),
        ({"gamma": float("nan")}, "ppo.gamma is nan; expected a number"),
        ({"clip": "wide"}, "ppo.clip is 'wide'; expected a number"),
        ({"gradient_steps": 1.5}, "ppo.gradient_steps is 1.5; expected a whole number"),
        ({"policy_hidden": 64}, "ppo.policy_hidden is 64; expected a list, each a whole number"),
        ({"activation": 3}, "ppo.activation is 3; expected one of relu, tanh"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(UsageError, match=message):
        PPOConfig(**settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bipars.Config(seed=1.5), "seed is 1.5; expected a whole number"),
        (lambda: bipars.Config(seed=True), "seed is True; expected a whole number"),
        (lambda: bipars.Config(terms="harmful"), "terms is 'harmful'; expected a list, each text"),
        (lambda: bipars.Config(ppo=3), "ppo is 3; expected PPOConfig"),
        (lambda: bipars.Config(env_options={"force": float("nan")}), "env_options are .*nan.*expected finite numbers"),
        (lambda: bipars.Config(env_options={"force": {1}}), "env_options are"),
        (lambda: WeightConfig(low=float("nan")), "weights.low is nan; expected a number or none"),
        (lambda: WeightConfig(low=float("inf")), "weights.low is inf; expected a finite number or none"),
        (lambda: bipars.UpperConfig(noise_penalty=float("inf")), "upper.noise_penalty is inf"),
        (lambda: bipars.Config.from_dict([]), r"config is \[\]; expected settings by name"),
        (lambda: bipars.Config.from_dict({"ppo": 3}), "config.ppo is 3; expected settings by name"),
    ],
)
def test_values_that_could_not_be_saved_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_numpy_numbers_become_pythons_and_infinite_means_no_bound():
    config = bipars.Config(
        seed=np.int64(3),
        env_options={"force": np.float32(2.5), "sizes": (1, 2)},
        ppo=PPOConfig(
            clip=np.float32(0.25), policy_hidden=[np.int32(4)], max_grad_norm=np.inf, relative_value_loss=np.True_
        ),
        weights=WeightConfig(low=-np.inf, high=np.inf, initial=jnp.float32(0.5), max_grad_norm=float("inf")),
    )
    assert bipars.Config.from_dict(config.to_dict()) == config
    assert [type(x) for x in (config.seed, config.ppo.clip, config.ppo.policy_hidden[0])] == [int, float, int]
    assert config.ppo.relative_value_loss is True
    assert (config.weights.low, config.weights.high, config.weights.max_grad_norm) == (None, None, None)
    assert config.ppo.max_grad_norm is None
