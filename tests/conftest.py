import os
import tempfile
from pathlib import Path

# Most tests run a program once: compiling it quickly matters more than running it quickly. Workers inherit this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# One thread of XLA's, as in the workers of the command line: with more, no two runs need be equal to the last bit.
os.environ.setdefault("NPROC", "1")
# What tests start is not remembered in the home of whoever runs them.
os.environ["BIPARS_STATE"] = tempfile.mkdtemp(prefix="bipars-state-")

import jax
import pytest

from bipars.runtime import enable_compilation_cache

enable_compilation_cache()


def pytest_configure(config):
    # Many a tiny environment has the action for its reward, and a term that is the same.
    config.addinivalue_line("filterwarnings", "ignore:the true reward is:UserWarning")
    # Pusher's pair of the suite `misspecified` counts a part of the reward twice, as people do.
    config.addinivalue_line("filterwarnings", "ignore:term 'info.reward_near' counts twice:UserWarning")


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


def without_skips(report):
    """Where `CI` is set everything that a test needs is to be installed: there a skip is a failure."""
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"{report.longrepr[-1]} (no test may be skipped where CI is set)"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return without_skips((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return without_skips((yield))


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
