"""Experiment trackers as callbacks: Weights & Biases, and MLflow.

    agent.learn(500_000, callback=bipars.WandB(project="walker"))
    agent.learn(500_000, callback=bipars.MLflow("walker"))

Each `learn` is one run there: the settings, and every number of every update by environment step.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bipars.errors import UsageError
from bipars.integrations.callbacks import Callback
from bipars.tensorboard import scalars

if TYPE_CHECKING:
    from bipars.agent import BiPaRS

PARAMETERS_AT_ONCE = 100
"""As many as MLflow takes in one call ..."""
LONGEST_PARAMETER = 500
"""... and characters of each."""


class WandB(Callback):
    """Logs every number of every update to Weights & Biases.

    `options` are those of `wandb.init`, such as project, name, tags, or mode="offline". A `run` that is under way is
    used in place of a new one, and stays open.
    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        if run is not None and options:
            raise UsageError(f"WandB: a run is given, so {sorted(options)} would do nothing. Leave one of them out")
        self._wandb = _package("wandb", "Weights & Biases")
        self._given, self._options = run, options
        self.run: Any = run

    def on_start(self, agent: "BiPaRS") -> None:
        if self._given is None:
            self.run = self._wandb.init(**{"config": asdict(agent.config)} | self._options)

    def on_update(self, agent: "BiPaRS", row: Mapping[str, Any]) -> None:
        self.run.log(scalars(row), step=row["step"])

    def on_end(self, agent: "BiPaRS") -> None:
        if self._given is None and self.run is not None:
            self.run.finish()


class MLflow(Callback):
    """Logs every number of every update to MLflow: to `tracking_uri`, by default where MLflow itself does."""

    def __init__(self, experiment: str = "bipars", name: str | None = None, tracking_uri: str | None = None) -> None:
        self._mlflow = _package("mlflow", "MLflow")
        self._experiment, self._name, self._uri = experiment, name, tracking_uri
        self._client: Any = None
        self.run_id: str | None = None

    def on_start(self, agent: "BiPaRS") -> None:
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        self.run_id = self._client.create_run(experiment, run_name=self._name).info.run_id
        settings = list(agent.config.flat().items())
        for start in range(0, len(settings), PARAMETERS_AT_ONCE):
            part = settings[start : start + PARAMETERS_AT_ONCE]
            given = [self._mlflow.entities.Param(name, str(value)[:LONGEST_PARAMETER]) for name, value in part]
            self._client.log_batch(self.run_id, params=given)

    def on_update(self, agent: "BiPaRS", row: Mapping[str, Any]) -> None:
        now, metric = int(time.time() * 1000), self._mlflow.entities.Metric
        metrics = [metric(_allowed(name), value, now, row["step"]) for name, value in scalars(row).items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def on_end(self, agent: "BiPaRS") -> None:
        if self.run_id is not None:
            self._client.set_terminated(self.run_id)


def _package(name: str, what: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(f"{what} needs a package that is not installed: pip install 'bipars[{name}]'") from None


def _allowed(name: str) -> str:
    """MLflow refuses other characters in names, such as the colon of info:reward_ctrl."""
    return re.sub(r"[^\w\-. /]", "_", name)
