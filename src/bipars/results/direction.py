"""Which way a term points: up the true return, down, or neither. From how its gradient agreed with the true one.

Training logs, after every update, by how many standard errors the two agreed over the newest batches
(`agreement_t/NAME`), and the same of the true gradient with itself (`true_gradient_t`). Updates in which the latter
cannot be told from noise are left out, unless it never could, and so are those that only repeat what was known
(`evidence_added`). The others are averaged; what the average would scatter by chance follows from the memory that
neighbouring updates share. A term that nothing predicts, and whose own gradient never stood out from noise
(`term_gradient_t/NAME`, over all updates), points nowhere, however little is known of the true one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from bipars.upper.evidence import CLEAR, MEMORY

KNOWN = 3.0
"""Standard errors from which on a direction is known: one of 16 terms of noise passes in about one run of ten."""
NOTHING = 2.5
"""Below this, either way and in every phase, a term shows no direction ..."""
SHORT = 1.64
"""... and has none, if it falls short by so many of half of the clearest agreement, of the true gradient with itself or
with another term's: a term that tells half as much as the clearest shows less in one run of twenty ..."""
PEAK = 3.5
"""... and if it never in the whole run passed this: chance does so in one run of a hundred."""
EARLY = 0.25
"""The first part of the clear updates, in which most is learned: looked at by itself where the whole shows nothing."""
HEARD = 3.0
"""The true gradient must have been so clear at least once for its clear updates to be singled out: where all is noise,
2 comes easily by chance."""
LEAST_UPDATES = 10
"""Without which nothing is said of a term's own gradient."""
FEW = 0.25
"""Share of the seeds that may clearly point the other way."""
MODERATE, STRONG = 4.0, 6.0
MOST = 600
"""Updates that are looked at; more of them tell no more, since neighbours share their memory."""

Way = Literal["up", "down", "nil", "noise", "faint", "split"]
"""`nil`: none, though the true gradient was clear. `noise`: none, since the term has no gradient of its own. `faint`:
too little to tell. `split`: the seeds disagree."""
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Change:
    """A direction that turned round in the course of training."""

    before: float
    after: float
    step: int


@dataclass(frozen=True)
class Direction:
    way: Way
    t: float
    """Agreement with the true gradient in standard errors, over all seeds."""
    seeds: tuple[float, ...]
    own: float
    """The same of the true gradient with itself."""
    power: float
    """The clearest of all, that of the true gradient with itself among them: how much could be heard."""
    clear: float
    """Share of the updates in which the true gradient was clear."""
    early: bool = False
    """Known of the beginning alone."""
    change: Change | None = None
    itself: float | None = None
    """Agreement of the term's gradient with itself; none where that was not recorded often enough."""

    @property
    def known(self) -> bool:
        return self.way in ("up", "down")

    @property
    def falls_short(self) -> float:
        return falls_short(self.t, self.power)


@dataclass(frozen=True)
class Heard:
    """The updates of one seed that tell which way terms point."""

    rows: Rows
    index: np.ndarray
    nth: np.ndarray
    """Which of the updates that added evidence each is: only these make earlier ones fade."""
    clear: float
    """Their share of all updates."""
    sure: bool
    """They are those in which the true gradient was clear; otherwise all, since it never was. A term whose own gradient
    is less noisy may show its direction all the same."""

    def t(self, key: str, part: slice = slice(None)) -> float:
        values = np.array([self.rows[i][key] for i in self.index[part]], float)
        return float(values.mean() / chance_spread(self.nth[part])) if len(values) else 0.0

    def peak(self, key: str) -> float:
        return max(abs(self.rows[i][key]) for i in self.index)


def has_evidence(rows: Rows) -> bool:
    return any("true_gradient_t" in row for row in rows)


def hear(seeds: Sequence[Rows]) -> list[Heard]:
    found = []
    for rows in seeds:
        own = np.array([_number(row.get("true_gradient_t")) for row in rows])
        new = np.array([row.get("evidence_added", 1) != 0 for row in rows], bool)
        sure = bool(len(own)) and own.max() >= HEARD
        index = np.flatnonzero((own > (CLEAR if sure else -np.inf)) & new)
        if len(index):
            some = index[:: -(-len(index) // MOST)]
            found.append(Heard(rows, some, np.cumsum(new)[some] - 1, len(index) / len(rows), sure))
    return found


def find_directions(seeds: Sequence[Rows], terms: Sequence[str], not_noise: Collection[str] = ()) -> list[Direction]:
    """Of each term. Some cannot be noise, whatever their gradients: a gradient may be too faint to be seen."""
    heard = hear(seeds)
    own = together([seed.t("true_gradient_t") for seed in heard])
    clearest = [abs(together([seed.t(f"agreement_t/{term}") for seed in heard])) for term in terms]
    found = []
    for term in terms:
        direction = _find_direction(heard, f"agreement_t/{term}", own, max(own, *clearest))
        found.append(direction if term in not_noise else as_noise(direction, agrees_with_itself(seeds, term)))
    return found


def agrees_with_itself(seeds: Sequence[Rows], term: str) -> float | None:
    """How clear the term's own gradient was, over all of training or at its beginning, in which most is learned."""
    key = f"term_gradient_t/{term}"
    whole: list[float] = []
    first: list[float] = []
    for rows in seeds:
        index = np.array([i for i, row in enumerate(rows) if row.get(key) is not None], int)
        if len(index) >= LEAST_UPDATES:
            index = index[:: -(-len(index) // MOST)]
            values = np.array([rows[i][key] for i in index], float)
            for found, part in ((whole, index), (first, index[: max(1, round(EARLY * len(index)))])):
                found.append(float(values[: len(part)].mean() / chance_spread(part)))
    return max(together(whole), together(first)) if whole else None


def as_noise(direction: Direction, itself: float | None) -> Direction:
    """The direction of a term whose gradient agreed so clearly with itself: none, if it has no gradient of its own.

    Unless it is more than weakly known of the whole run: few episodes make for large t early on.
    """
    firm = direction.known and not direction.early and abs(direction.t) >= MODERATE
    noise = itself is not None and itself < KNOWN and not firm and direction.change is None
    return replace(direction, itself=itself, way="noise" if noise else direction.way)


def _find_direction(heard: Sequence[Heard], key: str, own: float, power: float) -> Direction:
    whole = [seed.t(key) for seed in heard]
    first = [seed.t(key, slice(0, max(1, round(EARLY * len(seed.index))))) for seed in heard]
    way = judge_way(whole, power)
    early = way in ("nil", "faint") and abs(together(first)) >= NOTHING
    seeds = first if early else whole
    if early:
        way = judge_way(first, power)
    if way == "nil" and np.mean([seed.peak(key) > PEAK for seed in heard]) > FEW:
        way = "faint"
    clear = float(np.mean([seed.clear for seed in heard])) if heard else 0.0
    return Direction(way, together(seeds), tuple(seeds), own, power, clear, early, _change(heard, key))


def judge_way(seeds: Sequence[float], power: float) -> Way:
    """Over all seeds, unless too many of them clearly say something else."""
    t = together(seeds)
    ups, downs = (sum(sign * seed >= KNOWN for seed in seeds) for sign in (1, -1))
    others = downs if t >= KNOWN else ups if t <= -KNOWN else max(ups, downs) if min(ups, downs) else 0
    if others > FEW * len(seeds):
        return "split"
    if abs(t) >= KNOWN:
        return "up" if t > 0 else "down"
    return "nil" if abs(t) < NOTHING and falls_short(t, power) >= SHORT else "faint"


def falls_short(t: float, power: float) -> float:
    """By how many standard errors a term shows less than one that tells half as much as the clearest."""
    return power / 2 - abs(t)


def together(ts: Sequence[float]) -> float:
    """Of independent seeds (Stouffer's sum)."""
    return float(np.sum(ts) / np.sqrt(len(ts))) if len(ts) else 0.0


def chance_spread(index: np.ndarray) -> float:
    """Standard deviation of the mean of t over these updates, counted from 0, if all of it were chance.

    A sum s_n = MEMORY s_(n-1) + x_n of independent x of variance 1 has the variance q_n = MEMORY^2 q_(n-1) + 1, and
    s_m and s_n, m < n, the correlation MEMORY^(n-m) sqrt(q_m / q_n).
    """
    q = 1 - MEMORY ** (2.0 * (index + 1))
    apart = np.abs(index[:, None] - index[None])
    ratio = np.minimum(q[:, None], q[None]) / np.maximum(q[:, None], q[None])
    return float(np.sqrt(np.mean(MEMORY**apart * np.sqrt(ratio))))


def _change(heard: Sequence[Heard], key: str) -> Change | None:
    """Where the direction before and after differ most clearly, if both are known."""
    best = None
    for part in np.linspace(0.1, 0.9, 9):
        cuts = [int(part * len(seed.index)) for seed in heard]
        before = together([seed.t(key, slice(0, cut)) for seed, cut in zip(heard, cuts, strict=True)])
        after = together([seed.t(key, slice(cut, None)) for seed, cut in zip(heard, cuts, strict=True)])
        least = min(abs(before), abs(after))
        if before * after < 0 and least >= KNOWN and (best is None or least > best[0]):
            steps = [seed.rows[seed.index[cut]]["step"] for seed, cut in zip(heard, cuts, strict=True)]
            best = least, Change(before, after, int(np.mean(steps)))
    return None if best is None else best[1]


def _number(value: Any) -> float:
    return float(value) if value is not None and np.isfinite(value) else -np.inf
