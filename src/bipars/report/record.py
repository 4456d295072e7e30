"""The honest part: settings, seeds, versions and commands."""

import json
import shlex
from pathlib import Path
from typing import Any

from bipars.errors import BiparsError
from bipars.results.panels import Cell, Collection, Record

LONGEST_WORD = 1_000
"""Characters of a word of a command."""
PER_RUN = {"seed", "weights_from"}


def record(collection: Collection) -> dict[str, Any]:
    """Everything needed to make the runs again, as words."""
    records = collection.records
    cells = [(panel.name, cell) for panel in collection.panels for cell in panel.cells]
    common, names, differing = _settings(cells)
    return {
        "cells": [_cell(name, cell) for name, cell in cells],
        "commands": _unique(shlex.join(_command(r)) for r in records if _command(r)),
        "versions": _unique(_versions(r) for r in records),
        "common": common,
        "differing_names": names,
        "differing": differing,
    }


def _cell(panel: str, cell: Cell) -> list[str]:
    states = [r.status for r in cell.records]
    return [
        panel,
        cell.title,
        ", ".join(str(r.config.seed) for r in cell.records),
        f"{cell.config.steps:,}",
        ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states)),
    ]


def _about(record: Record) -> dict[str, Any]:
    try:
        return record.run.read_json(record.run.config_file)
    except BiparsError:
        return {}


def _command(record: Record) -> list[str]:
    command = _about(record).get("command")
    if not isinstance(command, list) or not command:
        return []
    return [word[:LONGEST_WORD] for word in (Path(str(command[0])).name, *map(str, command[1:]))]


def _versions(record: Record) -> str:
    found = _about(record).get("versions")
    known = found.items() if isinstance(found, dict) else ()
    return ", ".join(f"{name} {version}"[:LONGEST_WORD] for name, version in known) or "not recorded"


def _settings(cells: list[tuple[str, Cell]]) -> tuple[list[tuple[str, str]], list[str], list[list[str]]]:
    """What all cells share; the names of what they do not, and its values by cell."""
    settings = [{k: v for k, v in cell.config.flat().items() if k not in PER_RUN} for _, cell in cells]
    same = [name for name in settings[0] if len({json.dumps(s.get(name)) for s in settings}) == 1]
    names = [name for name in settings[0] if name not in same and name not in ("env", "terms", "method")]
    rows = [
        [panel, cell.title, *(_words(s[n]) for n in names)] for (panel, cell), s in zip(cells, settings, strict=True)
    ]
    return [(name, _words(settings[0][name])) for name in same], names, rows if names else []


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _unique(lines: Any) -> list[str]:
    return list(dict.fromkeys(lines))
