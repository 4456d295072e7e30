"""The verdict in the terminal."""

import shlex
import textwrap
from collections.abc import Iterable
from pathlib import Path

from bipars.report.panels import Collection, Panel
from bipars.report.paper import not_begun
from bipars.report.summary import short_name
from bipars.report.tables import text_table
from bipars.report.verdict import Verdict, verdicts

WIDTH = 100


def verdict_text(collection: Collection) -> str:
    """Every panel's table, what it means in sentences, and what is missing."""
    parts = [_panel_text(panel, collection.root) for panel in collection.panels]
    return printable("\n\n".join([*parts, *standing(collection)]))


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
    end = [hint(panel, root)] if any(v.missing for v in main) else []
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


def hint(panel: Panel, root: Path) -> str:
    """What to type for the comparison that is missing."""
    return f"Weights only, no comparison. Make it with: {compare_command(root)}"


def compare_command(root: Path) -> str:
    return f"bipars report {shlex.quote(str(root))} --compare"


def standing(collection: Collection) -> Iterable[str]:
    """Runs that are not finished, and what cannot be read."""
    records = collection.records
    for record in records:
        if record.status == "failed":
            yield f"FAILED {record.run.path}: {record.error}"
    for status, words in (("going", "still going"), ("stopped", "stopped before the end")):
        some = [record for record in records if record.status == status]
        if some:
            least = min(record.progress for record in some)
            more = f"; go on with: bipars resume {shlex.quote(str(collection.root))}" if status == "stopped" else ""
            yield f"{len(some)} of {len(records)} runs {words}, the last at {least:.0%}{more}"
    waiting = not_begun(collection)
    if waiting:
        command = f"bipars resume {shlex.quote(str(collection.root))}"
        yield f"{waiting} runs of the suite have not begun; go on with: {command}"
    yield from collection.unreadable
