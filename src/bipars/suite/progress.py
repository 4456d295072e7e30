"""The progress of many runs: a table and bars, or plain lines where there is no terminal."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import TaskID
from rich.table import Table

from bipars.runs.progress import describe, make_bar
from bipars.suite.work import Standing

SECONDS_BETWEEN_LINES = 10.0
"""At most one line so often, where there is no terminal."""


class Pace:
    """Steps per second since the first look, and what is left at that pace."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.start: tuple[float, int] | None = None

    def figures(self, standing: Standing) -> dict[str, str]:
        now = self.clock()
        self.start = self.start or (now, standing.steps)
        seconds, steps = now - self.start[0], standing.steps - self.start[1]
        rate = steps / seconds if seconds > 0 else 0.0
        left = (standing.total_steps - standing.steps) / rate if rate > 0 else None
        return {
            "done": f"{standing.done:,} of {standing.total:,}",
            "running": str(len(standing.running)),
            "failed": str(standing.failed),
            "steps/s": f"{rate:,.0f}" if rate > 0 else "-",
            "time left": "-" if left is None else str(timedelta(seconds=round(left))),
        }


@contextmanager
def standing_bar(title: str) -> Iterator[Callable[[Standing], None]]:
    """For many runs in other processes: one table for all, one bar for each that is under way."""
    console = Console(stderr=True)
    yield from (_table if console.is_terminal else _lines)(title, console)


def _lines(title: str, console: Console) -> Iterator[Callable[[Standing], None]]:
    pace = Pace()
    said: tuple[int, int] | None = None
    due = 0.0

    def line(standing: Standing) -> None:
        nonlocal said, due
        now, figures = time.monotonic(), pace.figures(standing)
        state = standing.done, standing.failed
        if state != said and (now >= due or sum(state) == standing.total):
            said, due = state, now + SECONDS_BETWEEN_LINES
            text = ", ".join(f"{name} {value}" for name, value in figures.items())
            console.print(f"{title}: {text}", highlight=False, markup=False, soft_wrap=True)

    yield line


def _table(title: str, console: Console) -> Iterator[Callable[[Standing], None]]:
    pace, bar = Pace(), make_bar(console)
    tasks: dict[Path, TaskID] = {}

    def shown(figures: Mapping[str, str]) -> RenderableType:
        table = Table(title=title, title_justify="left")
        for name in figures:
            table.add_column(name, justify="right")
        table.add_row(*figures.values())
        return Group(table, bar)

    with Live(console=console, transient=True, refresh_per_second=4) as live:

        def show(standing: Standing) -> None:
            present = {running.run.path for running in standing.running}
            for path in tasks.keys() - present:
                bar.remove_task(tasks.pop(path))
            for run, row in standing.running:
                if run.path not in tasks:
                    tasks[run.path] = bar.add_task("/".join(run.path.parts[-4:]), total=run.config.steps, now="")
                bar.update(tasks[run.path], completed=row.get("step", 0), now=describe(row))
            live.update(shown(pace.figures(standing)))

        yield show
