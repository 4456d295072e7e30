"""Nothing is written outside the directory that a person named: not by names that climb, not through links."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from bipars.cli import main
from bipars.errors import RunDirectoryError, UsageError
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import execute
from bipars.runs.files import write_atomically, write_checked
from bipars.suite.plan import load_suite
from commands import QUICK, SMALL
from fake_runs import fake_cell
from suites import suite_file, write


@pytest.fixture
def outside(tmp_path):
    """A directory that is none of ours, with a file that must stay as it is."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "thesis.tex").write_text("years of work")
    yield place
    assert [path.name for path in place.iterdir()] == ["thesis.tex"]
    assert (place / "thesis.tex").read_text() == "years of work"


def planned_suite(tmp_path):
    root = tmp_path / "deep" / "er" / "out"
    file = suite_file(tmp_path, ["cartpole"], ["ns"], "0", rounds=1)
    assert main(["suite", str(file), "--out", str(root)]) == 0
    return root


def rewrite(path, change):
    """As somebody would who also knows how to write the checksum."""
    data = json.loads(path.read_text())
    del data["checksum"]
    change(data)
    write_checked(path, data)


@pytest.mark.parametrize(
    "name", ["../../../outside/x", "/{outside}/a/b", "a/../..", "../x/y", "a/b", "a//c", "a/b/\x1b[2J"]
)
@pytest.mark.parametrize("command", [["resume"], ["suite", "status"], ["suite", "export"]])
def test_a_cell_whose_name_leads_out_is_refused(tmp_path, outside, capfd, name, command):
    root = planned_suite(tmp_path)
    name = name.format(outside=str(outside).strip("/"))
    rewrite(root / "suite.json", lambda data: data["cells"][0].update(name=name))
    before = set(tmp_path.rglob("*"))
    assert main([*command, str(root)]) == 2
    assert "called" in capfd.readouterr().err
    assert set(tmp_path.rglob("*")) - before <= {root / "runner.lock"}


def test_a_panel_whose_name_leads_out_is_refused(tmp_path, outside, capfd):
    root = planned_suite(tmp_path)
    panel = {"name": "../../../../outside/x", "title": "t", "cells": [], "statements": [], "heat_map": None}
    rewrite(root / "suite.json", lambda data: data["panels"].append(panel))
    assert main(["resume", str(root)]) == 2
    assert "panel is called '../../../../outside/x'" in capfd.readouterr().err


@pytest.mark.parametrize(
    "more", ['name = ".."\nlabel = ".."', 'label = "."', '[[panel]]\nname = "a/../../x"\ntitle = "t"']
)
def test_names_of_a_suite_file_do_not_lead_out(tmp_path, more):
    text = f'[[grid]]\nenv = "cartpole"\nterm = "harmful"\nmethod = "ns"\n{more}\n'
    with pytest.raises(UsageError, match="is called"):
        load_suite(write(tmp_path, text))


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "timings.jsonl", "lock", "result.json", "error.json", "checkpoints", "snapshots"]
)
@pytest.mark.parametrize("when", ["new", "stopped"])
def test_nothing_of_a_run_is_written_through_a_link(tmp_path, outside, name, when):
    run = RunDirectory.create(tmp_path / "run", SMALL)
    if when == "stopped":
        assert not execute(run, lambda: True)
    path = run.path / name
    if path.is_dir():
        path.rename(tmp_path / "kept")
    path.unlink(missing_ok=True)
    path.symlink_to(outside if name in ("checkpoints", "snapshots") else outside / "thesis.tex")
    with pytest.raises(RunDirectoryError, match=f"{name} is a symbolic link, and nothing is written through those"):
        execute(run, lambda: False)
    assert main(["resume", str(run.path)]) in (1, 2)


def test_a_link_to_nothing_is_not_filled_either(tmp_path, outside):
    run = RunDirectory.create(tmp_path / "run", SMALL)
    run.metrics_file.symlink_to(outside / "new")
    with pytest.raises(RunDirectoryError, match="is a symbolic link"):
        execute(run, lambda: False)


@pytest.mark.parametrize("name", ["metrics.jsonl", "lock"])
def test_what_is_written_in_place_has_no_other_name(tmp_path, outside, name):
    """A hard link is as good as a symbolic one: what is appended here is appended there."""
    run = RunDirectory.create(tmp_path / "run", SMALL)
    os.link(outside / "thesis.tex", run.path / name)
    with pytest.raises(RunDirectoryError, match=f"{name} has a second name, a hard link.*Copy it"):
        execute(run, lambda: False)


def test_the_lock_of_a_directory_is_no_link(tmp_path, outside, capfd):
    fake_cell(tmp_path / "runs", "mgl", [0.0], weight=1.0, finish=False)
    (tmp_path / "runs" / "runner.lock").symlink_to(outside / "thesis.tex")
    assert main(["resume", str(tmp_path / "runs")]) == 2
    assert "runner.lock is a symbolic link" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["report", "report/cartpole-push"])
def test_a_report_is_not_written_through_a_link(tmp_path, outside, capfd, name):
    root = fake_cell(tmp_path / "runs", "mgl", [0.0], weight=1.0)
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).symlink_to(outside)
    assert main(["report", str(root)]) == 2
    assert f"{name} is a symbolic link" in capfd.readouterr().err


def test_a_page_that_is_a_link_is_replaced_not_followed(tmp_path, outside):
    root = fake_cell(tmp_path / "runs", "mgl", [0.0], weight=1.0)
    (root / "report.html").symlink_to(outside / "thesis.tex")
    assert main(["report", str(root)]) == 0
    assert not (root / "report.html").is_symlink()


@pytest.mark.parametrize("link", ["cartpole", "cartpole/harmful", "cartpole/harmful/ns/seed-0000"])
def test_a_suite_is_not_run_behind_a_link(tmp_path, outside, capfd, link):
    root = planned_suite(tmp_path)
    (root / link).rename(tmp_path / "kept")
    (root / link).symlink_to(outside)
    assert main(["resume", str(root)]) == 2
    assert f"{link} is a symbolic link" in capfd.readouterr().err


def test_figures_of_a_suite_are_not_drawn_through_links(tmp_path, outside, capfd):
    root = planned_suite(tmp_path)
    picture = next((root / "figures").glob("*.png"))
    picture.unlink()
    picture.symlink_to(outside / "thesis.tex")
    (root / "results.md").unlink()
    (root / "results.md").symlink_to(outside / "thesis.tex")
    assert main(["resume", str(root)]) == 0
    assert not picture.is_symlink()
    for path in (root / "figures").iterdir():
        path.unlink()
    (root / "figures").rmdir()
    (root / "figures").symlink_to(outside)
    assert main(["resume", str(root)]) == 2
    assert "figures is a symbolic link" in capfd.readouterr().err


def test_a_comparison_is_not_trained_behind_a_link(tmp_path, outside, capfd):
    root = fake_cell(
        tmp_path / "runs", "mgl", [0.0], weight=1.0, terms=("harmful",), config=replace(SMALL, steps=240_000)
    )
    (root / "comparison").symlink_to(outside)
    assert main(["report", str(root), "--compare"]) == 2
    assert "comparison is a symbolic link" in capfd.readouterr().err


def test_a_temporary_name_that_is_a_link_is_not_followed(tmp_path, outside):
    (tmp_path / f".a.json.{os.getpid()}.tmp").symlink_to(outside / "thesis.tex")
    write_atomically(tmp_path / "a.json", b"new")
    assert (tmp_path / "a.json").read_bytes() == b"new"


def test_the_directory_that_a_person_names_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    command = ["train", "--term", "harmful", "--out", str(tmp_path / "runs"), "--steps", "2000"]
    assert subprocess.run([sys.executable, "-m", "bipars.cli", *command, *QUICK]).returncode == 0
    assert (tmp_path / "disk" / "seed-0000" / "result.json").exists()
