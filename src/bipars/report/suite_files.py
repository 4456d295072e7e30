"""What a suite leaves beside its runs: tables, the paper next to us, and the panels as pictures."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from bipars.report.curves import plot_curves
from bipars.report.figures import write_map
from bipars.report.heatmap import HeatMap as DrawnMap
from bipars.report.pairs import FILE, as_json, pairs
from bipars.report.pairs import as_markdown as pairs_as_markdown
from bipars.report.paper import as_markdown, findings
from bipars.results.dimensions import input_names
from bipars.results.summary import ABOUT, summarise_runs, table, to_csv
from bipars.runs.directory import RunDirectory
from bipars.runs.files import refuse_links, write_atomically, write_json
from bipars.suite.manifest import Manifest
from bipars.suite.panels import HeatMap, Panel
from bipars.trained import TrainedAgent

MOST_FIGURES = 60
"""More pictures than this nobody asked for."""


def write_results(manifest: Manifest, root: Path) -> None:
    """The table as Markdown, every seed as CSV, the panels, and the paper's statements beside our figures."""
    cells = manifest.finished_runs(root)
    if not cells:
        return
    summaries = summarise_runs([run for runs in cells.values() for run in runs], root)
    write_atomically(root / "results.md", f"{table(summaries)}\n\n{ABOUT}\n".encode())
    write_atomically(root / "results.csv", to_csv(summaries).encode())
    written = ["results.md", "results.csv", *write_paper(manifest, root), *write_pairs(manifest, root)]
    panels = manifest.suite.panels or _panels_by_term(list(cells))
    if len(panels) > MOST_FIGURES:
        print(f"no figures drawn: {len(panels)} environments with their terms are too many; declare [[panel]]s")
    else:
        refuse_links(root / "figures")
        (root / "figures").mkdir(exist_ok=True)
        written.append("figures")
        for panel in panels:
            _draw(panel, cells, root / "figures")
    print(f"written: {', '.join(str(root / name) for name in written)}")


def write_paper(manifest: Manifest, root: Path) -> list[str]:
    """paper.json for programs and paper.md for people, where the suite knows what the paper says."""
    found = findings(manifest, root)
    if not found:
        return []
    write_json(root / "paper.json", [asdict(finding) for finding in found])
    titles = {panel.name: panel.title for panel in manifest.suite.panels}
    write_atomically(root / "paper.md", as_markdown(found, titles).encode())
    return ["paper.json", "paper.md"]


def write_pairs(manifest: Manifest, root: Path) -> list[str]:
    """pairs.json for programs and pairs.md for people, where the suite is one of pairs of environment and terms."""
    found = pairs(manifest, root)
    if not found:
        return []
    write_json(root / FILE, as_json(found))
    write_atomically(root / "pairs.md", pairs_as_markdown(found).encode())
    return [FILE, "pairs.md"]


def _panels_by_term(names: Sequence[str]) -> list[Panel]:
    """Without panels of its own, a suite shows one per environment and term."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        env, term, _ = name.split("/")
        groups.setdefault((env, term), []).append(name)
    return [Panel(f"{env}-{term}", f"{env}, {term}", tuple(cells)) for (env, term), cells in groups.items()]


def _draw(panel: Panel, cells: dict[str, list[RunDirectory]], figures: Path) -> None:
    names = [name for name in panel.cells if name in cells]
    if names:
        plot_curves(
            {label: cells[name] for label, name in _labels(names).items()}, panel.title, figures / f"{panel.name}.png"
        )
    if panel.heat_map is not None and panel.heat_map.cell in cells:
        draw_heat_map(panel.heat_map, cells[panel.heat_map.cell], panel.title, figures / panel.name)


def _labels(names: Sequence[str]) -> dict[str, str]:
    """The method's part of the name, with the term's where that is not enough."""
    last = [name.rpartition("/")[2] for name in names]
    return {
        label if last.count(label) == 1 else name.partition("/")[2]: name
        for label, name in zip(last, names, strict=True)
    }


def draw_heat_map(asked: HeatMap, runs: Sequence[RunDirectory], title: str, path: Path) -> None:
    """The weight over a grid of states, of the seed that balances best, for the action that its policy takes there."""
    best = max(runs, key=lambda run: run.result["evaluation_length"])
    agent = TrainedAgent.load(best.path)
    x, y = np.linspace(*asked.x_range, asked.points), np.linspace(*asked.y_range, asked.points)
    states = np.tile(np.array(asked.state, np.float32), (asked.points, asked.points, 1))
    states[..., asked.x], states[..., asked.y] = x[None], y[:, None]
    flat = states.reshape(-1, len(asked.state))
    actions, _ = agent.predict(flat, deterministic=True)
    weights = agent.weights(flat, actions)[:, 0].reshape(asked.points, asked.points)
    names = input_names(best.config.env, len(asked.state), 1)
    write_map(path, DrawnMap(x, y, weights), (names[asked.x], names[asked.y]), f"{title} (seed {best.config.seed})")
