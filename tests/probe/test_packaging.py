"""What is released: one version everywhere, a source distribution with tests and docs, a wheel that works by itself."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import bipars

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
DIRECTORIES = (".ci", "docs", "examples", "results", "src", "tests")


def run(*command, cwd, **more):
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_is_one_version():
    released = re.search(r"^## \[(\d+\.\d+\.\d+)\]", CHANGELOG, re.MULTILINE)[1]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    assert PROJECT["version"] == bipars.__version__ == cited == released


def test_the_changelog_has_dated_versions_and_one_section_to_come():
    first, *others = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert first == "[Unreleased]"
    assert others
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading) for heading in others), others
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    kinds |= {heading for heading in re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE) if heading.startswith("From ")}
    assert set(re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE)) <= kinds


def test_no_package_is_held_below_a_version():
    """Pins are for the files of locked versions: a library that has some cannot be installed beside others."""
    extras = PROJECT["optional-dependencies"]
    of_users = [*PROJECT["dependencies"], *(need for name in extras.keys() - {"docs", "dev"} for need in extras[name])]
    assert [need for need in of_users if re.search(r"==|<|~=", need) or ">=" not in need] == []


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-test.lock"])
def test_locked_versions_name_no_place(lock):
    for line in (ROOT / lock).read_text().splitlines():
        assert re.fullmatch(r"[\w.-]+==[\w.]+( \\)?|    --hash=sha256:[0-9a-f]{64}( \\)?", line), line


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Both distributions, the wheel made from what is in the source distribution."""
    pytest.importorskip("build")
    copy = tmp_path_factory.mktemp("copy") / "bipars"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in DIRECTORIES:
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, copy)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", copy / "dist", cwd=copy)
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(dist):
    (path,) = dist.glob("*.whl")
    return path


def test_twine_finds_no_fault(dist):
    pytest.importorskip("twine")
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir(), cwd=dist)


def test_the_source_has_tests_docs_and_examples(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tests = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("*.py")}
    pages = {str(file.relative_to(ROOT)) for file in (ROOT / "docs").rglob("*.*")}
    examples = {str(file.relative_to(ROOT)) for file in (ROOT / "examples").glob("*.*")}
    others = {"mkdocs.yml", "Makefile", "CITATION.cff", "CHANGELOG.md", "LICENSE", "requirements-test.lock", ".ci/run"}
    assert {name for name in tests | pages | examples | others if "__pycache__" not in name} - names == set()
    assert [name for name in names if "__pycache__" in name] == []


def test_the_wheel_has_the_package_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"bipars"}
    source = ROOT / "src"
    files = {str(file.relative_to(source)) for file in (source / "bipars").rglob("*.*") if file.is_file()}
    assert {name for name in files if "__pycache__" not in name} - set(names) == set()


def test_the_wheel_works_outside_the_repository(wheel, tmp_path):
    """In an environment of its own. What it depends on is borrowed from this one, which saves minutes."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    python, command = tmp_path / "env" / "bin" / "python", tmp_path / "env" / "bin" / "bipars"
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=tmp_path)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(run(python, "-c", where, cwd=tmp_path).strip())
    (own / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    found = run(python, "-c", "import bipars; print(bipars.__file__)", cwd=tmp_path, env=env)
    assert Path(found.strip()).is_relative_to(tmp_path)
    assert bipars.__version__ in run(command, "--version", cwd=tmp_path, env=env)
    assert "harmful" in run(command, "list", cwd=tmp_path, env=env)
    assert "harmful" in run(command, "suite", "show", "paper/fig3", cwd=tmp_path, env=env)


def test_importing_loads_no_plotting():
    """Nor JAX, which takes a second."""
    code = "import bipars, sys; print([m for m in ('jax', 'matplotlib', 'plotly', 'torch') if m in sys.modules])"
    assert run(sys.executable, "-c", code, cwd=ROOT).strip() == "[]"
