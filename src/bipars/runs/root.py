"""A directory for runs, and what may lie in it."""

from pathlib import Path

from bipars.errors import RunDirectoryError
from bipars.runs.files import is_unused

OURS = {
    "curves.csv", "curves.parquet", "curves.png", "figures", "paper.json", "paper.md", "report", "report.html",
    "results.csv", "results.md", "runner.lock", "suite.json",
}  # fmt: skip
"""What we write beside runs."""


def check_root(root: Path) -> None:
    """Refuses a directory for runs that holds anything but runs."""
    try:
        if root.exists() and not root.is_dir():
            raise RunDirectoryError(f"{root} is a file. Choose another --out")
        entries = list(root.iterdir()) if root.exists() else []
    except OSError as error:
        raise RunDirectoryError(f"{root} cannot be used: {error.strerror}. Choose another --out") from error
    for entry in entries:
        if entry.name not in OURS and not any(entry.rglob("config.json")) and not is_unused(entry):
            raise RunDirectoryError(f"{root} holds '{entry.name}', which is not a run of bipars. Choose another --out")
