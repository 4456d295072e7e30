"""`bipars bench faults`: that it finds nothing where all is well, and something where it is not."""

import pytest

from bipars.bench import corruptions, hostile, kills
from bipars.bench.faults import Tally, run_bench
from bipars.cli import main
from bipars.errors import UsageError


def test_corruptions_are_named_or_without_effect(tmp_path):
    tally = corruptions.corrupt(25, tmp_path)
    assert tally.done == 25
    assert tally.failures == []
    assert tally.notes["named"] > 10


def test_without_checksums_corruptions_are_found_out(tmp_path, monkeypatch):
    for module in ("directory", "checkpoint"):
        monkeypatch.setattr(f"bipars.runs.{module}.verify_checksum", lambda *_, **__: None)
    tally = corruptions.corrupt(60, tmp_path)
    assert any("the results differ" in failure for failure in tally.failures)


def test_hostile_files_do_no_harm(tmp_path):
    tally = hostile.attack(4, tmp_path)
    assert tally.done == 4
    assert tally.failures == []


def test_harm_is_seen(tmp_path):
    outside, marker = tmp_path / "outside", tmp_path / "marker"
    outside.mkdir()
    (outside / "thesis.tex").write_text("years of work")
    assert hostile._problem(0, "", outside, marker) == ""
    assert "a traceback: ValueError" in hostile._problem("Traceback ...\nValueError: x", "", outside, marker)
    assert "a traceback" in hostile._problem(1, "Traceback (most recent call last)", outside, marker)
    marker.touch()
    assert hostile._problem(0, "", outside, marker) == "its code was run"
    (outside / "more").touch()
    assert hostile._problem(0, "", outside, marker) == "something was written outside"


def test_a_command_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(hostile, "SECONDS", 0.5)
    monkeypatch.setattr(hostile, "LOOP", "import time; time.sleep(600)")
    commands = hostile.Commands(tmp_path)
    assert commands.run(["list"])[0] == "it hung, or ended the process"
    commands.close()


def test_kills_are_survived_and_differences_seen(tmp_path, monkeypatch):
    short = [*kills.TASKS["mgl"], "--steps", "100000"]
    monkeypatch.setitem(kills.TASKS, "mgl", short)
    tally = kills.kill_task("mgl", 1, tmp_path)
    assert (tally.done, tally.failures) == (1, [])
    run = kills.small_run(tmp_path / "one" / "seed-0000")
    assert kills.doubles(run.path) == []
    lines = run.timings_file.read_bytes().splitlines(keepends=True)
    run.timings_file.write_bytes(b"".join([*lines, lines[-1]]))
    assert kills.doubles(run.path) == ["timings.jsonl does not have every round once"]


def test_its_size_is_checked(capfd):
    for scale in (0.0, -1.0, 2.0, float("nan")):
        with pytest.raises(UsageError, match="--scale is"):
            run_bench(scale)
    assert main(["bench", "cartpole", "--scale", "0.5"]) == 2
    assert main(["bench", "faults", "--updates", "3"]) == 2
    assert "does not take --updates" in capfd.readouterr().err
    assert Tally("x", 3, {"a": 2}, ["y"]).line(1.0).split() == ["x", "3", "1", "1", "s", "2", "a"]
