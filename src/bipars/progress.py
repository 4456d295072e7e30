"""Progress bars, and plain lines where there is no terminal."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from bipars.suite.local import Progress as Standing


def describe(row: Mapping[str, Any]) -> str:
    """The current evaluation and mean weights, in one line."""
    if not row:
        return "starting (compiling)"
    weights = "  ".join(f"z[{k[7:]}] {v:+.2f}" for k, v in row.items() if k.startswith("weight/"))
    return f"return {row['evaluation_return']:.2f}  steps {row['evaluation_length']:.0f}  {weights}".rstrip()


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}", style="dim", markup=False),
        console=console,
        transient=True,
    )


@contextmanager
def training_bar(total: int, enabled: bool) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """For one agent in this process."""
    if not enabled:
        yield lambda steps, row: None
        return
    with _bar(Console(stderr=True)) as bar:
        task = bar.add_task("training", total=total, now="")
        yield lambda steps, row: bar.update(task, advance=steps, now=describe(row))


@contextmanager
def standing_bar(title: str, total_steps: Mapping[str, int]) -> Iterator[Callable[[Standing], None]]:
    """For many runs in other processes: one bar for all, one for each that is under way."""
    console = Console(stderr=True)
    if not console.is_terminal:
        said = -1

        def line(standing: Standing) -> None:
            nonlocal said
            if standing.done != said:
                said = standing.done
                console.print(f"{title}: {standing.done} of {standing.total} runs done", highlight=False)

        yield line
        return
    with _bar(console) as bar:
        overall = bar.add_task(title, total=len(total_steps), now="")
        tasks: dict[str, TaskID] = {}

        def show(standing: Standing) -> None:
            bar.update(overall, completed=standing.done)
            for path in [path for path in tasks if path not in standing.rows]:
                bar.remove_task(tasks.pop(path))
            for path, row in standing.rows.items():
                if path not in tasks:
                    tasks[path] = bar.add_task(Path(path).name, total=total_steps[path], now="")
                bar.update(tasks[path], completed=row.get("step", 0), now=describe(row))

        yield show
