"""suite.json: what was asked of a directory, in full, so that `bipars resume` finishes exactly that.

A directory may be asked for several suites, one after the other; what they share is run once.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bipars.errors import CheckpointError, RunDirectoryError, UsageError
from bipars.runs.directory import RunDirectory, check_root, seed_directory, versions
from bipars.runs.files import write_json
from bipars.runs.reuse import reusing
from bipars.settings.resolved import ResolvedConfig
from bipars.suite.panels import HeatMap, Panel, Statement
from bipars.suite.plan import AS_WRITTEN, Cell, Changes, Suite, merge_cells
from bipars.suite.work import PlannedRun

FILE = "suite.json"
FORMAT = 1


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
        """By the name of their cell."""
        found: dict[str, list[RunDirectory]] = {}
        for run in self.runs(root):
            if run.finished:
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
    write_json(root / FILE, json.loads(json.dumps(content)))
    return manifest


def read_manifest(root: Path) -> Manifest:
    path = root / FILE
    try:
        data = json.loads(path.read_bytes())
        if data["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {data['format']}; this version reads {FORMAT}")
        cells = tuple(
            Cell(
                cell["name"],
                ResolvedConfig.read(cell["config"]),
                tuple(cell["seeds"]),
                cell["weights_from"],
            )
            for cell in data["cells"]
        )
        panels = tuple(_panel(panel) for panel in data["panels"])
        return Manifest(Suite(data["title"], cells, panels), tuple(data["requests"]))
    except (FileNotFoundError, NotADirectoryError):
        problem = f"it has no {FILE}" if root.is_dir() else "there is no such directory"
        raise RunDirectoryError(
            f"{root} is not a directory of `bipars suite run`: {problem}. Name what was given to it as --out"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r}. Ask for the suite again: bipars suite run") from error


def _panel(data: dict[str, Any]) -> Panel:
    statements = tuple(Statement(**statement | {"of": tuple(statement["of"])}) for statement in data["statements"])
    heat_map = data["heat_map"] and HeatMap(**data["heat_map"])
    return Panel(data["name"], data["title"], tuple(data["cells"]), statements, heat_map)
