"""What is known of each term, and of all together, and the sentences that say it to somebody who has read nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from bipars.lower.advantages import CONSTANT
from bipars.results.comparison import IGNORED_SHARE, Comparison, Estimate, Weights, digits_for, shown
from bipars.results.direction import HEARD, KNOWN, Direction
from bipars.results.panels import Cell
from bipars.results.summary import short_name
from bipars.terms.values import Twin, Values

Advice = Literal["keep", "drop", "reverse", "unsure"]
Strength = Literal["strong", "fair", "weak", "none"]
FEW_UPDATES, ENOUGH_UPDATES = 10, 50
"""Of fewer updates than the first nothing can be expected; the second is what to try."""
TINY = 0.05
"""A weight below this part of the one at which its term counts as much as the true reward is not worth naming."""
DROWNS = 0.01
"""A term whose weight would have to be below this to count as much as the true reward drowns it as written."""
BEHIND = 1.5
"""Standard errors by which a term has lost side by side; it takes KNOWN to win, since little is lost without a term."""
OFFSET = 0.5
"""Size of a term's mean in its standard deviations which, where episodes end early, is worth a word."""
STRENGTHS = {"strong": "strong evidence", "fair": "fair evidence", "weak": "weak evidence", "none": "no evidence"}
LONGER = "Train longer: the true return is still rising."


def never_varied(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Why nothing can be said of any term, where the true reward was the same from beginning to end."""
    returns = [row[key] for row in rows for key in ("true_return", "evaluation_return") if row.get(key) is not None]
    if len(returns) > 1 and np.ptp(returns) <= 1e-9 * max(1.0, float(np.abs(returns).max())):
        return (
            f"the true return was {returns[0]:.4g} in every episode, so there was nothing to gain. Check that the true "
            "reward is the one you mean, and that the agent can reach it."
        )
    return None


def never_heard(rows: Sequence[Mapping[str, Any]], rising: bool) -> str:
    """The same where the true gradient could not be told from noise."""
    last = max(rows, key=lambda row: row["round"])
    if last["round"] < FEW_UPDATES:
        enough = ENOUGH_UPDATES * last["step"] // last["round"]
        few = f"{last['step']:,} steps are too few to tell the gradient of the true reward from noise"
        return f"{few}. Train for {enough:,} or more."
    clearest = max((row["true_gradient_t"] for row in rows if row.get("true_gradient_t") is not None), default=0.0)
    return (
        f"the gradient of the true reward never stood out from noise (at best {clearest:.1f} standard errors; "
        f"{HEARD:g} are needed), so there was nothing to compare the terms with. "
        f"{LONGER if rising else 'Train more seeds, or compare with training without them.'}"
    )


@dataclass(frozen=True)
class Together:
    """What all terms gave together."""

    terms: int
    returns: Mapping[str, Estimate]
    """True return of "learned", "frozen", "scalars", "naive" and "plain", as far as they exist."""
    lengths: Mapping[str, Estimate]
    comparisons: Mapping[str, Comparison]
    """Of the learned weights with "naive" and "plain"; of naive with plain under "written"; of frozen weights and of
    scalars with plain under their own names."""
    leads: tuple[int, int] | None
    """In how many runs the policy that used the terms won against the control group, or lost."""
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    silence: str | None
    """Why nothing can be said of any term by itself."""
    constant: bool
    """The true reward never varied, so that nothing can be said at all."""

    @property
    def them(self) -> str:
        return "it" if self.terms == 1 else "them"

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        if self.constant:
            return (f"Nothing can be said about {'the' if self.terms == 1 else 'any single'} term: {self.silence}",)
        which = "Which way the term points" if self.terms == 1 else "Which way the terms point"
        first = [] if self.silence is None else [f"{which} is not known: {self.silence}"]
        return (*first, *self._compared(), *self._inside())

    def _compared(self) -> list[str]:
        said, plain = [], self.comparisons.get("plain")
        if plain is not None:
            what = {1: "The term", 2: "Both terms together"}.get(self.terms, f"All {self.terms} terms together")
            figures = f"true return {self._figure('learned')} against {self._figure('plain')} without {self.them}"
            said.append(f"{what}, with learned weights: {figures}{self._how(plain)}.")
        others = {
            "frozen": "A fresh agent on the frozen weights, which are what you take away",
            "scalars": "A fresh agent on those weights, as one number per term",
            "naive": "Simply added to the reward (weight 1 everywhere)",
        }
        for name, what in others.items():
            if name in self.returns:
                how = self._how(
                    self.comparisons.get("written" if name == "naive" else name), f" than without {self.them}"
                )
                said.append(f"{what}: {self._figure(name)}{how}.")
        return said

    def _inside(self) -> list[str]:
        if self.leads is None:
            return []
        treated, control = self.leads
        if not treated + control:
            return [f"Of two policies trained side by side, with and without {self.them}, neither got ahead."]
        which = "with" if treated >= control else "without"
        count = f" in {max(treated, control)} of {treated + control} runs" if treated + control > 1 else ""
        return [f"Of two policies trained side by side, the one {which} {self.them} got ahead{count}."]

    def _how(self, comparison: Comparison | None, than: str = "") -> str:
        """What the difference means; nothing where there are too few seeds, which a note says once."""
        if comparison is None or comparison.outcome == "unclear":
            return ""
        if comparison.faster:
            return ", the same in the end, but reached sooner"
        if comparison.outcome != "same":
            return f", clearly {'more' if comparison.outcome == 'better' else 'less'}{than}"
        lean = {0: "", 1: ", if anything more", -1: ", if anything less"}[comparison.leans]
        return f", no clear difference{lean}"

    def _figure(self, name: str) -> str:
        value, length = self.returns[name], self.lengths.get(name)
        digits = digits_for(value.value, *(v.value for v in self.returns.values()))
        steps = f" ({length.value:.0f} steps per episode)" if length is not None else ""
        return f"{shown(value.value, digits)}{steps}"


def ahead(trial: float | None) -> int:
    """Whether the policy that used a term as written was clearly ahead (1), behind (-1) or neither."""
    return 0 if trial is None else 1 if trial >= KNOWN else -1 if trial <= -BEHIND else 0


@dataclass(frozen=True)
class Verdict:
    """On one term: what to do with it, how sure that is, and what it rests on."""

    term: str
    cell: Cell = field(repr=False)
    advice: Advice
    strength: Strength
    weights: Weights
    direction: Direction | None
    """Which way it points; none where training recorded no evidence."""
    gain: Comparison | None
    """With the term against without it; none where nobody trained without it."""
    trial: float | None
    """By how many standard errors the policy that used the term as written was ahead of the control group. None where
    there is none, or several terms, on which it says nothing by itself."""
    terms: Sequence[str] = field(repr=False)
    values: Values = field(repr=False)
    where: tuple[str, float] | None = field(repr=False)
    """The input that decides the weight, and how much of its variation it explains."""
    unit: float | None = field(repr=False)
    """The weight at which the term counts as much as the true reward, where that was measured."""
    silent: bool = field(repr=False)
    """Nothing can be said of it; why stands in `Together`."""
    rising: bool = field(repr=False)
    """The true return still rose at the end."""
    lengths_vary: bool = field(repr=False)
    """Of episodes."""
    without: Estimate | None = field(repr=False)
    learned: Estimate | None = field(repr=False)
    copy: Twin | None = field(default=None, repr=False)
    """The term that is kept instead of this one, since they are the same."""

    def __str__(self) -> str:
        return f"{short_name(self.term)}: {self.advice} ({STRENGTHS[self.strength]}). {self.evidence}"

    @property
    def evidence(self) -> str:
        return " ".join(self.sentences)

    @property
    def ahead(self) -> int:
        return ahead(self.trial)

    @property
    def negligible(self) -> bool:
        """The learned weight is next to nothing."""
        w, unit = self.weights, self.unit
        small = w.share is not None and w.share < IGNORED_SHARE
        return small or (unit is not None and abs(w.mean.value) < TINY * unit)

    @property
    def headline(self) -> str:
        """A few words, for a table."""
        if self.values.constant == 0:
            return "always 0"
        if self.copy is not None:
            return f"{'opposite of' if self.copy.opposite else 'same as'} {short_name(self.terms[self.copy.term])}"
        if self.silent:
            return "nothing can be said"
        if self.direction is None:
            return {"used": "used as written", "reversed": "sign flipped", "off": "switched off",
                    "mixed": "depends on the state", "unsure": "seeds disagree"}[self.weights.use]  # fmt: skip
        if self.advice == "drop" and (self.direction.way not in ("nil", "noise") or self.ahead):
            worse = self.ahead < 0 or (self.gain and self.gain.outcome == "worse")
            return "better without" if worse else "no gain shown"
        if self.advice == "keep" and not self.direction.known and self.ahead > 0:
            return "better with it"
        if self.direction.change is not None:
            return "helped early, harmed late" if self.direction.change.before > 0 else "harmed early, helped late"
        late = " early" if self.direction.early else ""
        return {"up": f"helped{late}", "down": f"harmed{late}", "nil": "no direction", "noise": "like noise",
                "faint": "direction not known", "split": "seeds disagree"}[self.direction.way]  # fmt: skip

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        if self.values.constant == 0:
            return (
                f"It was 0 in all {self.values.count:,} steps we looked at: leave it out, or check how it is computed.",
            )
        if self.copy is not None:
            name = f"'{short_name(self.terms[self.copy.term])}'"
            if self.copy.opposite:
                return (f"It is the opposite of {name}, up to scale and a constant: they cancel out. Leave it out.",)
            return (f"It is the same as {name}, up to scale and a constant: keep only that one.",)
        if self.silent:
            return (*self._constant(), "Nothing can be said about it: see above for the reason.")
        said = self._by_weights() if self.direction is None else self._which_way(self.direction)
        evidence = (said, *self._offset(), *self._side_by_side(), *self._gain(), *self._constant())
        return (*evidence, *self._depends(), *self._what_to_do())

    def _which_way(self, d: Direction) -> str:
        t = f"t = {d.t:+.1f}"
        if d.change is not None:
            first, then = ("helped", "harmed") if d.change.before > 0 else ("harmed", "helped")
            return (
                f"It {first} up to about step {float(f'{d.change.step:.2g}'):,.0f} (t = {d.change.before:+.1f}) and "
                f"{then} after that (t = {d.change.after:+.1f})."
            )
        when = " in the first quarter of training, and to nothing clear after it" if d.early else ""
        match d.way:
            case "up":
                return f"What it rewards led to more true return{when} ({t}; {KNOWN:.0f} is clear)."
            case "down":
                return f"What it rewards led to less true return{when} ({t}; -{KNOWN:.0f} is clear)."
            case "nil":
                return (
                    f"It has nothing to do with the true return ({t}; {100 * d.clear:.0f} % of the updates were "
                    "informative)."
                )
            case "noise":
                return (
                    f"No choice of action changed it in a way that could be told from chance (t = {d.itself:+.1f} for "
                    f"its own gradient; {KNOWN:.0f} is clear), and nothing predicts it: to the policy it is noise."
                )
            case "split":
                return (
                    f"It helped in some seeds and harmed in others (t from {min(d.seeds):+.1f} to {max(d.seeds):+.1f})."
                )
        return f"Whether it helps or harms is not clear ({t}; {KNOWN:.0f} would be)."

    def _side_by_side(self) -> list[str]:
        if not self.ahead:
            return []
        more = "more" if self.ahead > 0 else "less"
        return [f"A policy trained with it as written earned {more} than one without it (t = {self.trial:+.1f})."]

    def _by_weights(self) -> str:
        w, mean = self.weights, f"mean weight {self.weights.mean.value:+.2f}; 1 is as written"
        match w.use:
            case "used":
                return f"The learned weights use it as written ({mean})."
            case "reversed":
                return f"The learned weights flip its sign ({mean})."
            case "off":
                return f"The learned weights hardly use it ({mean})."
            case "mixed":
                return (
                    f"The learned weights use it in some states and flip its sign in others (from {w.p10:+.1f} to "
                    f"{w.p90:+.1f} in 80 % of states)."
                )
        return f"The seeds disagree on its weight ({w.mean.low:+.2f} to {w.mean.high:+.2f})."

    def _gain(self) -> list[str]:
        if self.gain is None or self.without is None or self.learned is None:
            return []
        digits = digits_for(self.without.value, self.learned.value)
        figures = f"{shown(self.learned.value, digits)} with it, {shown(self.without.value, digits)} without"
        if self.gain.faster:
            return [f"The agent got to the same true return sooner with it ({figures})."]
        return [
            {
                "better": f"The agent earned clearly more with it: {figures}.",
                "worse": f"The agent earned clearly more without it: {figures}.",
                "same": f"Leaving it out made no clear difference: {figures}.",
                "unclear": f"There are too few seeds to show a gain: {figures}.",
            }[self.gain.outcome]
        ]

    def _constant(self) -> list[str]:
        value = self.values.constant
        if value is None:
            return []
        return [
            f"It was {value:.4g} in every step: it rewards {'longer' if value > 0 else 'shorter'} episodes, no more."
        ]

    def _offset(self) -> list[str]:
        mean, std = self.values.mean, self.values.std
        if self.direction is None or not self.lengths_vary or not OFFSET * std < abs(mean) < np.inf or not std:
            return []
        which = "longer" if mean > 0 else "shorter"
        leaves = "; t leaves that out" if std > CONSTANT * abs(mean) else ""
        return [f"Its mean is {mean:+.2g} per step, so it may also reward {which} episodes{leaves}."]

    def _depends(self) -> list[str]:
        against = self.weights.mean.value * {"keep": 1, "reverse": -1}.get(self.advice, 0) < 0
        if self.where is None or against or self.negligible or self.advice == "drop":
            return []
        name, share = self.where
        low, high = f"{self.weights.p10:+.2g}", f"{self.weights.p90:+.2g}"
        return [f"Its weight depends mostly on {name} ({100 * share:.0f} %), from {low} to {high}."]

    def _what_to_do(self) -> list[str]:
        weight = f"{self.weights.mean.value:.2g}"
        match self.advice:
            case "keep" if self.direction is not None and self.direction.change is not None:
                return ["Keep it at the beginning of training and let it fade."]
            case "keep" if self.weights.mean.value < 0 and not self.negligible and self._offset():
                return ["Its learned weight is negative, for what its mean rewards: subtract the mean."]
            case "keep" if self.unit is not None and self.unit < DROWNS:
                times = float(f"{1 / self.unit:.1g}")
                return [
                    f"As written it counts {times:,.0f} times as much as the true reward: give it a far smaller weight."
                ]
            case "keep" if self.ahead < 0:
                small = self.negligible or self.weights.mean.value < 0
                much = "a far smaller weight" if small else f"its learned weight (about {weight})"
                return [f"As written it counts too much: give it {much}."]
            case "keep" if self.weights.share is not None and self.weights.share < IGNORED_SHARE:
                return ["By the end of training it hardly counted."]
            case "reverse" if self.negligible and self.weights.mean.value < 0:
                return ["Leave it out: even reversed, it hardly counts."]
            case "reverse" if self.weights.mean.value < 0:
                return [f"Change its sign (a weight of about {weight}), or leave it out."]
            case "reverse":
                return ["Change its sign, or leave it out."]
            case "drop":
                return ["Leave it out."]
            case "unsure" if self.rising:
                return [LONGER]
            case "unsure" if self.gain is None and len(self.terms) > 1:
                return ["Train without it to find out, or leave it out."]
            case "unsure":
                return ["Train more seeds to find out, or leave it out."]
        return []
