"""Asking whether code that a file names may be imported."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bipars.settings.importing import WithheldError, agree, withheld

Result = TypeVar("Result")


def settle_imports(allow: bool) -> None:
    """Agrees to all code that the files read so far name, if `allow` or the person at the terminal says so."""
    from bipars.runs.consent import remember
    from bipars.runs.files import read_file

    waiting = withheld()
    if not waiting:
        return
    if not allow and not _ask({name: files[0] for name, files in waiting.items()}):
        name, files = next(iter(waiting.items()))
        raise WithheldError(name, files[0])
    for file in dict.fromkeys(file for files in waiting.values() for file in files):
        remember(Path(file), read_file(Path(file)))
    agree(waiting)


def with_consent(allow: bool, work: Callable[[], Result]) -> Result:
    """Work that stops at the first code nobody has agreed to, begun again once somebody has."""
    try:
        return work()
    except WithheldError:
        settle_imports(allow)
        return work()


def _ask(waiting: dict[str, str]) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print("These files name code, which would be imported and run with your rights:", file=sys.stderr)
    for name, file in waiting.items():
        print(f"  {name!r:.100} ({file!r:.200})", file=sys.stderr)
    print("Import it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
