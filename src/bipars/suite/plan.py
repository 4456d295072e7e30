"""A suite: a grid of runs declared in a TOML file, expanded and checked whole before anything starts.

    title = "Harmful shaping"
    seeds = "0-7"
    steps = 1_200_000

    [[grid]]
    env = ["cartpole", "cartpole-continuous"]
    term = ["harmful"]
    method = ["ppo", "ns", "mgl"]

Every combination is one cell, named env/term/method; a list in the place of a term means all of its terms at once, and
`name` then names them. `label` replaces the method's part of the name, `settings` are
configuration keys for all cells of the grid, `seeds` replaces the suite's, and `weights_from` names the cell whose
learned weights are reused.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from bipars.config import Config
from bipars.errors import UsageError, unknown
from bipars.program import complete
from bipars.reuse import with_weights_from
from bipars.runs.directory import RunDirectory, check_root, seed_directory
from bipars.seeds import parse_seeds

SUITE_KEYS = {"title", "seeds", "steps", "grid"}
GRID_KEYS = {"env", "term", "name", "method", "label", "seeds", "settings", "weights_from"}


@dataclass(frozen=True)
class Cell:
    """One place of the grid, without its seed."""

    name: str
    config: Config
    seeds: tuple[int, ...]
    weights_from: str | None = None
    """Name of the cell whose weights it reuses, seed by seed."""


@dataclass(frozen=True)
class Suite:
    title: str
    cells: tuple[Cell, ...]


def shipped() -> dict[str, Path]:
    """Suites that come with the package, by name."""
    root = Path(str(resources.files("bipars.suite") / "suites"))
    return {str(path.relative_to(root).with_suffix("")): path for path in sorted(root.rglob("*.toml"))}


def load_suite(name: str, seeds: str | None = None, steps: int | None = None) -> Suite:
    """A shipped suite by name, or one from a file of your own."""
    path = shipped().get(name, Path(name))
    if not path.is_file():
        raise unknown("suite", name, shipped())
    try:
        data = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from error
    _check_keys(path, data, SUITE_KEYS)
    cells: dict[str, Cell] = {}
    for grid in data.get("grid", []):
        _check_keys(path, grid, GRID_KEYS)
        chosen = parse_seeds(seeds or grid.get("seeds") or data.get("seeds", "0"))
        for cell in _expand(path, grid, chosen, steps or data.get("steps")):
            if cell.name in cells:
                raise UsageError(f"{path}: the cell '{cell.name}' stands there twice; give one of them a label")
            cells[cell.name] = cell
    if not cells:
        raise UsageError(f"{path}: no [[grid]] in it, so nothing to run")
    for cell in cells.values():
        if cell.weights_from is not None and cell.weights_from not in cells:
            raise unknown(f"weights_from of cell '{cell.name}'", cell.weights_from, cells)
    return Suite(data.get("title", name), tuple(cells.values()))


def _check_keys(path: Path, data: dict[str, Any], known: set[str]) -> None:
    for key in data:
        if key not in known:
            raise unknown(f"key in {path}", key, known)


def _expand(path: Path, grid: dict[str, Any], seeds: tuple[int, ...], steps: int | None) -> Iterator[Cell]:
    settings = dict(grid.get("settings", {}))
    if steps:
        settings["total_steps"] = steps
    for env, term, method in product(grid["env"], grid.get("term", [""]), grid["method"]):
        label = grid.get("label", method)
        terms = term if isinstance(term, list) else [term] if term else []
        parts = (env, grid.get("name") or "+".join(terms) or "none", label)
        name = "/".join(part.replace(":", "-").replace("/", "-") for part in parts)
        try:
            config = Config.from_dict({**settings, "env": env, "terms": terms, "method": method})
            yield Cell(name, complete(config), seeds, grid.get("weights_from", "").format(env=env, term=term) or None)
        except UsageError as error:
            raise UsageError(f"{path}: cell '{name}': {error}") from error


def create_runs(suite: Suite, root: Path) -> list[list[RunDirectory]]:
    """All run directories, in stages: a stage needs the weights of earlier ones only."""
    check_root(root)
    stages: list[list[RunDirectory]] = [[], []]
    for cell in sorted(suite.cells, key=lambda cell: cell.weights_from is not None):
        for seed in cell.seeds:
            path = seed_directory(root / cell.name, seed)
            source = None if cell.weights_from is None else seed_directory(root / cell.weights_from, seed)
            config = with_weights_from(cell.config, source, seed)
            stages[cell.weights_from is not None].append(RunDirectory.create(path, config))
    return stages
