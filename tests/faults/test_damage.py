"""A flipped bit in any file of a run is named, and what a checkpoint can make again comes again."""

import json
import shutil
from dataclasses import replace

import pytest

import bipars
from bipars.cli import main
from bipars.errors import BiparsError
from bipars.program import complete
from bipars.results.panels import collect
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import execute
from bipars.runs.snapshots import load_snapshots
from bipars.settings.config import Config, PPOConfig

ROUNDS = 12
SMALL = complete(
    Config(
        terms=("harmful",),
        steps=200 * ROUNDS,
        checkpoint_every=4,
        evaluation_episodes=2,
        ppo=PPOConfig(update_period=200, num_envs=10, gradient_steps=4, batch_size=64),
    )
)


def never():
    return False


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = RunDirectory.create(tmp_path_factory.mktemp("damage") / "seed-0000", SMALL)
    assert execute(run, never)
    return run


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "seed-0000")
    return RunDirectory(tmp_path / "seed-0000")


@pytest.fixture
def unfinished(tmp_path):
    """Stopped after ten rounds: checkpoints at eight and ten."""
    answers = iter([False] * 9 + [True])
    run = RunDirectory.create(tmp_path / "seed-0000", SMALL)
    assert not execute(run, lambda: next(answers))
    return run


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def flip(path, place=-20):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def outcome(run):
    paths = [run.metrics_file, run.result_file, *run.checkpoints.iterdir(), *run.snapshots.iterdir()]
    return {path.name: path.read_bytes() for path in paths}


def test_an_intact_run_is_called_so(run, capfd):
    assert main(["verify", str(run.path)]) == 0
    assert "1 runs, all intact" in capfd.readouterr().out


def test_a_setting_that_changed_is_no_longer_trained_with(unfinished, capfd):
    change(unfinished.config_file, '"gae_lambda": 0.95', '"gae_lambda": 0.15')
    before = unfinished.metrics_file.read_bytes()
    for command in ("resume", "verify", "report", "render"):
        assert main([command, str(unfinished.path)]) in (1, 2)
        text = capfd.readouterr()
        assert "config.json is damaged, or was edited: its checksum is not that of its content" in text.out + text.err
    with pytest.raises(BiparsError, match=r"config\.json is damaged, or was edited"):
        bipars.BiPaRS.load(unfinished.path)
    assert unfinished.metrics_file.read_bytes() == before


def test_a_round_that_changed_is_not_gone_on_from(unfinished, finished, capfd):
    newest = max(unfinished.checkpoints.glob("*.json"))
    change(newest, '"round": 10', '"round": 11')
    assert main(["verify", str(unfinished.path)]) == 1
    assert f"checkpoint manifest {newest} is damaged" in capfd.readouterr().out
    assert execute(unfinished, never)
    assert outcome(unfinished) == outcome(finished)


def test_a_file_in_the_place_of_the_checkpoints_is_no_new_beginning(unfinished, capfd):
    shutil.rmtree(unfinished.checkpoints)
    unfinished.checkpoints.write_bytes(b"")
    before = unfinished.metrics_file.read_bytes()
    message = f"{unfinished.checkpoints} cannot be read: Not a directory"
    assert main(["verify", str(unfinished.path)]) == 1
    assert message in capfd.readouterr().out
    assert main(["resume", str(unfinished.path)]) == 1
    assert message in capfd.readouterr().err
    with pytest.raises(BiparsError, match="cannot be read: Not a directory"):
        bipars.BiPaRS.load(unfinished.path)
    assert unfinished.metrics_file.read_bytes() == before


def test_a_checkpoint_of_another_run_is_not_gone_on_from(unfinished, finished, caplog):
    for path in unfinished.checkpoints.iterdir():
        path.unlink()
    other = unfinished.config_file.read_text()
    foreign = RunDirectory.create(unfinished.path.parent / "other", replace(SMALL, seed=1))
    answers = iter([False] * 3 + [True])
    assert not execute(foreign, lambda: next(answers))
    for path in foreign.checkpoints.iterdir():
        shutil.copy(path, unfinished.checkpoints)
    assert unfinished.config_file.read_text() == other
    with pytest.raises(BiparsError, match="no checkpoint of .* can be used"):
        execute(unfinished, never)
    assert "belongs to a run with other settings" in caplog.text


@pytest.mark.parametrize("damage", ["cut", "flip", "longer"])
def test_metrics_of_a_finished_run_come_again_from_an_earlier_checkpoint(run, finished, capfd, damage):
    content = run.metrics_file.read_bytes()
    lines = content.splitlines(keepends=True)
    damaged = {"cut": b"".join(lines[:9]), "longer": content + lines[-1], "flip": content[:-30] + b"7" + content[-29:]}
    run.metrics_file.write_bytes(damaged[damage])
    with pytest.raises(BiparsError, match=r"metrics\.jsonl was altered after the run was finished"):
        collect(run.path)
    assert main(["resume", str(run.path)]) == 0
    assert f"DAMAGED {run.path}: {run.metrics_file} was altered" in capfd.readouterr().err
    assert outcome(run) == outcome(finished)


def test_metrics_that_no_checkpoint_can_make_again_are_named_and_kept(run, capfd):
    run.metrics_file.write_bytes(b"".join(run.metrics_file.read_bytes().splitlines(keepends=True)[:5]))
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path.name != "lock"}
    assert main(["resume", str(run.path)]) == 1
    assert "no checkpoint can make it again" in capfd.readouterr().err
    assert before == {path: path.read_bytes() for path in before}


def test_a_report_names_the_seed_whose_metrics_were_cut(run, finished, capfd):
    shutil.copytree(finished.path, run.path.parent / "seed-0001")
    run.metrics_file.write_bytes(b"".join(run.metrics_file.read_bytes().splitlines(keepends=True)[:5]))
    assert main(["report", str(run.path.parent), "--text"]) == 0
    assert f"MISSING {run.path}: {run.metrics_file} was altered after" in capfd.readouterr().out


def test_a_result_that_changed_comes_again(run, finished, capfd):
    result = json.loads(run.result_file.read_text())
    change(run.result_file, str(result["evaluation_length"]), str(result["evaluation_length"] + 100))
    with pytest.raises(BiparsError, match=r"result\.json is damaged, or was edited"):
        _ = run.result
    assert main(["verify", str(run.path)]) == 1
    assert main(["resume", str(run.path)]) == 0
    assert "result.json is damaged" in capfd.readouterr().err
    assert outcome(run) == outcome(finished)


def test_a_snapshot_that_changed_or_is_gone_is_named(run, capfd):
    first, second, *_ = sorted(run.snapshots.iterdir())
    flip(first)
    second.unlink()
    with pytest.raises(BiparsError, match=r"safetensors is damaged: its checksum is not that of its content"):
        load_snapshots(run)
    assert main(["verify", str(run.path)]) == 1
    text = capfd.readouterr().out
    assert f"DAMAGED {first} is damaged" in text
    assert f"DAMAGED {second} is gone" in text


def test_metrics_of_an_unfinished_run_are_those_of_its_checkpoint(unfinished, capfd):
    flip(unfinished.metrics_file, 40)
    assert main(["verify", str(unfinished.path)]) == 1
    assert "metrics.jsonl was altered after its newest checkpoint" in capfd.readouterr().out


def test_a_saved_agent_is_checked_too(tmp_path, capfd):
    agent = bipars.BiPaRS("cartpole", terms=["harmful"], ppo=SMALL.ppo)
    agent.save(tmp_path / "agent")
    assert main(["verify", str(tmp_path / "agent")]) == 0
    change(tmp_path / "agent" / "checkpoints" / "agent.json", '"round": 0', '"round": 9')
    assert main(["verify", str(tmp_path / "agent")]) == 1
    with pytest.raises(BiparsError, match="no intact checkpoint"):
        bipars.BiPaRS.load(tmp_path / "agent")


def test_the_metrics_of_a_saved_agent_are_checked_too(tmp_path, capfd, caplog):
    agent = bipars.BiPaRS("cartpole", terms=["harmful"], ppo=SMALL.ppo)
    agent.metrics = [{"round": i, "step": i, "evaluation_return": 0.0, "evaluation_length": 1.0} for i in (1, 2, 3)]
    agent._rounds = 3
    agent.save(tmp_path / "agent")
    assert main(["verify", str(tmp_path / "agent")]) == 0
    assert len(bipars.BiPaRS.load(tmp_path / "agent").metrics) == 3
    metrics = tmp_path / "agent" / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    for damaged in (b"", lines[0], b"".join(lines).replace(b"0.0", b"9.0"), b"".join([*lines, lines[-1]])):
        metrics.write_bytes(damaged)
        assert main(["verify", str(tmp_path / "agent")]) == 1
        assert f"DAMAGED {metrics} " in capfd.readouterr().out
        assert bipars.BiPaRS.load(tmp_path / "agent").metrics == []
        assert f"{metrics} " in caplog.text


def test_runs_that_are_older_than_checksums_are_read(run, capfd):
    """As they stand on disk: format 2, manifests of format 1, no checksum anywhere."""
    for path, form in (
        (run.config_file, 2),
        (run.result_file, None),
        *((p, 1) for p in run.checkpoints.glob("*.json")),
    ):
        value = json.loads(path.read_text())
        del value["checksum"]
        if path == run.result_file:
            del value["metrics_size"], value["metrics_sha256"]
        else:
            value |= {"format": form}
        value.pop("settings_sha256", None)
        path.write_text(json.dumps(value))
    assert main(["verify", str(run.path)]) == 0
    assert "1 of them are older than checksums" in capfd.readouterr().out
    assert main(["report", str(run.path), "--text"]) == 0
    assert bipars.BiPaRS.load(run.path).num_timesteps == 200 * ROUNDS


def test_a_suite_file_that_changed_is_named(tmp_path, capfd):
    from suites import suite_file

    root = tmp_path / "out"
    file = suite_file(tmp_path, ["cartpole"], ["ns"], "0", rounds=1)
    assert main(["suite", str(file), "--out", str(root)]) == 0
    assert main(["verify", str(root)]) == 0
    change(root / "suite.json", '"gae_lambda": 0.95', '"gae_lambda": 0.15')
    for command in (["verify", str(root)], ["resume", str(root)], ["suite", "status", str(root)]):
        assert main(command) in (1, 2)
        text = capfd.readouterr()
        assert "suite.json is damaged, or was edited" in text.out + text.err
