"""The runs a verdict rests on: the same task with the term as written, and without it."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bipars.methods import METHODS
from bipars.program import complete
from bipars.resolve import as_asked
from bipars.results.panels import COMPARISON, CRITIC_LOSS, Collection, Record, Role, as_taught, differences, method_role
from bipars.runs.directory import RunDirectory, seed_directory
from bipars.runs.files import refuse_outside
from bipars.settings.resolved import ResolvedConfig
from bipars.suite.local import run_locally
from bipars.suite.progress import standing_bar
from bipars.suite.work import PlannedRun, check_cores

ROLES: tuple[Role, ...] = ("naive", "plain")


def comparison_method(learner: str, role: Role) -> str:
    """The method with weights fixed at 1 or 0 whose lower level is the same."""
    return next(name for name, row in METHODS.items() if row.learner == learner and method_role(row) == role)


def comparison_config(config: ResolvedConfig, method: str) -> ResolvedConfig:
    """All settings as they were, but for the method and what follows from it.

    A weight that is fixed has no bounds, and the only critic learns as the one does that knows the true reward.
    """
    asked = as_asked(as_taught(config))
    weights = replace(asked.weights, form="auto", initial=1.0, low=None, high=None, simplex=False, learning_rate=None)
    return complete(replace(asked, method=method, weights=weights, weights_from=None))


def missing_runs(collection: Collection) -> list[PlannedRun]:
    """Every comparison that a learner lacks, seed by seed; those begun here and left unfinished are among them.

    What two learners need alike is made once, beside the first: the same run twice is no second seed.
    """
    planned: dict[tuple[str, int], PlannedRun] = {}
    for panel in collection.panels:
        for cell in panel.learners:
            for role in ROLES:
                method, rival = comparison_method(cell.config.learner, role), panel.rival(cell, role)
                seeds = {_comparison_directory(record, method): record.config.seed for record in cell.records}
                if (
                    rival is None
                    or CRITIC_LOSS in differences(rival.config, cell.config)  # their critics would partly be compared
                    or any(record.run.path.resolve() in seeds for record in rival.records)
                ):
                    config = comparison_config(cell.config, method)
                    program = config.program_text()
                    for path, seed in seeds.items():
                        if RunDirectory(path).state not in ("done", "running"):
                            run = PlannedRun(path, replace(config, seed=seed), program)
                            planned.setdefault((program, seed), run)
    return list(planned.values())


def _comparison_directory(record: Record, method: str) -> Path:
    """Named after the loss, too, where that is not the learner's `ppo.relative_value_loss`."""
    loss = as_taught(record.config).ppo.relative_value_loss
    name = method if loss == record.config.ppo.relative_value_loss else f"{method}-{'relative' if loss else 'absolute'}"
    return seed_directory(record.run.path.resolve().parent / COMPARISON / name, record.config.seed)


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


def make_comparisons(collection: Collection, workers: int) -> bool:
    """Trains them; False when that was stopped. What is finished already is not done again."""
    runs = missing_runs(collection)
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
