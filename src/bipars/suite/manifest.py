"""suite.json: what was asked of a directory, in full, so that `bipars resume` finishes exactly that.

A directory may be asked for several suites, one after the other; what they share is run once.
"""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bipars.errors import CheckpointError, RunDirectoryError, UsageError
from bipars.runs.consent import remember, take_names
from bipars.runs.directory import RunDirectory, seed_directory
from bipars.runs.files import read_file, read_json, refuse_outside, verify_checksum, write_checked
from bipars.runs.reuse import reusing
from bipars.runs.root import check_root
from bipars.runs.verify import result_damages
from bipars.runs.versions import versions
from bipars.settings.base import check_types, require
from bipars.settings.importing import named_code
from bipars.settings.resolved import ResolvedConfig
from bipars.suite.panels import MEASURES, HeatMap, Panel, Statement
from bipars.suite.plan import AS_WRITTEN, Cell, Changes, Suite, check_cell_name, check_directory_name, merge_cells
from bipars.suite.work import PlannedRun

logger = logging.getLogger("bipars")
FILE = "suite.json"
FORMAT = 2
WITHOUT_CHECKSUM = 1
"""The format before it, which differs in that."""


@dataclass(frozen=True)
class Manifest:
    suite: Suite
    requests: tuple[dict[str, Any], ...]
    """Every command that asked for some of it, with the versions it ran with."""

    def runs(self, root: Path) -> list[PlannedRun]:
        """All runs, those that reuse weights last."""
        cells = {cell.name: cell for cell in self.suite.cells}
        planned = []
        for cell in sorted(self.suite.cells, key=lambda cell: cell.weights_from is not None):
            for seed in cell.seeds:
                config = replace(cell.config, seed=seed)
                if cell.weights_from is not None:
                    source = seed_directory(root / cell.weights_from, seed)
                    config = reusing(config, cells[cell.weights_from].config, source)
                planned.append(PlannedRun(seed_directory(root / cell.name, seed), config, cell.name))
        return planned

    def finished_runs(self, root: Path) -> dict[str, list[RunDirectory]]:
        """By the name of their cell; one whose results are damaged is named in a warning and left out."""
        found: dict[str, list[RunDirectory]] = {}
        for run in self.runs(root):
            if run.finished:
                damages = result_damages(run.directory)
                for damage in damages:
                    logger.warning("%s is left out: %s", run.path, damage)
                if not damages:
                    found.setdefault(run.program, []).append(run.directory)
        return found


def is_suite(root: Path) -> bool:
    return (root / FILE).exists()


def record(root: Path, suite: Suite, names: Sequence[str], changes: Changes = AS_WRITTEN) -> Manifest:
    """The suite of these names, written into the directory together with what it was asked for before."""
    request = {"suites": list(names), **asdict(changes), "command": sys.argv, "versions": versions()}
    if is_suite(root):
        before = read_manifest(root)
        cells = {cell.name: cell for cell in before.suite.cells}
        try:
            merge_cells(cells, suite.cells)
        except UsageError as error:
            raise RunDirectoryError(f"{root} holds another suite: {error}. Or choose another --out") from error
        panels = {panel.name: panel for panel in (*before.suite.panels, *suite.panels)}
        titles = dict.fromkeys((before.suite.title, suite.title))
        suite = Suite("; ".join(titles), tuple(cells.values()), tuple(panels.values()))
        known = [{**past, "command": None, "versions": None} for past in before.requests]
        new = {**request, "command": None, "versions": None} not in known
        manifest = Manifest(suite, (*before.requests, request) if new else before.requests)
    else:
        check_root(root)
        manifest = Manifest(suite, (request,))
        for run in manifest.runs(root):
            if run.directory.config_file.exists():
                RunDirectory.create(run.path, run.config)  # says what differs
    root.mkdir(parents=True, exist_ok=True)
    content = {"format": FORMAT, "requests": manifest.requests, **asdict(manifest.suite)}
    write_checked(root / FILE, json.loads(json.dumps(content)))
    if _named_code(manifest.suite.cells):
        remember(root / FILE, read_file(root / FILE))
    return manifest


def read_manifest(root: Path) -> Manifest:
    path = root / FILE
    if not path.exists() and not path.is_symlink():
        problem = f"it has no {FILE}" if root.is_dir() else "there is no such directory"
        raise RunDirectoryError(
            f"{root} is not a directory of `bipars suite run`: {problem}. Name what was given to it as --out"
        )
    data, content = read_json(path)
    if data.get("format") not in (FORMAT, WITHOUT_CHECKSUM):
        raise CheckpointError(f"{path} has format {data.get('format')!r:.40}; this version reads {FORMAT}")
    again = "Ask for the suite again: bipars suite run"
    try:
        verify_checksum(path, data, content, needed=data["format"] != WITHOUT_CHECKSUM)
        cells = tuple(map(_cell, data["cells"]))
        panels = tuple(map(_panel, data["panels"]))
        require(isinstance(data["title"], str), "title", data["title"], "text")
        require(all(isinstance(request, dict) for request in data["requests"]), "requests", "something else", "tables")
        names = {cell.name for cell in cells}
        for cell in cells:
            require(cell.weights_from in (None, *names), "weights_from", cell.weights_from, "the name of a cell")
        manifest = Manifest(Suite(data["title"], cells, panels), tuple(data["requests"]))
    except CheckpointError as error:
        raise CheckpointError(f"{error}. {again}") from error
    except (UsageError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        what = str(error) if isinstance(error, UsageError) else repr(error)
        raise CheckpointError(f"{path} is damaged: {what:.300}. {again}") from error
    for run in manifest.runs(root):
        refuse_outside(root, run.path)
    take_names(_named_code(cells), path, content)
    return manifest


def _named_code(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(name for cell in cells for name in named_code(cell.config)))


def _cell(data: dict[str, Any]) -> Cell:
    cell = Cell(data["name"], ResolvedConfig.read(data["config"]), tuple(data["seeds"]), data["weights_from"])
    check_types(cell, "")
    check_cell_name(cell.name)
    require(all(0 <= seed < 2**32 for seed in cell.seeds), "seeds", cell.seeds[:10], "whole numbers in [0, 2^32)")
    return cell


def _panel(data: dict[str, Any]) -> Panel:
    statements = tuple(Statement(**statement) for statement in data["statements"])
    for statement in statements:
        check_types(statement, "")
        require(statement.measure in MEASURES, "measure", statement.measure, f"one of {', '.join(MEASURES)}")
    heat_map = data["heat_map"] and HeatMap(**data["heat_map"])
    if heat_map is not None:
        check_types(heat_map, "heat_map.")
        heat_map.check()
    kind, half = data.get("kind", ""), data.get("half", "")  # suites of earlier versions have none
    panel = Panel(data["name"], data["title"], tuple(data["cells"]), statements, heat_map, kind, half)
    check_types(panel, "panel.")
    check_directory_name("panel", panel.name)
    return panel
