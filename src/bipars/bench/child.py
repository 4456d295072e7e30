"""A measurement in a process of its own, so that none warms the caches of another."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from bipars.runtime import process_settings


def apart(measure: Callable[..., Any], *arguments: Any, environment: dict[str, str] | None = None) -> Any:
    """What a function of a module returns there; arguments and result travel as JSON."""
    command = [sys.executable, "-m", __name__, measure.__module__, measure.__name__, json.dumps(arguments)]
    given = os.environ | (environment or {}) | process_settings()
    result = subprocess.run(command, env=given, check=True, stdout=subprocess.PIPE)
    return json.loads(result.stdout.splitlines()[-1])


if __name__ == "__main__":
    module, name, given = sys.argv[1:]
    print(json.dumps(getattr(import_module(module), name)(*json.loads(given))))
