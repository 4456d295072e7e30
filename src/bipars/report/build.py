"""`bipars report`: from a directory of runs to the page, and the folder of pictures and tables beside it."""

from pathlib import Path

from bipars.report.content import content
from bipars.report.figures import write_figures
from bipars.report.page import render_page
from bipars.results.panels import Collection
from bipars.runs.files import write_atomically


def write_report(collection: Collection, page: Path | None = None) -> Path:
    """Writes the page (by default into the runs' own directory) and returns where it is."""
    page = collection.root / "report.html" if page is None else page
    page.parent.mkdir(parents=True, exist_ok=True)
    data = content(collection)
    write_figures(collection, data, page.with_suffix(""))
    write_atomically(page, render_page(collection, data).encode())
    return page
