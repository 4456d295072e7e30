"""The verdict in the terminal."""

import shlex
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from bipars.errors import BiparsError, RunDirectoryError, printable
from bipars.results.comparison import estimate
from bipars.results.formats import text_table
from bipars.results.panels import Cell, Collection, Panel, collect, relative
from bipars.results.summary import short_name
from bipars.results.verdict import Judgement, judgements
from bipars.results.wording import Together, Verdict
from bipars.suite.manifest import is_suite, read_manifest
from bipars.suite.work import PlannedRun

WIDTH = 80
PARAGRAPHS = 6
"""Up to so many terms get a paragraph each; more of them, a table alone."""
HEADLINE = 26
"""Characters of what is said of a term in the table; its name gets what is left."""
FEW_WEIGHTS = 3
CAPTION = (
    "t: agreement of the term's gradient with the true reward's in standard errors (3 is clear). share: of the "
    "modified reward; where the true reward is mostly 0, a tiny weight has a large one. Returns: per seed the mean of "
    "the last five evaluations, over seeds the interquartile mean."
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
    means = means if len(weights) <= FEW_WEIGHTS else f"of {len(weights)} terms"
    length, true = (figure.text() if (figure := estimate(values)) else "-" for values in (lengths, returns))
    return [name, str(len(cell.evaluated)), length, f"{lengths.min():.0f}" if len(lengths) else "-", true, means or "-"]


def verdict_text(collection: Collection, failures: bool = True) -> str:
    """Every panel's table, what it means in sentences, and what is missing; `failures`: also what failed."""
    parts = [_panel_text(panel, collection.root) for panel in collection.panels]
    about = [_fill(CAPTION)] if any(record.evaluations for record in collection.records) else []
    lines = [line for line in standing(collection) if failures or not line.startswith("FAILED")]
    return printable("\n\n".join([*parts, *about, *lines]))


def _panel_text(panel: Panel, root: Path) -> str:
    found = judgements(panel)
    if not found:
        return f"{panel.name}\n{no_verdict(panel)}"
    main, *others = found
    parts = [
        f"{_shortened(panel_title(panel), WIDTH)}\n{_fill(together_text(main.together))}".rstrip(),
        verdict_table(main.verdicts),
    ]
    if len(main.verdicts) <= PARAGRAPHS:
        parts += [_fill(f"{short_name(v.term)}: {v.advice}. {v.evidence}") for v in main.verdicts]
    parts += [f"{other.cell.label}, which learns weights too\n{verdict_table(other.verdicts)}" for other in others]
    return "\n\n".join(
        [*parts, *(f"{_fill(why)}\n{textwrap.indent(what, '    ')}" for why, what in hints(panel, main, root))]
    )


def panel_title(panel: Panel) -> str:
    many = len(panel.terms) > PARAGRAPHS
    return f"{panel.env}: {len(panel.terms)} terms{panel.detail}" if many else panel.name


def strength(v: Verdict) -> str:
    return {"none": "-"}.get(v.strength, v.strength)


def together_text(together: Together) -> str:
    return " ".join([*together.sentences, *(f"({note}.)" for note in together.notes)])


def verdict_table(found: Sequence[Verdict]) -> str:
    """One line per term, at most 80 characters wide whatever the terms are called."""
    head = ["term", "advice", "evidence", "t", "share", "why"]
    rows = [head, *(_row(v) for v in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * (len(widths) - 1))
    rows = [[_without_middle(row[0], widths[0]), *row[1:]] for row in rows]
    aligned = (str.ljust, str.ljust, str.ljust, str.rjust, str.rjust, str.ljust)
    return "\n".join(
        "  ".join(align(text, width) for align, text, width in zip(aligned, row, widths, strict=True)).rstrip()
        for row in rows
    )


def _row(v: Verdict) -> list[str]:
    share = "-" if v.weights.share is None else f"{100 * v.weights.share:.0f} %"
    t = "-" if v.direction is None else f"{v.direction.t:+.1f}"
    return [short_name(v.term), v.advice, strength(v), t, share, _shortened(v.headline, HEADLINE)]


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _without_middle(name: str, width: int) -> str:
    """Names that share a beginning differ at their ends."""
    tail = (width - 1) * 2 // 3
    return name if len(name) <= width else f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def _fill(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def no_verdict(panel: Panel) -> str:
    """Why there is none."""
    if not panel.terms:
        return "No reward term here, so there is nothing to judge."
    if not any(cell.evaluated for cell in panel.cells):
        return "No evaluation yet, so there is nothing to judge."
    return "No run here learns weights (such as --method mgl), so the term cannot be judged."


def hints(panel: Panel, judgement: Judgement, root: Path) -> list[tuple[str, str]]:
    """What a verdict lacks, and what to type for it, in the library that trained."""
    together, found = judgement.together, []
    kind = judgement.cell.records[0].run.kind
    if together.missing and not (kind != "run" and together.silence):
        lacks = " and none ".join(MISSING[role] for role in together.missing)
        what = {"agent": COMPARE, "sb3": COMPARE_SB3}.get(kind, command(root, "--compare"))
        found.append((f"What the terms gain is not known yet: there is no training {lacks}. To compare:", what))
    unsure = any(v.gain is None and v.advice == "unsure" for v in judgement.verdicts)
    if kind == "run" and len(panel.terms) > 1 and unsure and not together.constant:
        found.append(("To train without each term in turn, and see what each gains:", command(root, "--ablate")))
    return found


COMPARE = "bipars.compare(make_env, terms, total_timesteps, seeds=5)  # or an id"
COMPARE_SB3 = """for method in ("mgl", "ppo", "ns"):  # learned weights, none, as written
    for seed in range(5):
        out = f"runs/{method}/seed-{seed}"
        ShapedPPO(..., method=method, seed=seed, out=out).learn(steps)
# then, in a terminal: bipars report runs"""
MISSING = {"naive": "with the terms as written (naive shaping)", "plain": "without them (no shaping)"}


def command(root: Path, flag: str) -> str:
    return f"bipars report {shlex.quote(str(root))} {flag}"


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
    resume = "" if running else f"; continue with: bipars resume {shlex.quote(str(collection.root))}"
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
