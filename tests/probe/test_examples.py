"""The examples and notebooks run as they are, at small scale, and say what their readers are promised.

A notebook's code cells are executed in order, in one namespace, and `learn` makes one update there.
"""

import ast
import importlib.util
import json
import re
import sys
import warnings
from pathlib import Path

import pytest

import bipars

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {
    "own_environment": ({"steps": 1}, "term          advice"),
    "dict_observations": ({"steps": 1}, r"Charged in \d+ % of the episodes"),
    "sb3_script": ({"steps": 1}, "Frozen weights, first step: reward"),
    "jax_environment": ({"steps": 1}, r"Soft landings: \d+ %"),
    "own_method": ({"steps": 1}, r"the harmful term's weight went from 1 to [01]\.\d\d"),
    "own_environment_family": ({"steps": 1}, "steps in the middle, of 50: "),
    "taking_weights_away": ({"steps": 1}, "one number per term: .* of which .* is the true reward"),
    "resuming": ({"steps": 120_000}, r"exits with 130(.|\n)*continue with: bipars resume(.|\n)*all intact"),
    "suite_on_ray": ({"steps": 20_000, "seeds": "0", "out": "on-ray"}, "cartpole/harmful/mgl"),
}
PACKAGES = {"sb3_script": "stable_baselines3", "suite_on_ray": "ray"}
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run_and_short():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SCRIPTS)
    for path in EXAMPLES.glob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) < 80, path.name
        assert "minute" in ast.get_docstring(ast.parse(text)), f"{path.name} does not say how long it takes"


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs(name, tmp_path, monkeypatch, capfd):
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    monkeypatch.chdir(tmp_path)
    arguments, promised = SCRIPTS[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "term '.*' is the same as term")  # which the first of them shows
        load(name).main(**arguments)
    assert re.search(promised, capfd.readouterr().out)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    learn = bipars.BiPaRS.learn
    monkeypatch.setattr(bipars.BiPaRS, "learn", lambda self, total_timesteps, **more: learn(self, 1))
    names = {"__name__": "notebook"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "term '.*' is")
        for number, cell in enumerate(json.loads(path.read_text())["cells"]):
            if cell["cell_type"] == "code":
                lines = (line for line in cell["source"] if not line.startswith("%"))  # %pip install
                exec(compile("".join(lines), f"{path.name}, cell {number}", "exec"), names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_whole_opens_in_colab_and_has_no_outputs(path):
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    assert f"colab.research.google.com/github/bipars/bipars/blob/main/examples/{path.name}" in path.read_text()
    for cell in notebook["cells"]:
        assert cell["id"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert len(NOTEBOOKS) == 2
