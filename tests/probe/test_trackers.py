"""Trackers get every number of every update; agents, results and progress show themselves.

The packages are stood in for by small modules that remember what they were told: they are heavy, and talk to servers.
"""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import bipars
from bipars.errors import UsageError
from bipars.runs.progress import NotebookBar, in_notebook
from envs_of_others import Push, quick
from fake_runs import GOOD, fake_cell


class Run:
    """Of Weights & Biases."""

    def __init__(self):
        self.rows, self.finished = {}, False

    def log(self, numbers, step):
        self.rows[step] = numbers

    def finish(self):
        self.finished = True


@pytest.fixture
def wandb(monkeypatch):
    module = ModuleType("wandb")
    module.runs = []

    def init(**options):
        module.runs.append((options, Run()))
        return module.runs[-1][1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_weights_and_biases_gets_every_number_of_every_update(wandb):
    agent = quick(Push).learn(128, callback=bipars.WandB(project="mine", mode="offline"))
    [(options, run)] = wandb.runs
    assert (options["project"], options["mode"]) == ("mine", "offline")
    assert options["config"]["ppo"]["num_envs"] == 2
    assert list(run.rows) == [64, 128]
    assert run.rows[128]["weight/noise"] == agent.metrics[-1]["weight/noise"]
    assert all(isinstance(value, (int, float)) for value in run.rows[128].values())
    assert "step" not in run.rows[128]
    assert run.finished


def test_a_run_of_ones_own_stays_open_and_one_of_ours_does_not_even_after_an_error(wandb):
    run = Run()
    quick(Push).learn(64, callback=bipars.WandB(run))
    assert (list(run.rows), run.finished, wandb.runs) == ([64], False, [])
    with pytest.raises(ZeroDivisionError):
        quick(Push).learn(64, callback=[bipars.WandB(), lambda agent, row: 1 / 0])
    assert wandb.runs[0][1].finished
    with pytest.raises(UsageError, match=r"a run is given, so \['project'\] would do nothing"):
        bipars.WandB(run, project="mine")


class Client:
    """Of MLflow. Refuses what MLflow refuses."""

    experiments: dict = {}  # noqa: RUF012
    params: dict = {}  # noqa: RUF012
    metrics: list = []  # noqa: RUF012
    ended: list = []  # noqa: RUF012

    def __init__(self, tracking_uri):
        self.uri = tracking_uri

    def get_experiment_by_name(self, name):
        found = self.experiments.get(name)
        return None if found is None else SimpleNamespace(experiment_id=found)

    def create_experiment(self, name):
        return self.experiments.setdefault(name, f"{name} at {self.uri}")

    def create_run(self, experiment, run_name):
        return SimpleNamespace(info=SimpleNamespace(run_id=f"{run_name} of {experiment}"))

    def log_batch(self, run, metrics=(), params=()):
        assert len(params) <= 100
        assert not any(":" in metric.key for metric in metrics)
        self.params.update({param.key: param.value for param in params})
        self.metrics.extend((run, metric.key, metric.value, metric.step) for metric in metrics)

    def set_terminated(self, run):
        self.ended.append(run)


@pytest.fixture
def mlflow(monkeypatch):
    module = ModuleType("mlflow")
    fresh = {"experiments": {}, "params": {}, "metrics": [], "ended": []}
    module.MlflowClient = type("MlflowClient", (Client,), fresh)
    module.entities = SimpleNamespace(
        Param=lambda key, value: SimpleNamespace(key=key, value=value),
        Metric=lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step),
    )
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module.MlflowClient


def test_mlflow_gets_settings_and_every_number(mlflow):
    term = bipars.RewardTerm("info:x", lambda obs, action, next_obs, info: float(action[0]))
    agent = quick(Push, [term])
    for _ in range(2):  # the second finds the experiment
        agent.learn(64, callback=bipars.MLflow("walker", "first", tracking_uri="file:here"))
    run = "first of walker at file:here"
    assert mlflow.experiments == {"walker": "walker at file:here"}
    assert mlflow.ended == [run, run]
    assert (mlflow.params["ppo.num_envs"], mlflow.params["env"]) == ("2", "Push")
    steps = [step for _, key, _, step in mlflow.metrics if key == "weight/info_x"]
    assert steps == [64, 128]
    assert (run, "weight/info_x", agent.metrics[-1]["weight/info:x"], 128) in mlflow.metrics


@pytest.mark.parametrize(("tracker", "package"), [(bipars.WandB, "wandb"), (bipars.MLflow, "mlflow")])
def test_a_tracker_that_is_not_installed_is_named_before_training(tracker, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"not installed: pip install 'bipars\[{package}\]'"):
        tracker()


# What shows itself


def test_an_agent_says_what_it_is_and_how_far():
    agent = quick(Push, seed=3)
    assert repr(agent) == "BiPaRS('Push', terms=['noise'], method='mgl', seed=3): 0 steps, not trained yet"
    agent.learn(64)
    row = agent.metrics[-1]
    now = f"64 steps, return {row['evaluation_return']:.2f}  steps 1  z[noise] {row['weight/noise']:+.2f}"
    assert repr(agent).endswith(now)


def test_results_say_what_they_hold_and_become_pandas(tmp_path, monkeypatch):
    pytest.importorskip("polars")
    for method in ("mgl", "ppo"):
        fake_cell(tmp_path / method, method, GOOD, weight=1.0)
    table = bipars.load_results(tmp_path)
    assert repr(table).startswith(f"{2 * len(GOOD)} runs of mgl, ppo on cartpole, up to step ")
    assert "<p>" in table._repr_html_()
    assert repr(type(table)(table.select("seed"))).startswith(f"{table.height} rows")
    pandas = ModuleType("pandas")
    pandas.DataFrame = dict
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    columns = table.to_pandas()
    assert list(columns) == table.columns
    np.testing.assert_array_equal(columns["seed"], table["seed"])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="not installed: pip install pandas"):
        table.to_pandas()


@pytest.fixture
def notebook(monkeypatch):
    """A kernel that remembers what a cell shows."""
    shown = []

    def display(page, raw, display_id):
        assert raw
        assert display_id
        shown.append(page)
        return SimpleNamespace(update=lambda page, raw: shown.append(page))

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_progress_in_a_notebook_needs_no_widgets(notebook, monkeypatch):
    monkeypatch.setattr(NotebookBar, "SECONDS", 0.0)
    quick(Push).learn(128, progress_bar=True)
    assert len(notebook) == 3
    assert "starting" in notebook[0]["text/plain"]
    assert '<progress value="64" max="128">' in notebook[1]["text/html"]
    assert notebook[2]["text/plain"].startswith("128/128 steps, 0 s left  return ")


def test_a_terminal_is_no_notebook(notebook, monkeypatch):
    assert in_notebook()
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    assert not in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()
