import hashlib
from dataclasses import replace

import numpy as np
import pytest

import bipars
from bipars.cli import main
from bipars.cli.suite import say_rounding, with_run
from bipars.errors import RunDirectoryError, UsageError
from bipars.report.paper import findings
from bipars.report.suite_files import draw_heat_map
from bipars.results.summary import summarise_runs, table, to_csv
from bipars.runs.directory import RunDirectory, find_runs
from bipars.runs.files import sha256, write_checked
from bipars.runs.metrics import encode_row
from bipars.suite.local import run_locally
from bipars.suite.manifest import read_manifest, record
from bipars.suite.panels import HeatMap
from bipars.suite.plan import Changes, load_suite, load_suites, merge_cells
from bipars.suite.shipped import shipped
from bipars.suite.work import shares
from suites import SMALL, write


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


def test_a_grids_settings_stand_over_those_of_the_suite(tmp_path):
    common = "settings = {weights = {hidden = [3]}, ppo = {clip = 0.3, gamma = 0.9}}\n[[grid]]"
    text = SMALL.replace("[[grid]]", common, 1).replace("{update_period", "{gamma = 0.8, update_period", 1)
    first, *_, last = load_suite(write(tmp_path, text)).cells
    assert (first.config.ppo.clip, first.config.ppo.gamma, first.config.weights.hidden) == (0.3, 0.8, (3,))
    assert (last.config.ppo.clip, last.config.ppo.gamma, last.config.ppo.batch_size) == (0.3, 0.9, 64)
    assert load_suite(write(tmp_path, SMALL)).cells[0].config.weights.hidden == (16, 8)


def test_a_label_may_hold_the_name_of_the_method(tmp_path):
    text = SMALL.replace('method = ["ns", "mgl"]', 'method = ["ns", "mgl"]\nlabel = "{method}-small"')
    text = text.replace("harmful/mgl", "harmful/mgl-small")
    names = [cell.name for cell in load_suite(write(tmp_path, text)).cells]
    assert names[:2] == ["cartpole/harmful/ns-small", "cartpole/harmful/mgl-small"]


def test_a_cell_asked_for_in_two_ways_is_told_by_what_differs():
    cells = load_suite("paper/fig1").cells
    other = replace(cells[0], config=replace(cells[0].config, ppo=replace(cells[0].config.ppo, clip=0.125)))
    with pytest.raises(UsageError, match=r"in two ways \(ppo\.clip: 0\.5 and 0\.125\); give one of them a label"):
        merge_cells({cells[0].name: cells[0]}, [other])
    with pytest.raises(UsageError, match=r"in two ways \(weights_from: None and 'another'\)"):
        merge_cells({cells[0].name: cells[0]}, [replace(cells[0], weights_from="another")])


def test_every_shipped_suite_is_valid():
    for name in shipped():
        assert load_suite(name).cells


def test_suites_share_cells_and_a_directory_may_be_asked_for_more(tmp_path):
    root = tmp_path / "out"
    first = load_suites(["paper/fig1", "paper/fig3"])
    names = [cell.name for cell in first.cells]
    assert names.count("cartpole/none/ppo") == 1
    record(root, load_suite("paper/fig1", Changes(seeds="0-1")), ["paper/fig1"], Changes(seeds="0-1"))
    manifest = record(root, load_suite("paper/fig3", Changes(seeds="1-2")), ["paper/fig3"], Changes(seeds="1-2"))
    cells = {cell.name: cell for cell in manifest.suite.cells}
    assert cells["cartpole/none/ppo"].seeds == (0, 1, 2)
    assert cells["cartpole/harmful/mgl"].seeds == (1, 2)
    assert manifest == read_manifest(root)
    assert [request["suites"] for request in manifest.requests] == [["paper/fig1"], ["paper/fig3"]]
    with pytest.raises(RunDirectoryError, match=r"another suite: the cell .* \(steps: 1200000 and 120000\)"):
        record(root, load_suite("paper/fig1", Changes(scale=0.1)), ["paper/fig1"], Changes(scale=0.1))


def test_the_papers_figures_are_whole():
    for figure, seeds, steps in (
        ("1", 20, 1_200_000),
        ("3", 20, 1_200_000),
        ("4", 20, 1_200_000),
        ("5", 20, 1_200_000),
    ):
        suite = load_suite(f"paper/fig{figure}")
        assert {len(cell.seeds) for cell in suite.cells} == {seeds}
        assert {cell.config.steps for cell in suite.cells} == {steps}
        assert all(panel.statements or panel.heat_map for panel in suite.panels)
    mujoco = load_suite("paper/fig2")
    assert {len(cell.seeds) for cell in mujoco.cells} == {10}
    assert {c.config.steps for c in mujoco.cells if c.config.env == "Walker2d-v5"} == {4_800_000}
    assert {c.config.steps for c in mujoco.cells if c.config.env != "Walker2d-v5"} == {3_200_000}
    assert len(mujoco.panels) == 5


def test_a_short_form_a_template_and_typos_of_commands(tmp_path, capfd):
    assert with_run(["suite", "demo", "--out", "x"]) == ["suite", "run", "demo", "--out", "x"]
    assert with_run(["suite", "list"]) == ["suite", "list"]
    assert main(["suite", "lits"]) == 2
    assert "Did you mean 'list'" in capfd.readouterr().err
    assert main(["suite", "template"]) == 0
    assert load_suite(write(tmp_path, capfd.readouterr().out)).panels
    assert main(["suite", "demo", "--out", str(tmp_path / "x"), "--address", "auto"]) == 2
    assert "which is for --engine ray" in capfd.readouterr().err
    assert not (tmp_path / "x").exists()


def pretend(run, length, weight=-2.0):
    """A finished run with these figures."""
    directory = run.prepare()
    rows = [
        {"round": i, "step": 20_000 * i, "evaluation_return": -1.0, "evaluation_length": length * i / 3,
         "evaluation_action_size": 0.5, "weight/harmful": weight}
        for i in (1, 2, 3)
    ]  # fmt: skip
    metrics = b"".join(map(encode_row, rows))
    directory.metrics_file.write_bytes(metrics)
    result = {"steps": 60_000, "evaluation_return": -1.0, "evaluation_length": length, "weights": {"harmful": weight}}
    write_checked(directory.result_file, result | {"metrics_size": len(metrics), "metrics_sha256": sha256(metrics)})


STATED = """
seeds = "0-4"
steps = 60_000
settings.evaluation_every = 1
[[grid]]
env = "cartpole"
method = "ppo"
[[grid]]
env = "cartpole"
term = "harmful"
method = ["ns", "mgl"]
[[panel]]
name = "a"
title = "Harmful"
cells = "*"
[[panel.paper]]
says = "MGL beats PPO."
of = "cartpole/harmful/mgl"
above = "cartpole/none/ppo"
[[panel.paper]]
says = "NS stays low."
of = "cartpole/harmful/ns"
about = 10
[[panel.paper]]
says = "The weight is positive."
of = "cartpole/harmful/mgl"
measure = "weight"
above = 0
"""


def finished_suite(tmp_path):
    root = tmp_path / "out"
    runs = plan(tmp_path, root, STATED)
    for run in runs:
        level = {"ppo": 150.0, "ns": 40.0, "mgl": 190.0}[run.config.method]
        pretend(run, level + run.config.seed)
    return root


def test_the_paper_stands_next_to_us(tmp_path):
    root = finished_suite(tmp_path)
    found = {finding.says: finding for finding in findings(read_manifest(root), root)}
    assert found["MGL beats PPO."].verdict == "yes"
    assert found["MGL beats PPO."].value == 192.0
    assert found["MGL beats PPO."].expected == "above ppo (152.0)"
    assert found["NS stays low."].verdict == "higher"
    assert found["The weight is positive."].verdict == "no"


def test_results_load_as_one_tidy_table_and_are_exported(tmp_path, capfd):
    polars = pytest.importorskip("polars")
    root = finished_suite(tmp_path)
    table = bipars.load_results(root)
    assert table.height == 15 * 3
    assert set(table["cell"]) == {"cartpole/none/ppo", "cartpole/harmful/ns", "cartpole/harmful/mgl"}
    on_grid = bipars.load_results(root, grid=4_000).filter(cell="cartpole/harmful/ns", seed=0)
    assert on_grid["step"].to_list() == list(range(20_000, 60_001, 4_000))
    assert on_grid["round"].to_list() == [1] * 5 + [2] * 5 + [3]
    assert main(["suite", "export", str(root)]) == 0
    assert polars.read_parquet(root / "curves.parquet").equals(table)
    assert polars.read_csv(root / "curves.csv").height == table.height
    assert "NS stays low." in (root / "paper.md").read_text()
    assert main(["suite", "status", str(root)]) == 0
    assert "900,000 of 900,000 environment steps (100%); nobody is at work" in capfd.readouterr().out


def test_nothing_but_the_plan_is_written_before_a_run_is_due(tmp_path):
    root = tmp_path / "out"
    many = "".join(
        f'[[grid]]\nenv = "cartpole"\nterm = "harmful"\nname = "t{i}"\nmethod = ["ns", "mgl"]\n' for i in range(50)
    )
    runs = plan(tmp_path, root, many)
    assert len(runs) == 100
    assert sorted(path.name for path in root.iterdir()) == ["suite.json"]


def test_a_heat_map_shows_the_weights_of_the_best_seed(tmp_path):
    agents = [bipars.BiPaRS("cartpole-continuous", terms=["half"], seed=seed, ppo={"num_envs": 2}) for seed in (0, 1)]
    for seed, agent in enumerate(agents):
        run = RunDirectory(agent.save(tmp_path / str(seed)))
        last = {"steps": 1, "evaluation_return": 0.0, "evaluation_length": float(seed), "weights": {}}
        row = b'{"round": 1, "step": 1, "evaluation_return": 0.0, "evaluation_length": 1.0}\n'
        run.metrics_file.write_bytes(row)
        marks = {"metrics_size": len(row), "metrics_sha256": hashlib.sha256(row).hexdigest()}
        write_checked(run.result_file, last | marks)
    asked = HeatMap("any", 0, 2, (-2.4, 2.4), (-0.2, 0.2), (0.0, 1.0, 0.0, 0.01), points=3)
    draw_heat_map(asked, [RunDirectory(tmp_path / str(seed)) for seed in (0, 1)], "title", tmp_path / "map")
    assert (tmp_path / "map.png").exists()
    head, *rows = (tmp_path / "map.csv").read_text().splitlines()
    assert head == "cart position,pole angle,weight"
    x, y, weight = map(float, rows[1].split(","))
    state = np.array([x, 1.0, y, 0.01], np.float32)
    assert (x, y) == (0.0, -0.2)
    np.testing.assert_allclose(weight, agents[1].weights(state, agents[1].predict(state, deterministic=True)[0]), 1e-5)


def test_steps_that_are_no_whole_updates_are_said_once(tmp_path, capsys):
    file = write(tmp_path, SMALL)
    say_rounding(load_suite(file))
    assert capsys.readouterr().out == ""
    say_rounding(load_suite(file, Changes(steps=2_100)))
    text = "5 of 5 cells train for more steps than asked, such as cartpole/harmful/ns for 4,000 instead of 2,100"
    assert capsys.readouterr().out.startswith(text)
