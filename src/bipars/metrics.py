"""Every number that is logged, declared once: `METRICS` says what it means, `summarise` computes the row.

The tables of docs/metrics.md are written by `python -m bipars.metrics docs/metrics.md`, and the report takes its labels
from here. What a level reports of itself (`RoundStats.log`) is logged under its own name; a test refuses one that is
not declared.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bipars.rollout.stats import RoundStats


class Metric(NamedTuple):
    name: str
    """`x/NAME` stands for one number per reward term."""
    group: str
    meaning: str
    label: str = ""
    """What the report calls it on an axis or in a menu; without one it is not shown there."""


METRICS = (
    Metric("round", "progress", "updates so far"),
    Metric("step", "progress", "environment steps so far"),
    Metric(
        "nonfinite",
        "progress",
        "names of numbers that were not finite and are stored as null, such as a return when no episode ended",
    ),
    Metric(
        "evaluation_return",
        "evaluation",
        "true return of greedy episodes after the update, mean; with `bipars.sb3`, of the training episodes that ended",
        "true return",
    ),
    Metric(
        "evaluation_length",
        "evaluation",
        'their length, mean; the paper\'s "average steps per episode"',
        "steps per episode",
    ),
    Metric(
        "evaluation_action_size",
        "evaluation",
        "mean absolute action of those episodes, in the environment's own units; on MuJoCo, the torque",
        "mean |action|",
    ),
    Metric("episodes", "training episodes", "how many ended in this batch"),
    Metric("true_return", "training episodes", "true reward per episode"),
    Metric("modified_return", "training episodes", "true reward plus weighted terms per episode"),
    Metric("term/NAME", "training episodes", "the term itself per episode, unweighted, even where its weight is 0"),
    Metric("weighted_term/NAME", "training episodes", "the term times its weight per episode"),
    Metric(
        "potential_shaping", "training episodes", "what a potential added per episode, F summed; only with a potential"
    ),
    Metric("weight/NAME", "weights", "z, mean over the visited states and actions"),
    Metric("weight_p10/NAME", "weights", "its 10th percentile"),
    Metric("weight_p50/NAME", "weights", "its median"),
    Metric("weight_p90/NAME", "weights", "its 90th percentile"),
    Metric(
        "share/NAME",
        "weights",
        "how much of the modified reward the weighted term makes up: the mean of its size per step, divided by the sum "
        "of all sizes, the true reward's included",
    ),
    Metric(
        "weight_gradient_norm",
        "weights",
        "norm of the gradient with respect to phi, mean over the update's steps; absent where weights are not learned",
        "length of the weight gradient",
    ),
    Metric(
        "weight_gradient_snr",
        "weights",
        "length of its mean over the update's steps, divided by the spread of single ones around it; absent with "
        "`--upper.sampling round`, which takes one step per update",
        "signal-to-noise of the weight gradient",
    ),
    Metric(
        "agreement_t/NAME",
        "evidence",
        "how clearly the policy gradient of the term, less its mean where episodes end early, agrees with the true "
        "reward's, in standard errors, over the newest batches: above 2 it points up the true return, below -2 down",
        "agreement with the true gradient",
    ),
    Metric(
        "true_gradient_t",
        "evidence",
        "the same for the true gradient with itself: below 2 it cannot be told from noise, and nothing is learned of "
        "the terms",
        "clearness of the true gradient",
    ),
    Metric(
        "term_gradient_t/NAME",
        "evidence",
        "the same of the term's gradient with itself: a term that no choice of action changes, such as noise, stays "
        "around 0",
        "clearness of the term's gradient",
    ),
    Metric(
        "evidence_added",
        "evidence",
        "1 where the update's batch said something about the true gradient, 0 where the evidence is that of the "
        "updates before",
    ),
    Metric(
        "improvement",
        "evidence",
        "method `hepo`: the true return of its policy minus that of the policy of the terms alone, by their advantages",
    ),
    Metric(
        "leader", "evidence", "0: not compared yet; 1: the policy that uses the terms has won; 2: the control group has"
    ),
    Metric("treated_return", "evidence", "true return of the newest episodes of the policy that uses the terms, mean"),
    Metric("control_return", "evidence", "the same of the control group, which learns from the true reward alone"),
    Metric("lead_t", "evidence", "by how many standard errors the former is ahead, until they are compared"),
    Metric(
        "policy_gradient_norm",
        "policy",
        "norm of the gradient with respect to theta, mean over the update's steps",
        "length of the policy gradient",
    ),
    Metric("approx_kl", "policy", "KL divergence of the policy after the update from the one that acted"),
    Metric(
        "clip_fraction",
        "policy",
        "share of samples whose probability ratio has left PPO's clip after the update",
    ),
    Metric("policy_learning_rate", "policy", "the policy's step size, where `ppo.target_kl` adapts it"),
    Metric("entropy", "policy", "entropy of the policy after the update, mean over some of the visited states"),
    Metric("policy_std", "policy", "standard deviation of its actions, where they are continuous"),
    Metric("modified_explained_variance", "critics", "1 - Var[return - V~] / Var[return], for the modified reward"),
    Metric(
        "true_explained_variance",
        "critics",
        "the same for the true reward and V; absent, like V itself, where weights are not learned",
    ),
    Metric(
        "modified_critic_loss",
        "critics",
        "squared error of V~, or of Q~ with deterministic policies; with a critic of every term, the mean over them",
    ),
    Metric(
        "true_critic_loss",
        "critics",
        "squared error of V in units of the returns' spread; with the paper's settings, the share of their variance "
        "that V leaves unexplained; with deterministic policies, squared error of Q; absent where weights are not "
        "learned",
    ),
    Metric("term_critic_loss", "critics", "deterministic policies: squared error of the values of the terms"),
    Metric("potential", "potential", "mean of Phi over the visited states and actions; only with a potential"),
    Metric("potential_loss", "potential", "`dpba`: squared error of Phi"),
)


def find_metric(key: str) -> Metric | None:
    """The declaration of a logged number, whatever term it is about."""
    kind, slash, _ = key.partition("/")
    name = f"{kind}/NAME" if slash else kind
    return next((metric for metric in METRICS if metric.name == name), None)


def labels(*groups: str) -> dict[str, str]:
    """The metrics of these groups that the report shows, by name."""
    shown = (metric for group in groups for metric in METRICS if metric.group == group and metric.label)
    return {metric.name: metric.label for metric in shown}


def summarise(stats: RoundStats, term_names: Sequence[str]) -> dict[str, Any]:
    """One row of metrics. Sums are per finished episode; weights are over the states visited in the round."""
    ended = np.asarray(stats.ended)
    row: dict[str, Any] = {
        "evaluation_return": float(np.mean(stats.evaluation.true_return)),
        "evaluation_length": float(np.mean(stats.evaluation.length)) or np.nan,  # 0 before the first one
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
    for name, value in stats.log.items():
        number = np.asarray(value, float)
        row |= dict(zip(_keys(name, term_names) if number.ndim else [name], number.reshape(-1).tolist(), strict=True))
    return row


def _keys(kind: str, term_names: Sequence[str]) -> list[str]:
    return [f"{kind}/{name}" for name in term_names]


BEGIN, END = "<!-- written by `make docs` -->\n", "<!-- end -->\n"
"""Between these two lines of a page stand tables that a command writes."""


def tables() -> Iterable[str]:
    """A table per group, in Markdown."""
    for group in dict.fromkeys(metric.group for metric in METRICS):
        yield f"\n## {group.capitalize()}\n\n| key | meaning |\n| --- | --- |\n"
        yield from (f"| `{metric.name}` | {metric.meaning} |\n" for metric in METRICS if metric.group == group)
    yield "\n"


def with_tables(page: str, lines: Iterable[str]) -> str:
    """The page with these lines in the place of those that a command wrote before."""
    before, _, rest = page.partition(BEGIN)
    return "".join([before, BEGIN, *lines, END, rest.partition(END)[2]])


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text(), tables()))
