"""The panels of a figure: which cells stand together, and what the paper says about them.

[[panel]]
name = "a"
title = "Discrete cart-pole"
cells = ["cartpole/none/ppo", "cartpole/harmful/*"]

[[panel.paper]]
says = "MGL ends above PPO without the term."
of = ["cartpole/harmful/mgl"]
above = "cartpole/none/ppo"
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from bipars.errors import UsageError, unknown

PANEL_KEYS = {"name", "title", "cells", "kind", "half", "heat_map", "paper"}
STATEMENT_KEYS = {"says", "of", "measure", "above", "below", "about", "within"}
MEASURES = {
    "steps": "steps per episode at the end",
    "return": "true return at the end",
    "weight": "mean weight at the end",
    "torque": "mean absolute action at the end",
    "area": "steps per episode, mean over the training",
}


@dataclass(frozen=True)
class Statement:
    """Something the paper says of a panel, in our words, and how to see whether it is so here."""

    says: str
    of: tuple[str, ...]
    """The cells it speaks of."""
    measure: str = "steps"
    above: str | float | None = None
    """Another cell, or a number, that each of the cells is said to exceed."""
    below: str | float | None = None
    about: float | None = None
    """The value each of the cells is said to have ..."""
    within: float = 10.0
    """... give or take."""


@dataclass(frozen=True)
class HeatMap:
    """The weight of a cell's term over a grid of two state features, the others held."""

    cell: str
    x: int
    """Which feature runs along the horizontal axis ..."""
    y: int
    """... and which along the vertical."""
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    state: tuple[float, ...]
    """The other features' values."""
    points: int = 10

    def check(self) -> None:
        """Raises where it cannot be drawn."""
        known = range(len(self.state))
        if self.x not in known or self.y not in known or not 1 <= self.points <= 1_000:
            raise UsageError(
                f"heat_map has x {self.x}, y {self.y} and {self.points} points; state has {len(self.state)}"
            )
        if len(self.x_range) != 2 or len(self.y_range) != 2:
            raise UsageError(f"heat_map has x_range {self.x_range!r:.60}; expected two numbers")


@dataclass(frozen=True)
class Panel:
    name: str
    """With its suite: fig1-a."""
    title: str
    cells: tuple[str, ...]
    statements: tuple[Statement, ...] = ()
    heat_map: HeatMap | None = None
    kind: str = ""
    """Of a pair of environment and terms: what kind of terms they are, such as 'living cost' ..."""
    half: str = ""
    """... and what it is for: 'tuning' or 'held back'."""


def read_panels(data: Any, suite: str, cells: Iterable[str]) -> tuple[Panel, ...]:
    """From parsed TOML or JSON, every cell named there checked."""
    known = list(cells)
    if not isinstance(data, list):
        raise UsageError(f"panel is {data!r}; expected [[panel]] tables")
    panels = []
    for number, panel in enumerate(data, 1):
        try:
            panels.append(_read_panel(panel, suite, known))
        except UsageError as error:
            raise UsageError(f"panel {number}: {error}") from error
    return tuple(panels)


def _read_panel(data: dict[str, Any], suite: str, known: list[str]) -> Panel:
    check_table(data, PANEL_KEYS, ("name", "title"))
    cells = _match(data.get("cells", []), known, "cells")
    statements = []
    for statement in data.get("paper", []):
        check_table(statement, STATEMENT_KEYS, ("of", "says"))
        measure = statement.get("measure", "steps")
        if measure not in MEASURES:
            raise unknown("measure", measure, MEASURES)
        if sum(key in statement for key in ("above", "below", "about")) != 1:
            raise UsageError(f"'{statement['says']}' needs exactly one of above, below and about")
        for key in ("above", "below"):
            if isinstance(statement.get(key), str):
                _match(statement[key], known, key)
        statements.append(Statement(**statement | {"of": _match(statement["of"], known, "of")}))
    heat_map = data.get("heat_map")
    if heat_map is not None:
        check_table(heat_map, HeatMap.__annotations__, sorted(HeatMap.__annotations__.keys() - {"points"}))
        _match(heat_map["cell"], known, "cell")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in heat_map.items()}
        heat_map = HeatMap(**values)
    kind, half = data.get("kind", ""), data.get("half", "")
    return Panel(f"{suite}-{data['name']}", data["title"], cells, tuple(statements), heat_map, kind, half)


def check_table(data: Any, known: Iterable[str], needed: Iterable[str] = (), what: str = "key") -> None:
    if not isinstance(data, dict):
        raise UsageError(f"{data!r:.80} is not a table of keys and values")
    for key in data:
        if key not in known:
            raise unknown(what, key, known)
    for key in needed:
        if key not in data:
            raise UsageError(f"{key} is missing")


def _match(patterns: Any, known: list[str], key: str) -> tuple[str, ...]:
    """The cells that fit, in the order of the patterns; `*` stands for anything."""
    given = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(given, list) or not all(isinstance(pattern, str) for pattern in given):
        raise UsageError(f"{key} is {patterns!r}; expected names of cells")
    found: dict[str, None] = {}
    for pattern in given:
        fitting = [name for name in known if fnmatchcase(name, pattern)]
        if not fitting:
            raise unknown(f"cell in {key}", pattern, known)
        found |= dict.fromkeys(fitting)
    return tuple(found)
