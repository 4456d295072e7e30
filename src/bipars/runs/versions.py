"""What a run was made with, as its config.json records it."""

import functools
import json
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

RECORDED_PACKAGES = ("bipars", "jax", "jaxlib", "optax", "numpy", "gymnasium", "mujoco", "numba", "safetensors")


@functools.cache
def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in RECORDED_PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@functools.cache
def env_spec(name: str) -> dict[str, Any] | None:
    """How Gymnasium makes the environment, where it knows it."""
    import gymnasium

    try:
        return json.loads(gymnasium.spec(name).to_json())
    except Exception:  # an environment of our own, a function, or a spec that holds one
        return None
