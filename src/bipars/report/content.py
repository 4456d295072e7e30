"""The numbers behind every figure, as the page and the pictures beside it read them."""

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np

from bipars.envs.registry import find_family
from bipars.metrics import labels
from bipars.nets.running import EPSILON, LIMIT
from bipars.report.inside import look_inside
from bipars.results.panels import Cell, Collection, Panel
from bipars.results.statistics import interquartile_mean, interval
from bipars.results.summary import short_name

logger = logging.getLogger("bipars")
POINTS = 240
"""At most so many points per curve; the eye sees no more."""
INSIDE_BUDGET = 2_500_000
"""Characters of the page for what is inside single agents."""
MEASURES = labels("evaluation")
GRADIENTS = labels("evidence", "weights", "policy")


def content(collection: Collection) -> dict[str, Any]:
    """Everything the page draws."""
    budget = INSIDE_BUDGET / len(collection.panels)
    damaged: list[str] = []
    panels = [panel_content(panel, budget, damaged) for panel in collection.panels]
    for line in damaged:
        logger.warning("%s", line)
    return {
        "panels": panels,
        "damaged": damaged,
        "measures": MEASURES,
        "gradients": GRADIENTS,
        "normalise": {"limit": LIMIT, "epsilon": EPSILON},
    }


def panel_content(panel: Panel, budget: float, damaged: list[str]) -> dict[str, Any]:
    cells = [cell for cell in panel.cells if cell.evaluated]
    family = find_family(panel.env)
    effort = "evaluation_action_size" in family.measures and any(
        row["evaluation_action_size"] for cell in cells for row in cell.evaluated[0].evaluations[-1:]
        if row.get("evaluation_action_size") is not None
    )  # fmt: skip
    return {
        "name": panel.name,
        "env": panel.env,
        "terms": [{"name": term, "short": short_name(term)} for term in panel.terms],
        "main": next((cell.label for cell in panel.learners), None),
        "effort": effort,
        "weight_map": None if family.weight_map is None else family.weight_map._asdict(),
        "cells": [_cell(cell, panel) for cell in cells],
        "inside": look_inside(panel, budget, damaged),
    }


def _cell(cell: Cell, panel: Panel) -> dict[str, Any]:
    learner = cell.role == "learner"
    return {
        "label": cell.label,
        "title": cell.title,
        "role": cell.role,
        "seeds": [record.config.seed for record in cell.evaluated],
        "curves": {key: _band(*cell.curves(key)) for key in MEASURES},
        "weights": {term: _weights(cell, term) for term in panel.terms} if learner else {},
        "compared": _compared(cell),
        "gradients": {key: _middle(*cell.curves(key, every_row=True)) for key in GRADIENTS},
    }


def _thin(steps: np.ndarray, *values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Every so many points, the last among them."""
    every = -(-len(steps) // POINTS)
    keep = slice((len(steps) - 1) % every if every else 0, None, every or 1)
    return (steps[keep], *(v[..., keep] for v in values))


def _band(steps: np.ndarray, values: np.ndarray) -> dict[str, Any] | None:
    """Interquartile mean over seeds with its bootstrap interval, and every seed."""
    if not len(steps):
        return None
    steps, values = _thin(steps, values)
    middle, low, high = (np.full(len(steps), np.nan) for _ in range(3))
    present = ~np.isnan(values)
    for pattern in np.unique(present, axis=1).T:
        columns = (present == pattern[:, None]).all(axis=0)
        if pattern.any():
            seeds = values[pattern][:, columns]
            middle[columns] = interquartile_mean(seeds, axis=0)
            low[columns], high[columns] = interval(seeds, samples=1_000)
    return {
        "steps": steps.tolist(),
        "iqm": rounded(middle),
        "low": rounded(low),
        "high": rounded(high),
        "seeds": [rounded(seed) for seed in values],
    }


def _weights(cell: Cell, term: str) -> dict[str, Any] | None:
    """Over visited states: median, and the range that holds eighty of a hundred. Means over seeds, and each seed."""
    parts = {}
    for name in ("p10", "p50", "p90"):
        steps, values = cell.curves(f"weight_{name}/{term}", every_row=True)
        if not len(steps):
            return None
        steps, parts[name] = _thin(steps, values)
    with np.errstate(all="ignore"):
        middles = {name: rounded(np.nanmean(values, axis=0)) for name, values in parts.items()}
    return {"steps": steps.tolist(), **middles, "seeds": [rounded(seed) for seed in parts["p50"]]}


def _compared(cell: Cell) -> float | None:
    """The step, the median over seeds, from which on weights follow the evidence: until then they are the initial."""
    known = [[row["step"] for row in record.rows if row.get("leader")] for record in cell.evaluated]
    return float(np.median([steps[0] for steps in known if steps])) if any(known) else None


def _middle(steps: np.ndarray, values: np.ndarray) -> dict[str, Any] | None:
    if not len(steps):
        return None
    steps, values = _thin(steps, values)
    return {"steps": steps.tolist(), "median": rounded(np.nanmedian(values, axis=0))}


def rounded(values: Iterable[float]) -> list[float | None]:
    """Five figures are more than a screen shows; what is no number is left open."""
    return [float(f"{v:.5g}") if np.isfinite(v) else None for v in np.asarray(values, float).tolist()]
