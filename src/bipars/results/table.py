"""`bipars.load_results`: every seed and evaluation below a directory as one tidy table."""

import io
import logging
import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from bipars.errors import BiparsError, UsageError
from bipars.results.formats import csv_text
from bipars.results.statistics import evaluation_grid, newest_on_grid
from bipars.runs.directory import RunDirectory, find_runs
from bipars.runs.files import write_atomically
from bipars.runs.metrics import evaluated

if TYPE_CHECKING:
    import polars

    from bipars.results.frame import Results

logger = logging.getLogger("bipars")


def load_results(directory: str | os.PathLike[str], grid: int | None = None) -> "Results":
    """One row per run and evaluation: where it belongs (cell, env, terms, method, seed), its step and every metric.

    `grid` lays the rows on every so many steps instead, such as the paper's 4,000: a policy's figures hold until the
    next one is evaluated. Runs that are not finished give the rows they have; damaged ones are named in a warning and
    left out. The table is Polars'; `.to_pandas()` makes it pandas'.
    """
    polars = _polars()
    from bipars.results.frame import Results

    if grid is not None and grid < 1:
        raise UsageError(f"grid is {grid}; expected a number of steps, such as 4000")
    root = Path(directory)
    frames = []
    for run in find_runs(root):
        try:
            frames += [_frame(run, root, grid)] if run.kind == "run" else []
        except BiparsError as error:
            logger.warning("%s is left out: %s", run.path, error)
    frames = [frame for frame in frames if frame.height]
    if not frames:
        raise UsageError(f"{root} holds no evaluation yet")
    return Results(polars.concat(frames, how="diagonal_relaxed"))


def _frame(run: RunDirectory, root: Path, grid: int | None) -> "polars.DataFrame":
    config = run.config
    rows = evaluated(run.metrics, config.evaluation_every, run.finished)
    steps = np.array([row["step"] for row in rows], int)
    if grid is not None and rows:
        wanted = evaluation_grid(rows[-1]["step"], grid)
        newest = newest_on_grid(steps, wanted)
        steps, rows = wanted[newest >= 0], [rows[i] for i in newest[newest >= 0]]
    names = dict.fromkeys(name for row in rows for name in row if name not in ("step", "nonfinite"))
    return _polars().DataFrame(
        {
            "cell": [str(run.path.parent.relative_to(root)) if run.path != root else "."] * len(rows),
            "env": [config.env] * len(rows),
            "terms": ["+".join(config.terms)] * len(rows),
            "method": [config.method] * len(rows),
            "seed": [config.seed] * len(rows),
            "step": steps,
        }
        | {name: [row.get(name) for row in rows] for name in names}
    )


def export(directory: Path, grid: int | None = None) -> list[Path]:
    """The table as CSV and as Parquet, beside the runs."""
    table = load_results(directory, grid)
    parquet = io.BytesIO()
    table.write_parquet(parquet)
    text = csv_text(table.columns, table.iter_rows())
    written = {directory / "curves.csv": text.encode(), directory / "curves.parquet": parquet.getvalue()}
    for path, content in written.items():
        write_atomically(path, content)
    return list(written)


def _polars() -> ModuleType:
    try:
        import polars
    except ImportError:
        raise UsageError(
            "a table of results needs a package that is not installed: pip install 'bipars[tables]'"
        ) from None
    return polars
