import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

from bipars.runtime import enable_compilation_cache

enable_compilation_cache()


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield
