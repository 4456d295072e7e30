"""Runs gathered for comparison: a panel is one task with its terms, a cell one method in it, a record one seed."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bipars.errors import BiparsError, CheckpointError, RunDirectoryError
from bipars.methods import METHODS, Method, fixed
from bipars.results.statistics import align
from bipars.results.summary import short_name
from bipars.runs.directory import RunDirectory, State, find_runs
from bipars.runs.metrics import evaluated
from bipars.settings.config import DDPGConfig
from bipars.settings.resolved import ResolvedConfig

Status = State | Literal["unreadable"]
Role = Literal["plain", "naive", "learner", "other"]

COMPARISON = "comparison"
"""Directory, beside the seeds of a cell, for the runs that `bipars report --compare` and `--ablate` make."""
WITHOUT = "without-"
"""How the directories of runs that leave one term out begin."""


def method_role(method: Method) -> Role:
    """What a method is in a comparison: weights that stay 0 or 1, weights that are learned, or something else."""
    if method.learns_weights:
        return "learner"
    if method.upper is not fixed or method.learned_potential or method.potential_takes:
        return "other"
    return "plain" if method.initial_weight == 0 else "naive" if method.initial_weight == 1 else "other"


def run_role(config: ResolvedConfig) -> Role:
    """The same of a run; weights taken from another run are not learned in this one."""
    if config.weights_from is not None:
        return "other"
    if config.learns_weights:
        return "learner"
    return method_role(METHODS[config.method]) if config.method in METHODS else "other"


@dataclass(frozen=True)
class Record:
    """One run as it stands on disk."""

    run: RunDirectory
    config: ResolvedConfig
    rows: list[dict[str, Any]]
    status: Status
    error: str | None = None

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        due = evaluated(self.rows, self.config.evaluation_every, self.status == "done")
        return [row for row in due if row.get("evaluation_return") is not None]

    @property
    def last_step(self) -> int:
        return self.rows[-1]["step"] if self.rows else 0

    @property
    def progress(self) -> float:
        return min(1.0, self.last_step / self.config.steps)


@dataclass(frozen=True)
class Cell:
    """The same settings, several seeds."""

    label: str
    records: tuple[Record, ...]

    @property
    def config(self) -> ResolvedConfig:
        return self.records[0].config

    @property
    def role(self) -> Role:
        return run_role(self.config)

    @property
    def title(self) -> str:
        words = {"plain": "no shaping", "naive": "naive shaping"}
        return f"{words[self.role]} ({self.label})" if self.role in words else self.label

    @property
    def evaluated(self) -> tuple[Record, ...]:
        """The seeds that have something to show."""
        return tuple(record for record in self.records if record.evaluations)

    @property
    def finished(self) -> bool:
        return all(record.status == "done" for record in self.records)

    @property
    def last_step(self) -> int:
        """Up to where every seed came that did not fail."""
        alive = [r for r in self.evaluated if r.status != "failed"] or self.evaluated
        return min((record.evaluations[-1]["step"] for record in alive), default=0)

    def at_end(self, key: str, step: int, last: int = 5) -> np.ndarray:
        """Per seed, the mean of the last evaluations up to a step."""
        return _means(([row.get(key) for row in r.evaluations if row["step"] <= step] for r in self.evaluated), last)

    def rows_at_end(self, key: str, step: int, last: int = 5) -> np.ndarray:
        """Per seed, the mean of the last rows of metrics up to a step, 0 for all; empty where it was not recorded."""
        return _means(([row.get(key) for row in r.rows if row["step"] <= step] for r in self.evaluated), last)

    def curves(self, key: str, every_row: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Steps, and values by seed and step; nan where a seed has none."""
        found = []
        for record in self.evaluated:
            rows = [row for row in (record.rows if every_row else record.evaluations) if row.get(key) is not None]
            if rows:
                found.append((np.array([row["step"] for row in rows]), np.array([row[key] for row in rows], float)))
        if not found:
            return np.zeros(0, int), np.zeros((0, 0))
        grid = np.unique(np.concatenate([steps for steps, _ in found]))
        values = align(found, grid)
        ends = np.array([steps[-1] for steps, _ in found])
        values[grid[None] > ends[:, None]] = np.nan
        return grid, values


def _means(seeds: Iterable[list[Any]], last: int) -> np.ndarray:
    ends = [values[-last:] for values in seeds]
    return np.array([np.mean(values) for values in ends if values and None not in values], float)


@dataclass(frozen=True)
class Panel:
    """One task with its terms, and every method that was tried on it."""

    env: str
    terms: tuple[str, ...]
    cells: tuple[Cell, ...]
    detail: str = ""
    """What tells it from another panel of the same name."""
    ablations: tuple[Cell, ...] = ()
    """The same with one term left out."""

    @property
    def name(self) -> str:
        terms = ", ".join(map(short_name, self.terms)) or "no reward term"
        return f"{self.env}: {terms}{self.detail}"

    @property
    def learners(self) -> list[Cell]:
        """The library's default first: a verdict must not depend on which method happened to look best."""
        order = ["mgl", "imgl", "em", "ddpg-mgl", "ddpg-imgl", "ddpg-em"]
        found = [cell for cell in self.cells if cell.role == "learner" and cell.evaluated]
        return sorted(found, key=lambda c: order.index(c.label) if c.label in order else len(order))

    def with_role(self, role: Role) -> list[Cell]:
        return [cell for cell in self.cells if cell.role == role and cell.evaluated]

    def rival(self, cell: Cell, role: Role) -> Cell | None:
        """The cell to compare with: the same kind of policy, as many steps planned, finished rather than not, and of
        those the one with the most similar settings."""
        return _closest(cell, [c for c in self.with_role(role) if type(c.config.lower) is type(cell.config.lower)])

    def frozen(self, cell: Cell, weights_as: str = "function") -> Cell | None:
        """Fresh agents trained on the weights that this method learned, or on one number per term of them."""
        reusing = [c for c in self.with_role("other") if c.config.weights_from is not None]
        wanted = (cell.config.method, weights_as)
        return _closest(cell, [c for c in reusing if (c.config.method, c.config.weights_as) == wanted])

    def without(self, cell: Cell, term: str) -> Cell | None:
        """The same method without the term; with but one term, that is no shaping."""
        if len(self.terms) == 1:
            return self.rival(cell, "plain")
        left = tuple(name for name in self.terms if name != term)
        fitting = [c for c in self.ablations if c.config.terms == left and c.config.method == cell.config.method]
        return _closest(cell, [c for c in fitting if c.evaluated])


def _closest(cell: Cell, others: Sequence[Cell]) -> Cell | None:
    fitting = [c for c in others if c.config.steps == cell.config.steps]
    return min(fitting, key=lambda c: (not c.finished, len(differences(c.config, cell.config))), default=None)


@dataclass(frozen=True)
class Collection:
    """All that a report is about."""

    root: Path
    panels: tuple[Panel, ...]
    unreadable: tuple[str, ...] = ()
    """What is damaged, or no training run, in one sentence each."""

    @property
    def records(self) -> list[Record]:
        """Every run once, though a run without terms is shown with every term of its task."""
        cells = [cell for panel in self.panels for cell in (*panel.cells, *panel.ablations)]
        found = {r.run.path: r for cell in cells for r in cell.records}
        return [found[path] for path in sorted(found)]


def read_record(run: RunDirectory) -> Record:
    """A run whose metrics are lost is shown as such: a seed must not leave a verdict in silence."""
    config, state = run.config, run.state
    try:
        rows = run.metrics
        if run.in_python and rows:  # it learned as long as it was asked to
            return Record(run, replace(config, steps=rows[-1]["step"]), rows, "done")
    except CheckpointError as error:
        return Record(run, config, [], "unreadable", str(error))
    return Record(run, config, rows, state, run.error if state == "failed" else None)


def collect(root: Path) -> Collection:
    """Everything below a directory; for one run, also the comparison runs made for it."""
    runs = find_runs(root)
    beside = root.resolve().parent / COMPARISON
    if (root / "config.json").exists() and beside.is_dir():
        runs += [run for run in find_runs(beside) if run.path.name == root.resolve().name]
    records, unreadable = [], []
    for run in runs:
        try:
            if run.kind == "agent" and not run.metrics_file.exists():
                unreadable.append(
                    f"{run.path} is a saved agent without metrics: it had not learned, or was saved before"
                )
            else:
                records.append(read_record(run))
        except BiparsError as error:
            unreadable.append(str(error))
    if all(record.status == "unreadable" for record in records):
        lost = [*unreadable, *(str(record.error) for record in records)]
        raise RunDirectoryError(f"{root} holds no training run that can be shown: {'; '.join(lost)}")
    return Collection(root, tuple(_panels(records, root)), tuple(unreadable))


def _panels(records: Sequence[Record], root: Path) -> list[Panel]:
    ablated = [r for r in records if _leaves_out(r)]
    others = [r for r in records if not _leaves_out(r)] or records
    tasks = _group(others, _task)
    found = []
    for task in tasks:
        by_terms = _group(task, lambda r: _text(*r.config.terms))
        plain = [r for r in task if run_role(r.config) == "plain" and not r.config.terms]
        for members in by_terms:
            if members[0].config.terms:
                panel = _panel([*plain, *members], members[0].config, root)
                found.append(
                    replace(panel, ablations=_ablations(panel, [r for r in ablated if _task(r) == _task(task[0])]))
                )
            elif len(by_terms) == 1 or len(members) > len(plain):
                found.append(_panel(members, members[0].config, root))
    names = [panel.name for panel in found]
    return [replace(p, detail=_detail(p)) if names.count(p.name) > 1 else p for p in found]


def _task(record: Record) -> str:
    return _text(record.config.env, record.config.env_options, record.config.true_reward)


def _leaves_out(record: Record) -> bool:
    place = record.run.path.resolve().parent
    return place.name.startswith(WITHOUT) and place.parent.name == COMPARISON


def _ablations(panel: Panel, records: Sequence[Record]) -> tuple[Cell, ...]:
    """Of the runs that leave out one term, those that leave out one of this panel's."""
    fewer = [tuple(t for t in panel.terms if t != term) for term in panel.terms]
    groups = _group([r for r in records if r.config.terms in fewer], lambda r: r.config.program_text())
    return tuple(Cell(group[0].run.path.parent.name, tuple(group)) for group in groups)


def _panel(records: Sequence[Record], config: ResolvedConfig, root: Path) -> Panel:
    groups = []
    for group in _group(records, lambda r: r.config.program_text()):
        again = len({r.config.seed for r in group}) < len(group)  # the same run twice is no second seed
        groups += _group(group, lambda r: str(r.run.path.parent)) if again else [group]
    labels = _labels([group[0] for group in groups], root)
    cells = [Cell(label, tuple(group)) for label, group in zip(labels, groups, strict=True)]
    order = {"plain": 0, "naive": 1, "learner": 2, "other": 3}
    return Panel(config.env, config.terms, tuple(sorted(cells, key=lambda cell: order[cell.role])))


def _detail(panel: Panel) -> str:
    config = panel.cells[-1].config
    options = ", ".join(f"{name}={value}" for name, value in config.env_options.items())
    return f" ({', '.join(filter(None, [options, config.true_reward]))})"


def _labels(firsts: Sequence[Record], root: Path) -> list[str]:
    """The method where that is enough, else the directory, else the whole way to it."""
    choices = [(_method(r), r.run.path.parent.name, relative(r.run.path.parent, root)) for r in firsts]
    methods = [choice[0] for choice in choices]
    names = [choice[1] if methods.count(choice[0]) > 1 else choice[0] for choice in choices]
    names = [choice[2] if names.count(name) > 1 else name for choice, name in zip(choices, names, strict=True)]
    again = [names[:i].count(name) for i, name in enumerate(names)]  # one directory may hold seeds of several settings
    return [f"{name} ({count + 1})" if count else name for name, count in zip(names, again, strict=True)]


def _method(record: Record) -> str:
    frozen = ", frozen weights" if record.config.weights_as == "function" else ", scalars"
    return record.config.method + (frozen if record.config.weights_from else "")


def relative(path: Path, root: Path) -> str:
    """From the root, where it lies below it."""
    try:
        return str(path.relative_to(root))
    except ValueError:
        return str(path)


def _group(records: Iterable[Record], key: Callable[[Record], str]) -> list[list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return list(groups.values())


def _text(*parts: Any) -> str:
    return json.dumps(parts, sort_keys=True)


def differences(a: ResolvedConfig, b: ResolvedConfig) -> dict[str, tuple[Any, Any]]:
    """Settings of the lower level and of evaluation in which two cells differ, though they are compared."""
    first, second = a.flat(), b.flat()
    lower = "ddpg." if isinstance(a.lower, DDPGConfig) else "ppo."
    names = [name for name in first if name.startswith(lower) or name in ("steps", "evaluation_episodes")]
    return {n: (first[n], second[n]) for n in names if first[n] != second[n]}
