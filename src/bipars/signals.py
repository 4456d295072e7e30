"""What a round reports: raw signals on the device, and the row of numbers a person reads."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from bipars.errors import NonFiniteError
from bipars.rollout.batch import Batch, Evaluation


class EpisodeSums(NamedTuple):
    """Per step, the sums of the episode so far; they mean something where `ended`."""

    ended: Bool[Array, "time env"]
    sums: Float[Array, "time env sum"]
    """True reward, modified reward, each raw term, each weighted term and, where there is a potential, its F."""


class Visited(NamedTuple):
    """Some of the transitions of a round, evenly spread over it."""

    obs: Float[Array, "sample obs"]
    action: Array
    terms: Float[Array, "sample term"]


class RoundStats(NamedTuple):
    reward: Float[Array, "time env"]
    terms: Float[Array, "time env term"]
    weights: Float[Array, "time env term"]
    episodes: EpisodeSums
    evaluation: Evaluation | None
    log: dict[str, Array]
    visited: Visited
    shaping: Float[Array, "time env"] | None = None
    """F of a potential."""


SAMPLE = 512
SAMPLE_NUMBERS = 65_536
"""At most so many transitions of a round are kept, and so many numbers of their observations."""


def sample_visited(batch: Batch) -> Visited:
    total, size = batch.reward.size, batch.obs.shape[-1]
    count = min(SAMPLE, max(1, SAMPLE_NUMBERS // size), total)
    index = np.arange(count) * total // count

    def pick(x: Array) -> Array:
        return x.reshape(total, *x.shape[2:])[index]

    return Visited(pick(batch.obs), pick(batch.action), pick(batch.terms))


def signal_to_noise(gradients: Any) -> Float[Array, ""]:
    """Length of the mean gradient over the spread of single ones around it; gradients stand on the first axis."""
    flat = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(gradients)], axis=1)
    mean = flat.mean(axis=0)
    spread = jnp.sqrt(jnp.mean(jnp.sum((flat - mean) ** 2, axis=1)))
    return jnp.linalg.norm(mean) / (spread + 1e-12)


def gradient_log(gradients: Any) -> dict[str, Array]:
    """What is logged of a round's gradients of phi, which stand on the first axis."""
    if gradients is None:
        return {}
    norms = jax.vmap(optax.tree.norm)(gradients)
    return {"weight_gradient_norm": jnp.mean(norms), "weight_gradient_snr": signal_to_noise(gradients)}


def modified_reward(batch: Batch, weights: Float[Array, "time env term"]) -> Float[Array, "time env"]:
    """r~ (equation 1): the true reward, plus every term times its weight, plus the shaping of a potential."""
    reward = batch.reward + jnp.sum(weights * batch.terms, axis=-1)
    return reward if batch.advice is None else reward + batch.advice.shaping


def episode_sums(
    unfinished: Float[Array, "env sum"],
    batch: Batch,
    weights: Float[Array, "time env term"],
) -> tuple[EpisodeSums, Float[Array, "env sum"]]:
    """Running sums of every episode, and those of the episodes that go on after the batch."""
    terms = batch.terms
    weighted = weights * terms
    modified = modified_reward(batch, weights)
    parts = [batch.reward[..., None], modified[..., None], terms, weighted]
    if batch.advice is not None:
        parts.append(batch.advice.shaping[..., None])
    values = jnp.concatenate(parts, axis=-1)

    def add(running: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        value, done = now
        total = running + value
        return jnp.where(done[:, None], 0.0, total), total

    left, sums = jax.lax.scan(add, unfinished, (values, batch.done), unroll=8)
    return EpisodeSums(batch.done, sums), left


def check_finite(signals: RoundStats, term_names: Sequence[str], first_step: int) -> None:
    """Stops the run where a reward, a term or a gradient is no longer a number."""
    reward = np.asarray(signals.reward)
    check_rewards(reward, np.asarray(signals.terms), term_names, first_step)
    if signals.shaping is not None:
        check_signals([("the potential's shaping", np.asarray(signals.shaping))], first_step)
    for name, value in signals.log.items():
        if not np.isfinite(np.asarray(value)):
            raise NonFiniteError(
                f"{name} became {float(value)} in the update that ends at step {first_step + reward.size}, which is "
                "discarded. A smaller learning rate, or ppo.max_grad_norm, usually helps"
            )


def check_rewards(reward: np.ndarray, terms: np.ndarray, term_names: Sequence[str], first_step: int) -> None:
    """Names the first reward or term that is not a number, and its step."""
    check_signals(
        [("the true reward", reward), *((f"term '{n}'", terms[..., k]) for k, n in enumerate(term_names))], first_step
    )


def check_signals(named: Sequence[tuple[str, np.ndarray]], first_step: int) -> None:
    for name, values in named:
        bad = ~np.isfinite(values)
        if bad.any():
            time, env = np.argwhere(bad)[0]
            step = first_step + int(time) * values.shape[1] + int(env)
            raise NonFiniteError(
                f"{name} is {values[time, env]} at step {step} (environment {env}). The update that met it is "
                "discarded. Mend the function"
            )


def summarise(signals: RoundStats, term_names: Sequence[str]) -> dict[str, Any]:
    """One row of metrics. Sums are per finished episode; weights are over the states visited in the round."""
    ended = np.asarray(signals.episodes.ended)
    finished = np.asarray(signals.episodes.sums)[ended]
    sums = finished.mean(0) if len(finished) else np.full(signals.episodes.sums.shape[-1], np.nan)
    count = len(term_names)
    assert signals.evaluation is not None
    row: dict[str, Any] = {
        "evaluation_return": float(np.mean(signals.evaluation.true_return)),
        "evaluation_length": float(np.mean(signals.evaluation.length)),
        "evaluation_action_size": float(signals.evaluation.action_size),
        "episodes": int(ended.sum()),
        "true_return": float(sums[0]),
        "modified_return": float(sums[1]),
    }
    weights = np.asarray(signals.weights).reshape(signals.reward.size, count)
    sizes = np.abs(weights * np.asarray(signals.terms).reshape(weights.shape)).mean(axis=0)
    total = float(np.abs(signals.reward).mean() + sizes.sum())
    for k, name in enumerate(term_names):
        low, median, high = np.quantile(weights[:, k], (0.1, 0.5, 0.9))
        row |= {
            f"term/{name}": float(sums[2 + k]),
            f"weighted_term/{name}": float(sums[2 + count + k]),
            f"weight/{name}": float(weights[:, k].mean()),
            f"weight_p10/{name}": float(low),
            f"weight_p50/{name}": float(median),
            f"weight_p90/{name}": float(high),
            f"share/{name}": float(sizes[k]) / total if total else 0.0,
        }
    if signals.shaping is not None:
        row["potential_shaping"] = float(sums[-1])
    return row | {name: float(value) for name, value in signals.log.items()}
