"""Runs on disk: killed at any moment, altered, shared, filled with something else."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from bipars.errors import CheckpointError, NonFiniteError, RunDirectoryError, UsageError
from bipars.program import Objects, build, complete
from bipars.results.summary import summarise_runs
from bipars.runs import directory
from bipars.runs.checkpoint import decode_tree, verified_checkpoints
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import execute, load_weights
from bipars.runs.metrics import MetricsWriter, encode_row, parse_metrics, read_last_row
from bipars.runs.reuse import with_weights_from
from bipars.runs.root import check_root
from bipars.settings.config import Config, PPOConfig
from bipars.terms.term import RewardTerm

ROUNDS = 300
SMALL = complete(
    Config(
        terms=("harmful",),
        method="imgl",
        steps=2_000 * ROUNDS,
        checkpoint_every=4,
        evaluation_episodes=4,
        ppo=PPOConfig(update_period=2_000, num_envs=10, gradient_steps=5, batch_size=128),
    )
)


def never():
    return False


def worker(*paths):
    """A real worker process, one thread, as the command line starts it."""
    return subprocess.Popen([sys.executable, "-m", "bipars.runs.worker", "--cores", "1", *map(str, paths)])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = RunDirectory.create(tmp_path_factory.mktemp("runs") / "calm", SMALL)
    assert worker(run.path).wait() == 0
    return run


def files(run):
    newest = max(run.checkpoints.glob("*.safetensors"))
    snapshots = sorted(run.snapshots.glob("*.safetensors"))
    assert len(snapshots) == 10
    return {
        str(p.relative_to(run.path)): p.read_bytes() for p in (run.metrics_file, run.result_file, newest, *snapshots)
    }


def test_killed_at_random_moments_the_run_ends_with_the_same_bytes(undisturbed, tmp_path):
    run = RunDirectory.create(tmp_path / "killed", SMALL)
    rng, kills = random.Random(0), 0
    for _ in range(6):
        rounds = len(run.metrics) + rng.randrange(ROUNDS // 10)  # not a time: machines differ
        process = worker(run.path)
        while process.poll() is None and len(run.metrics) <= rounds:
            time.sleep(rng.uniform(0, 0.02))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        if run.finished:
            break
    assert kills >= 2
    assert worker(run.path).wait() == 0
    assert files(run) == files(undisturbed)
    assert [row["round"] for row in run.metrics] == list(range(1, ROUNDS + 1))


def test_sigterm_checkpoints_and_leaves(tmp_path):
    run = RunDirectory.create(tmp_path / "run", replace(SMALL, steps=2_000 * 100_000, checkpoint_every=10**6))
    process = worker(run.path)
    while process.poll() is None and len(run.metrics) < 3:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 75
    (manifest, _), *_ = verified_checkpoints(run.checkpoints)
    assert manifest.round == len(run.metrics) >= 3


def test_a_finished_run_is_not_redone(undisturbed):
    before = {p: p.stat().st_mtime_ns for p in undisturbed.path.rglob("*") if p.name != "lock"}
    assert execute(undisturbed, never)
    assert before == {p: p.stat().st_mtime_ns for p in undisturbed.path.rglob("*") if p.name != "lock"}


def stop_after(rounds):
    count = 0

    def stop():
        nonlocal count
        count += 1
        return count >= rounds

    return stop


def copy_with_two_checkpoints(tmp_path):
    run = RunDirectory.create(tmp_path / "run", SMALL)
    assert not execute(run, stop_after(10))
    assert len(list(run.checkpoints.glob("*.json"))) == 2
    return run


@pytest.mark.parametrize("damage", ["truncate", "flip", "manifest"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(undisturbed, tmp_path, damage, caplog):
    run = copy_with_two_checkpoints(tmp_path)
    newest = max(run.checkpoints.glob("*.safetensors"))
    content = bytearray(newest.read_bytes())
    if damage == "truncate":
        newest.write_bytes(content[:-100])
    elif damage == "flip":
        content[-50] ^= 1
        newest.write_bytes(content)
    else:
        newest.with_suffix(".json").write_text("{")
    assert execute(run, never)
    assert newest.stem in caplog.text
    assert "before it" in caplog.text
    result, calm = run.result, undisturbed.result
    assert result["steps"] == calm["steps"]
    assert run.metrics[-1]["round"] == ROUNDS


def test_a_finished_run_whose_checkpoints_are_all_damaged_says_what_to_do(undisturbed, tmp_path, caplog):
    shutil.copytree(undisturbed.path, tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="holds no intact checkpoint; delete .*run and train again"):
        load_weights(tmp_path / "run")
    assert "using the one before it" in caplog.text
    assert "there is none before it" in caplog.text


def test_when_every_checkpoint_is_damaged_nothing_is_overwritten(tmp_path):
    run = copy_with_two_checkpoints(tmp_path)
    for path in run.checkpoints.glob("*.safetensors"):
        path.write_bytes(b"junk")
    metrics = run.metrics_file.read_bytes()
    with pytest.raises(CheckpointError, match="Delete .*checkpoints to start this run again"):
        execute(run, never)
    assert run.metrics_file.read_bytes() == metrics


def test_one_owner_at_a_time(tmp_path):
    run = RunDirectory.create(tmp_path / "run", SMALL)
    with (
        run.owned(),
        pytest.raises(RunDirectoryError, match=f"belongs to a live run \\(process {os.getpid()} on "),
        RunDirectory(run.path).owned(),
    ):
        pass


def test_settings_that_differ_are_named_and_no_others(tmp_path):
    RunDirectory.create(tmp_path / "run", SMALL)
    other = replace(SMALL, ppo=replace(SMALL.ppo, clip=0.125), threads=3)
    message = rf"other settings \(threads: 1 there, 3 now, ppo\.clip: {SMALL.ppo.clip} there, 0\.125 now\)"
    with pytest.raises(RunDirectoryError, match=message):
        RunDirectory.create(tmp_path / "run", other)


def test_of_two_who_create_a_run_at_once_the_slower_learns_what_the_quicker_made(tmp_path, monkeypatch):
    path, versions = tmp_path / "run", directory.versions

    def meanwhile():
        monkeypatch.setattr(directory, "versions", versions)
        RunDirectory.create(path, SMALL)
        return versions()

    monkeypatch.setattr(directory, "versions", meanwhile)
    with pytest.raises(RunDirectoryError, match="other settings \\(seed: 0 there, 7 now\\)"):
        RunDirectory.create(path, replace(SMALL, seed=7))
    assert RunDirectory(path).config == SMALL
    monkeypatch.setattr(directory, "versions", meanwhile)
    assert [file.name for file in path.iterdir()] == ["config.json"]
    shutil.rmtree(path)
    assert RunDirectory.create(path, SMALL).config == SMALL


def test_a_file_system_without_hard_links_holds_runs_too(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert RunDirectory.create(tmp_path / "run", SMALL).config == SMALL


def test_a_directory_with_something_else_is_refused(tmp_path):
    (tmp_path / "photo.jpg").write_text("dear")
    with pytest.raises(RunDirectoryError, match="not a run of bipars"):
        RunDirectory.create(tmp_path, SMALL)
    run = RunDirectory.create(tmp_path / "run", SMALL)
    with pytest.raises(RunDirectoryError, match="seed: 0 there, 1 now"):
        RunDirectory.create(run.path, replace(SMALL, seed=1))


def test_an_empty_directory_is_a_new_run(tmp_path):
    (tmp_path / "seed-0000").mkdir()
    (tmp_path / "seed-0001").mkdir()
    (tmp_path / "seed-0001" / ".config.json.1.tmp").touch()
    check_root(tmp_path)
    for name in ("seed-0000", "seed-0001"):
        assert RunDirectory.create(tmp_path / name, SMALL).config == SMALL


def test_what_a_killed_owner_left_half_written_is_removed(tmp_path):
    run = RunDirectory.create(tmp_path / "run", SMALL)
    run.checkpoints.mkdir()
    run.snapshots.mkdir()
    leftovers = [
        place / name
        for place, name in (
            (run.path, ".result.json.7.tmp"),
            (run.checkpoints, ".00000004.json.7.tmp"),
            (run.snapshots, ".00000004.safetensors.7.tmp"),
        )
    ]
    for path in leftovers:
        path.touch()
    with run.owned():
        assert not any(path.exists() for path in leftovers)


def test_timings_are_readable_while_it_runs(tmp_path):
    run = RunDirectory.create(tmp_path / "run", SMALL)
    seen = []

    def stop():
        seen.append(len(run.timings_file.read_text().splitlines()))
        return len(seen) == 2

    assert not execute(run, stop)
    assert seen == [1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "config.json is not of bipars: it has no settings of a run"),
        ("[]", r"config.json is damaged: it holds \[\]; expected names and values"),
        ('{"config": 3}', "config.json is not of bipars"),
        (
            '{"format": 2, "config": {"ppo": []}}',
            r"config.json cannot be used: config.ppo is \[\]; expected settings by name",
        ),
        (
            '{"format": 2, "config": {"ppo": {"clip": "x"}}}',
            "config.json cannot be used: ppo.clip is 'x'; expected a number",
        ),
        ('{"format": 2, "config": {"terms": 3}}', "config.json cannot be used: terms is 3; expected a list"),
        (
            '{"config": {"terms": []}, "versions": {"bipars": "0.1.0"}}',
            "was written by bipars 0.1.0, whose runs this version neither continues nor reads. Install that version",
        ),
        ("\xff", "config.json is damaged"),
    ],
)
def test_a_foreign_config_file_is_named(tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(RunDirectoryError, match=message):
        _ = RunDirectory(tmp_path).config


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("result.json", "{}", "result.json is damaged: its steps is None. Delete it"),
        ("metrics.jsonl", "", "metrics.jsonl is empty, though the run was finished"),
        ("metrics.jsonl", '{"step": 600000}\n', "metrics.jsonl was altered after the run was finished"),
        ("metrics.jsonl", "garbage\n", "metrics.jsonl was altered after the run was finished"),
    ],
)
def test_an_altered_finished_run_is_named(undisturbed, tmp_path, name, content, message):
    shutil.copytree(undisturbed.path, tmp_path / "run")
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        summarise_runs([RunDirectory(tmp_path / "run")], tmp_path)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="file/run cannot be used: Not a directory. Choose another --out"):
        RunDirectory.create(tmp_path / "file" / "run", SMALL)
    with pytest.raises(RunDirectoryError, match="cannot be used: File name too long"):
        check_root(tmp_path / ("x" * 300))


def test_the_run_whose_weights_are_reused_is_recorded_wherever_one_stands(undisturbed, monkeypatch):
    monkeypatch.chdir(undisturbed.path.parent)
    config = with_weights_from(SMALL, undisturbed.path.name, seed=5)
    assert config.weights_from == str(undisturbed.path)
    with pytest.raises(RunDirectoryError, match="nowhere, whose weights are to be reused, was not found"):
        load_weights("nowhere")


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_term_that_is_not_a_number_stops_the_run_and_keeps_its_checkpoint(tmp_path, monkeypatch):
    import jax.numpy as jnp

    # Large angular velocities are rare under the first policy and come later: the first update is clean.
    bad = RewardTerm("fragile", lambda obs, action, next_obs, info: jnp.where(abs(obs[0]) > 0.9, jnp.nan, 0.1))
    config = complete(replace(SMALL, terms=(), checkpoint_every=1), Objects(terms=(bad,)))
    run = RunDirectory.create(tmp_path / "run", config)
    monkeypatch.setattr("bipars.runs.execute.build", lambda config: build(config, Objects(terms=(bad,))))
    with pytest.raises(NonFiniteError, match=r"term 'fragile' is nan at step \d+ \(environment \d+\)"):
        execute(run, never)
    rounds = len(run.metrics)
    assert all(row["nonfinite"] == [] for row in run.metrics if "nonfinite" in row)
    assert "fragile" in json.loads(run.error_file.read_text())["error"]
    if rounds:
        assert verified_checkpoints(run.checkpoints)[0][0].round == rounds
        assert "The last checkpoint is kept: bipars resume" in json.loads(run.error_file.read_text())["error"]


def test_weights_of_another_run_are_loaded_and_stay_frozen(undisturbed, tmp_path):
    config = with_weights_from(SMALL, undisturbed.path, seed=5)
    run = RunDirectory.create(tmp_path / "run", replace(config, steps=6_000))
    assert execute(run, never)
    learned, reused = load_weights(undisturbed.path), load_weights(run.path)
    for a, b in zip(map(np.asarray, leaves(learned)), map(np.asarray, leaves(reused)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert abs(undisturbed.metrics[-1]["weight/harmful"] - 1) > 1e-3


def test_one_number_per_term_of_another_runs_weights_counts_everywhere(undisturbed, tmp_path):
    config = with_weights_from(SMALL, undisturbed.path, seed=5, weights_as="scalars")
    run = RunDirectory.create(tmp_path / "run", replace(config, steps=6_000))
    assert execute(run, never)
    mean = np.mean([row["weight/harmful"] for row in undisturbed.metrics[-5:]])
    for row in run.metrics:
        spread = [row[f"weight{part}/harmful"] for part in ("", "_p10", "_p90")]
        np.testing.assert_allclose(spread, mean, rtol=1e-5)
    with pytest.raises(UsageError, match="weights_as is 'scalars', of no run; name one with weights_from"):
        with_weights_from(SMALL, None, seed=5, weights_as="scalars")
    with pytest.raises(UsageError, match="weights_from is None; expected the run whose scalars are taken"):
        replace(SMALL, weights_as="scalars")


def leaves(tree):
    import jax

    return jax.tree.leaves(tree)


def test_a_checkpoint_of_another_configuration_names_what_does_not_fit(undisturbed):
    other = build(complete(replace(SMALL, ppo=replace(SMALL.ppo, policy_hidden=(9, 9)))))
    _, content = verified_checkpoints(undisturbed.checkpoints)[0]
    with pytest.raises(CheckpointError, match=r"array '.*policy.*' is float32\[4, 8\]; this configuration needs"):
        decode_tree(content, other.abstract_state(), "x")


def test_metrics_rows_are_strict_json_and_a_torn_tail_is_dropped(tmp_path):
    assert json.loads(encode_row({"a": float("nan"), "b": 1.5, "c": float("inf")})) == {
        "a": None,
        "b": 1.5,
        "c": None,
        "nonfinite": ["a", "c"],
    }
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    rest = {"step": 1, "evaluation_return": None, "evaluation_length": 3.0}
    writer.append({"round": 1} | rest)
    mark = writer.mark()
    writer.append({"round": 2} | rest)
    writer.file.write(b'{"round": 3, "tor')
    writer.close()
    assert [row["round"] for row in parse_metrics(path.read_bytes(), path)] == [1, 2]
    assert read_last_row(path) == {"round": 2} | rest
    MetricsWriter(path, mark).close()
    assert [row["round"] for row in parse_metrics(path.read_bytes(), path)] == [1]
    path.write_bytes(b'{"round": 9}\n')
    with pytest.raises(CheckpointError, match="is damaged: it is not what was recorded in its first"):
        MetricsWriter(path, mark)
