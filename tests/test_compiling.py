import gc
import weakref
from dataclasses import dataclass

import jax.numpy as jnp

from bipars.compiling import compiled


@dataclass(frozen=True, eq=False)
class Scaled:
    factor: float
    traced: list

    @compiled
    def times(self, x):
        """Times the factor."""
        self.traced.append(x.shape)
        return self.factor * self.plus_one(x)

    @compiled
    def plus_one(self, x):
        return x + 1


def test_a_method_is_compiled_once_for_each_object_and_shape():
    two, three = Scaled(2.0, []), Scaled(3.0, [])
    assert [float(two.times(jnp.ones(()))) for _ in range(3)] == [4.0, 4.0, 4.0]
    assert float(three.times(jnp.ones(()))) == 6.0
    assert two.times(jnp.ones(2)).shape == (2,)
    assert two.traced == [(), (2,)]
    assert three.traced == [()]
    assert two.times.__doc__ == "Times the factor."


def test_what_was_compiled_goes_with_its_object():
    scaled = Scaled(2.0, [])
    scaled.times(jnp.ones(()))
    gone = weakref.ref(scaled)
    del scaled
    gc.collect()
    assert gone() is None
