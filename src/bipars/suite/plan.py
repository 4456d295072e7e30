"""A suite: a grid of runs declared in a TOML file, expanded and checked whole before anything starts.

    title = "Harmful shaping"
    seeds = "0-7"
    steps = 1_200_000

    [[grid]]
    env = ["cartpole", "cartpole-continuous"]
    term = ["harmful"]
    method = ["ppo", "ns", "mgl"]

Every combination is one cell, named env/term/method; docs/suites.md explains every key.
"""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from bipars.errors import UsageError, unknown
from bipars.nets.spaces import Spaces
from bipars.program import complete, configure
from bipars.runs.consent import take_names
from bipars.runs.files import read_file
from bipars.runs.reuse import check_reuse
from bipars.settings.importing import foreign_code, require_agreed
from bipars.settings.resolved import ResolvedConfig
from bipars.settings.seeds import parse_seeds
from bipars.suite.panels import Panel, check_table, read_panels
from bipars.suite.shipped import find_suite

SUITE_KEYS = {"title", "seeds", "seeds_of", "steps", "settings", "grid", "panel"}
LONGEST_PART = 240
"""Bytes of the name of a directory; file systems take 255."""
GRID_KEYS = {"env", "term", "name", "method", "label", "seeds", "steps", "settings", "weights_from", "kind", "half"}


@dataclass(frozen=True)
class Cell:
    """One place of the grid, without its seed."""

    name: str
    config: ResolvedConfig
    seeds: tuple[int, ...]
    weights_from: str | None = None
    """Name of the cell whose weights it reuses, seed by seed."""


@dataclass(frozen=True)
class Suite:
    title: str
    cells: tuple[Cell, ...]
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True)
class Changes:
    """What the command line asks for instead of what the file says."""

    seeds: str | None = None
    steps: int | None = None
    scale: float = 1.0
    """All numbers of steps are multiplied by it."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"--steps is {self.steps}; expected at least 1")
        if not 0 < self.scale < float("inf"):
            raise UsageError(f"--scale is {self.scale}; expected a positive number, such as 0.1")


AS_WRITTEN = Changes()


def load_suite(name: str, changes: Changes = AS_WRITTEN) -> Suite:
    path = find_suite(name)
    try:
        content = read_file(path)
        data = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: {error}") from error
    names = _named_code(data)
    take_names(names, path, content)
    require_agreed(names)
    try:
        return _read(path, data, changes)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _named_code(data: dict[str, Any]) -> tuple[str, ...]:
    """What a file would have imported, wherever it says so."""
    texts: list[tuple[str, str]] = []
    level: list[tuple[str, Any]] = [("", data)]
    while level:
        key, value = level.pop()
        if isinstance(value, dict):
            level += value.items()
        elif isinstance(value, list):
            level += [(key, inner) for inner in value]
        elif isinstance(value, str):
            texts.append((key, value))
    return foreign_code([text for key, text in texts if key == "env"], [text for _, text in texts])


def load_suites(names: Iterable[str], changes: Changes = AS_WRITTEN) -> Suite:
    """Several suites as one: a cell they share is run once."""
    suites = [load_suite(name, changes) for name in names]
    cells: dict[str, Cell] = {}
    for suite in suites:
        merge_cells(cells, suite.cells)
    panels = {panel.name: panel for suite in suites for panel in suite.panels}
    return Suite("; ".join(suite.title for suite in suites), tuple(cells.values()), tuple(panels.values()))


def merge_cells(known: dict[str, Cell], more: Iterable[Cell]) -> None:
    """Adds cells; one that is there already gets the seeds of both, and must agree in everything else."""
    for cell in more:
        other = known.setdefault(cell.name, cell)
        if (other.config, other.weights_from) != (cell.config, cell.weights_from):
            mine, theirs = ({**c.config.flat(), "weights_from": c.weights_from} for c in (cell, other))
            differing = ", ".join(f"{k}: {theirs[k]!r} and {mine[k]!r}" for k in mine if mine[k] != theirs[k])
            raise UsageError(f"the cell '{cell.name}' is asked for in two ways ({differing}); give one of them a label")
        known[cell.name] = replace(other, seeds=tuple(sorted({*other.seeds, *cell.seeds})))


def _read(path: Path, data: dict[str, Any], changes: Changes) -> Suite:
    check_table(data, SUITE_KEYS)
    grids = data.get("grid", [])
    if not isinstance(grids, list) or not grids:
        raise UsageError("no [[grid]] in it, so nothing to run")
    seeds_of = _value(data, "seeds_of", {}, 'seeds by method, such as {rcpo = "0-4"}')
    cells: dict[str, Cell] = {}
    tried: dict[Any, Spaces] = {}
    of_grid: list[list[Cell]] = []
    for number, grid in enumerate(grids, 1):
        check_table(grid, GRID_KEYS, what=f"key in grid {number}")
        try:
            settings = _merge(_settings(data), _settings(grid))
            common = {"seeds": data.get("seeds", "0"), "steps": data.get("steps")}
            whole = {**common, **grid, "settings": settings, "seeds_of": {} if "seeds" in grid else seeds_of}
            of_grid.append(list(_expand(whole, changes, tried)))
            for cell in of_grid[-1]:
                if cell.name in cells:
                    raise UsageError(f"the cell '{cell.name}' stands there twice; give one of them a label")
                cells[cell.name] = cell
        except UsageError as error:
            raise UsageError(f"grid {number}: {error}") from error
    for cell in cells.values():
        if cell.weights_from is not None:
            _check_source(cell, cells)
    title = data.get("title", path.stem)
    panels = read_panels(data.get("panel", []), path.stem, cells)
    for grid, members in zip(grids, of_grid, strict=True):
        panels += _pairs(grid, path.stem, members, cells.values())
    for panel in panels:
        check_directory_name("a panel", panel.name)
    return Suite(title, tuple(cells.values()), panels)


def _pairs(grid: dict[str, Any], suite: str, members: list[Cell], cells: Iterable[Cell]) -> tuple[Panel, ...]:
    """A grid that says its `kind` is pairs of environment and terms: each a panel, with what it is measured against."""
    kind, half = _text(grid, "kind"), _text(grid, "half")
    if not kind:
        if half:
            raise UsageError(f"half is '{half}', but there is no kind; a grid of pairs has both")
        return ()
    panels = []
    for place in dict.fromkeys(cell.name.rpartition("/")[0] for cell in members):
        beside = [cell for cell in cells if cell.name.rpartition("/")[0] == place]
        same_task = [cell for cell in cells if _task(cell) == _task(beside[0])]
        plain = [cell for cell in same_task if cell.config.method == "ppo" and not cell.config.terms]
        if not plain or all(cell.config.method != "ns" for cell in beside):
            raise UsageError(
                f"'{place}' has a kind, so it is compared with no shaping and with naive shaping: add the method 'ns' "
                "to it, and a grid with the method 'ppo' and the same env, steps and true_reward"
            )
        names = dict.fromkeys(cell.name for cell in (*plain, *beside))
        env, name = place.split("/")
        panels.append(Panel(f"{suite}-{env}-{name}", f"{env}, {name} ({kind})", tuple(names), kind=kind, half=half))
    return tuple(panels)


def _task(cell: Cell) -> tuple[Any, ...]:
    config = cell.config
    return config.env, config.env_options, config.true_reward, config.steps


def _check_source(cell: Cell, cells: dict[str, Cell]) -> None:
    assert cell.weights_from is not None
    source = cells.get(cell.weights_from)
    if source is None:
        raise unknown(f"weights_from of cell '{cell.name}'", cell.weights_from, cells)
    if source.weights_from is not None:
        raise UsageError(f"weights_from of cell '{cell.name}' is '{source.name}', which learns no weights itself")
    missing = sorted(set(cell.seeds) - set(source.seeds))
    if missing:
        raise UsageError(
            f"cell '{cell.name}' has seeds {missing}, which '{source.name}', whose weights it reuses, has not"
        )
    check_reuse(cell.config, source.config, f"cell '{source.name}'")


def _expand(grid: dict[str, Any], changes: Changes, tried: dict[Any, Spaces]) -> Iterator[Cell]:
    steps = changes.steps or grid["steps"]
    for env, term, method in product(_names(grid, "env"), _terms(grid), _names(grid, "method")):
        seeds = parse_seeds(str(changes.seeds or grid["seeds_of"].get(method, grid["seeds"])))
        label = _text(grid, "label", "{method}").replace("{method}", method)
        parts = (env, _text(grid, "name") or "+".join(term) or "none", label)
        name = "/".join(part.replace(":", "-").replace("/", "-") for part in parts)
        check_cell_name(name)
        try:
            given = {**grid["settings"], "env": env, "terms": term, "method": method}
            config = configure(given | ({"steps": steps} if steps is not None else {}))
            config = complete(config, tried=tried)
            config = replace(config, steps=max(1, round(config.steps * changes.scale)))
            yield Cell(name, config, seeds, _source(grid, env, term))
        except UsageError as error:
            raise UsageError(f"cell '{name}': {error}") from error


def check_cell_name(name: str) -> None:
    """Refuses names that would lead out of the directory of the suite."""
    parts = name.split("/")
    if len(parts) != 3:
        raise UsageError(f"a cell is called {name!r:.80}; expected env/term/method")
    for part in parts:
        check_directory_name("a part of a cell", part)


def check_directory_name(what: str, name: str) -> None:
    if name in ("", ".", "..") or "/" in name or not name.isprintable() or len(name.encode()) > LONGEST_PART:
        raise UsageError(f"{what} is called {name!r:.80}; expected a plain name of at most {LONGEST_PART} bytes")


def _value(data: dict[str, Any], key: str, otherwise: Any, expected: str) -> Any:
    """One value of a table, of the same type as what stands in for it."""
    value = data.get(key, otherwise)
    if not isinstance(value, type(otherwise)):
        raise UsageError(f"{key} is {value!r:.80}; expected {expected}")
    return value


def _settings(data: dict[str, Any]) -> dict[str, Any]:
    return _value(data, "settings", {}, "keys and values of the configuration")


def _text(data: dict[str, Any], key: str, otherwise: str = "") -> str:
    return _value(data, key, otherwise, "text")


def _merge(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A grid's own settings over those of the whole suite."""
    both = {k: _merge(common[k], v) for k, v in own.items() if isinstance(v, dict) and isinstance(common.get(k), dict)}
    return common | own | both


def _names(grid: dict[str, Any], key: str) -> list[str]:
    """A name, or a list of them."""
    value = grid.get(key)
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        given = "missing" if value is None else repr(value)
        raise UsageError(f"{key} is {given}; expected a name or a list of names")
    return names


def _terms(grid: dict[str, Any]) -> list[list[str]]:
    """Each entry is one place of the grid: a term, or several at once."""
    if "term" not in grid:
        return [[]]
    value = grid["term"]
    entries = [value] if isinstance(value, str) else value
    terms = [[entry] if isinstance(entry, str) else entry for entry in entries] if isinstance(entries, list) else []
    if not terms or not all(isinstance(t, list) and all(isinstance(x, str) and x for x in t) for t in terms):
        raise UsageError(f"term is {value!r}; expected a name, or a list of names and of lists of names")
    return terms


def _source(grid: dict[str, Any], env: str, terms: list[str]) -> str | None:
    text = _text(grid, "weights_from")
    try:
        return text.format(env=env, term="+".join(terms)) or None
    except (KeyError, IndexError, ValueError) as error:
        raise UsageError(f"weights_from is '{text}'; in braces it may hold env and term only") from error
