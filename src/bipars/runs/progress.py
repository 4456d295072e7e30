"""How a run that is under way is shown."""

import html
import sys
import time
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


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, such as Jupyter's."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookBar:
    """A bar below the cell that trains, redrawn in its place. It needs no widgets."""

    SECONDS = 0.2
    """Between two drawings."""

    def __init__(self, total: int) -> None:
        from IPython.display import display

        self._total, self._done, self._start, self._drawn = total, 0, time.monotonic(), 0.0
        self._handle: Any = display(self._page({}), raw=True, display_id=True)

    def advance(self, steps: int, row: Mapping[str, Any]) -> None:
        self._done += steps
        now = time.monotonic()
        if self._done >= self._total or now - self._drawn >= self.SECONDS:
            self._drawn = now
            self._handle.update(self._page(row), raw=True)

    def _page(self, row: Mapping[str, Any]) -> dict[str, str]:
        """As HTML, and as text for what shows none."""
        passed = time.monotonic() - self._start
        left = f", {passed * (self._total - self._done) / self._done:.0f} s left" if self._done else ""
        text = f"{self._done:,}/{self._total:,} steps{left}  {describe(row)}"
        bar = f'<progress value="{self._done}" max="{self._total}"></progress> '
        return {"text/html": bar + html.escape(text), "text/plain": text}
