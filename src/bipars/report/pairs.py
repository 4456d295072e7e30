"""Pairs of environment and terms at a glance: what every method keeps of the better of no shaping and naive shaping.

The share of a method is (x - start) / (better - start): x its true return at the end, `better` that of PPO without the
terms or of naive shaping, whichever is higher, and `start` what the untrained policy earns: PPO's first training
episodes. Its area is the same of the mean over all evaluations: the higher, the sooner it learned.

    python -m bipars.report.pairs results/misspecified docs/benchmark.md

writes the tables of all files in a folder, the parts of one suite, into the page.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bipars.errors import BiparsError, UsageError
from bipars.metrics import with_tables
from bipars.results.panels import Collection, collect, run_role
from bipars.results.statistics import SAMPLES
from bipars.results.summary import evaluations, short_name
from bipars.results.verdict import verdicts
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import LAST_EVALUATIONS
from bipars.suite.manifest import Manifest, is_suite, read_manifest
from bipars.terms.misspecified import POISON, USEFUL

ENOUGH, LEAST = 0.95, 0.9
"""The share that is promised, and how low its interval may reach."""
ROLES = ("plain", "naive", "learner", "other")
FILE = "pairs.json"


@dataclass(frozen=True)
class Score:
    """One method on one pair."""

    method: str
    role: str
    """One of ROLES."""
    seeds: int
    end: float
    """True return, mean over seeds of the last evaluations."""
    share: float | None
    """None where nobody has learned anything."""
    low: float | None
    high: float | None
    """95 % bootstrap interval of the share."""
    area: float | None
    """Share of the mean over all evaluations."""

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return self.share is not None and self.low is not None and self.share >= ENOUGH and self.low >= LEAST


@dataclass(frozen=True)
class Outcome:
    """What one run earned, and what its verdict says."""

    seed: int
    start: float
    """True return of the first training episodes."""
    end: float
    """... of the last evaluations ..."""
    whole: float
    """... and the mean over all evaluations."""
    advice: dict[str, str] = field(default_factory=dict)
    """By term, where weights were learned: what somebody who trains once is told."""


@dataclass(frozen=True)
class Pair:
    env: str
    name: str
    kind: str
    half: str
    steps: int
    roles: dict[str, str]
    """Of every method, by its label."""
    outcomes: dict[str, tuple[Outcome, ...]]
    """Of its seeds, by the same."""

    @property
    def title(self) -> str:
        return f"{self.env}, {self.name}"

    @property
    def start(self) -> float:
        """What the untrained policy earns."""
        return float(np.mean([outcome.start for outcome in self.outcomes[self._label("plain")]]))

    @property
    def better(self) -> str:
        """Whichever of the two earns more: its label."""
        return max((self._label("plain"), self._label("naive")), key=lambda label: self._ends(label).mean())

    @cached_property
    def scores(self) -> tuple[Score, ...]:
        order = sorted(self.outcomes, key=lambda label: (ROLES.index(self.roles[label]), label))
        return tuple(self._score(label) for label in order)

    @property
    def advice(self) -> dict[str, dict[str, int]]:
        """What is said of each term, and after how many of the runs that learned weights."""
        said = [outcome.advice for found in self.outcomes.values() for outcome in found if outcome.advice]
        terms = dict.fromkeys(term for advice in said for term in advice)
        return {term: dict(Counter(advice[term] for advice in said if term in advice)) for term in terms}

    def of(self, role: str) -> Score | None:
        return next((score for score in self.scores if score.role == role), None)

    def _label(self, role: str) -> str:
        return next(label for label in self.outcomes if self.roles[label] == role)

    def _ends(self, label: str) -> np.ndarray:
        return np.array([outcome.end for outcome in self.outcomes[label]])

    def _score(self, label: str) -> Score:
        found, ends, better, start = self.outcomes[label], self._ends(label), self._ends(self.better), self.start
        low, high = share_interval(ends, better, start, same=label == self.better)
        area = share_of(np.array([outcome.whole for outcome in found]), better, start)
        share = share_of(ends, better, start)
        return Score(label, self.roles[label], len(found), float(ends.mean()), share, low, high, area)


def pairs(manifest: Manifest, root: Path) -> list[Pair]:
    """Every pair whose two comparisons have finished runs."""
    asked = [panel for panel in manifest.suite.panels if panel.kind]
    if not asked:
        return []
    runs, cells = manifest.finished_runs(root), {cell.name: cell for cell in manifest.suite.cells}
    roles = {name: run_role(cell.config) for name, cell in cells.items()}
    read = {
        cell: tuple(read_outcome(run, roles[cell]) for run in runs[cell])
        for cell in dict.fromkeys(cell for panel in asked for cell in panel.cells)
        if cell in runs
    }
    found = []
    for panel in asked:
        there = [cell for cell in panel.cells if cell in read]
        if {"plain", "naive"} <= {roles[cell] for cell in there}:
            env, name, _ = there[-1].split("/")
            labels = {cell: cell.rpartition("/")[2] for cell in there}
            found.append(
                Pair(
                    *(env, name, panel.kind, panel.half, cells[there[-1]].config.steps),
                    roles={labels[cell]: roles[cell] for cell in there},
                    outcomes={labels[cell]: read[cell] for cell in there},
                )
            )
    return found


def read_outcome(run: RunDirectory, role: str) -> Outcome:
    returns = [row["evaluation_return"] for row in evaluations(run)]
    # The first evaluation may come late; the first update in which an episode ended is that of a policy hardly trained.
    first = (row["true_return"] for row in run.metrics if row.get("true_return") is not None)
    end, whole = float(np.mean(returns[-LAST_EVALUATIONS:])), float(np.mean(returns))
    return Outcome(run.config.seed, next(first, returns[0]), end, whole, advice_on(run) if role == "learner" else {})


def advice_on(run: RunDirectory) -> dict[str, str]:
    return {short_name(v.term): v.advice for panel in collect(run.path).panels for v in verdicts(panel)}


def merge(found: Iterable[Pair]) -> list[Pair]:
    """Pairs of one suite that was run in parts, on several machines or with other seeds each time."""
    merged: dict[tuple[str, int], Pair] = {}
    for pair in found:
        other = merged.setdefault((pair.title, pair.steps), pair)
        outcomes = dict(other.outcomes)
        for label, runs in pair.outcomes.items():
            by_seed = {run.seed: run for run in outcomes.get(label, ())}
            for run in runs:
                if by_seed.setdefault(run.seed, run) != run:
                    raise UsageError(f"{pair.title}, {label}, seed {run.seed} is there twice, with different results")
            outcomes[label] = tuple(by_seed[seed] for seed in sorted(by_seed))
        merged[pair.title, pair.steps] = replace(other, roles=other.roles | pair.roles, outcomes=outcomes)
    return list(merged.values())


def share_of(x: np.ndarray, better: np.ndarray, start: float) -> float | None:
    span = better.mean() - start
    return float((x.mean() - start) / span) if span > 0 else None


def share_interval(
    x: np.ndarray, better: np.ndarray, start: float, same: bool, level: float = 0.95, samples: int = SAMPLES
) -> tuple[float | None, float | None]:
    """By the bootstrap over the seeds of both; where they are the `same` runs, there is nothing to compare."""
    if better.mean() <= start:
        return None, None
    if same:
        return 1.0, 1.0
    rng = np.random.default_rng(0)
    means = [rng.choice(values, (samples, len(values))).mean(axis=1) for values in (x, better)]
    spans = means[1] - start
    shares = (means[0] - start)[spans > 0] / spans[spans > 0]
    low, high = np.quantile(shares, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


@dataclass(frozen=True)
class Summary:
    """One method over many pairs."""

    method: str
    pairs: int
    held: int
    """On how many the promise is kept."""
    lowest: float
    area: float
    """Mean over the pairs ..."""
    area_ratio: float | None
    """... and how many times that of PPO on the same pairs; None where PPO has none."""


def summaries(found: Sequence[Pair]) -> list[Summary]:
    """By method, over the pairs on which somebody learned."""
    methods = dict.fromkeys(score.method for pair in found for score in pair.scores)
    rows = []
    for method in methods:
        both = [
            (score, plain)
            for pair in found
            for score in pair.scores
            if score.method == method and score.share is not None and (plain := pair.of("plain")) is not None
        ]
        if both:
            shares = [score.share for score, _ in both if score.share is not None]
            area = float(np.mean([score.area or 0.0 for score, _ in both]))
            reference = float(np.mean([plain.area or 0.0 for _, plain in both]))
            held = sum(score.holds for score, _ in both)
            ratio = area / reference if reference > 0 else None
            rows.append(Summary(method, len(both), held, min(shares), area, ratio))
    return rows


def groups(found: Sequence[Pair]) -> dict[str, list[Pair]]:
    """The pairs in the groups that are summarised: all, each half, each kind."""
    sets = {"all pairs": list(found)}
    for half in dict.fromkeys(pair.half for pair in found if pair.half):
        sets[half] = [pair for pair in found if pair.half == half]
    for kind in dict.fromkeys(pair.kind for pair in found):
        sets[kind] = [pair for pair in found if pair.kind == kind]
    return sets


def text(score: Score | None) -> str:
    if score is None:
        return ""
    if score.share is None or score.low is None or score.high is None:
        return "nobody learned"
    same = score.low == score.high
    return f"{score.share:.2f}" if same else f"{score.share:.2f} ({score.low:.2f} to {score.high:.2f})"


def as_markdown(found: Sequence[Pair]) -> str:
    """A table of all pairs, and one of every group."""
    methods = list(dict.fromkeys(score.method for pair in found for score in pair.scores))
    head = ["environment, terms", "kind", "half", "steps", *methods]
    lines = ["", f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for pair in found:
        by_method = {score.method: score for score in pair.scores}
        cells = " | ".join(text(by_method.get(method)) for method in methods)
        lines.append(f"| {pair.title} | {pair.kind} | {pair.half} | {pair.steps:,} | {cells} |")
    lines += ["", "| pairs | method | number | promise kept | lowest share | area | times PPO's |", "| --- " * 7 + "|"]
    for name, members in groups(found).items():
        for row in summaries(members):
            ratio = "" if row.area_ratio is None else f"{row.area_ratio:.2f}"
            lines.append(
                f"| {name} | {row.method} | {row.pairs} | {row.held} | {row.lowest:.2f} | {row.area:.2f} | {ratio} |"
            )
    return "\n".join([*lines, *_advice_table(found), *_audits(found)]) + "\n\n"


ADVICE = ("keep", "drop", "reverse", "unsure")


def _advice_table(found: Sequence[Pair]) -> list[str]:
    head = ["environment, terms", "kind", "term", *ADVICE]
    lines = ["", f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for pair in found:
        for term, counts in pair.advice.items():
            cells = " | ".join(str(counts.get(advice, "")) for advice in ADVICE)
            lines.append(f"| {pair.title} | {pair.kind} | {term} | {cells} |")
    return lines


@dataclass(frozen=True)
class Audit:
    """How right the advice on many terms is: `drop` or `reverse` for poison and noise, anything else for the rest."""

    title: str
    right: int
    wrong: int
    """Said `drop` or `reverse` of a useful term."""
    missed: int

    @property
    def precision(self) -> float:
        return self.right / max(1, self.right + self.wrong)

    @property
    def recall(self) -> float:
        return self.right / max(1, self.right + self.missed)


def audit(pair: Pair) -> Audit | None:
    """None where nobody has said which of its terms are poison."""
    against = {term: counts.get("drop", 0) + counts.get("reverse", 0) for term, counts in pair.advice.items()}
    poison, useful = POISON.get(pair.title), USEFUL.get(pair.title)
    if poison is None or useful is None or not against:
        return None
    right = sum(against[term] for term in poison)
    missed = sum(sum(pair.advice[term].values()) for term in poison) - right
    return Audit(pair.title, right, sum(against[term] for term in useful), missed)


def _audits(found: Sequence[Pair]) -> list[str]:
    rows = [row for pair in found if (row := audit(pair)) is not None]
    lines = ["", "| terms | precision | recall |", "| --- | --- | --- |"]
    return [*lines, *(f"| {row.title} | {row.precision:.2f} | {row.recall:.2f} |" for row in rows)] if rows else []


def as_json(found: Sequence[Pair]) -> list[dict[str, Any]]:
    return [asdict(pair) for pair in found]


def from_json(data: Iterable[dict[str, Any]]) -> list[Pair]:
    return [
        Pair(
            **row
            | {"outcomes": {label: tuple(Outcome(**run) for run in runs) for label, runs in row["outcomes"].items()}}
        )
        for row in data
    ]


def pairs_below(collection: Collection) -> list[Pair]:
    """Those of a directory that `bipars report` was given; none where it is no suite of pairs."""
    if not is_suite(collection.root):
        return []
    try:
        return pairs(read_manifest(collection.root), collection.root)
    except BiparsError:
        return []  # the runs themselves say what is damaged


if __name__ == "__main__":
    source, page = map(Path, sys.argv[1:3])
    files = [file for file in sorted(source.glob("*.json")) if file.name != "made-with.json"]
    parts = [from_json(json.loads(file.read_text())) for file in files]
    page.write_text(with_tables(page.read_text(), [as_markdown(merge(pair for part in parts for pair in part))]))
