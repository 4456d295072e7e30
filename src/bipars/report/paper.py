"""The paper's statements beside our figures, where the runs are those of one of its suites."""

from typing import Any

from bipars.errors import BiparsError
from bipars.report.panels import Collection
from bipars.suite.manifest import is_suite, read_manifest
from bipars.suite.panels import MEASURES
from bipars.suite.paper import findings


def paper_beside(collection: Collection) -> list[dict[str, Any]]:
    """Per panel that the paper speaks of: its statements, each with what came out here."""
    if not is_suite(collection.root):
        return []
    try:
        found = findings(read_manifest(collection.root), collection.root)
    except BiparsError:
        return []  # the runs themselves say what is damaged
    sections = []
    for i, panel in enumerate(collection.panels):
        places = {r.run.path.parent.relative_to(collection.root).as_posix() for c in panel.cells for r in c.records}
        rows = [
            {
                "says": f.says,
                "cell": f.cell.rpartition("/")[2],
                "what": MEASURES[f.measure],
                "here": f"{f.value:.2f} ({f.low:.2f} to {f.high:.2f}), {f.seeds} seed{'s' if f.seeds != 1 else ''}",
                "expected": f.expected,
                "verdict": f.verdict,
            }
            for f in found
            if f.cell in places
        ]
        if rows:
            sections.append({"panel": i, "rows": rows})
    return sections


def not_begun(collection: Collection) -> int:
    """Runs that a suite plans and nobody has started yet."""
    if not is_suite(collection.root):
        return 0
    try:
        planned = read_manifest(collection.root).runs(collection.root)
    except BiparsError:
        return 0
    return sum(not run.directory.config_file.exists() for run in planned)
