import os
from pathlib import Path

# Most tests run a program once: compiling it quickly matters more than running it quickly. Workers inherit this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax
import pytest

from bipars.runtime import enable_compilation_cache

enable_compilation_cache()

TIERS = ("golden", "gradient", "probe", "learning", "faults")


def pytest_collection_modifyitems(items):
    """A test's tier is the directory that it is in: `pytest -m golden` is `pytest tests/golden`."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            tier = item.path.relative_to(here).parts[0]
            if tier not in TIERS:
                raise pytest.UsageError(f"{item.path} has no tier; put it into one of {', '.join(TIERS)}")
            item.add_marker(tier)


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Every compiled program takes pieces of memory, of which a process may have 65,530; past that it crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_text().splitlines()) > 20_000:
        jax.clear_caches()


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def optimised():
    """For tests that really train."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
