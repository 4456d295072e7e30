"""One run on several cores: what shares the time, who gets which cores, and that results do not suffer."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from threading import Barrier

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.cli import main
from bipars.compiling import at_once
from bipars.errors import UsageError
from bipars.program import build, complete, configure
from bipars.results.panels import collect
from bipars.runs.directory import RunDirectory
from bipars.runtime import cores, own_cores
from bipars.settings.config import Config
from bipars.suite.work import PlannedRun, Work
from fake_runs import ROUNDS, fake_cell, fake_seed

SMALL = {"update_period": 400, "num_envs": 4, "gradient_steps": 8, "batch_size": 64}


def test_both_calls_share_the_time_where_they_may():
    meeting = Barrier(2)
    assert at_once(True, lambda: meeting.wait(120) >= 0, lambda: meeting.wait(120) >= 0) == (True, True)
    order = []
    assert at_once(False, lambda: order.append(1), lambda: order.append(2)) == (None, None)
    assert order == [1, 2]


@pytest.mark.parametrize("really", [True, False])
@pytest.mark.parametrize("failing", [0, 1])
def test_what_goes_wrong_in_either_call_is_heard_of(really, failing):
    calls = [lambda: 1, lambda: 1]
    calls[failing] = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        at_once(really, *calls)


def rounds(method, threads, upper=None):
    pytest.importorskip("mujoco.batch")
    settings = {"env": "Hopper-v5", "terms": ["torque"], "method": method, "ppo": SMALL, "evaluation_episodes": 2}
    config = complete(configure(settings | {"threads": threads, "upper": upper or {}}))
    program = build(config, share=False)
    states, seen = [program.init(0)], []
    for _ in range(2):
        state, stats = program.iterate(states[-1], 0)
        states.append(state)
        seen.append((stats.reward, stats.log))
    return states, seen


def moved(states):
    """What the first update changed, and what both did: one vector for each part of what is learned."""
    parts = [(*jax.tree.leaves(state.learner), *jax.tree.leaves(state.weights)) for state in states]
    return [
        [np.subtract(after, before, dtype=float) for before, after in zip(parts[0], part, strict=True)]
        for part in parts[1:]
    ]


@pytest.mark.parametrize(("method", "upper"), [("ppo", {}), ("mgl", {}), ("mgl", {"sampling": "round"})])
def test_several_threads_learn_what_one_learns(method, upper):
    """Up to the last bits, of which XLA promises nothing; the second batch is already a consequence of them."""
    (one, alone), (two, shared), (again, same) = (rounds(method, threads, upper) for threads in (1, 2, 2))
    for (reward, log), (other_reward, other_log) in ((alone[0], shared[0]), (shared[0], same[0])):
        np.testing.assert_allclose(reward, other_reward, rtol=1e-5, atol=1e-5)  # nothing was learned before
        assert log.keys() == other_log.keys()
    for x, y in ((one, two), (two, again)):
        for update, bound in enumerate((1e-4, 1e-2)):
            for part, other in zip(moved(x)[update], moved(y)[update], strict=True):
                assert np.linalg.norm(part - other) <= bound * np.linalg.norm(other)


def test_the_critics_learn_although_nobody_waits_for_them_in_the_loop_of_theta():
    (*_, state), seen = rounds("mgl", 2)
    losses = [float(log[name]) for _, log in seen for name in ("modified_critic_loss", "true_critic_loss")]
    assert all(np.isfinite(losses))
    for learner in (state.learner.treated, state.learner.control):
        assert {int(optimiser[1][0].count) for optimiser in learner.critic_optimisers} == {16}
    assert jax.tree.all(jax.tree.map(lambda x: bool(jnp.isfinite(x).all()), state.learner))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threads": 0}, r"config\.threads is 0; expected a positive number"),
        ({"env": "cartpole", "terms": ["harmful"]}, "has work for 1 at most .the environment is written in JAX"),
        ({"method": "ddpg-mgl"}, "'Pendulum-v1' with method 'ddpg-mgl' has work for 1 at most .* stepped by Python"),
        ({"threads": 3}, "has work for 2 at most .* PPO's critics learn beside the policy"),
        ({"env": "Hopper-v5", "threads": 9}, "has work for 8 at most .the environment is stepped in C, 8 at a time"),
    ],
)
def test_threads_without_work_are_refused(settings, message):
    pytest.importorskip("mujoco.batch")
    config = {"env": "Pendulum-v1", "terms": ["torque"], "threads": 2} | settings
    with pytest.raises(UsageError, match=message):
        complete(configure(config))


def planned(tmp_path, threads, seeds):
    config = configure({"env": "Pendulum-v1", "terms": ["torque"], "threads": threads})
    text = config.program_text()
    return [PlannedRun(tmp_path / f"{threads}-{seed}", replace(config, seed=seed), text) for seed in range(seeds)]


def test_a_run_gets_as_many_cores_as_it_asks_for(tmp_path):
    work = Work([*planned(tmp_path, 2, 2), *planned(tmp_path, 1, 4)], 4)
    assert [len(share) for share in work.waiting] == [1, 1, 1, 1, 1, 1]
    assert work.take(1)[0].config.threads == 1  # a run of two does not fit
    assert work.take(2)[0].config.threads == 2
    assert work.take(0) is None


def test_a_run_that_asks_for_more_cores_than_there_are_is_refused(tmp_path):
    with pytest.raises(
        UsageError, match=r"3-0 has threads = 3, but 2 cores to use. .*with --workers 3 it shares the cores"
    ):
        Work(planned(tmp_path, 3, 1), 2)
    arguments = ["--env", "Pendulum-v1", "--term", "torque", "--out", str(tmp_path / "out")]
    assert main(["train", *arguments, "--threads", "2", "--workers", "1"]) == 2
    assert not (tmp_path / "out").exists()


def pinned(statement):
    """The cores of a process after a statement, seen by a thread that it starts then."""
    code = f"""
import os, threading
from bipars.runtime import own_cores, use_cores
def tell(): print(sorted(os.sched_getaffinity(0)))
def later():
    thread = threading.Thread(target=tell)
    thread.start()
    thread.join()
{statement}
"""
    environment = os.environ | {"TMPDIR": tempfile.gettempdir()}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return json.loads(found.stdout)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no system call for it")
def test_environments_in_processes_of_their_own_use_the_cores_that_bipars_was_given():
    allowed = sorted(os.sched_getaffinity(0))
    make = "from bipars.envs.gym import _on_any_core\nwith own_cores(1): _on_any_core(later)()"
    assert pinned(make) == allowed
    assert pinned(f"os.sched_setaffinity(0, {allowed[:1]})\n{make}") == allowed[:1]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no system call for it")
def test_a_process_keeps_to_its_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the locks of cores are: no other tests' processes
    allowed = sorted(os.sched_getaffinity(0))
    assert pinned("use_cores([0]); later()") == allowed[:1]
    assert pinned("use_cores([0, 1]); later()") == allowed[:2]
    assert len(pinned("with own_cores(2): later()")) == min(2, len(allowed))
    taken = f"""
from contextlib import ExitStack
from bipars.runtime import _take_core
with ExitStack() as locks:
    assert _take_core({allowed[0]}, locks)
    with own_cores(1):
        later()
"""
    assert pinned(taken) == (allowed[1:2] or allowed)  # another one, where there is one
    with own_cores(cores()):
        assert len(pinned("with own_cores(1): later()")) == 1  # all are taken: one is shared
    assert sorted(os.sched_getaffinity(0)) == allowed


def test_a_seed_that_was_trained_twice_is_no_second_seed(tmp_path):
    for name, threads, seeds in (("one", 1, 2), ("two", 2, 1), ("same", 1, 1), ("more", 1, 0)):
        config = Config(env="cartpole", steps=ROUNDS * 20_000, threads=threads)
        fake_cell(tmp_path / name, "mgl", [0.5] * seeds, 1.0, config=config)
    fake_seed(
        tmp_path / "more" / "seed-0007", replace(RunDirectory(tmp_path / "one/seed-0000").config, seed=7), 0.7, 1.0
    )
    (panel,) = collect(tmp_path).panels
    assert sorted((cell.label, len(cell.records)) for cell in panel.cells) == [
        ("more", 1), ("one", 2), ("same", 1), ("two", 1)
    ]  # fmt: skip
    (panel,) = collect(tmp_path / "one").panels
    assert [len(cell.records) for cell in panel.cells] == [2]


def test_a_suite_that_asks_for_more_cores_than_there_are_leaves_nothing_behind(tmp_path, capfd):
    grid = '[[grid]]\nenv = ["Pendulum-v1"]\nterm = ["torque"]\nmethod = ["mgl"]\nsettings.threads = 2\n'
    (tmp_path / "small.toml").write_text(f'seeds = "0"\nsteps = 4096\n{grid}')
    assert main(["suite", str(tmp_path / "small.toml"), "--workers", "1", "--out", str(tmp_path / "out")]) == 2
    assert "has threads = 2, but 1 core to use" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_shrank_may_grow_again(tmp_path):
    work = Work(planned(tmp_path, 2, 1), None)
    assert work.take(1) is None
    assert len(work.take(2)) == 1


def test_train_on_two_cores(tmp_path, capfd):
    pytest.importorskip("mujoco.batch")
    small = [f"--ppo.{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    arguments = ["--env", "Hopper-v5", "--term", "torque", "--steps", "800", "--evaluation-episodes", "2", *small]
    assert main(["train", *arguments, "--threads", "2", "--workers", "2", "--out", str(tmp_path)]) == 0
    run = RunDirectory(tmp_path / "seed-0000")
    assert run.finished
    assert run.config.threads == 2
