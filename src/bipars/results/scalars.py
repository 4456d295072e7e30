"""Learned weights as plain numbers, one per term or a schedule over steps, and as configuration of other frameworks.

A weight multiplies the term as it was written. Where a framework has a weight of its own, which was part of that, the
two are multiplied.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bipars.errors import UsageError
from bipars.results.panels import Cell, Collection
from bipars.results.summary import short_name

STAGES = 20
"""Of a schedule."""


@dataclass(frozen=True)
class Scalars:
    env: str
    method: str
    seeds: int
    steps: int
    weights: dict[str, float]
    """At the end of training: mean over states and seeds."""
    stages: tuple[int, ...]
    """Environment steps, all environments together, from which on ..."""
    schedule: dict[str, tuple[float, ...]]
    """... the weights are these."""

    @property
    def about(self) -> str:
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{self.env}, method {self.method}, {self.steps:,} steps, {seeds}"


def the_learner(collection: Collection) -> Cell:
    """The one set of runs that has learned weights."""
    cells = [cell for panel in collection.panels for cell in panel.learners if cell.evaluated]
    if not cells:
        raise UsageError(f"no run below {collection.root} has learned weights and been evaluated: nothing to export")
    if len(cells) > 1:
        places = ", ".join(str(cell.records[0].run.path.parent) for cell in cells[:6])
        raise UsageError(f"{len(cells)} sets of weights were learned below {collection.root}; name one of: {places}")
    return cells[0]


def read_scalars(cell: Cell) -> Scalars:
    config, ends, schedule, stages = cell.config, {}, {}, np.zeros(0, int)
    for term in config.terms:
        name, last = short_name(term), cell.rows_at_end(f"weight/{term}", cell.last_step)
        if name in ends:
            raise UsageError(f"two terms are called '{name}'; give each a name of its own")
        if not np.isfinite(last).all() or not len(last):
            raise UsageError(f"the weights of term '{name}' are not recorded in all seeds: nothing to export")
        ends[name] = float(last.mean())
        steps, values = cell.curves(f"weight/{term}", every_row=True)
        parts = np.array_split(np.arange(len(steps)), min(STAGES, len(steps)))
        stages = np.array([0, *(steps[part[0] - 1] for part in parts[1:])])
        schedule[name] = tuple(float(np.nanmean(values[:, part])) for part in parts)
    seeds, steps_of = len(cell.evaluated), tuple(int(step) for step in stages)
    return Scalars(config.env, config.method, seeds, cell.last_step, ends, steps_of, schedule)


def as_scalars(learned: Scalars) -> str:
    return json.dumps({"about": learned.about, "weights": _rounded(learned.weights)}, indent=2)


def as_schedule(learned: Scalars) -> str:
    weights = {term: [_round(w) for w in values] for term, values in learned.schedule.items()}
    return json.dumps({"about": learned.about, "steps": learned.stages, "weights": weights}, indent=2)


def as_isaaclab(learned: Scalars) -> str:
    for term in learned.weights:
        if not term.isidentifier():
            raise UsageError(f"term '{term}' is no name of a field, which terms of Isaac Lab are; give it another name")
    return _snippet(
        learned,
        "Isaac Lab: call `apply(env_cfg)`, at the end of `__post_init__` for instance.",
        """
        def apply(env_cfg):
            for name, factor in FACTORS.items():
                getattr(env_cfg.rewards, name).weight *= factor
            return env_cfg
        """,
    )


def as_mjlab(learned: Scalars) -> str:
    return _snippet(
        learned,
        "mjlab: call `apply(env_cfg)` on the task's configuration.",
        """
        def apply(env_cfg):
            for name, factor in FACTORS.items():
                env_cfg.rewards[name].weight *= factor
            return env_cfg
        """,
    )


def as_playground(learned: Scalars) -> str:
    return _snippet(
        learned,
        "MuJoCo Playground: `registry.load(env_name, config_overrides=overrides(env_name))`.",
        """
        def overrides(env_name):
            from mujoco_playground import registry

            scales = registry.get_default_config(env_name).reward_config.scales
            return {f"reward_config.scales.{name}": scales[name] * factor for name, factor in FACTORS.items()}
        """,
    )


def _snippet(learned: Scalars, how: str, code: str) -> str:
    """Whatever a run's files say stands in it as a string, never as code."""
    lines = [line.removeprefix("        ") for line in code.strip("\n").rstrip().splitlines()]
    factors = [f"    {json.dumps(term)}: {weight!r}," for term, weight in _rounded(learned.weights).items()]
    head = [f'"""Weights of reward terms, learned by bipars. {how}"""', "", f"LEARNED_ON = {json.dumps(learned.about)}"]
    middle = ['"""By which the weight of each term, as it was written, is multiplied."""', "", ""]
    return "\n".join([*head, "FACTORS = {", *factors, "}", *middle, *lines])


def _rounded(weights: dict[str, float]) -> dict[str, float]:
    return {term: _round(weight) for term, weight in weights.items()}


def _round(weight: float) -> float:
    return float(f"{weight:.4g}")


FORMATS: dict[str, Callable[[Scalars], str]] = {
    "scalars": as_scalars,
    "schedule": as_schedule,
    "isaaclab": as_isaaclab,
    "mjlab": as_mjlab,
    "playground": as_playground,
}
