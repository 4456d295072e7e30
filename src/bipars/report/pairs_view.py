"""The chart of all pairs: what the page's template is given, and the same as a picture with its table."""

from collections.abc import Sequence
from typing import Any

from bipars.report.curves import COLOURS
from bipars.report.pairs import ENOUGH, LEAST, Pair, Score, groups, summaries, text

LEFT, RIGHT = -0.1, 1.3
"""The shares at the two ends of the axis; what lies beyond is drawn there."""
TICKS = (0.0, 0.5, 1.0)
LANE, MARGIN = 7, 4
"""Height of a method's lane, and what is left above the first and below the last."""
NAMES = {"plain": "PPO without the terms", "naive": "naive shaping", "learner": "learned weights"}
ORDER = ("learner", "naive", "plain", "other")


def lanes(found: Sequence[Pair]) -> list[tuple[str, str]]:
    """Methods with their role, in the order in which every pair shows them: learned weights first."""
    all_methods = dict.fromkeys((score.method, score.role) for pair in found for score in pair.scores)
    return sorted(all_methods, key=lambda lane: ORDER.index(lane[1]))


def view(found: Sequence[Pair]) -> dict[str, Any] | None:
    """Words and numbers for the template; None where there are no pairs."""
    if not found:
        return None
    order = lanes(found)
    kinds = list(dict.fromkeys(pair.kind for pair in found))
    return {
        "enough": f"{ENOUGH:g}",
        "least": f"{LEAST:g}",
        "legend": [{"name": _name(*lane), "lane": i} for i, lane in enumerate(order)],
        "ticks": [{"x": place(tick), "text": f"{tick:g}"} for tick in TICKS],
        "promise": place(ENOUGH),
        "height": 2 * MARGIN + LANE * len(order),
        "kinds": [{"kind": kind, "rows": [_row(p, order) for p in found if p.kind == kind]} for kind in kinds],
        "head": ["environment, terms", *(method for method, _ in order)],
        "numbers": [_numbers(pair, order) for kind in kinds for pair in found if pair.kind == kind],
        "summaries": [[name, *_summary(row)] for name, members in groups(found).items() for row in summaries(members)],
    }


def place(share: float) -> float:
    """Per cent of the axis."""
    return round(100 * (min(max(share, LEFT), RIGHT) - LEFT) / (RIGHT - LEFT), 2)


def _name(method: str, role: str) -> str:
    return f"{NAMES[role]} ({method})" if role in NAMES else method


def _row(pair: Pair, order: Sequence[tuple[str, str]]) -> dict[str, Any]:
    by_method = {score.method: score for score in pair.scores}
    learner = pair.of("learner")
    return {
        "title": pair.title,
        "half": pair.half,
        "share": text(learner) or "not run",
        "holds": learner is not None and learner.holds,
        "open": learner is None or learner.share is None,
        "marks": [_mark(by_method[m], i) for i, (m, _) in enumerate(order) if m in by_method],
    }


def _numbers(pair: Pair, order: Sequence[tuple[str, str]]) -> list[str]:
    by_method = {score.method: score for score in pair.scores}
    return [pair.title, *(text(by_method.get(method)) for method, _ in order)]


def _mark(score: Score, lane: int) -> dict[str, Any]:
    drawn = score.share is not None and score.low is not None and score.high is not None
    ends = (place(score.low or 0.0), place(score.high or 0.0), place(score.share or 0.0)) if drawn else None
    return {"lane": lane, "y": MARGIN + LANE * lane + LANE / 2, "ends": ends, "text": f"{score.method}: {text(score)}"}


def _summary(row: Any) -> list[str]:
    ratio = "" if row.area_ratio is None else f"{row.area_ratio:.2f}"
    return [row.method, str(row.pairs), str(row.held), f"{row.lowest:.2f}", f"{row.area:.2f}", ratio]


def table(found: Sequence[Pair]) -> tuple[list[str], list[list[Any]]]:
    """Every number of the chart, for CSV."""
    head = ["environment", "terms", "kind", "half", "steps", "start", "better", "method", "role", "seeds", "return"]
    head += ["share", "low", "high", "area"]
    rows = [
        [p.env, p.name, p.kind, p.half, p.steps, p.start, p.better, *vars(score).values()]
        for p in found
        for score in p.scores
    ]
    return head, [["" if value is None else value for value in row] for row in rows]


def draw(found: Sequence[Pair]) -> Any:
    """The chart for matplotlib."""
    from matplotlib import pyplot as plt

    order = [method for method, _ in lanes(found)]
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.36 * len(found)), layout="constrained")
    for i, method in enumerate(order):
        points = [
            (row + 0.8 * ((i + 0.5) / len(order) - 0.5), score)
            for row, pair in enumerate(found)
            for score in pair.scores
            if score.method == method and score.share is not None
        ]
        if points:
            y = [at for at, _ in points]
            low, high, middle = (
                [min(max(getattr(score, end), LEFT), RIGHT) for _, score in points] for end in ("low", "high", "share")
            )
            axes.hlines(y, low, high, color=COLOURS[i % len(COLOURS)], linewidth=3 if i == 0 else 1.4)
            axes.plot(middle, y, "|", color=COLOURS[i % len(COLOURS)], markersize=6, label=method)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.axvline(ENOUGH, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlim=(LEFT, RIGHT), ylim=(len(found) - 0.5, -0.5), xlabel="share of the better of PPO and naive shaping")
    axes.set_yticks(range(len(found)), [f"{pair.title} ({pair.kind})" for pair in found], fontsize=7)
    axes.legend(frameon=False, fontsize=7, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(order))
    return figure
