"""The runs a verdict rests on: terms as written, none, learned weights frozen or as numbers, or one term left out."""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bipars.errors import UsageError
from bipars.methods import METHODS, find_method
from bipars.program import complete
from bipars.resolve import as_asked
from bipars.results.panels import (
    COMPARISON,
    WITHOUT,
    Cell,
    Collection,
    Record,
    Role,
    method_role,
)
from bipars.results.summary import short_name
from bipars.runs.directory import KINDS, RunDirectory, seed_directory
from bipars.runs.files import refuse_outside
from bipars.runs.reuse import reusing
from bipars.settings.config import WeightsAs
from bipars.settings.resolved import ResolvedConfig
from bipars.suite.local import run_locally
from bipars.suite.progress import standing_bar
from bipars.suite.work import PlannedRun, check_cores

ROLES: tuple[Role, ...] = ("naive", "plain")
FROZEN: dict[str, WeightsAs] = {"frozen": "function", "scalars": "scalars"}
"""Directories of fresh agents on learned weights, and what of these they take."""


def comparison_method(learner: str, role: Role) -> str:
    """The method with weights fixed at 1 or 0 whose lower level is the same."""
    return next(name for name, row in METHODS.items() if row.learner == learner and method_role(row) == role)


def comparison_config(config: ResolvedConfig, method: str) -> ResolvedConfig:
    """All settings as they were, but for the method and what follows from it.

    A weight that is fixed has no bounds.
    """
    asked = as_asked(config)
    weights = replace(asked.weights, form="auto", initial=1.0, low=None, high=None, simplex=False, learning_rate=None)
    return complete(replace(asked, method=method, weights=weights, weights_from=None, weights_as="function"))


def missing_runs(collection: Collection, compare: bool = True, ablate: bool = False) -> list[PlannedRun]:
    """Every run that a learner's verdict lacks, seed by seed; those begun here and left unfinished are among them.

    What two learners need alike is made once, beside the first: the same run twice is no second seed.
    """
    planned: dict[tuple[str, int], PlannedRun] = {}
    for panel in collection.panels:
        for cell in panel.learners:
            refuse_agents(cell)
            wanted: list[PlannedRun] = []
            alone = len(panel.terms) == 1
            for role in ROLES if compare else ROLES[1:] if ablate and alone else ():
                method, rival = comparison_method(cell.config.learner, role), panel.rival(cell, role)
                if _lacking(cell, rival, method):
                    wanted += _seeds(cell, method, comparison_config(cell.config, method))
            for name, weights_as in frozen_forms(cell.config).items() if compare else ():
                if _lacking(cell, panel.frozen(cell, weights_as), name):
                    wanted += _frozen(cell, name, weights_as)
            if ablate and not alone:
                for name, term in zip(ablation_names(panel.terms), panel.terms, strict=True):
                    if _lacking(cell, panel.without(cell, term), name):
                        wanted += _seeds(cell, name, without_term(cell.config, term))
            for run in wanted:
                if RunDirectory(run.path).state not in ("done", "running"):
                    source = run.config.weights_from or ""
                    planned.setdefault((run.program + source, run.config.seed), run)
    return list(planned.values())


def refuse_agents(cell: Cell) -> None:
    """An agent of Python may hold functions that no other process has."""
    run = next((record.run for record in cell.records if record.run.in_python), None)
    if run is not None:
        how = "bipars.compare(...) trains the same comparisons"
        if run.kind == "sb3":
            how = 'train it with method="ppo" and method="ns", each with an out beside this one'
        raise UsageError(
            f"{run.path} is {KINDS[run.kind]}; --compare and --ablate are for runs of `bipars train`. In Python, {how}"
        )


def _lacking(cell: Cell, rival: Cell | None, name: str) -> bool:
    """Not there, or begun here and perhaps not finished."""
    own = {_comparison_directory(record, name) for record in cell.records}
    return rival is None or any(record.run.path.resolve() in own for record in rival.records)


def _seeds(cell: Cell, name: str, config: ResolvedConfig) -> list[PlannedRun]:
    program = config.program_text()
    return [
        PlannedRun(_comparison_directory(record, name), replace(config, seed=record.config.seed), program)
        for record in cell.records
    ]


def frozen_forms(config: ResolvedConfig) -> dict[str, WeightsAs]:
    """In which forms its learned weights can be taken away, by the directory of the runs that try them."""
    if find_method(config.method).shows_weights:  # its policy takes the weights as an input: they are no reward
        return {}
    return {name: form for name, form in FROZEN.items() if form == "function" or config.weights.form != "scalar"}


def _frozen(cell: Cell, name: str, weights_as: WeightsAs) -> list[PlannedRun]:
    """A fresh agent per seed that is finished, on the weights which that seed has learned."""
    done = [record for record in cell.records if record.status == "done"]
    configs = [reusing(record.config, record.config, record.run.path, weights_as) for record in done]
    return [
        PlannedRun(_comparison_directory(record, name), config, config.program_text())
        for record, config in zip(done, configs, strict=True)
    ]


def without_term(config: ResolvedConfig, term: str) -> ResolvedConfig:
    """All settings as they were, but for the term."""
    return complete(replace(as_asked(config), terms=tuple(name for name in config.terms if name != term)))


def ablation_names(terms: Sequence[str]) -> list[str]:
    """Directories that every file system takes, whatever a term is called."""
    plain = [re.sub(r"[^A-Za-z0-9]+", "-", short_name(term)).strip("-").lower()[:40] for term in terms]
    unclear = [not name or plain.count(name) > 1 for name in plain]
    return [
        f"{WITHOUT}{name or 'term'}{f'-{i + 1}' * x}" for i, (name, x) in enumerate(zip(plain, unclear, strict=True))
    ]


def _comparison_directory(record: Record, method: str) -> Path:
    return seed_directory(record.run.path.resolve().parent / COMPARISON / method, record.config.seed)


def prepare_runs(runs: Sequence[PlannedRun]) -> None:
    """Their directories. One that exists, perhaps with other settings, is looked at before any is made."""
    for run in sorted(runs, key=lambda run: not run.path.exists()):
        refuse_outside(run.path.parents[2], run.path)
        run.prepare()


def nothing_missing(collection: Collection) -> str:
    """Why there is no comparison to make."""
    if any(panel.learners for panel in collection.panels):
        return "every comparison exists already"
    if any(cell.role == "learner" for panel in collection.panels for cell in panel.cells):
        return "no comparison made: no run that learns weights has an evaluation yet"
    return "no comparison made: it is for runs that learn weights (such as --method mgl), and there is none here"


def make_comparisons(collection: Collection, workers: int, compare: bool = True, ablate: bool = False) -> bool:
    """Trains them; False when that was stopped. What is finished already is not done again."""
    runs = missing_runs(collection, compare, ablate)
    if not runs:
        print(nothing_missing(collection))
        return True
    for run in runs:
        check_cores(run.path, run.config, workers)
    prepare_runs(runs)
    with standing_bar("comparison") as show:
        completed = run_locally(runs, workers, show)
    for run in runs:
        if run.directory.error_file.exists():
            print(f"FAILED {run.path}: {run.directory.error}", file=sys.stderr)
    return completed
