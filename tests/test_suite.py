import pytest

from bipars.cli import main
from bipars.errors import UsageError
from bipars.report.summary import summarise_runs, table, to_csv
from bipars.runs.directory import find_runs
from bipars.suite.local import run_locally
from bipars.suite.manifest import record
from bipars.suite.plan import load_suite
from bipars.suite.shipped import shipped
from bipars.suite.work import shares

SMALL = """
title = "small"
seeds = "0-1"
steps = 4000
[[grid]]
env = ["cartpole", "cartpole-continuous"]
term = ["harmful"]
method = ["ns", "mgl"]
settings.ppo = {update_period = 2000, num_envs = 10, gradient_steps = 4, batch_size = 64}
[[grid]]
env = ["cartpole"]
term = ["harmful"]
method = ["mgl"]
label = "again"
weights_from = "{env}/harmful/mgl"
settings.ppo = {update_period = 2000, num_envs = 10, gradient_steps = 4, batch_size = 64}
"""


def write(tmp_path, text):
    path = tmp_path / "my.toml"
    path.write_text(text)
    return str(path)


def plan(tmp_path, root, text):
    return record(root, load_suite(write(tmp_path, text)), ["my.toml"]).runs(root)


def test_a_grid_runs_in_stages_and_is_summarised(tmp_path):
    root = tmp_path / "out"
    runs = plan(tmp_path, root, SMALL)
    assert len(runs) == 10
    assert all(len({run.config.program_text() for run in share}) == 1 for share in shares(runs, 2))
    assert run_locally(runs, 2, lambda standing: None)
    cells = {cell.name: cell for cell in summarise_runs(find_runs(root), root)}
    assert set(cells) == {f"cartpole{c}/harmful/{m}" for c in ("", "-continuous") for m in ("ns", "mgl")} | {
        "cartpole/harmful/again"
    }
    assert cells["cartpole/harmful/again"].seeds == (0, 1)
    text = table(list(cells.values()))
    assert len({len(line) for line in text.splitlines()}) == 1
    assert to_csv(list(cells.values())).count("\n") == 11


def test_resume_learns_weights_before_it_reuses_them(tmp_path):
    root = tmp_path / "out"
    only_discrete = SMALL.replace('["cartpole", "cartpole-continuous"]', '["cartpole"]').replace('"ns", ', "")
    plan(tmp_path, root, only_discrete)
    assert main(["resume", str(root)]) == 0
    runs = find_runs(root)
    assert [run.config.weights_from is None for run in runs].count(False) == 2
    assert all(run.finished for run in runs)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"mgl"]', '"mlg"]', "Did you mean 'mgl'"),
        ("steps = 4000", "step = 4000", "my.toml: unknown key 'step'. Did you mean 'steps'"),
        ('label = "again"', 'labels = "again"', "Did you mean 'label'"),
        ('label = "again"\n', "", "'cartpole/harmful/mgl' stands there twice"),
        ("{env}/harmful/mgl", "{env}/harmful/mg", "Did you mean 'cartpole/harmful/mgl'"),
        ("gradient_steps", "gradient_step", "Did you mean 'gradient_steps'"),
        ("[[grid]]", "[[grid]", "my.toml"),
    ],
)
def test_a_mistake_in_a_suite_file_is_one_message(tmp_path, old, new, message):
    with pytest.raises(UsageError, match=message):
        load_suite(write(tmp_path, SMALL.replace(old, new)))


def test_every_shipped_suite_is_valid():
    for name in shipped():
        assert load_suite(name).cells
