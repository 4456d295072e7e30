"""The commands that show what was learned: `report`, `watch` and `render`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Report:
    """Say which reward terms help, where, and how that is known: one page, report.html, and its figures.

    bipars report runs/harmful
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """A run, or a directory of runs, such as one of `bipars train` or `bipars suite`."""
    text: bool = False
    """Print the verdict and write nothing."""
    compare: bool = False
    """First train what the verdict lacks: the same with the term as written, and without it."""
    out: Path | None = None
    """The page, by default report.html in the directory; pictures and tables go into a folder beside it."""
    workers: int = 0
    """Processes for --compare, one core each; 0 takes all cores."""

    def run(self) -> int:
        from bipars.cli import count_workers
        from bipars.report.build import write_report
        from bipars.report.compare import make_comparisons
        from bipars.report.panels import collect
        from bipars.report.text import verdict_text

        workers = count_workers(self.workers)
        if self.compare and not make_comparisons(collect(self.directory), workers):
            print(f"stopped; go on with: bipars report {self.directory} --compare")
            return 130
        collection = collect(self.directory)
        print(verdict_text(collection))
        if not self.text:
            print(f"\nwritten: {write_report(collection, self.out)}")
        return 0
