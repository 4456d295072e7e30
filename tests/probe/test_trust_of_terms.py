"""Terms keep the policy's trust or lose it, as they deserve."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.program import build, complete
from bipars.settings.config import Config, UpperConfig


def rounds(term, count):
    config = Config(
        env="cartpole-continuous", method="single", terms=(term,),
        upper=UpperConfig(noise_penalty=1.0, earned_trust=True),
    )  # fmt: skip
    loop = build(complete(config)).algorithm
    state, trust, iterate = loop.init(jnp.uint32(0)), [], jax.jit(loop.iterate)
    for _ in range(count):
        state, stats = iterate(state, jnp.uint32(0))
        trust.append(float(stats.log["trust"]))
    return trust


@pytest.mark.parametrize(
    ("term", "count", "kept"), [("harmful", 2, False), ("beneficial", 3, True), ("noise", 12, False)]
)
def test_a_term_keeps_the_trust_that_it_deserves(term, count, kept):
    trust = rounds(term, count)
    assert trust == [1.0] * count if kept else np.mean(trust[-min(count - 1, 3) :]) < 0.4
