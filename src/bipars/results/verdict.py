"""What was learned about a term: one word, and sentences for somebody who has read nothing else."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bipars.results.panels import CRITIC_LOSS, Cell, Panel, Status, as_taught, differences
from bipars.results.statistics import area_under_curve, improvement_interval, interquartile_mean, interval
from bipars.results.statistics import probability_of_improvement as improvement
from bipars.results.summary import short_name
from bipars.upper.trust import CLEAR

IGNORED_BELOW = 0.2
"""A weight smaller than this, either way, counts as none: the term then has less than a fifth of its written size."""
IGNORED_WHERE_IT_MATTERS = 0.05
"""The same where the weighted term is still a large part of the reward: beside a rare true reward, little is a lot."""
MATTERS_SHARE = 0.1
IGNORED_SHARE = 0.02
"""A weighted term that is a smaller part of the reward than this cannot matter."""
NO_TRUST = 0.05
"""Trust at the end below which the policy no longer followed the terms."""
OFTEN_JUDGED = 0.25
"""Share of the updates that must have judged the terms; below, trust is mostly what they began with."""
HARDLY_TRUSTED = 0.25
"""Trust over all of training, that at the end being gone, below which its terms cannot have made the policy."""
SAME_WITHIN = 0.02
"""Returns closer than this part of the range of all returns of a panel are the same, however sure the difference is."""
FEWEST_SEEDS = 3
"""With fewer on either side no difference is called clear."""

Word = Literal["helps", "hurts", "ignored", "reversed", "undecided"]
Use = Literal["used", "reversed", "off", "mixed", "unsure", "distrusted"]
"""What the weights say: as written, sign flipped, not at all, both (it depends on the state), or seeds disagree.

Whatever they say, the policy may not have listened: `distrusted`.
"""
Outcome = Literal["better", "same", "worse", "unclear"]


@dataclass(frozen=True)
class Estimate:
    """A figure over seeds with its 95 % interval."""

    value: float
    low: float
    high: float
    seeds: int

    def text(self, digits: int | None = None) -> str:
        digits = digits_for(self.low, self.high, self.value) if digits is None else digits
        return f"{shown(self.value, digits)} ({shown(self.low, digits)} to {shown(self.high, digits)})"


def shown(value: float, digits: int) -> str:
    """Without a minus before zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def digits_for(*values: float) -> int:
    """Decimals that show three figures of the largest."""
    size = max(abs(v) for v in values)
    return 0 if size >= 100 else 1 if size >= 10 else 2


def estimate(values: np.ndarray, mean: bool = False) -> Estimate | None:
    """The interquartile mean over seeds (or the mean), with its bootstrap interval."""
    if not len(values):
        return None
    statistic = np.mean if mean else interquartile_mean
    low, high = interval(values, statistic, samples=2_000)
    return Estimate(float(statistic(values)), float(low), float(high), len(values))


@dataclass(frozen=True)
class Comparison:
    """One method against another on the true return."""

    outcome: Outcome
    probability: float
    """That a seed of the first beats a seed of the second."""
    low: float
    high: float
    faster: bool
    """The same at the end, but clearly more over the whole of training."""
    leans: int
    """Which way it looks where nothing is clear: 1 more, -1 less, 0 the same."""

    @property
    def gain(self) -> bool:
        return self.outcome == "better" or self.faster


def compare(x: Cell, y: Cell, step: int, scale: float) -> Comparison:
    """Clear only if the interval of the probability leaves out one half, and the difference is worth speaking of."""
    ours, theirs = (cell.at_end("evaluation_return", step) for cell in (x, y))
    low, high = improvement_interval([ours], [theirs], samples=2_000)
    sign, enough = _clear(ours, theirs, scale), min(len(ours), len(theirs)) >= FEWEST_SEEDS
    outcome: Outcome = "unclear"
    if enough:
        outcome = {1: "better", -1: "worse", 0: "same"}[sign]  # type: ignore[assignment]
    faster = enough and sign == 0 and _clear(_areas(x, step), _areas(y, step), scale) == 1
    difference = float(interquartile_mean(ours) - interquartile_mean(theirs))
    leans = 0 if _same(difference, scale) else 1 if difference > 0 else -1
    return Comparison(outcome, improvement([ours], [theirs]), low, high, faster, leans)


def _clear(x: np.ndarray, y: np.ndarray, scale: float) -> int:
    low, high = improvement_interval([x], [y], samples=2_000)
    difference = float(interquartile_mean(x) - interquartile_mean(y))
    if _same(difference, scale):
        return 0
    return 1 if low > 0.5 and difference > 0 else -1 if high < 0.5 and difference < 0 else 0


def _same(difference: float, scale: float) -> bool:
    """Where no return ever differed the scale is zero, and so is what counts as the same."""
    return abs(difference) <= SAME_WITHIN * scale


def _areas(cell: Cell, step: int) -> np.ndarray:
    areas = []
    for record in cell.evaluated:
        rows = [row for row in record.evaluations if row["step"] <= step]
        if rows:
            areas.append(area_under_curve([r["step"] for r in rows], [r["evaluation_return"] for r in rows]))  # type: ignore[arg-type]
    return np.array(areas)


@dataclass(frozen=True)
class Weights:
    """How a method weighs a term at the end."""

    mean: Estimate
    p10: float
    p90: float
    share: float | None
    """Of the size of the modified reward; none where it was not recorded."""
    use: Use
    trust: tuple[float, float] | None = None
    """How far the policy followed the weighted terms, over all of training and at the end; none: always."""
    judged: float | None = None
    """Share of the updates whose batch could judge them; in the others, trust stays as it is."""


def weigh(cell: Cell, term: str, step: int) -> Weights | None:
    means = cell.rows_at_end(f"weight/{term}", step)
    mean = estimate(means, mean=True)
    if mean is None:
        return None
    low, high = (cell.rows_at_end(f"weight_{p}/{term}", step) for p in ("p10", "p90"))
    shares = cell.rows_at_end(f"share/{term}", step)
    share = float(shares.mean()) if len(shares) else None
    p10, p90 = float(low.mean()), float(high.mean())
    everywhere, end = cell.rows_at_end("trust", step, last=0), cell.rows_at_end("trust", step)
    trust = (float(everywhere.mean()), float(end.mean())) if len(end) else None
    use = judge_use((mean.low, mean.high), (p10, p90), share)
    if trust is not None and trust[0] < HARDLY_TRUSTED and trust[1] < NO_TRUST:
        use = "distrusted"
    rows = (row for record in cell.evaluated for row in record.rows if row["step"] <= step)
    clear = [row["true_gradient_t"] > CLEAR for row in rows if row.get("true_gradient_t") is not None]
    return Weights(mean, p10, p90, share, use, trust, float(np.mean(clear)) if clear else None)


def judge_use(mean: tuple[float, float], states: tuple[float, float], share: float | None) -> Use:
    """From the interval of the mean weight over seeds, and its 10th and 90th percentile over states."""
    (low, high), (p10, p90) = mean, states
    if share is not None and share < IGNORED_SHARE:
        return "off"
    if p10 < -IGNORED_BELOW and p90 > IGNORED_BELOW:
        return "mixed"
    small = IGNORED_WHERE_IT_MATTERS if share is not None and share >= MATTERS_SHARE else IGNORED_BELOW
    if low > small:
        return "used"
    if high < -small:
        return "reversed"
    if low > -IGNORED_BELOW and high < IGNORED_BELOW:
        return "off"
    return "unsure"


@dataclass(frozen=True)
class Verdict:
    """One row of the table that comes first."""

    term: str
    cell: Cell
    word: Word
    headline: str
    sentences: tuple[str, ...]
    advice: str
    weights: Weights
    step: int
    returns: dict[str, Estimate]
    """True return of "learned", "naive" and "plain", as far as they exist."""
    lengths: dict[str, Estimate]
    comparisons: dict[str, Comparison]
    """Of the learned weights with "naive" and "plain", and of naive with plain under "written"."""
    missing: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What makes the comparison less than perfect."""


def judge(use: Use, against_plain: Outcome | None, faster: bool = False) -> Word:
    """The word. `helps` is a claim about the true return: without a comparison nobody can make it."""
    if use in ("off", "distrusted"):
        return "ignored"
    if against_plain == "worse":
        return "hurts"
    if use == "reversed":
        return "reversed"
    return "helps" if use in ("used", "mixed") and (against_plain == "better" or faster) else "undecided"


def verdicts(panel: Panel) -> list[Verdict]:
    """One per term and method that learns weights, the library's default method first."""
    found = [(cell, term, _judge_term(panel, cell, term)) for cell in panel.learners for term in panel.terms]
    return [verdict for _, _, verdict in found if verdict is not None]


def _judge_term(panel: Panel, cell: Cell, term: str) -> Verdict | None:
    rivals: dict[str, Cell | None] = {"naive": panel.rival(cell, "naive"), "plain": panel.rival(cell, "plain")}
    present = {"learned": cell} | {name: rival for name, rival in rivals.items() if rival is not None}
    step = min(c.last_step for c in present.values())
    weights = weigh(cell, term, step)
    if weights is None:
        return None
    returns = {name: estimate(c.at_end("evaluation_return", step)) for name, c in present.items()}
    lengths = {name: estimate(c.at_end("evaluation_length", step)) for name, c in present.items()}
    scale = _range(list(present.values()))
    comparisons: dict[str, Comparison] = {
        name: compare(cell, other, step, scale) for name, other in present.items() if name != "learned"
    }
    if len(comparisons) == 2:
        comparisons["written"] = compare(present["naive"], present["plain"], step, scale)
    plain = comparisons.get("plain")
    word = judge(weights.use, plain.outcome if plain else None, bool(plain and plain.faster))
    known = {name: value for name, value in returns.items() if value is not None}
    words = _Words(short_name(term), len(panel.terms), weights, known, lengths, comparisons)
    return Verdict(
        term,
        cell,
        word,
        words.headline(word),
        tuple(words.sentences()),
        words.advice(word),
        weights,
        step,
        known,
        {name: value for name, value in lengths.items() if value is not None},
        comparisons,
        tuple(role for role in ("naive", "plain") if role not in present),
        tuple(_notes(cell, present, step)),
    )


def _range(cells: list[Cell]) -> float:
    values = [row["evaluation_return"] for c in cells for r in c.evaluated for row in r.evaluations]
    return max(values) - min(values)


LEFT_OUT: dict[str, tuple[Status, ...]] = {
    "are unfinished": ("running", "stopped", "waiting"),
    "failed": ("failed",),
    "are missing, since their metrics cannot be read": ("unreadable",),
}


def _notes(cell: Cell, present: dict[str, Cell], step: int) -> list[str]:
    early = step < cell.config.steps
    notes = [f"As things stood at step {step:,} of {cell.config.steps:,}"] if early else []
    for other in present.values():
        for setting, (theirs, ours) in differences(other.config, cell.config).items():
            remedy = ""
            if setting == CRITIC_LOSS:
                whose = " for its true critic" if as_taught(cell.config) != cell.config else ""
                remedy = f"{whose}; bipars report --compare trains {other.config.method} with that, too"
            notes.append(f"{other.title} was trained with {setting} {theirs}, {cell.title} with {ours}{remedy}")
        for words, states in LEFT_OUT.items():
            seeds = [str(r.config.seed) for r in other.records if r.status in states]
            if seeds:
                named = f" (seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)})" if len(seeds) < 10 else ""
                notes.append(f"{len(seeds)} of {len(other.records)} seeds of {other.title} {words}{named}")
        if len(other.evaluated) < FEWEST_SEEDS:
            notes.append(
                f"{other.title} has {_seeds(len(other.evaluated))}; a clear answer needs at least {FEWEST_SEEDS}"
            )
    return notes


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count != 1 else ''}"


@dataclass(frozen=True)
class _Words:
    """The sentences of one verdict."""

    term: str
    terms: int
    weights: Weights
    returns: dict[str, Estimate]
    lengths: dict[str, Estimate | None]
    comparisons: dict[str, Comparison]

    def headline(self, word: Word) -> str:
        """The answer in one line."""
        plain, use = self.comparisons.get("plain"), self.weights.use
        it = "it" if self.terms == 1 else "these terms"
        doubt = "; the gain is not certain yet" if plain and plain.leans > 0 else "; no clear gain"
        match word:
            case "helps" if use == "mixed":
                return "with learned weights: used as written in some states, reversed in others"
            case "helps":
                return "helpful as written" if self.helps_as_written else "helpful with the learned weights"
            case "reversed" if plain is None:
                return "the learned weights flip its sign"
            case "reversed":
                written = self.comparisons.get("written")
                harmful = "harmful as written, " if written and written.outcome == "worse" else ""
                return harmful + ("helpful once reversed" if plain and plain.gain else f"its sign flipped{doubt}")
            case "hurts":
                return f"the agent does better without {it}"
            case "ignored" if use == "distrusted":
                return "the policy hardly ever trusted it"
            case "ignored":
                return "the learned weights switch it off"
        if use == "unsure":
            return "the seeds do not agree"
        if use == "mixed":
            return f"used in some states, reversed in others{doubt if plain else ''}"
        return f"used as written{doubt if plain else '; whether that helps is not known'}"

    @property
    def helps_as_written(self) -> bool:
        """Not known to do no good: without that comparison the learned weights, near 1, have to speak for it."""
        written = self.comparisons.get("written")
        return written is None or written.gain

    def sentences(self) -> list[str]:
        return [self._what_was_learned(), *self._how_far_it_went(), *self._what_came_of_it(), *self._as_written()]

    def _how_far_it_went(self) -> list[str]:
        """Weights are learned whether or not the policy trusts them."""
        if self.weights.trust is None:
            return []
        whole, end = (f"{100 * share:.0f} %" for share in self.weights.trust)
        what = "it" if self.terms == 1 else "the terms"
        alone = ": by then it learned from the true reward alone" if self.weights.trust[1] < NO_TRUST else ""
        told = (
            f"The policy followed {what} as far as it trusted {what}, {whole} over training, {end} at the end{alone}."
        )
        judged = self.weights.judged
        if judged is None or judged >= OFTEN_JUDGED:
            return [told]
        share = f"only {100 * judged:.0f} %" if judged else "none"
        return [told, f"Of the batches {share} could judge that: else the true gradient was not told from noise."]

    def _what_was_learned(self) -> str:
        mean, w = f"{self.weights.mean.value:+.2f}", self.weights
        match w.use:
            case "used":
                more = f", about {w.mean.value:.0f} times as strongly" if w.mean.value >= 1.5 else ""
                return f"The learned weights use the term as you wrote it{more} (mean weight {mean}; 1 is as written)."
            case "reversed":
                return (
                    f"The learned weights flip the term's sign (mean weight {mean}; 1 is as written): "
                    "what it rewards is punished, what it punishes is rewarded."
                )
            case "distrusted":
                return (
                    "New samples did not bear out that the term points up the true return, whatever weight was learned "
                    f"for it (mean weight {mean}; 1 is as written)."
                )
            case "off":
                return f"The learned weights leave the term almost unused (mean weight {mean}; 1 is as written)."
            case "mixed":
                return (
                    "It depends on the state: in some the term is used as written, in others its sign is flipped. In "
                    f"80 % of states the weight lies from {w.p10:+.1f} to {w.p90:+.1f}; the mean weight, {mean}, hides "
                    "this."
                )
        low, high = w.mean.low, w.mean.high
        return (
            f"The seeds do not agree on the term: its mean weight is {mean}, somewhere from {low:+.2f} to {high:+.2f}."
        )

    def _what_came_of_it(self) -> list[str]:
        plain = self.comparisons.get("plain")
        if plain is None:
            return []
        what = "With learned weights for it" if self.terms == 1 else f"With learned weights for all {self.terms} terms"
        end = f"{self._figure('learned')} against {self._figure('plain')}"
        if plain.faster:
            return [f"{what}, the agent ends where it ends without, but learns sooner: {end}."]
        clear = {"better": "clearly more true return than without", "worse": "clearly less true return than without"}
        unclear = {
            1: "rather more true return than without, but the seeds do not settle it",
            -1: "no more true return than without, perhaps less",
            0: "as much true return as without",
        }
        how = clear.get(plain.outcome, unclear[plain.leans])
        return [f"{what}, the agent earns {how}: {end}."]

    def _as_written(self) -> list[str]:
        written = self.comparisons.get("written")
        if written is None:
            return []
        what = "the term" if self.terms == 1 else "the terms together"
        how = {
            "better": f"{what} help{'s' if self.terms == 1 else ''} as written",
            "worse": f"{what} do{'es' if self.terms == 1 else ''} harm as written",
            "same": "as written, no clear difference to training without",
            "unclear": "too few seeds to say what that means",
        }[written.outcome]
        gives = "it gives" if self.terms == 1 else "they give"
        return [f"Simply added to the reward (weight 1 everywhere), {gives} {self._figure('naive')}: {how}."]

    def _figure(self, name: str) -> str:
        value = self.returns[name]
        length = self.lengths.get(name)
        digits = digits_for(value.value, *(v.value for v in self.returns.values()))
        steps = f" ({length.value:.0f} steps per episode)" if length is not None else ""
        return f"{shown(value.value, digits)}{steps}"

    def advice(self, word: Word) -> str:
        plain = self.comparisons.get("plain")
        if plain is None:
            return "Compare with training without the term and with the term as written before you rely on this."
        match word:
            case "helps":
                if self.weights.use == "mixed":
                    return "Keep it only with the learned weights: as written it is wrong in some states."
                return "Keep it." if self.helps_as_written else "Keep it, with the learned weights."
            case "reversed":
                other = "keep the learned weights" if plain.gain or plain.leans > 0 else "leave it out"
                return f"Reverse it (a weight near {self.weights.mean.value:.1f}), or {other}."
            case "hurts" if self.terms == 1:
                return "Leave it out."
            case "hurts":
                return f"Try the {self.terms} terms one at a time: together they hurt; which of them does is not known."
            case "ignored":
                return "Leave it out: nothing is lost."
        if plain.leans > 0:
            return "Run more seeds: it looks better with the term, but these do not settle it."
        return "Leave it out unless more seeds show a gain."
