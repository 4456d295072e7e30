"""The sentences of a verdict, for somebody who has read nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bipars.results.comparison import Comparison, Estimate, Weights, digits_for, shown
from bipars.results.direction import HEARD, KNOWN, Direction
from bipars.terms.values import Values

FEW_UPDATES, ENOUGH_UPDATES = 10, 50
"""Of fewer updates than the first nothing can be expected; the second is what to try."""
STRENGTHS = {"strong": "strong evidence", "fair": "fair evidence", "weak": "weak evidence", "none": "no evidence"}
CLEARLY = {
    "better": "clearly more than without {them}",
    "worse": "clearly less than without {them}",
    "same": "no clear difference to training without {them}",
}


def never_varied(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Why nothing can be said of any term, where the true reward was the same from beginning to end."""
    returns = [row[key] for row in rows for key in ("true_return", "evaluation_return") if row.get(key) is not None]
    if len(returns) > 1 and np.ptp(returns) <= 1e-9 * max(1.0, float(np.abs(returns).max())):
        return (
            f"the true return was the same ({returns[0]:.4g}) in every episode of the whole run. Without a true reward "
            "that varies there is nothing that a term could help to get. Check that the true reward is the one you "
            "mean and can be reached, or train longer"
        )
    return None


def never_heard(rows: Sequence[Mapping[str, Any]]) -> str:
    """The same where the true gradient could not be told from noise."""
    last = max(rows, key=lambda row: row["round"])
    if last["round"] < FEW_UPDATES:
        enough = ENOUGH_UPDATES * last["step"] // last["round"]
        return (
            f"{last['step']:,} steps are too few to tell the gradient of the true reward from noise. Train for "
            f"{enough:,} or more"
        )
    clearest = max((row["true_gradient_t"] for row in rows if row.get("true_gradient_t") is not None), default=0.0)
    return (
        f"the gradient of the true reward was never told from noise (at its clearest {clearest:.1f} standard errors, "
        f"{HEARD:g} are needed), so there was nothing for a term's to agree with. Train longer, or with more seeds"
    )


@dataclass(frozen=True)
class TogetherWords:
    """What all terms gave together."""

    terms: int
    returns: Mapping[str, Estimate]
    lengths: Mapping[str, Estimate]
    comparisons: Mapping[str, Comparison]
    leads: tuple[int, int] | None

    @property
    def them(self) -> str:
        return "it" if self.terms == 1 else "them"

    def sentences(self, silence: str | None, constant: bool) -> list[str]:
        """`constant`: the true reward was, so that there is nothing to compare either."""
        first = []
        if silence is not None:
            first = [f"Nothing can be said of {'the term' if self.terms == 1 else 'any term by itself'}: {silence}."]
        if constant:
            return first
        return [*first, *self._learned(), *self._frozen(), *self._as_written(), *self._inside()]

    def _learned(self) -> list[str]:
        plain = self.comparisons.get("plain")
        if plain is None:
            return []
        what = {1: "The term", 2: "Both terms together"}.get(self.terms, f"All {self.terms} terms together")
        what = f"{what}, with learned weights: true return {self._figure('learned')} against {self._figure('plain')}"
        return [f"{what} without {self.them}{self._how(plain)}."]

    def _frozen(self) -> list[str]:
        said = {"frozen": "the frozen weights, which are what you take away", "scalars": "one number per term of them"}
        return [
            f"A fresh agent on {what}: {self._figure(name)}{self._how(self.comparisons.get(name))}."
            for name, what in said.items()
            if name in self.returns
        ]

    def _as_written(self) -> list[str]:
        if "naive" not in self.returns:
            return []
        how = self._how(self.comparisons.get("written"))
        return [f"Simply added to the reward (weight 1 everywhere): {self._figure('naive')}{how}."]

    def _inside(self) -> list[str]:
        if self.leads is None:
            return []
        treated, control = self.leads
        runs = "the run" if treated + control < 2 else "the runs"
        if not treated + control:
            return [f"Inside {runs} neither the policy that used the terms nor the one without them got ahead."]
        ahead = max(treated, control)
        who = f"that used {self.them}" if treated >= control else f"that learned without {self.them}"
        count = "" if treated + control == 1 else f" in {ahead} of {treated + control}"
        return [f"Inside {runs}, of two policies side by side, the one {who} was ahead when they were compared{count}."]

    def _how(self, comparison: Comparison | None) -> str:
        """What the difference means; nothing where there are too few seeds, which a note says once."""
        if comparison is None or comparison.outcome == "unclear":
            return ""
        if comparison.faster:
            return ", the same in the end, but reached sooner"
        how = CLEARLY[comparison.outcome].format(them=self.them)
        if comparison.outcome == "same" and comparison.leans:
            how += f", rather {'more' if comparison.leans > 0 else 'less'}"
        return f", {how}"

    def _figure(self, name: str) -> str:
        value, length = self.returns[name], self.lengths.get(name)
        digits = digits_for(value.value, *(v.value for v in self.returns.values()))
        steps = f" ({length.value:.0f} steps per episode)" if length is not None else ""
        return f"{shown(value.value, digits)}{steps}"


@dataclass(frozen=True)
class TermWords:
    """The sentences about one term."""

    advice: str
    direction: Direction | None
    gain: Comparison | None
    weights: Weights
    values: Values
    names: Sequence[str]
    where: tuple[str, float] | None
    single: bool
    silent: bool
    without: Estimate | None
    learned: Estimate | None
    trial: float | None = None
    """By how many standard errors the policy that used the term as written was ahead of the control group."""

    @property
    def ahead(self) -> int:
        """Whether that was clearly ahead (1), behind (-1) or neither."""
        return 0 if self.trial is None or abs(self.trial) < KNOWN else 1 if self.trial > 0 else -1

    def headline(self) -> str:
        """A few words, for a table."""
        if self.values.constant == 0:
            return "always 0"
        if self.silent:
            return "nothing can be said"
        if self.values.twins:
            first = self.values.twins[0]
            return f"{'opposite of' if first.opposite else 'same as'} {self.names[first.term]}"
        if self.direction is None:
            return {"used": "used as written", "reversed": "sign flipped", "off": "switched off",
                    "mixed": "depends on the state", "unsure": "seeds disagree"}[self.weights.use]  # fmt: skip
        if self.advice == "drop" and (self.direction.way != "nil" or self.ahead):
            worse = self.ahead < 0 or (self.gain and self.gain.outcome == "worse")
            return "better without" if worse else "no gain shown"
        if self.advice == "keep" and not self.direction.known and self.ahead > 0:
            return "better with it"
        if self.direction.change is not None:
            return "helped early, harmed late" if self.direction.change.before > 0 else "harmed early, helped late"
        late = " early" if self.direction.early else ""
        return {"up": f"helped{late}", "down": f"harmed{late}", "nil": "no direction",
                "faint": "direction not known", "split": "seeds disagree"}[self.direction.way]  # fmt: skip

    def sentences(self) -> list[str]:
        if self.values.constant == 0:
            return [f"It was 0 in all {self.values.count:,} steps looked at, so it changes nothing."]
        about = [*self._constant(), *self._twins()]
        if self.silent:
            return about or ["Nothing can be said of it; the reason stands above."]
        said = [self._by_weights()] if self.direction is None else [self._which_way(self.direction)]
        return [*said, *self._side_by_side(), *self._gain(), *about, *self._depends(), *self._what_to_do()]

    def _which_way(self, d: Direction) -> str:
        t = f"t = {d.t:+.1f}"
        if d.change is not None:
            first, then = ("helped", "harmed") if d.change.before > 0 else ("harmed", "helped")
            return (
                f"It {first} up to about step {d.change.step:,} (t = {d.change.before:+.1f}) and {then} after that "
                f"(t = {d.change.after:+.1f})."
            )
        when = " in the first quarter of training, and showed nothing clear after it" if d.early else ""
        match d.way:
            case "up":
                return f"What it rewards led to more true return{when} ({t}; {KNOWN:.0f} is clear)."
            case "down":
                return f"What it rewards led to less true return{when} ({t}; -{KNOWN:.0f} is clear)."
            case "nil":
                return (
                    f"It had nothing to do with the true return ({t}), though that could be judged in "
                    f"{100 * d.clear:.0f} % of the updates: noise, or beside the point."
                )
            case "split":
                return f"The seeds disagree on its direction (t from {min(d.seeds):+.1f} to {max(d.seeds):+.1f})."
        return f"Which way it points is not known ({t}; {KNOWN:.0f} is clear)."

    def _side_by_side(self) -> list[str]:
        if not self.ahead:
            return []
        more = "more" if self.ahead > 0 else "less"
        return [f"Of two policies side by side, the one that used it as written earned {more} (t = {self.trial:+.1f})."]

    def _by_weights(self) -> str:
        w, mean = self.weights, f"mean weight {self.weights.mean.value:+.2f}; 1 is as written"
        match w.use:
            case "used":
                return f"The learned weights use it as written ({mean})."
            case "reversed":
                return f"The learned weights flip its sign ({mean})."
            case "off":
                return f"The learned weights leave it almost unused ({mean})."
            case "mixed":
                return (
                    f"The learned weights use it as written in some states and flip its sign in others ({w.p10:+.1f} "
                    f"to {w.p90:+.1f} in 80 % of states; the mean, {w.mean.value:+.2f}, hides this)."
                )
        return f"The seeds disagree on its weight ({w.mean.low:+.2f} to {w.mean.high:+.2f})."

    def _gain(self) -> list[str]:
        if self.gain is None or self.without is None or self.learned is None:
            return []
        digits = digits_for(self.without.value, self.learned.value)
        figures = f"{shown(self.learned.value, digits)} with it, {shown(self.without.value, digits)} without"
        if self.gain.faster:
            return [f"A gain was shown: the same true return in the end, but sooner ({figures})."]
        return [
            {
                "better": f"A gain was shown: {figures}.",
                "worse": f"A loss was shown: {figures}.",
                "same": f"No gain was shown: {figures}.",
                "unclear": f"Too few seeds to show a gain: {figures}.",
            }[self.gain.outcome]
        ]

    def _constant(self) -> list[str]:
        value = self.values.constant
        if value is None:
            return []
        return [f"It was {value:.4g} in every step looked at: it pays for the length of episodes alone."]

    def _twins(self) -> list[str]:
        twins = self.values.twins
        same = [f"`{self.names[t.term]}`" for t in twins if not t.opposite]
        other = [f"`{self.names[t.term]}`" for t in twins if t.opposite]
        found = [f"It is the same term as {' and '.join(same)}, up to its scale: keep one of them."] if same else []
        if other:
            found.append(f"It is the opposite of {' and '.join(other)}: together they cancel; keep the one that helps.")
        return found

    def _depends(self) -> list[str]:
        against = self.weights.mean.value * {"keep": 1, "reverse": -1}.get(self.advice, 0) < 0
        if self.where is None or against or self.advice == "drop":
            return []
        name, share = self.where
        low, high = f"{self.weights.p10:+.2g}", f"{self.weights.p90:+.2g}"
        return [f"Where it counts depends mostly on {name} ({100 * share:.0f} %): weights from {low} to {high}."]

    def _what_to_do(self) -> list[str]:
        weight = f"{self.weights.mean.value:.2g}"
        match self.advice:
            case "keep" if self.direction is not None and self.direction.change is not None:
                return ["Keep it at the beginning and let it fade, as the learned weights do."]
            case "keep" if self.ahead < 0:
                return [f"As written it counts too much: take the learned weight (near {weight})."]
            case "reverse" if self.weights.mean.value < 0:
                return [f"Reverse it (a weight near {weight}), or leave it out."]
            case "reverse":
                return ["Change its sign, or leave it out."]
            case "unsure" if self.gain is None and not self.single:
                return ["Train without it to see."]
            case "unsure":
                return ["More seeds, or more steps, may tell."]
        return []
