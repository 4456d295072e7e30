"""Agents that are asked for the impossible, and saves that crash."""

import os

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import bipars
from bipars.cli import main
from bipars.envs.spaces import policy_action
from bipars.errors import BiparsError, UsageError
from bipars.program import complete, configure
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import execute
from bipars.runs.reuse import with_weights_from
from bipars.settings.config import Config, PPOConfig, WeightConfig

QUICK = PPOConfig(update_period=2_000, num_envs=10, gradient_steps=5, batch_size=128)


def quick(terms=("harmful",), **settings):
    return bipars.BiPaRS("cartpole", terms=terms, method="mgl", ppo=QUICK, **settings)


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
    config = bipars.Config(terms=("harmful",), steps=20_000, upper=bipars.UpperConfig(sampling="round"))
    with pytest.raises(UsageError, match="steps is 20000, one update"):
        complete(config)


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
        ({"method": None}, "method is None; expected a name, such as 'mgl', or a bipars.Method"),
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
        ({"method": "em", "weights": WeightConfig(form="state-action")}, "state-action' does not have that"),
        (
            {"env": "cartpole-continuous", "weights": WeightConfig(form="per-action")},
            "'per-action' needs one discrete action; those of 'cartpole-continuous' are continuous. Use 'state-action'",
        ),
        (
            {"env": "cartpole-continuous", "method": "em", "weights": {"form": "per-action"}},
            "'per-action' needs one discrete action.*Use 'state' or 'scalar'",
        ),
        ({"weights": {"low": 2.0, "high": 3.0}}, "weights.initial is 1.0; expected a number from 2.0 to 3.0"),
        ({"ppo": {"target_kl": -1.0}}, "ppo.target_kl is -1.0; expected a positive number"),
        ({"ppo": {"num_envs": 1}}, "ppo.num_envs is 1; .*needs at least 2, or upper.control_group False"),
        ({"ppo": {"initial": "zero"}}, "unknown ppo.initial 'zero'"),
        ({"env": "Pendulum-v1", "preset": "paper"}, "preset 'paper' has no settings for 'Pendulum-v1'"),
        ({"method": "unrolled", "upper": {"unroll": 2_000_000}}, "upper.unroll is 2000000; expected at most .* GiB"),
        ({"method": "ns", "weights": {"simplex": True}}, "for methods that learn weights; 'ns' does not"),
        ({"method": "mgl", "weights": {"simplex": True}}, r"two terms or more; terms are \['harmful'\]"),
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


def test_more_steps_than_a_run_has_cannot_be_unrolled():
    config = Config(method="unrolled", terms=("harmful",), steps=40_000, upper=bipars.UpperConfig(unroll=101))
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
        (lambda: PPOConfig(target_kl=float("nan")), "ppo.target_kl is nan"),
        (lambda: configure([]), r"config is \[\]; expected settings by name"),
        (lambda: configure({"ppo": 3}), "config.ppo is 3; expected settings by name"),
    ],
)
def test_values_that_could_not_be_saved_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
