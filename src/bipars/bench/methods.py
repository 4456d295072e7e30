"""`bipars bench methods`: what every method costs beside PPO or DDPG, and how the cost of a step of phi grows.

Each measurement is a process of its own on one core. The pages in docs/methods say what the growth should be.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bipars.bench.growth import LINES, Line, Point, measure_line, slopes
from bipars.bench.measure import HURRY, apart, measure_updates
from bipars.errors import unknown
from bipars.methods import METHODS
from bipars.results.formats import csv_text
from bipars.runs.files import write_atomically

Case = tuple[str, dict[str, Any]]
"""A label, and the settings that make it."""

FORMS = ("none", "opg", "exact")
STOCHASTIC: tuple[Case, ...] = (
    ("ppo", {"method": "ppo"}),
    ("ns", {"method": "ns"}),
    ("pbrs", {"method": "pbrs"}),
    ("pba", {"method": "pba"}),
    ("dynamic-pbrs", {"method": "dynamic-pbrs"}),
    ("dpba", {"method": "dpba"}),
    ("rcpo", {"method": "rcpo", "terms": ["torque"]}),
    ("single", {"method": "single"}),
    ("simplex, 2 terms", {"method": "simplex", "terms": ["harmful", "beneficial"]}),
    ("hepo", {"method": "hepo"}),
    ("em", {"method": "em"}),
    ("mgl", {"method": "mgl"}),
    *((f"imgl {form}", {"method": "imgl", "upper": {"second_order": form}}) for form in FORMS),
    *((f"unrolled K={k}", {"method": "unrolled", "upper": {"unroll": k}}) for k in (1, 5, 20)),
)
SMALL_POLICY = {"policy_hidden": [16, 16]}
"""That of ddpg-imgl's preset, for all, so that figures compare."""
DETERMINISTIC: tuple[Case, ...] = (
    *((name, {"method": name, "ddpg": SMALL_POLICY}) for name in ("ddpg", "ddpg-ns", "ddpg-em", "ddpg-mgl")),
    *(
        (f"ddpg-imgl {form}", {"method": "ddpg-imgl", "ddpg": SMALL_POLICY, "ddpg_upper": {"second_order": form}})
        for form in ("none", "constant-critic", "exact")
    ),
)


class Cost(NamedTuple):
    """Of one update of one method."""

    relative_to: str
    method: str
    seconds: float
    ratio: float
    megabytes: float
    memory_ratio: float


def run_bench(updates: int = 10, methods: Sequence[str] = (), out: Path | None = None) -> int:
    """Prints three tables; with `out`, also writes them as CSV and draws the growth."""
    for name in methods:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    groups = {"ppo": _selected(STOCHASTIC, methods), "ddpg": _selected(DETERMINISTIC, methods)}
    lines = [line for line in LINES if not methods or line.settings["method"] in methods]
    say = _Progress(sum(map(len, groups.values())) + len(lines))
    print(f"continuous cart-pole, one core each, median of {updates} updates after those that only compile or gather")
    print("memory: all arrays that the compiled update holds at most")
    measured: list[Cost] = []
    for base, cases in groups.items():
        if cases:
            measured += _compare(updates, base, cases, say)
    grown = _grow(lines, say) if lines else []
    if out is not None:
        write_atomically(out / "methods.csv", csv_text(Cost._fields, measured).encode())
        print(f"\nwritten: {out / 'methods.csv'}")
    if out is not None and grown:
        rows = [(line.label, line.grows, *point) for line, points in grown for point in points]
        write_atomically(out / "growth.csv", csv_text(("label", "grows", *Point._fields), rows).encode())
        draw_growth(grown, out / "growth.png")
        print(f"written: {out / 'growth.csv'}, {out / 'growth.png'}")
    return 0


class _Progress:
    """A line before each measurement, on the error stream: tables stay clean."""

    def __init__(self, total: int) -> None:
        self.total, self.begun, self.start = total, 0, time.monotonic()

    def __call__(self, what: str) -> None:
        self.begun += 1
        seconds = time.monotonic() - self.start
        print(f"measuring {what} ({self.begun} of {self.total}, {seconds:.0f} s so far)", file=sys.stderr, flush=True)


def _selected(cases: Sequence[Case], methods: Sequence[str]) -> list[Case]:
    """Those asked for, after the first, to which they are compared; all if nothing is asked for."""
    chosen = [case for case in cases[1:] if not methods or case[1]["method"] in methods]
    return [cases[0], *chosen] if chosen or not methods or cases[0][0] in methods else []


def _compare(count: int, base: str, cases: Sequence[Case], say: _Progress) -> list[Cost]:
    steps = "20,000" if base == "ppo" else "1,000"
    head = (f"ms / {steps} steps", f"time / {base}", "memory", f"memory / {base}")
    print("\n" + "method".ljust(26), *(name.rjust(17) for name in head))
    rows: list[Cost] = []
    for label, settings in cases:
        say(label)
        given = {"env": "cartpole-continuous", "preset": "paper", "terms": ["harmful"], **settings}
        found = apart(measure_updates, count, given, environment=HURRY)
        seconds, memory = found["seconds"], found["array_megabytes"]
        first = rows[0] if rows else Cost(base, label, seconds, 1.0, memory, 1.0)
        rows.append(Cost(base, label, seconds, seconds / first.seconds, memory, memory / first.megabytes))
        figures = (f"{seconds * 1e3:.1f}", f"{rows[-1].ratio:.2f}", f"{memory:.1f} MB", f"{rows[-1].memory_ratio:.2f}")
        print(label.ljust(26), *(figure.rjust(17) for figure in figures), flush=True)
    return rows


def _grow(lines: Sequence[Line], say: _Progress) -> list[tuple[Line, list[Point]]]:
    print("\none step of phi on 1024 samples (dA~/dphi: once per update, on 20,000): time against size on log axes\n")
    head = ("slope", "at the end", "claimed", "seconds, smallest to largest")
    print("line".ljust(16), "grows".ljust(18), *(name.rjust(10) for name in head[:2]), "  ", head[2].ljust(22), head[3])
    found = []
    for line in lines:
        say(f"{line.label} against {line.grows}")
        points = [Point(*point) for point in apart(measure_line, LINES.index(line))]
        found.append((line, points))
        fitted, last = slopes(line, points)
        span = f"{line.grows} {_size(line, points[0]):,} to {_size(line, points[-1]):,}"
        times = "  ".join(f"{point.seconds:.2g}" for point in points)
        print(line.label.ljust(16), span.ljust(18), f"{fitted:10.2f} {last:10.2f}", "  ", line.claim.ljust(22), times)
        sys.stdout.flush()
    return found


def _size(line: Line, point: Point) -> int:
    return getattr(point, line.grows)


def draw_growth(grown: Sequence[tuple[Line, Sequence[Point]]], path: Path) -> None:
    """One panel for each of n, m and K, with a line of slope 1 to compare with."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from bipars.report.curves import COLOURS

    names = {"n": "policy parameters n", "m": "weight parameters m", "K": "steps differentiated K"}
    labels = list(dict.fromkeys(line.label for line, _ in grown))
    grows = [name for name in names if any(line.grows == name for line, _ in grown)]
    figure, axes = plt.subplots(1, len(grows), figsize=(5 * len(grows), 4.4), layout="constrained", squeeze=False)
    for axis, name in zip(axes[0], grows, strict=True):
        mine = [(line, points) for line, points in grown if line.grows == name]
        for line, points in mine:
            sizes, seconds = [_size(line, point) for point in points], [point.seconds for point in points]
            label = f"{line.label}: {slopes(line, points)[1]:.2f}"
            axis.loglog(sizes, seconds, "o-", color=COLOURS[labels.index(line.label) % len(COLOURS)], label=label)
        line, points = mine[0]
        first, last = _size(line, points[0]), _size(line, points[-1])
        guide = [points[-1].seconds * first / last, points[-1].seconds]
        axis.loglog([first, last], guide, "--", color="grey", linewidth=0.8, label="slope 1")
        ticks = [_size(line, point) for point in points]
        axis.set_xticks(ticks, [f"{size:,}" for size in ticks])
        axis.set_xticks([], minor=True)
        axis.set(xlabel=names[name], ylabel="seconds per step of phi (dA~/dphi: per update)")
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=8, title="slope at the end")
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    plt.close(figure)
    write_atomically(path, content.getvalue())
