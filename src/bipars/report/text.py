"""The verdict in the terminal."""

import shlex
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from bipars.errors import BiparsError, RunDirectoryError
from bipars.results.formats import text_table
from bipars.results.panels import Cell, Collection, Panel, collect, relative
from bipars.results.summary import short_name
from bipars.results.verdict import Verdict, estimate, verdicts
from bipars.suite.manifest import is_suite, read_manifest
from bipars.suite.work import PlannedRun

WIDTH = 100
CAPTION = (
    "Steps and returns: per seed the mean of its last five evaluations, over seeds the interquartile mean with its "
    "95 % bootstrap interval. Weights: means."
)
"""What the figures of every table and sentence are."""


def show_results(runs: Sequence[PlannedRun], root: Path) -> None:
    """Prints what the runs reached and the verdict, if any of them is finished."""
    if any(run.finished for run in runs):
        try:
            collection = collect(root)
        except RunDirectoryError:  # all of them are damaged, as `finish` has said
            return
        print(results_text(collection))
        print()
        print(verdict_text(collection, failures=False))  # `finish` has named them


def results_text(collection: Collection) -> str:
    """What every method reached, in one table."""
    head = ["run", "seeds", "steps per episode (95 %)", "worst", "true return (95 %)", "mean weight"]
    cells = {cell.records[0].run.path: cell for panel in collection.panels for cell in panel.cells if cell.evaluated}
    rows = [_result(cell, relative(path.parent, collection.root)) for path, cell in cells.items()]
    return printable(text_table(head, rows))


def _result(cell: Cell, name: str) -> list[str]:
    step = cell.last_step
    lengths, returns = (cell.at_end(key, step) for key in ("evaluation_length", "evaluation_return"))
    weights = {term: cell.rows_at_end(f"weight/{term}", step) for term in cell.config.terms}
    means = ", ".join(f"{short_name(term)} {values.mean():+.2f}" for term, values in weights.items() if len(values))
    length, true = (figure.text() if (figure := estimate(values)) else "-" for values in (lengths, returns))
    return [name, str(len(cell.evaluated)), length, f"{lengths.min():.0f}" if len(lengths) else "-", true, means or "-"]


def verdict_text(collection: Collection, failures: bool = True) -> str:
    """Every panel's table, what it means in sentences, and what is missing; `failures`: also what failed."""
    parts = [_panel_text(panel, collection.root) for panel in collection.panels]
    about = [textwrap.fill(CAPTION, WIDTH)] if any(record.evaluations for record in collection.records) else []
    lines = [line for line in standing(collection) if failures or not line.startswith("FAILED")]
    return printable("\n\n".join([*parts, *about, *lines]))


def printable(text: str) -> str:
    """Names may hold anything; a terminal must not act on it."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


def _panel_text(panel: Panel, root: Path) -> str:
    found = verdicts(panel)
    if not found:
        return f"{panel.name}\n{no_verdict(panel)}"
    table = text_table(
        ["term", "method", "verdict", "mean weight (95 %)", "share", "true return", "naive shaping", "no shaping"],
        [_row(v) for v in found],
    )
    main = [v for v in found if v.cell is found[0].cell]
    words = "\n\n".join(_sentences(v) for v in main)
    end = list(dict.fromkeys(hint(v, root) for v in main if v.missing))
    return "\n\n".join([f"{panel.name}\n{table}", words, *end])


def _row(v: Verdict) -> list[str]:
    w = v.weights
    returns = [v.returns[name].text() if name in v.returns else "-" for name in ("learned", "naive", "plain")]
    share = "-" if w.share is None else f"{100 * w.share:.0f} %"
    mean = f"{w.mean.value:+.2f} ({w.mean.low:+.2f} to {w.mean.high:+.2f})"
    return [short_name(v.term), v.cell.label, v.word, mean, share, *returns]


def _sentences(v: Verdict) -> str:
    text = " ".join(
        [f"{short_name(v.term)}: {v.word}, {v.headline}.", *v.sentences, v.advice, *(f"({n}.)" for n in v.notes)]
    )
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def no_verdict(panel: Panel) -> str:
    """Why there is none."""
    if not panel.terms:
        return "No reward term here, so there is nothing to judge."
    if not any(cell.evaluated for cell in panel.cells):
        return "No evaluation yet, so there is nothing to judge."
    return "No run here learns weights (such as --method mgl), so the term cannot be judged."


def hint(v: Verdict, root: Path) -> str:
    """What to type for the comparison that is missing."""
    return f"{what_is_missing(v)} Make what is missing with: {compare_command(root)}"


COMPARED = {"naive": "the term as written (naive shaping)", "plain": "training without the term (no shaping)"}


def what_is_missing(v: Verdict) -> str:
    """Which of the two comparisons a verdict rests on, and which it lacks."""
    missing, there = (
        " and ".join(COMPARED[role] for role in COMPARED if (role in v.missing) is x) for x in (True, False)
    )
    if not there:
        return f"Weights only, no comparison: there is no run of {missing}."
    return f"Compared with {there} only: there is no run of {missing}."


def compare_command(root: Path) -> str:
    return f"bipars report {shlex.quote(str(root))} --compare"


def standing(collection: Collection) -> Iterable[str]:
    """Runs that are not finished, and what cannot be read."""
    records = collection.records
    for record in records:
        if record.status == "failed":
            yield f"FAILED {record.run.path}: {record.error}"
    for record in records:
        if record.status == "unreadable":
            yield f"MISSING {record.run.path}: {record.error}. Its seed is in no figure and no verdict"
    running, stopped = ([r.progress for r in records if r.status == status] for status in ("running", "stopped"))
    resume = "" if running else f"; go on with: bipars resume {shlex.quote(str(collection.root))}"
    if running:
        yield f"{len(running)} of {len(records)} runs still running, the last at {min(running):.0%}"
    if stopped:
        yield f"{len(stopped)} of {len(records)} runs stopped before the end, the last at {min(stopped):.0%}{resume}"
    waiting = sum(record.status == "waiting" for record in records) + _not_begun(collection)
    if waiting:
        yield f"{waiting} run{'s have' if waiting > 1 else ' has'} not begun{resume}"
    yield from collection.unreadable


def _not_begun(collection: Collection) -> int:
    """Runs that a suite plans and nobody has started yet."""
    if not is_suite(collection.root):
        return 0
    try:
        planned = read_manifest(collection.root).runs(collection.root)
    except BiparsError:
        return 0
    return sum(not run.directory.config_file.exists() for run in planned)
