"""docs/architecture.md names what exists, and its picture shows the rooms as the linter knows them."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "bipars"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROWS = [line for line in PAGE.partition("## I want to change")[2].splitlines() if line.startswith("| ")][2:]


def spans(text):
    return re.findall(r"`([^`]+)`", text)


def find(path):
    return next((place for place in (SOURCE / path, ROOT / path) if place.exists()), None)


@pytest.mark.parametrize("row", ROWS)
def test_what_a_row_names_is_in_the_files_that_it_names(row):
    names = spans(row.split(" | ", 1)[1])
    paths = [name for name in names if re.search(r"/|\.py$", name)]
    assert all(map(find, paths)), paths
    text = "".join(find(path).read_text() for path in paths if find(path).is_file())
    others = set(names) - set(paths) - {"make docs"}
    assert {name for name in others if not re.search(rf"\b{name}\b", text)} - {"preset"} == set()
    assert paths or "preset" in others


def test_files_in_sentences_exist():
    named = [name for name in spans(PAGE) if re.fullmatch(r"[a-z_/]+\.(py|toml)", name)]
    assert len(named) > 40
    assert [name for name in named if find(name) is None] == []


def test_the_picture_has_the_rooms_of_the_linter_in_their_order():
    (contract,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    picture = (ROOT / "docs" / "architecture.svg").read_text()
    drawn = re.findall(r'<text class="name"[^>]*>([^<]+)</text>', picture)
    assert [room.replace(" · ", " : ") for room in drawn] == contract["layers"]
