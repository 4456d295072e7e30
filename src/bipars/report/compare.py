"""The runs a verdict rests on: the same task with the term as written, and without it."""

import sys
from dataclasses import replace
from pathlib import Path

from bipars.config import Config
from bipars.program import complete
from bipars.progress import standing_bar
from bipars.report.panels import COMPARISON, NAIVE, PLAIN, Collection, Role
from bipars.runs.directory import RunDirectory, seed_directory
from bipars.suite.local import run_locally
from bipars.suite.work import existing

METHODS: dict[Role, str] = {"naive": NAIVE, "plain": PLAIN}


def comparison_config(config: Config, method: str) -> Config:
    """All settings as they were, but for the method and what follows from it."""
    weights = replace(config.weights, form="auto", initial=1.0, learning_rate=None)
    return complete(replace(config, method=method, weights=weights, weights_from=None))


def missing_runs(collection: Collection) -> list[RunDirectory]:
    """Creates a directory for every comparison that a learner lacks, seed by seed."""
    made: dict[Path, RunDirectory] = {}
    for panel in collection.panels:
        for cell in panel.learners:
            for role, method in METHODS.items():
                if panel.rival(cell, role) is None:
                    config = comparison_config(cell.config, method)
                    for record in cell.records:
                        seed = record.config.seed
                        path = seed_directory(record.run.path.resolve().parent / COMPARISON / method, seed)
                        made[path] = RunDirectory.create(path, replace(config, seed=seed))
    return list(made.values())


def make_comparisons(collection: Collection, workers: int) -> bool:
    """Trains them; False when that was stopped. What is finished already is not done again."""
    runs = missing_runs(collection)
    if not runs:
        print("every comparison exists already")
        return True
    with standing_bar("comparison") as show:
        completed = run_locally(existing(runs), workers, show)
    for run in runs:
        if run.error_file.exists():
            print(f"FAILED {run.path}: {run.error}", file=sys.stderr)
    return completed
