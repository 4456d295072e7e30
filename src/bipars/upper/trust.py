"""Terms must earn the policy's trust: they count while there is evidence that they point up the true return.

Before anything learns from a round's batch, phi has not seen it. So ask it: does what the weighted terms pull theta
towards agree with the gradient of the true return? The answer is a t-statistic per round, and over the rounds they add
up as in Page's test (CUSUM): evidence grows while they are clearly positive, and runs out when they no longer are.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bipars.lower.ppo import Samples
from bipars.nets.mlp import ravel
from bipars.nets.policies import Theta, scores
from bipars.upper.base import TINY

PARTS = 16
"""Into how many parts a batch is split, at least: one per environment, more where there are few."""
CLEAR = 2.0
"""Standard errors from which on the true gradient is told from noise. Below, a batch cannot judge terms by it."""
DRIFT = 1.0
"""What a round must show, in standard errors, for the evidence to grow."""
LOUDEST = 3.0
"""No single round says more than this."""
DOUBT, CERTAINTY = 1.0, 3.0
"""Evidence at which trust begins, and at which it is complete."""
SHARE = 0.5
"""Of the modified advantage in what a policy climbs that trusts the terms fully; the true one has the rest."""
MOST = 6.0
"""Evidence that can be saved up; what a run begins with, since people write terms that they believe in."""


def judge(
    evidence: Float[Array, ""], v: Float[Array, "part theta"], w: Float[Array, "part theta"]
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Evidence after one more batch, given its `pulls`, and what is logged of it."""
    clear, agrees = agreement(v, v), agreement(v, w)
    more = jnp.clip(agrees, -LOUDEST, LOUDEST) - DRIFT
    evidence = jnp.where(clear > CLEAR, jnp.clip(evidence + more, 0.0, MOST), evidence)
    return evidence, {"true_gradient_t": clear, "agreement_t": agrees}


def agreement(v: Float[Array, "part theta"], w: Float[Array, "part theta"]) -> Float[Array, ""]:
    """Mean of <v_i, w_j> over pairs of *different* parts of a batch, in standard errors (jackknife).

    A part never meets itself, so the mean of noise has no sign, however large it is. Fewer than three say nothing.
    """
    parts, same = len(v), jnp.sum(v * w, axis=1)
    if parts < 3:
        return jnp.zeros(())
    sum_v, sum_w = v.sum(axis=0), w.sum(axis=0)
    pairs = sum_v @ sum_w - same.sum()
    # The same without part i: the pairs that it is in taken out.
    without = (pairs - v @ sum_w - w @ sum_v + 2 * same) / ((parts - 1) * (parts - 2))
    variance = (parts - 1) / parts * jnp.sum((without - without.mean()) ** 2)
    return pairs / (parts * (parts - 1)) / jnp.sqrt(jnp.maximum(variance, TINY))


def pieces_of(time: int, envs: int) -> int:
    """Into how many parts what happened in one environment is split."""
    return min(time, -(-PARTS // envs))


def pulls(
    policy: Theta, samples: Samples, envs: int, parts: Int[Array, " part"]
) -> tuple[Float[Array, "part theta"], Float[Array, "part theta"]]:
    """Of some parts of the batch: the gradient of the true return, and that of the weighted terms to come."""
    assert samples.true_advantage is not None
    assert samples.weighted is not None
    time = samples.log_prob.size // envs
    pieces = pieces_of(time, envs)
    length = time // pieces  # where that leaves a rest, the last steps are left out

    def split(x: Array) -> Array:
        by_env = jnp.swapaxes(x.reshape(time, envs, *x.shape[1:])[: pieces * length], 0, 1)
        return by_env.reshape(envs * pieces, length, *x.shape[1:])[parts]

    def one(part: tuple[Array, Array, Array]) -> Float[Array, "2 theta"]:
        obs, action, signals = part
        return jax.vmap(ravel)(scores(policy, obs, action).sums(signals.T / length))

    weighted = samples.weighted - samples.weighted.mean()  # a baseline: constants pull nowhere, and only scatter
    signals = jnp.stack([samples.true_advantage, weighted], axis=-1)
    # One part at a time: all at once would leave the processor's cache.
    both = jax.lax.map(one, (split(samples.obs), split(samples.action), split(signals)))
    return both[:, 0], both[:, 1]


def trust(evidence: Float[Array, ""]) -> Float[Array, ""]:
    """From 0, the policy climbs the true advantage alone, to 1, it climbs both alike."""
    return jnp.clip((evidence - DOUBT) / (CERTAINTY - DOUBT), 0.0, 1.0)


def as_trusted(samples: Samples, trust: Float[Array, ""] | float | None) -> Samples:
    """The samples as a policy learns from them that trusts the terms so far: a mix of both advantages."""
    if trust is None:
        return samples
    assert samples.true_advantage is not None
    share = trust * SHARE
    mixed = share * samples.modified_advantage + (1 - share) * samples.true_advantage
    credit = None if samples.credit is None else share * samples.credit
    return samples._replace(modified_advantage=mixed, credit=credit)
