"""Each figure of the page as PNG and SVG, and its numbers as CSV."""

import io
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bipars.errors import printable
from bipars.report.content import GRADIENTS, MEASURES
from bipars.report.curves import COLOURS, STYLES
from bipars.report.heatmap import HeatMap, heat_map
from bipars.report.pairs import pairs_below
from bipars.report.pairs_view import draw as draw_pairs
from bipars.report.pairs_view import table as pairs_table
from bipars.results.formats import csv_text
from bipars.results.panels import Collection, Panel
from bipars.results.verdict import judgements, verdicts
from bipars.runs.files import refuse_links, write_atomically
from bipars.runs.snapshots import load_snapshots

Rows = Iterator[Sequence[Any]]
SHOWN = 6
"""Terms of an episode that have a colour each, as on the page."""
WEIGHT = "weight over visited states: median, 10 to 90 %"


def write_figures(collection: Collection, data: dict[str, Any], folder: Path) -> None:
    """A folder per panel; `data` is what the page shows."""
    import matplotlib

    matplotlib.use("Agg")
    settings: Any = {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "bipars", "font.size": 9}
    with matplotlib.rc_context(settings):
        for panel, part, name in zip(collection.panels, data["panels"], folder_names(collection), strict=True):
            place = folder / name
            refuse_links(folder, place)
            place.mkdir(parents=True, exist_ok=True)
            _write_panel(panel, part, place)
        found = pairs_below(collection)
        if found:
            head, rows = pairs_table(found)
            _write(folder / "pairs", draw_pairs(found), (head, iter(rows)))
    write_atomically(folder / "verdict.csv", csv_text(*_verdict_table(collection)).encode())
    write_atomically(folder / "together.csv", csv_text(*_together_table(collection)).encode())


def folder_names(collection: Collection) -> list[str]:
    """Names that every file system takes, whatever a term is called."""
    plain = [re.sub(r"[^A-Za-z0-9]+", "-", panel.name).strip("-").lower()[:60] or "task" for panel in collection.panels]
    return [f"{name}-{i + 1}" if plain.count(name) > 1 else name for i, name in enumerate(plain)]


def _write_panel(panel: Panel, part: dict[str, Any], place: Path) -> None:
    for key, measure in MEASURES.items():
        if key == "evaluation_action_size" and not part["effort"]:
            continue
        curves = [
            (cell["title"], i, cell["curves"][key]) for i, cell in enumerate(part["cells"]) if cell["curves"][key]
        ]
        if curves:
            name = measure.replace(" ", "-").replace("|", "")
            drawn = _draw_bands(curves, panel.name, measure, "low", "iqm", "high")
            _write(place / name, drawn, _curve_table(curves, part["cells"], measure))
    for k, term in enumerate(part["terms"]):
        end = f"-{k + 1}" if len(part["terms"]) > 1 else ""
        found = [(c["title"], i, c["weights"].get(term["name"])) for i, c in enumerate(part["cells"])]
        bands = [(title, i, curve) for title, i, curve in found if curve]
        if bands:
            drawn = _draw_bands(bands, f"weight of {term['short']}", WEIGHT, "p10", "p50", "p90")
            _write(place / f"weight{end}", drawn, _weight_table(bands))
        _write_map(panel, part, k, place / f"where{end}")
    if part["inside"]:
        agent = part["inside"][0]
        terms = [term["short"] for term in part["terms"]]
        episode = agent["snapshots"][-1]["episode"]
        if episode["reward"]:  # agents trained from Python keep none
            _write(place / "episode", _draw_episode(agent, episode, terms), _episode_table(episode, terms))
    lines = [
        (f"{cell['title']}: {words}", i, cell["gradients"][key])
        for key, words in GRADIENTS.items()
        for i, cell in enumerate(part["cells"])
        if cell["gradients"][key]
    ]
    if lines:
        _write(place / "gradients", _draw_gradients(part), _gradient_table(lines))


def _write(path: Path, figure: Any, table: tuple[Sequence[str], Rows]) -> None:
    from matplotlib import pyplot as plt

    for kind, more in (("png", {"dpi": 110}), ("svg", {"metadata": {"Date": None}})):
        out = io.BytesIO()
        figure.savefig(out, format=kind, **more)
        write_atomically(path.with_name(f"{path.name}.{kind}"), out.getvalue())
    plt.close(figure)
    write_atomically(path.with_name(f"{path.name}.csv"), csv_text(*table).encode())


def _axes(title: str, x: str, y: str, size: tuple[float, float] = (7.2, 4.0)) -> tuple[Any, Any]:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=size)
    figure.subplots_adjust(left=0.12, right=0.97, bottom=0.13, top=0.91)
    axes.set_title(printable(title))
    axes.set_xlabel(printable(x))
    axes.set_ylabel(printable(y))
    axes.grid(alpha=0.25)
    return figure, axes


def _style(i: int) -> dict[str, Any]:
    return {"color": _colour(i), "linestyle": STYLES[i // len(COLOURS) % len(STYLES)]}


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array(values, float)  # None becomes nan


def _draw_bands(curves: list[tuple[str, int, Any]], title: str, measure: str, low: str, middle: str, high: str) -> Any:
    """Every seed faint, the middle on top, and the range between low and high."""
    figure, axes = _axes(title, "environment steps", measure)
    for name, i, curve in curves:
        steps = curve["steps"]
        for seed in curve["seeds"]:
            axes.plot(steps, _numbers(seed), **_style(i), alpha=0.2, linewidth=0.6)
        axes.fill_between(steps, _numbers(curve[low]), _numbers(curve[high]), color=_style(i)["color"], alpha=0.15)
        axes.plot(steps, _numbers(curve[middle]), **_style(i), linewidth=2, label=name)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _curve_table(curves: list[tuple[str, int, Any]], cells: list[Any], measure: str) -> tuple[Sequence[str], Rows]:
    def rows() -> Rows:
        for title, i, curve in curves:
            for seed, values in zip(cells[i]["seeds"], curve["seeds"], strict=False):
                yield from ((title, seed, step, v) for step, v in zip(curve["steps"], values, strict=True))
            for name in ("iqm", "low", "high"):
                yield from ((title, name, step, v) for step, v in zip(curve["steps"], curve[name], strict=True))

    return ["method", "seed", "step", measure], rows()


def _weight_table(bands: list[tuple[str, int, Any]]) -> tuple[Sequence[str], Rows]:
    rows = (
        (title, *values)
        for title, _, curve in bands
        for values in zip(curve["steps"], curve["p10"], curve["p50"], curve["p90"], strict=True)
    )
    return ["method", "step", "p10", "median", "p90"], rows


def _write_map(panel: Panel, part: dict[str, Any], term: int, path: Path) -> None:
    """Of the agent and the two inputs that the page shows first."""
    agent = next((a for a in part["inside"] if a["form"] != "scalar" and a["snapshots"][-1]["layers"]), None)
    if agent is None:
        return
    cell = next(cell for cell in panel.cells if cell.label == agent["cell"])
    record = next(r for r in cell.records if r.config.seed == agent["seed"])
    ranked = agent["snapshots"][-1]["ranking"][term]
    usable = agent["observations"] + (agent["continuous"] if agent["form"] == "state-action" else 0)
    order = [i for i, _ in ranked if i < usable] + list(range(usable))
    x, y = order[0], next((i for i in order if i != order[0]), order[0])
    found = heat_map(record.config.weights, load_snapshots(record.run, damaged=[]), term, x, y)
    if found is None:
        return
    title = f"weight of {part['terms'][term]['short']}, {agent['title']}, seed {agent['seed']}"
    write_map(path, found, (agent["inputs"][x], agent["inputs"][y]), title)
    if ranked:
        names = [agent["inputs"][i] for i, _ in ranked]
        shares = [100 * share for _, share in ranked]
        bars, axes = _axes(title, "% of the weight's variation explained", "", (6.2, 0.9 + 0.28 * len(names)))
        bars.subplots_adjust(left=0.3, bottom=0.3 if len(names) < 6 else 0.15)
        axes.barh(names[::-1], shares[::-1], color=COLOURS[0])
        table = (["input", "percent explained"], iter(list(zip(names, shares, strict=True))))
        _write(path.with_name(path.name.replace("where", "inputs")), bars, table)


def write_map(path: Path, found: HeatMap, names: tuple[str, str], title: str) -> None:
    """Also for the maps that a suite declares."""
    figure, axes = _axes(title, *names, (6.2, 4.4))
    size = max(0.05, float(np.nanmax(np.abs(found.z)))) if np.isfinite(found.z).any() else 1.0
    image = axes.pcolormesh(found.x, found.y, found.z, cmap="PuOr", vmin=-size, vmax=size, shading="nearest")
    figure.colorbar(image, ax=axes, label="weight")
    rows = ((a, b, found.z[j, i]) for j, b in enumerate(found.y) for i, a in enumerate(found.x))
    _write(path, figure, ([*names, "weight"], (row for row in rows if np.isfinite(row[2]))))


def _colour(i: int) -> str:
    """Black for the first, which is the true reward; terms beyond the seventh begin again."""
    return COLOURS[(i - 1) % len(COLOURS)]


def _draw_episode(agent: dict[str, Any], episode: dict[str, Any], terms: list[str]) -> Any:
    title = f"one greedy episode: {agent['title']}, seed {agent['seed']}"
    figure, axes = _axes(title, "step of the episode", "reward of the step, stacked")
    parts, names = np.array(episode["parts"]), [f"weight x {term}" for term in terms]
    if len(parts) > SHOWN:
        order = np.argsort(-np.abs(parts).sum(axis=1), kind="stable")
        names = [*(names[k] for k in order[: SHOWN - 1]), f"{len(parts) - SHOWN + 1} smaller terms"]
        parts = np.concatenate([parts[order[: SHOWN - 1]], parts[order[SHOWN - 1 :]].sum(axis=0, keepdims=True)])
    stack(axes, np.array(episode["reward"]), parts)
    for i, name in enumerate(["true reward", *names]):
        axes.plot([], [], color=_colour(i), linewidth=6, label=name)
    figure.subplots_adjust(bottom=0.28)
    axes.legend(frameon=False, fontsize=7, ncols=3, loc="upper left", bbox_to_anchor=(0.0, -0.16))
    return figure


def stack(axes: Any, rewards: np.ndarray, parts: np.ndarray) -> None:
    """What each step paid: the true reward, and on it every weighted term (term, time); gains up, losses down."""
    steps = np.arange(1, len(rewards) + 1)
    above, below = np.zeros(len(steps)), np.zeros(len(steps))
    for i, values in enumerate([rewards, *parts]):
        for pile, add in ((above, np.maximum(values, 0)), (below, np.minimum(values, 0))):
            axes.fill_between(steps, pile, pile + add, step="mid", color=_colour(i), linewidth=0)
            pile += add
    axes.axhline(0.0, color="grey", linewidth=0.8)


def _episode_table(episode: dict[str, Any], terms: list[str]) -> tuple[Sequence[str], Rows]:
    head = ["step", "true reward", *chain(*((f"weight of {t}", f"weight x {t}") for t in terms)), "mean |action|"]
    columns = chain(*zip(episode["weights"], episode["parts"], strict=True))
    rows = zip(range(1, len(episode["reward"]) + 1), episode["reward"], *columns, episode["effort"], strict=True)
    return head, rows


def _draw_gradients(part: dict[str, Any]) -> Any:
    from matplotlib import pyplot as plt

    known = {key: words for key, words in GRADIENTS.items() if any(cell["gradients"][key] for cell in part["cells"])}
    figure, axes = plt.subplots(1, len(known), figsize=(0.5 + 3.5 * len(known), 3.4), squeeze=False)
    figure.subplots_adjust(left=0.05, right=0.99, bottom=0.15, top=0.9)
    axes = axes[0]
    for axis, (key, words) in zip(axes, known.items(), strict=True):
        for i, cell in enumerate(part["cells"]):
            curve = cell["gradients"][key]
            if curve:
                axis.plot(curve["steps"], _numbers(curve["median"]), **_style(i), label=cell["title"])
        axis.set_title(words)
        axis.set_xlabel("environment steps")
        axis.grid(alpha=0.25)
    axes[-1].legend(frameon=False, fontsize=7)
    return figure


def _gradient_table(lines: list[tuple[str, int, Any]]) -> tuple[Sequence[str], Rows]:
    rows = ((name, *point) for name, _, curve in lines for point in zip(curve["steps"], curve["median"], strict=True))
    return ["figure", "step", "median over seeds"], rows


def _verdict_table(collection: Collection) -> tuple[Sequence[str], Rows]:
    head = ["task", "term", "method", "advice", "strength", "why", "direction t", "true gradient t", "gain"]
    head += ["weight", "weight low", "weight high", "p10", "p90", "share"]

    def rows() -> Rows:
        for panel in collection.panels:
            for v in verdicts(panel):
                w, d = v.weights, v.direction
                known = ("", "") if d is None else (d.t, d.own)
                gain = "" if v.gain is None else "shown" if v.gain.gain else v.gain.outcome
                own = (w.mean.value, w.mean.low, w.mean.high, w.p10, w.p90, "" if w.share is None else w.share)
                yield (panel.env, v.term, v.cell.title, v.advice, v.strength, v.headline, *known, gain, *own)

    return head, rows()


def _together_table(collection: Collection) -> tuple[Sequence[str], Rows]:
    names = ("learned", "frozen", "scalars", "naive", "plain")
    head = ["task", "terms", "method", *(f"{name} return{end}" for name in names for end in ("", " low", " high"))]

    def rows() -> Rows:
        for panel in collection.panels:
            for judgement in judgements(panel):
                estimates = [judgement.together.returns.get(name) for name in names]
                numbers = [n for e in estimates for n in ((e.value, e.low, e.high) if e else ("", "", ""))]
                yield (panel.env, ", ".join(panel.terms), judgement.cell.title, *numbers)

    return head, rows()
