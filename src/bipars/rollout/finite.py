"""Stops a run where a reward, a term or a gradient is no longer a number, and names it."""

from collections.abc import Sequence

import numpy as np

from bipars.errors import NonFiniteError
from bipars.rollout.stats import RoundStats


def check_finite(stats: RoundStats, term_names: Sequence[str], first_step: int) -> None:
    """All that a round reports; it began at `first_step`."""
    reward = np.asarray(stats.reward)
    check_rewards(reward, np.asarray(stats.terms), term_names, first_step)
    if stats.potential is not None:
        check_values([("the potential's shaping", np.asarray(stats.potential))], first_step)
    for name, value in stats.log.items():
        if not np.isfinite(np.asarray(value)).all():
            raise NonFiniteError(
                f"{name} became {np.asarray(value)} in the update that ends at step {first_step + reward.size}, which "
                "is discarded. A smaller learning rate, or ppo.max_grad_norm, usually helps",
                ["ppo.max_grad_norm"],
            )


DISCARDED = "The update that met it is discarded."


def check_rewards(
    reward: np.ndarray, terms: np.ndarray, term_names: Sequence[str], first_step: int, then: str = DISCARDED
) -> None:
    """Names the first reward or term that is not a number, and its step."""
    each = ((f"term '{name}'", terms[..., k]) for k, name in enumerate(term_names))
    check_values([("the true reward", reward), *each], first_step, then)


def check_values(named: Sequence[tuple[str, np.ndarray]], first_step: int, then: str = DISCARDED) -> None:
    for name, values in named:
        bad = ~np.isfinite(values)
        if bad.any():
            time, env = np.argwhere(bad)[0]
            step = first_step + int(time) * values.shape[1] + int(env)
            raise NonFiniteError(
                f"{name} is {values[time, env]} at step {step} (environment {env}). {then} Mend the function"
            )
