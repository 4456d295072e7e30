"""Running statistics, by hand."""

import jax.numpy as jnp
import numpy as np

from bipars.nets.running import ReturnScale, RunningMoments


def test_moments_are_those_of_all_batches_together():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3, 2, (50, 2)), rng.normal(-1, 5, (7, 2)), rng.normal(0, 1, (200, 2))]
    moments = RunningMoments.fresh((2,))
    for batch in batches:
        moments = moments.update(jnp.asarray(batch))
    together = np.concatenate(batches)
    np.testing.assert_allclose(moments.mean, together.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moments.var, together.var(0), rtol=1e-4)
    np.testing.assert_allclose(
        moments.normalise(jnp.asarray(together)), (together - together.mean(0)) / together.std(0), atol=1e-3
    )


def test_return_scale_by_hand():
    # gamma 0.5: 1, 0.5 + 2 = 2.5, end; 3; and the next batch goes on with 3 * 0.5 + 1 = 2.5.
    scale = ReturnScale.fresh(1).update(jnp.array([[1.0], [2.0], [3.0]]), jnp.array([[False], [True], [False]]), 0.5)
    np.testing.assert_allclose(scale.moments.mean, np.mean([1, 2.5, 3]))
    scale = scale.update(jnp.array([[1.0]]), jnp.array([[False]]), 0.5)
    np.testing.assert_allclose(scale.running, [2.5])
    np.testing.assert_allclose(scale.std, np.std([1, 2.5, 3, 2.5]), rtol=1e-5)
