"""`bipars suite list` and `show`: columns stand below each other, and files that are not there are called that."""

import pytest

from bipars.cli import main


@pytest.mark.parametrize(
    ("arguments", "column"), [(["list"], " cells "), (["show", "potentials"], " seeds "), (["show", "demo"], " steps")]
)
def test_columns_stand_below_each_other(arguments, column, capsys, recwarn):
    assert main(["suite", *arguments]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if column in line and "runs, " not in line]
    assert len(rows) > 1
    assert len({row.index(column) for row in rows}) == 1
    assert not recwarn.list


@pytest.mark.parametrize("before", [["show"], [], ["run", "--out", "x"]])
def test_a_suite_that_is_not_there(before, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("./nope.toml", "nope.toml", "/nope/demo"):
        assert main(["suite", *before, name]) == 2
        assert f"there is no file '{name}'" in capsys.readouterr().err
    assert main(["suite", *before, "."]) == 2
    assert "'.' is a directory; expected a suite's TOML file" in capsys.readouterr().err
    assert main(["suite", *before, "paper/fig9"]) == 2
    assert "unknown suite" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
