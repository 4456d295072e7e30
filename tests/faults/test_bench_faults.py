"""`bipars bench faults`: that it finds nothing where all is well, and something where it is not."""

import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from bipars.bench import hostile, kills
from bipars.bench.faults import do_part, known_parts, read_tally, run_bench, table
from bipars.cli import main
from bipars.errors import UsageError
from bipars.metrics import with_tables

ROOT = Path(__file__).parents[2]


def do(part, count, out=None):
    return do_part(part, known_parts()[part][0], count, out)


def test_corruptions_are_named_or_without_effect():
    tally = do("corruptions", 25)
    assert tally.done == 25
    assert tally.failures == []
    assert tally.notes["named"] > 10


def test_without_checksums_corruptions_are_found_out(monkeypatch):
    for module in ("directory", "checkpoint"):
        monkeypatch.setattr(f"bipars.runs.{module}.verify_checksum", lambda *_, **__: None)
    assert any("the results differ" in failure for failure in do("corruptions", 150).failures)


def test_hostile_files_do_no_harm():
    tally = do("hostile", 4)
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
    monkeypatch.setattr(hostile, "execute", endless)
    commands = hostile.Commands(tmp_path)
    assert commands.run(["list"]) == ("it hung, or ended the process", "")
    commands.pool.terminate()


def endless(arguments):
    time.sleep(600)


def test_kills_are_survived_and_differences_seen(tmp_path, monkeypatch):
    monkeypatch.setitem(kills.TASKS, "mgl", [*kills.TASKS["mgl"], "--steps", "40000"])
    tally = do("mgl", 1)
    assert (tally.done, tally.failures) == (1, [])
    run = kills.small_run(tmp_path / "one" / "seed-0000")
    calm = kills.outcome(run.path)
    assert list(kills.differences(run.path, calm)) == []
    lines = run.timings_file.read_bytes().splitlines(keepends=True)
    run.timings_file.write_bytes(b"".join([*lines, lines[-1]]))
    assert list(kills.differences(run.path, calm)) == ["timings.jsonl does not have every round once"]
    run.result_file.write_bytes(b"{}")
    assert "result.json differs from that of the undisturbed run" in kills.differences(run.path, calm)


def test_what_was_tried_is_kept_and_gone_on_from(tmp_path):
    seen = []

    @contextmanager
    def part(scratch):
        def try_one(tally, most, rng):
            seen.append(rng.random())
            tally.count("odd" if tally.done % 2 else "even")
            tally.failures += ["the third"] if tally.done == 3 else []

        yield try_one

    do_part("mine", part, 2, tmp_path)
    tally = do_part("mine", part, 4, tmp_path)
    assert len(set(seen)) == tally.done == 4
    assert tally == read_tally(tmp_path / "mine.json")
    assert tally.line().split(maxsplit=5) == ["mine", "4", "1", "0", "s", "2 even, 2 odd"]
    assert do_part("mine", part, 9, None).done == 9
    assert seen[:4] == seen[4:8]


def test_the_page_has_the_figures_of_the_files():
    page = (ROOT / "docs" / "runs.md").read_text()
    assert with_tables(page, table(ROOT / "results" / "faults")) == page, "docs/runs.md is out of date: run `make docs`"


def test_its_size_and_parts_are_checked(capfd):
    for scale in (0.0, -1.0, 2.0, float("nan")):
        with pytest.raises(UsageError, match="--scale is"):
            run_bench(scale, None, ())
    with pytest.raises(UsageError, match="unknown part of bench faults 'hoper'. Did you mean 'hopper'"):
        run_bench(1.0, None, ["hoper"])
    assert sum(count for _, count in known_parts().values()) == 300 + 1_000 + 500 + 10
    assert main(["bench", "cartpole", "--scale", "0.5"]) == 2
    assert main(["bench", "faults", "--updates", "3"]) == 2
    assert "does not take --updates" in capfd.readouterr().err
