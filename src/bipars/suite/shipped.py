"""The suites that come with the package. Nothing heavy is imported: the command line asks before anything else."""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from bipars.errors import UsageError, unknown

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
    path = shipped().get(name, Path(name))
    if not path.is_file():
        raise no_suite("suite", name, shipped())
    return path


def no_suite(what: str, name: str, known: Iterable[str]) -> UsageError:
    """Names a missing file where a file was meant, else what is known."""
    if Path(name).is_dir():
        return UsageError(f"'{name}' is a directory; expected a suite's TOML file, or one of {', '.join(shipped())}")
    if name.endswith(".toml") or name.startswith((".", "/", "~")):
        return UsageError(f"there is no file '{name}'; `bipars suite template` prints one to start from")
    return unknown(what, name, known)
