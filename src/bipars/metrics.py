"""Every number that is logged, declared once: `METRICS` says what it means, `summarise` computes the row.

docs/metrics.md is made from this table, and the report takes its labels from it. What a level reports of itself
(`RoundStats.log`) is logged under its own name; a test refuses one that is not declared here.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bipars.rollout.stats import RoundStats


class Metric(NamedTuple):
    name: str
    """`x/NAME` stands for one number per reward term."""
    group: str
    meaning: str


METRICS = (
    Metric("round", "progress", "updates so far"),
    Metric("step", "progress", "environment steps so far"),
    Metric("evaluation_return", "evaluation", "true return of greedy episodes after the update, mean"),
    Metric("evaluation_length", "evaluation", 'their length, mean; the paper\'s "average steps per episode"'),
    Metric(
        "evaluation_action_size",
        "evaluation",
        "mean absolute action of those episodes, in the environment's own units; on MuJoCo, the torque",
    ),
    Metric("episodes", "training episodes", "how many ended in this batch"),
    Metric("true_return", "training episodes", "true reward per episode"),
    Metric("modified_return", "training episodes", "true reward plus weighted terms per episode"),
    Metric("term/NAME", "training episodes", "the term itself per episode, also where its weight is zero"),
    Metric("weighted_term/NAME", "training episodes", "the term times its weight per episode"),
    Metric("potential_shaping", "training episodes", "what a potential added per episode, F summed"),
    Metric("weight/NAME", "weights", "z, mean over the visited states and actions"),
    Metric("weight_p10/NAME", "weights", "its 10th percentile"),
    Metric("weight_p50/NAME", "weights", "its median"),
    Metric("weight_p90/NAME", "weights", "its 90th percentile"),
    Metric(
        "share/NAME",
        "weights",
        "how much of the modified reward the weighted term is: the mean of its size per step, divided by the sum of "
        "all sizes, the true reward's included",
    ),
    Metric("weight_gradient_norm", "weights", "norm of the gradient of phi, mean over the update's steps"),
    Metric(
        "weight_gradient_snr",
        "weights",
        "length of its mean over the update's steps, divided by the spread of single ones around it; absent with "
        "`--upper.sampling round`, which has one per update",
    ),
    Metric("trust", "trust", "how far the policy follows the weighted terms: 0 the true advantage alone, 1 both alike"),
    Metric(
        "agreement_t",
        "trust",
        "how well the pull of the weighted terms agrees with the true gradient, on samples phi had not seen, in "
        "standard errors",
    ),
    Metric("true_gradient_t", "trust", "the same of the true gradient with itself: below 2 it is not told from noise"),
    Metric("policy_gradient_norm", "policy", "norm of the gradient of theta, mean over the update's steps"),
    Metric("approx_kl", "policy", "KL divergence from the policy that acted, mean over the update's minibatches"),
    Metric("clip_fraction", "policy", "share of samples beyond PPO's clip, mean over the update's minibatches"),
    Metric("entropy", "policy", "of the policy after the update, mean over some of the visited states"),
    Metric("policy_std", "policy", "standard deviation of its actions, where they are continuous"),
    Metric("modified_explained_variance", "critics", "1 - Var[return - V~] / Var[return] of the modified reward"),
    Metric("true_explained_variance", "critics", "the same of the true reward and V"),
    Metric("modified_critic_loss", "critics", "squared error of V~, or of Q~ with deterministic policies"),
    Metric(
        "true_critic_loss",
        "critics",
        "share of the true return's variance that V leaves unexplained; squared error of Q with deterministic policies",
    ),
    Metric("term_critic_loss", "critics", "deterministic policies: squared error of the values of the terms"),
    Metric("potential", "potential", "mean of Phi over the visited states and actions"),
    Metric("potential_loss", "potential", "`dpba`: squared error of Phi"),
    Metric("nonfinite", "progress", "names of numbers that were not finite and stand as null"),
)


def find_metric(key: str) -> Metric | None:
    """The declaration of a logged number, whatever term it is about."""
    kind, slash, _ = key.partition("/")
    name = f"{kind}/NAME" if slash else kind
    return next((metric for metric in METRICS if metric.name == name), None)


def summarise(stats: RoundStats, term_names: Sequence[str]) -> dict[str, Any]:
    """One row of metrics. Sums are per finished episode; weights are over the states visited in the round."""
    ended = np.asarray(stats.ended)
    row: dict[str, Any] = {
        "evaluation_return": float(np.mean(stats.evaluation.true_return)),
        "evaluation_length": float(np.mean(stats.evaluation.length)),
        "evaluation_action_size": float(stats.evaluation.action_size),
        "episodes": int(ended.sum()),
    }
    for name, sums in stats.sums.items():
        finished = np.asarray(sums)[ended]
        mean = finished.mean(axis=0) if len(finished) else np.full(finished.shape[1:], np.nan)
        row |= {name: float(mean)} if mean.ndim == 0 else dict(zip(_keys(name, term_names), mean.tolist(), strict=True))
    weights = np.asarray(stats.z).reshape(stats.reward.size, len(term_names))
    sizes = np.abs(weights * np.asarray(stats.terms).reshape(weights.shape)).mean(axis=0)
    total = float(np.abs(stats.reward).mean() + sizes.sum())
    for k, name in enumerate(term_names):
        low, median, high = np.quantile(weights[:, k], (0.1, 0.5, 0.9))
        row |= {
            f"weight/{name}": float(weights[:, k].mean()),
            f"weight_p10/{name}": float(low),
            f"weight_p50/{name}": float(median),
            f"weight_p90/{name}": float(high),
            f"share/{name}": float(sizes[k]) / total if total else 0.0,
        }
    return row | {name: float(value) for name, value in stats.log.items()}


def _keys(kind: str, term_names: Sequence[str]) -> list[str]:
    return [f"{kind}/{name}" for name in term_names]
