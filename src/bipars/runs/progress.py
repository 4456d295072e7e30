"""How a run that is under way is shown."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def describe(row: Mapping[str, Any]) -> str:
    """The current evaluation and mean weights, in one line."""
    if not row:
        return "starting (compiling)"
    weights = "  ".join(f"z[{k[7:]}] {v:+.2f}" for k, v in row.items() if k.startswith("weight/") and v is not None)
    if row["evaluation_return"] is None or row["evaluation_length"] is None:
        return f"not evaluated yet  {weights}".rstrip()
    return f"return {row['evaluation_return']:.2f}  steps {row['evaluation_length']:.0f}  {weights}".rstrip()


def make_bar(console: Console) -> Progress:
    """A line per run: its name, how far it is, and how it does now."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}", style="dim", markup=False),
        console=console,
        transient=True,
    )
