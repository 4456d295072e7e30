"""docs/metrics.md is what its command writes."""

import subprocess
import sys
from pathlib import Path

from bipars.metrics import BEGIN, END, METRICS, find_metric, labels, tables, with_tables

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_has_the_tables_of_today():
    page = PAGE.read_text()
    assert with_tables(page, tables()) == page, "docs/metrics.md is out of date: run `make docs`"
    assert all(f"| `{metric.name}` | {metric.meaning} |" in page for metric in METRICS)


def test_the_command_writes_the_tables_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}yesterday\n{END}after\n")
    subprocess.run([sys.executable, "-m", "bipars.metrics", page], check=True)
    assert page.read_text() == with_tables(f"before\n{BEGIN}{END}after\n", tables())
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith(f"{END}after\n")
    assert "yesterday" not in page.read_text()


def test_a_metric_is_declared_once():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert find_metric("weight_p10/torque:16").name == "weight_p10/NAME"
    assert find_metric("weight") is find_metric("approx_kl/torque") is None
    assert labels("evaluation")["evaluation_length"] == "steps per episode"
