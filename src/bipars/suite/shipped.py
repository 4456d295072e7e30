"""The suites that come with the package. Nothing heavy is imported: the command line asks before anything else."""

from importlib import resources
from pathlib import Path

from bipars.errors import unknown

TEMPLATE = "template"
"""Not a suite to run, but one to start your own from."""


def shipped() -> dict[str, Path]:
    """Suites by name, such as paper/fig1."""
    root = Path(str(resources.files("bipars.suite") / "suites"))
    found = {str(path.relative_to(root).with_suffix("")): path for path in sorted(root.rglob("*.toml"))}
    return {name: path for name, path in found.items() if name != TEMPLATE}


def template() -> str:
    return (resources.files("bipars.suite") / "suites" / f"{TEMPLATE}.toml").read_text()


def find_suite(name: str) -> Path:
    """A shipped suite by its name, or a file of your own."""
    path = shipped().get(name, Path(name))
    if not path.is_file():
        raise unknown("suite", name, shipped())
    return path
