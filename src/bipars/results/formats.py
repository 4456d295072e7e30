"""Tables for the terminal and for spreadsheets."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would take for a formula."""


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown, readable in a terminal too."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"

    return "\n".join([line(head), line(["-" * width for width in widths]), *(line(row) for row in rows)])


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Numbers as they are; names that a spreadsheet would execute get an apostrophe in front."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([harmless(name) for name in head])
    writer.writerows([harmless(value) for value in row] for row in rows)
    return out.getvalue()


def harmless(value: Any) -> Any:
    """Spreadsheets pass over leading blanks."""
    formula = isinstance(value, str) and (value.lstrip().startswith(FORMULA) or value.startswith(FORMULA))
    return f"'{value}" if formula else value
