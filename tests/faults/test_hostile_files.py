"""One bad file does not take a report down: it is named, the rest is shown, and there is no traceback."""

import errno
import json
import os
import shutil
import subprocess

import numpy as np
import pytest
import safetensors.numpy

import bipars
from bipars.cli import main
from bipars.errors import BiparsError
from bipars.report.heatmap import heat_map
from bipars.runs.directory import RunDirectory, find_runs
from bipars.runs.files import sha256, write_checked
from bipars.runs.lock import held
from bipars.runs.metrics import read_last_row
from fake_runs import fake_cell, fake_snapshots
from suites import suite_file

MEGABYTE = "x" * 2**20


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Three seeds; the last is the middle one, which the page shows first."""
    root = fake_cell(tmp_path_factory.mktemp("hostile") / "runs", "mgl", [0.0, 0.1, 0.05], weight=-1.0)
    for run in find_runs(root):
        fake_snapshots(run)
    return root


@pytest.fixture
def root(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "runs")


def with_rows(change):
    def attack(run):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for row in rows[3:]:
            change(row)
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return attack


def with_config(**settings):
    def attack(run):
        about = json.loads((run / "config.json").read_text())
        about["config"] |= settings
        (run / "config.json").write_text(json.dumps(about))

    return attack


def with_about(**fields):
    def attack(run):
        about = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(about | fields))

    return attack


def with_text(name, text):
    return lambda run: (run / name).write_text(text)


def as_fifo(name):
    def attack(run):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return attack


def as_directory(name):
    def attack(run):
        (run / name).unlink(missing_ok=True)
        (run / name).mkdir()

    return attack


def with_arrays(**arrays):
    """In every snapshot, with a checksum that is right."""

    def attack(run):
        for path in (run / "snapshots").iterdir():
            found = safetensors.numpy.load(path.read_bytes())
            for name, array in arrays.items():
                found["." + name.replace("__", ".")] = array
            path.write_bytes(safetensors.numpy.save(found, {"checksum": sha256(safetensors.numpy.save(found))}))

    return attack


NAMED = {
    "a row without round": (with_rows(lambda row: row.pop("round")), "has no round"),
    "a row without return": (with_rows(lambda row: row.pop("evaluation_return")), "has no evaluation_return"),
    "text for a number": (with_rows(lambda row: row.update(evaluation_return="much")), "'evaluation_return' 'much'"),
    "a list for a number": (with_rows(lambda row: row.update(share=[1])), "'share' [1]; expected a number"),
    "a round that is text": (with_rows(lambda row: row.update(round="4")), "has round '4'"),
    "rows in disorder": (with_rows(lambda row: row.update(round=2)), "has round 2 after round 3"),
    "not a number": (with_text("metrics.jsonl", '{"round": 1, "step": NaN}\n'), "expected a row of metrics"),
    "a number too large": (with_rows(lambda row: row.update(evaluation_return=10**40)), "expected a number"),
    "nested metrics": (with_text("metrics.jsonl", "[" * 100_000 + "\n"), "expected a row of metrics"),
    "nested config": (with_text("config.json", '{"config": ' * 100_000), "config.json is damaged"),
    "nested options": (with_config(env_options={"a": json.loads("[" * 50 + "]" * 50)}), "nested too deeply"),
    "half a character": (with_text("config.json", '{"config": "\\ud800"}'), "config.json is damaged"),
    "a long name": (with_config(env=MEGABYTE), "env has 1,048,576 characters; expected at most 1,000"),
    "a long term": (with_config(terms=[MEGABYTE]), "terms has 1,048,576 characters"),
    "settings of another type": (with_config(terms=[["a"]]), "config.json cannot be used: terms is"),
    "a seed that is none": (with_config(seed=1.5), "seed is 1.5; expected a whole number"),
    "a period beyond numbers": (with_config(ppo={"update_period": 10**400}), "config.json"),
    "a result of another type": (with_text("result.json", "[]"), "result.json is damaged"),
    "a result of text": (with_text("result.json", '{"steps": "many"}'), "result.json is damaged: its steps is 'many'"),
    "a pipe for metrics": (as_fifo("metrics.jsonl"), "metrics.jsonl cannot be read: it is no regular file"),
    "a pipe for a config": (as_fifo("config.json"), "config.json cannot be read: it is no regular file"),
    "a pipe for a result": (as_fifo("result.json"), "result.json cannot be read: it is no regular file"),
    "a directory for a config": (as_directory("config.json"), "config.json cannot be read: it is no regular file"),
    "a directory for metrics": (as_directory("metrics.jsonl"), "metrics.jsonl cannot be read: it is no regular file"),
}


@pytest.mark.parametrize("what", NAMED)
def test_a_bad_file_is_named_and_the_rest_reported(root, capfd, what):
    attack, message = NAMED[what]
    attack(root / "seed-0002")
    assert main(["report", str(root)]) == 0
    text = capfd.readouterr()
    assert message in " ".join((text.out + text.err).split())
    assert "push" in (root / "report.html").read_text()
    with pytest.raises(BiparsError):
        bipars.BiPaRS.load(root / "seed-0002")
    assert main(["verify", str(root)]) == 1
    assert message in " ".join(capfd.readouterr().out.split())


HARMLESS = {
    "a pipe for a lock": as_fifo("lock"),
    "a command that is none": with_about(command=3),
    "a command of names": with_about(command={"a": 1}),
    "versions that are none": with_about(versions=[1]),
    "a method nobody knows": with_config(method="nope"),
    "a name that moves the cursor": with_config(env="\x1b[2J"),
    "steps beyond counting": with_config(steps=10**17),
    "an error of a megabyte": with_text("error.json", json.dumps({"error": MEGABYTE})),
    "an error that is none": with_text("error.json", "[]"),
    "weights that are missing": with_rows(lambda row: row.pop("weight/push")),
    "no effort": with_rows(lambda row: row.pop("evaluation_action_size")),
    "returns beyond squares": with_rows(lambda row: row.update(evaluation_return=1e308)),
}


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value", "ignore:All-NaN", "ignore:Mean of empty")
@pytest.mark.parametrize("what", HARMLESS)
def test_oddities_do_not_take_a_report_down(root, capfd, what):
    HARMLESS[what](root / "seed-0002")
    (root / "seed-0002" / "result.json").unlink()
    assert main(["report", str(root)]) == 0
    text = capfd.readouterr()
    assert "Traceback" not in text.err
    assert "\x1b" not in text.out
    assert len(text.out) < 100_000


SNAPSHOTS = {
    "observations of another shape": with_arrays(visited__obs=np.zeros((3, 2, 2), np.float32)),
    "an array nobody knows": with_arrays(visited__extra=np.zeros(3)),
    "fewer weights": with_arrays(visited_weights=np.zeros((7, 1), np.float32)),
    "more terms": with_arrays(episode__terms=np.zeros((30, 5), np.float32)),
    "what is no number": with_arrays(episode__reward=np.full(30, np.nan, np.float32)),
    "observations that are no numbers": with_arrays(visited__obs=np.full((300, 4), np.inf, np.float32)),
    "booleans": with_arrays(visited__action=np.zeros(300, bool)),
    "a pipe": as_fifo("snapshots/00000010.safetensors"),
    "nothing": with_text("snapshots/00000010.safetensors", ""),
    "noise": lambda run: (run / "snapshots" / "00000010.safetensors").write_bytes(b"\xff" * 100),
    "another name": lambda run: os.rename(run / "snapshots/00000010.safetensors", run / "snapshots/x.safetensors"),
}


@pytest.mark.parametrize("what", SNAPSHOTS)
def test_a_bad_snapshot_is_named_on_the_page_and_the_rest_shown(root, capfd, caplog, what):
    SNAPSHOTS[what](root / "seed-0002")
    assert main(["report", str(root)]) == 0
    assert "seed-0002/snapshots/" in caplog.text
    page = (root / "report.html").read_text()
    assert "seed-0002/snapshots/" in page
    assert main(["verify", str(root)]) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"round": "ten"}, {"round": None}, {"tensors": 5}, {"tensors": "../../config.json"}, {"sha256": []},
        {"metrics_size": -1.5}, {"format": []}, {"surprise": 1}, {"tensors": MEGABYTE},
    ],
)  # fmt: skip
def test_a_manifest_of_other_types_is_named(tmp_path, caplog, change):
    agent = bipars.BiPaRS("cartpole", terms=["harmful"], ppo={"num_envs": 2})
    agent.save(tmp_path / "agent")
    manifest = tmp_path / "agent" / "checkpoints" / "agent.json"
    data = json.loads(manifest.read_text()) | change
    del data["checksum"]
    write_checked(manifest, data)
    with pytest.raises(BiparsError, match="no intact checkpoint"):
        bipars.BiPaRS.load(tmp_path / "agent")
    assert "agent.json" in caplog.text


def test_a_checkpoint_with_other_arrays_is_named(tmp_path):
    agent = bipars.BiPaRS("cartpole", terms=["harmful"], ppo={"num_envs": 2})
    agent.save(tmp_path / "agent")
    folder = tmp_path / "agent" / "checkpoints"
    for content in (safetensors.numpy.save({"a": np.zeros(3)}), b"noise", b""):
        data = json.loads((folder / "agent.json").read_text())
        del data["checksum"]
        (folder / data["tensors"]).write_bytes(content)
        write_checked(folder / "agent.json", data | {"sha256": sha256(content)})
        with pytest.raises(BiparsError, match="safetensors (has no array|cannot be read)"):
            bipars.BiPaRS.load(tmp_path / "agent")


def test_a_saved_agents_maps_are_files_of_its_own(tmp_path):
    bipars.BiPaRS("cartpole", terms=["harmful"], ppo={"num_envs": 2}).save(tmp_path / "agent")
    folder = tmp_path / "agent" / "snapshots"
    folder.mkdir(exist_ok=True)
    (folder / "x.safetensors").write_bytes(b"")  # none of ours: passed over
    assert bipars.BiPaRS.load(tmp_path / "agent").num_timesteps == 0
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "00000000.safetensors").symlink_to(tmp_path / "secret")
    with pytest.raises(BiparsError, match="it is a symbolic link"):
        bipars.BiPaRS.load(tmp_path / "agent")
    (folder / "00000000.safetensors").unlink()
    os.mkfifo(folder / "00000000.safetensors")
    with pytest.raises(BiparsError, match=r"00000000\.safetensors cannot be read"):
        bipars.BiPaRS.load(tmp_path / "agent")


@pytest.mark.parametrize(
    "change",
    [
        {"cells": 3}, {"cells": [3]}, {"cells": [{}]}, {"panels": [{"name": 1}]}, {"requests": 3}, {"requests": [3]},
        {"title": 3}, {"format": {}}, {"panels": 3},
    ],
)  # fmt: skip
def test_a_suite_file_of_other_types_is_named(tmp_path, capfd, change):
    out = tmp_path / "out"
    assert main(["suite", str(suite_file(tmp_path, ["cartpole"], ["ns"], "0", rounds=1)), "--out", str(out)]) == 0
    data = json.loads((out / "suite.json").read_text()) | change
    del data["checksum"]
    write_checked(out / "suite.json", data)
    for command in (["resume"], ["suite", "status"], ["suite", "export"]):
        assert main([*command, str(out)]) == 2
        assert "suite.json" in capfd.readouterr().err
    assert main(["report", str(out), "--text"]) == 0


@pytest.mark.parametrize("objects", [3, [], {"terms": 3}, {"terms": [[]]}])
def test_objects_that_are_none_are_named(root, objects):
    with_about(objects=objects)(root / "seed-0002")
    with pytest.raises(BiparsError, match=r"config\.json is damaged: its objects are"):
        bipars.BiPaRS.load(root / "seed-0002")


def test_settings_beyond_reason_are_no_traceback(tmp_path):
    bipars.BiPaRS("cartpole", terms=["harmful"], ppo={"num_envs": 2}).save(tmp_path / "agent")
    about = json.loads((tmp_path / "agent" / "config.json").read_text())
    del about["checksum"]
    about["config"]["ppo"] |= {"num_envs": 10**15, "update_period": 10**15}
    write_checked(tmp_path / "agent" / "config.json", about)
    with pytest.raises(BiparsError, match="cannot be loaded|holds no intact checkpoint"):
        bipars.BiPaRS.load(tmp_path / "agent")


def test_resume_goes_on_with_the_other_runs(root, capfd):
    with_text("config.json", "{")(root / "seed-0001")
    assert main(["resume", str(root)]) == 1
    assert f"DAMAGED {root / 'seed-0001' / 'config.json'} is damaged" in capfd.readouterr().err


def test_tables_leave_a_damaged_run_out(root, caplog):
    pytest.importorskip("polars")
    with_rows(lambda row: row.pop("round"))(root / "seed-0001")
    assert set(bipars.load_results(root)["seed"]) == {0, 2}
    assert "seed-0001 is left out" in caplog.text


def test_nothing_that_a_file_says_moves_the_cursor(tmp_path, capfd):
    out = tmp_path / "out"
    assert main(["suite", str(suite_file(tmp_path, ["cartpole"], ["ns"], "0", rounds=1)), "--out", str(out)]) == 0
    run = next(out.rglob("config.json")).parent
    (run / "result.json").unlink()
    (run / "error.json").write_text(json.dumps({"error": "\x1b[2J"}))
    data = json.loads((out / "suite.json").read_text()) | {"title": "\x1b[2J"}
    del data["checksum"]
    write_checked(out / "suite.json", data)
    assert main(["suite", "status", str(out)]) == 1
    strange = (tmp_path / "a\x1b[2J").resolve()
    strange.mkdir()
    (strange / "config.json").write_text("{")
    assert main(["resume", str(strange)]) == 2
    text = capfd.readouterr()
    assert "\x1b" not in text.out + text.err
    assert "[2J/config.json is damaged" in text.err


@pytest.fixture
def unlisted(monkeypatch):
    """A directory that cannot be listed; who is root can list all, so the system is asked in another's place."""
    denied = []

    def asked(ask):
        def answer(path="."):
            if str(path) in map(str, denied):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return ask(path)

        return answer

    monkeypatch.setattr(os, "scandir", asked(os.scandir))
    monkeypatch.setattr(os, "listdir", asked(os.listdir))
    monkeypatch.setattr(os, "open", _refusing(denied, os.open))
    monkeypatch.setattr(os, "stat", _refusing(denied, os.stat))
    return denied.append


def _refusing(denied, opened):
    def answer(path, *rest, **more):
        if any(str(path).startswith(f"{place}{os.sep}") for place in denied):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *rest, **more)

    return answer


@pytest.mark.parametrize("place", ["seed-0002", "seed-0002/snapshots", "seed-0002/checkpoints"])
def test_a_directory_that_cannot_be_listed_is_named(root, unlisted, capfd, caplog, place):
    """Who takes it for an empty one calls all intact, and reports one seed less without a word."""
    (root / place).mkdir(exist_ok=True)
    unlisted(root / place)
    assert main(["verify", str(root)]) == 1
    assert f"{root / place}" in capfd.readouterr().out
    assert main(["report", str(root)]) == 0
    if place != "seed-0002/checkpoints":  # a report of what is finished asks for none
        assert str(root / place) in " ".join(capfd.readouterr().out.split()) + caplog.text


@pytest.fixture
def endless(root):
    """Directories in a run, each in the one before."""
    here = os.open(root / "seed-0002", os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    yield
    subprocess.run(["rm", "-r", root / "seed-0002" / "d"], check=True)  # pytest would remove them by recursion


@pytest.mark.usefixtures("endless")
def test_directories_in_directories_without_end_are_no_traceback(root, capfd):
    assert main(["report", str(root), "--text"]) == 0
    assert main(["verify", str(root)]) == 0
    assert "3 runs, all intact" in capfd.readouterr().out


def test_a_directory_in_the_place_of_a_leftover_is_left(tmp_path):
    (tmp_path / ".a.tmp").mkdir()
    (tmp_path / ".b.tmp").touch()
    with RunDirectory(tmp_path).owned():
        assert {path.name for path in tmp_path.iterdir()} == {".a.tmp", "lock"}


def test_a_run_without_snapshots_has_no_map(root):
    """Such as one of two with the same seed, of which the other has some."""
    assert heat_map(find_runs(root)[0].config.weights, [], 0, 0, 1) is None


def test_pipes_do_not_make_anybody_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert not held(tmp_path / "pipe")
    assert read_last_row(tmp_path / "pipe") is None
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(BiparsError, match="no regular file"), RunDirectory(tmp_path).owned():
        pass
    with pytest.raises(BiparsError, match="no regular file"):
        bipars.LearnedWeightFunction.load(tmp_path / "pipe")
