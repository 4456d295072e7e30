"""A measurement in a process of its own, so that none warms the caches of another."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from bipars.runtime import process_settings


def run_child(module: str, arguments: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """What `python -m module arguments` says on its last line."""
    command = [sys.executable, "-m", module, *arguments]
    result = subprocess.run(command, env={**environment, **process_settings()}, check=True, stdout=subprocess.PIPE)
    return json.loads(result.stdout.splitlines()[-1])


def serve(measure: Callable[..., Mapping[str, Any]]) -> None:
    """The other end: measures what the command line asks for."""
    print(json.dumps(measure(*sys.argv[1:])))
