import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

from bipars.runtime import enable_compilation_cache

enable_compilation_cache()


@pytest.fixture
def float64():
    """Double precision, and quick compilation instead of quick code."""
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.enable_x64(True):
        yield
    jax.config.update("jax_disable_most_optimizations", False)
