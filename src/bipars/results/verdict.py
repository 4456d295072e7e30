"""What to do with each term: one of four words, how sure it is, and the evidence about that very term.

Two questions are kept apart. Which way does the term point (`direction`: did its gradient agree with the true one)? And
was a gain shown (`gain`: with the term against without it, all else equal)? What all terms together gave is said once
(`Together`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bipars.results.comparison import (
    Comparison,
    Outcome,
    Use,
    Weights,
    compare,
    estimate,
    find_notes,
    return_range,
    still_rising,
    weigh,
)
from bipars.results.dimensions import input_names
from bipars.results.direction import MODERATE, SHORT, STRONG, Direction, find_directions, has_evidence, hear
from bipars.results.direction import together as sum_of_seeds
from bipars.results.panels import Cell, Panel
from bipars.results.where import explained, predictable
from bipars.results.wording import Advice, Strength, Together, Verdict, ahead, never_heard, never_varied
from bipars.runs.snapshots import Snapshot, load_snapshots
from bipars.terms.values import Values, look_at

CLEAREST: tuple[Advice, ...] = ("keep", "reverse", "unsure", "drop")
"""Of terms that are the same, one with the first of these is kept."""
SNAPSHOTS_OF = 3
"""Seeds whose transitions are looked at."""
LUCK = 2.5
"""Standard errors between the episodes of two policies trained alike: Acrobot-v1, 18 seeds, had 2.7."""
VARIES = 0.5
"""A weight depends on the state if, over 80 % of states, it varies by this part of its mean ..."""
BY_ONE = 0.2
"""... and one input explains so much of it."""


@dataclass(frozen=True)
class Judgement:
    """Of one method on one task: all terms together, and each."""

    cell: Cell
    step: int
    together: Together
    verdicts: tuple[Verdict, ...] = field(default=())


def judgements(panel: Panel) -> list[Judgement]:
    """One per method that learns weights, the library's default method first."""
    if not panel.terms:
        return []
    return [judgement for cell in panel.learners if (judgement := judge(panel, cell)).verdicts]


def verdicts(panel: Panel) -> list[Verdict]:
    return [verdict for judgement in judgements(panel) for verdict in judgement.verdicts]


def judge(panel: Panel, cell: Cell) -> Judgement:
    rivals = {"frozen": panel.frozen(cell), "scalars": panel.frozen(cell, "scalars")}
    rivals |= {role: panel.rival(cell, role) for role in ("naive", "plain")}
    present = {"learned": cell} | {name: rival for name, rival in rivals.items() if rival is not None}
    step = min(c.last_step for c in present.values())
    seeds = [record.rows for record in cell.evaluated]
    rows = [row for seed in seeds for row in seed]
    snapshots = _snapshots(cell)
    kept = [snapshot for of_seed in snapshots for snapshot in of_seed]
    # None, where nothing was kept, of which nothing is said.
    terms = np.concatenate([np.zeros((0, len(panel.terms))), *(snapshot.visited.terms for snapshot in kept)])
    values = look_at(terms)
    last = snapshots[0][-1] if snapshots else None
    inputs = np.concatenate([snapshot.visited_inputs for snapshot in kept]) if kept else terms
    not_noise = {
        term
        for term, value, column in zip(panel.terms, values, terms.T, strict=True)
        if value.hidden or predictable(inputs, column)
    }
    lengths = {row["evaluation_length"] for row in rows if row.get("evaluation_length") is not None}
    recorded, constant, rising = has_evidence(rows), never_varied(rows), still_rising(cell)
    directions: list[Direction | None] = [None] * len(panel.terms)
    if recorded:
        directions = [*find_directions(seeds, panel.terms, not_noise)]
    unknown = recorded and not any(seed.sure for seed in hear(seeds)) and not any(d and d.known for d in directions)
    silence = constant or (never_heard(rows, rising) if unknown else None)
    together = _all_terms(panel, cell, present, step, silence, constant is not None)
    found = [
        _judge_term(panel, cell, k, step, together, direction, values[k], last, rising, len(lengths) > 1)
        for k, direction in enumerate(directions)
    ]
    return Judgement(cell, step, together, without_copies(found))


def _all_terms(
    panel: Panel, cell: Cell, present: dict[str, Cell], step: int, silence: str | None, constant: bool
) -> Together:
    returns = {name: estimate(c.at_end("evaluation_return", step)) for name, c in present.items()}
    lengths = {name: estimate(c.at_end("evaluation_length", step)) for name, c in present.items()}
    scale = return_range(list(present.values()))
    pairs = {"plain": ("learned", "plain"), "naive": ("learned", "naive")}
    pairs |= {"written": ("naive", "plain"), "frozen": ("frozen", "plain"), "scalars": ("scalars", "plain")}
    leaders = [record.rows[-1].get("leader") for record in cell.evaluated]
    return Together(
        len(panel.terms),
        {name: value for name, value in returns.items() if value is not None},
        {name: value for name, value in lengths.items() if value is not None},
        {
            name: compare(present[ours], present[theirs], step, scale)
            for name, (ours, theirs) in pairs.items()
            if ours in present and theirs in present
        },
        (leaders.count(1), leaders.count(2)) if any(leader is not None for leader in leaders) else None,
        tuple(role for role in ("naive", "plain") if role not in present),
        tuple(find_notes(cell, present, step)),
        silence,
        constant,
    )


def _judge_term(
    panel: Panel,
    cell: Cell,
    k: int,
    step: int,
    together: Together,
    direction: Direction | None,
    values: Values,
    last: Snapshot | None,
    rising: bool,
    lengths_vary: bool,
) -> Verdict | None:
    term = panel.terms[k]
    weights, without = weigh(cell, term, step), panel.without(cell, term)
    if weights is None:
        return None
    gain = None
    if without is not None:
        gain = compare(cell, without, min(step, without.last_step), return_range([cell, without]))
    advice: Advice
    strength: Strength
    alone = len(panel.terms) == 1
    trial = side_by_side(cell) if alone else None
    noise = direction is not None and direction.way == "noise"
    told = gain is not None or ahead(trial) != 0 or noise
    silent = together.constant or (together.silence is not None and not told)
    if values.constant == 0:
        advice, strength = "drop", "strong"
    elif silent:
        advice, strength = "unsure", "none"
    elif direction is None:
        advice, strength = by_weights(weights.use, gain or together.comparisons.get("plain"), alone or gain is not None)
    else:
        advice, strength = by_direction(direction, gain, weights.mean.value, trial)
    return Verdict(
        *(term, cell, advice, strength, weights, direction, gain, trial, panel.terms, values),
        where=_where(panel, weights, last, k),
        unit=None if last is None or last.unit is None else float(last.unit[k]),
        silent=silent,
        rising=rising,
        lengths_vary=lengths_vary,
        without=None if without is None else estimate(without.at_end("evaluation_return", step)),
        learned=together.returns.get("learned"),
    )


def without_copies(found: Sequence[Verdict | None]) -> tuple[Verdict, ...]:
    """Of terms that are the same, the first with the clearest advice keeps it; the others are dropped, and so is the
    opposite of a term to keep. Of two opposites that nothing is known of, either may be the one that helps.
    """
    there = {k: verdict for k, verdict in enumerate(found) if verdict is not None}
    kept: set[int] = set()
    for k in sorted(there, key=lambda k: CLEAREST.index(there[k].advice)):
        twins = (twin for twin in there[k].values.twins if twin.term in kept)
        copy = next((twin for twin in twins if not twin.opposite or there[twin.term].advice == "keep"), None)
        if copy is None:
            kept.add(k)
        else:
            there[k] = replace(there[k], advice="drop", strength="strong", copy=copy)
    return tuple(there.values())


def side_by_side(cell: Cell) -> float | None:
    """By how many standard errors the policies that used the terms as written were ahead when they were compared."""
    leads = [record.rows[-1]["lead_t"] for record in cell.evaluated if record.rows[-1].get("lead_t") is not None]
    return sum_of_seeds(leads) / LUCK if leads else None


def by_direction(
    direction: Direction, gain: Comparison | None, weight: float, trial: float | None = None
) -> tuple[Advice, Strength]:
    """The direction decides, unless training without the term has shown something else; where neither is known, or a
    term that seems to help lost clearly as written, the comparison with the control group does.
    """
    advice: Advice = {"up": "keep", "down": "reverse", "nil": "drop", "noise": "drop"}.get(direction.way, "unsure")  # type: ignore[assignment]
    size = abs(direction.t)
    strength: Strength = "strong" if size >= STRONG else "fair" if size >= MODERATE else "weak"
    change = direction.change
    if change is not None:  # what gets an agent off the ground is worth keeping, for a while
        size = min(abs(change.before), abs(change.after))
        advice, strength = ("keep" if change.before > 0 else "unsure"), ("fair" if size >= MODERATE else "weak")
    elif direction.way == "noise":
        strength = "fair"
    elif direction.way == "nil":
        strength = "strong" if direction.falls_short >= 2 * SHORT else "fair"
    elif direction.early:
        strength = "fair" if size >= STRONG else "weak"
    if gain is not None and gain.outcome == "worse":
        return "drop", "fair" if advice == "keep" else "strong"
    if gain is not None and gain.gain:
        if advice in ("keep", "reverse"):
            return advice, "strong"
        return ("reverse" if weight < 0 else "keep"), "fair"
    if ahead(trial) < 0 and (advice == "unsure" or (advice == "keep" and strength != "strong")):
        return "drop", "fair"
    if ahead(trial) > 0 and advice in ("unsure", "drop"):
        return "keep", "fair"
    if gain is not None and gain.outcome == "same" and advice == "unsure":
        return "drop", "weak"
    return advice, "none" if advice == "unsure" else strength


def by_weights(use: Use, compared: Comparison | None, alone: bool) -> tuple[Advice, Strength]:
    """Where training recorded no evidence per term: the sign of the weights, and whether the agent gained.

    `alone`: the comparison is about this term, not about several together.
    """
    outcome: Outcome | None = None if compared is None else compared.outcome
    if use == "off":
        return "drop", "fair"
    if outcome == "worse":
        return ("drop", "fair") if alone else ("unsure", "none")
    gained = compared is not None and compared.gain
    if use == "reversed":
        return "reverse", "strong" if gained and alone else "fair" if gained else "weak"
    if use in ("used", "mixed") and gained:
        return "keep", "strong" if alone else "fair"
    return "unsure", "none"


def _snapshots(cell: Cell) -> list[list[Snapshot]]:
    """Damaged ones are left out; the page names them."""
    found = [load_snapshots(record.run, damaged=[]) for record in cell.evaluated[:SNAPSHOTS_OF]]
    return [snapshots for snapshots in found if snapshots]


def _where(panel: Panel, weights: Weights, last: Snapshot | None, k: int) -> tuple[str, float] | None:
    """The input that decides the weight, and how much of its variation it explains, if it varies at all."""
    if last is None or weights.p90 - weights.p10 < VARIES * abs(weights.mean.value):
        return None
    ranked = explained(last.visited_inputs, last.visited_weights[:, k])
    if not ranked or ranked[0][1] < BY_ONE:
        return None
    observations = last.visited.obs.shape[-1]
    names = input_names(panel.env, observations, last.visited_inputs.shape[-1] - observations)
    return names[int(ranked[0][0])], ranked[0][1]
