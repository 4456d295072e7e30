"""Totals of episodes, in the order in which they happened."""

from itertools import pairwise

import jax
import numpy as np

from bipars.program import build, complete
from bipars.settings.config import Config, PPOConfig


def test_episode_sums_go_on_across_batches():
    """A batch of 50 steps per environment is shorter than an episode of 200: totals need what came before."""
    config = complete(
        Config(
            method="ns",
            terms=("beneficial",),
            ppo=PPOConfig(update_period=500, num_envs=10, gradient_steps=1, batch_size=64),
        )
    )
    program = build(config)
    state, reward, terms, done = program.init(0), [], [], []
    totals = []
    for _ in range(10):
        state, stats = program.iterate(state, 0)
        stats = jax.device_get(stats)
        reward.append(stats.reward)
        terms.append(stats.terms)
        done.append(stats.ended)
        totals.append({name: sums[stats.ended] for name, sums in stats.sums.items()})
    reward, terms, done = np.concatenate(reward), np.concatenate(terms), np.concatenate(done)
    expected = []
    for env in range(10):
        starts = np.concatenate([[0], np.flatnonzero(done[:, env]) + 1])
        expected += [(reward[a:b, env].sum(), terms[a:b, env, 0].sum()) for a, b in pairwise(starts)]
    found = {name: np.concatenate([each[name] for each in totals]) for name in totals[0]}
    true, term = found["true_return"], found["term"][:, 0]
    assert len(true) == len(expected)
    np.testing.assert_allclose(np.sort(true), np.sort([r for r, _ in expected]), atol=1e-5)
    np.testing.assert_allclose(np.sort(term), np.sort([f for _, f in expected]), atol=1e-4)
    np.testing.assert_allclose(found["modified_return"], true + found["weighted_term"][:, 0], atol=1e-5)
