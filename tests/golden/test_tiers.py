"""The tests' own rules: a tier for every test, and no skips where everything is installed."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
SKIPPED = {
    "module": 'import pytest\n\npytest.importorskip("no_module")\n\n\ndef test_it():\n    pass\n',
    "inside": 'import pytest\n\n\ndef test_it():\n    pytest.importorskip("no_package")\n',
    "marked": 'import pytest\n\n\n@pytest.mark.skipif(True, reason="no program")\ndef test_it():\n    pass\n',
}


def run_pytest(folder, files, *arguments, ci=""):
    """These rules in another directory."""
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", folder, "--rootdir", folder, "-c", TESTS.parent / "pyproject.toml"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, env=os.environ | {"CI": ci})


def test_what_is_missing_is_skipped_and_a_failure_where_ci_is_set(tmp_path):
    files = {f"golden/test_{name}.py": text for name, text in SKIPPED.items()}
    assert "\n3 skipped in " in run_pytest(tmp_path, files).stdout
    found = run_pytest(tmp_path, files, "--continue-on-collection-errors", ci="1").stdout
    assert "\n1 failed, 2 errors in " in found  # before its test could start, what is missing is an error
    assert all(word in found for word in ("no_module", "no_package", "no program"))


def test_a_test_without_a_tier_is_refused(tmp_path):
    found = run_pytest(tmp_path, {"test_it.py": "def test_it(): pass"})
    assert found.returncode == 4
    assert "test_it.py has no tier; put it into one of golden, gradient, probe, learning, faults" in found.stderr


def test_a_tier_is_run_by_its_marker(tmp_path):
    names = ("golden", "gradient", "probe", "learning", "faults")
    files = {f"{name}/test_{name}.py": f"def test_{name}(): pass" for name in names}
    found = run_pytest(tmp_path, files, "-m", "probe", "-vv").stdout
    assert "probe/test_probe.py::test_probe PASSED" in found
    assert "1 passed, 4 deselected" in found
