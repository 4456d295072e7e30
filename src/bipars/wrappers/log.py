"""What a term logger keeps: sums of every episode, how each reward was distributed, and two tables of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from bipars.errors import UsageError
from bipars.runs.metrics import encode_row
from bipars.terms.steps import source
from bipars.terms.term import RewardTerm

WIDTH = 80
"""Columns of a table."""
TRUE = "true reward"


class TermLog:
    """The true reward and every term, apart: by episode, and over all steps."""

    def __init__(self, terms: Sequence[str], num_envs: int, path: Path | None = None) -> None:
        """`path` is a file of one row of JSON per episode."""
        if path is not None and path.exists() and path.stat().st_size:
            raise UsageError(f"path is {path}, which holds something already. Choose another name, or delete it")
        self.names = (TRUE, *terms)
        self.episodes: list[dict[str, Any]] = []
        self.steps = 0
        self.path = path
        size = len(self.names)
        self._running, self._lengths = np.zeros((num_envs, size)), np.zeros(num_envs, int)
        self._sum, self._products = np.zeros(size), np.zeros((size, size))
        self._low, self._high = np.full(size, np.inf), np.full(size, -np.inf)

    def add(
        self, true: np.ndarray, values: np.ndarray, done: np.ndarray, taken: np.ndarray | None = None
    ) -> dict[int, dict[str, Any]]:
        """One step of all environments, or of those that have `taken` one. The episodes that ended, by environment."""
        rewards = np.column_stack([true, values])
        which = slice(None) if taken is None else np.flatnonzero(taken)
        some = rewards[which]
        self.steps += len(some)
        self._running[which] += some
        self._lengths[which] += 1
        self._sum += some.sum(axis=0)
        self._products += some.T @ some
        if len(some):
            self._low = np.minimum(self._low, some.min(axis=0))
            self._high = np.maximum(self._high, some.max(axis=0))
        over = done if taken is None else done & taken
        ended = {int(env): self._end(int(env)) for env in np.flatnonzero(over)}
        if ended and self.path is not None:
            with open(self.path, "ab") as file:
                file.write(b"".join(map(encode_row, ended.values())))
        return ended

    def _end(self, env: int) -> dict[str, Any]:
        row: dict[str, Any] = {
            "episode": len(self.episodes) + 1,
            "step": self.steps,
            "env": env,
            "length": int(self._lengths[env]),
            "true_return": float(self._running[env, 0]),
        }
        row |= {f"term/{name}": float(self._running[env, k]) for k, name in enumerate(self.names) if k}
        self.restart(env)
        self.episodes.append(row)
        return row

    def restart(self, env: int | slice = slice(None)) -> None:
        """An episode begins, whatever became of the one before."""
        self._running[env], self._lengths[env] = 0.0, 0

    def summary(self) -> str:
        """A table of every reward: its distribution over steps, per episode, and its correlation with the true one."""
        table = Table(title=f"{self.steps:,} steps, {len(self.episodes):,} episodes", box=box.ASCII2, width=WIDTH)
        table.add_column("", overflow="fold")
        for name in ("mean", "std", "min", "max", "per episode", "corr."):
            table.add_column(name, justify="right", no_wrap=True)
        count = max(self.steps, 1)
        mean = self._sum / count
        covariance = self._products / count - np.outer(mean, mean)
        std = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        for k, name in enumerate(self.names):
            key = "true_return" if k == 0 else f"term/{name}"
            sums = [row[key] for row in self.episodes]
            both = std[0] * std[k]
            figures = (mean[k], std[k], self._low[k], self._high[k], np.mean(sums) if sums else np.nan)
            correlation = f"{covariance[0, k] / both:+.2f}" if both > 0 else "-"
            table.add_row(name, *(f"{x:.3g}" if np.isfinite(x) else "-" for x in figures), correlation)
        return as_text(table)


def terms_table(terms: Sequence[RewardTerm], title: str, weights: Sequence[float] | None = None) -> str:
    """The terms by name, as trainers of robots print them before they begin."""
    table = Table(title=title, box=box.ASCII2, width=WIDTH)
    table.add_column("#", justify="right")
    table.add_column("term", overflow="fold")
    table.add_column("computed by", overflow="fold")
    if weights is not None:
        table.add_column("weight at start", justify="right")
    for k, term in enumerate(terms):
        table.add_row(str(k), term.name, source(term), *([] if weights is None else [f"{weights[k]:g}"]))
    return as_text(table)


def as_text(table: Table) -> str:
    console = Console(width=WIDTH, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table, markup=False)
    return captured.get().rstrip("\n")
