"""The commands that show what was learned, and whether it is intact: `report`, `watch`, `render` and `verify`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bipars.cli.consent import settle_imports, with_consent
from bipars.cli.suite import count_workers
from bipars.errors import BiparsError, printable


@dataclass(frozen=True, kw_only=True)
class OfRuns:
    """What is looked at."""

    directory: Annotated[Path, tyro.conf.Positional]
    """A run, a saved agent, or a directory of them, such as one of `bipars train` or `bipars suite`."""


@dataclass(frozen=True, kw_only=True)
class Report(OfRuns):
    """Say what to do with each reward term, and why: one page, report.html, and its figures.

    bipars report runs/harmful
    """

    text: bool = False
    """Print the verdict and write nothing."""
    compare: bool = False
    """First train the agents to compare with: with the terms as written, without them, and on the frozen weights, in
    both forms."""
    ablate: bool = False
    """First train the same agent without each term in turn."""
    out: Path | None = None
    """The page, by default report.html in the directory; pictures and tables go into a folder beside it."""
    workers: int = 0
    """Cores for --compare and --ablate, one per run, or one per thread of a run; 0 takes all."""
    allow_imports: bool = False
    """Import the code that a run's file names, such as import:module.function, for --compare and --ablate,
    without asking."""

    def run(self) -> int:
        from bipars.report.build import write_report
        from bipars.report.compare import make_comparisons
        from bipars.report.report import check_page
        from bipars.report.text import verdict_text
        from bipars.results.panels import collect

        workers = count_workers(self.workers)
        if self.out is not None:
            check_page(self.out)
        if self.compare or self.ablate:
            flags = " --compare" * self.compare + " --ablate" * self.ablate
            found = collect(self.directory)
            settle_imports(self.allow_imports)
            if not make_comparisons(found, workers, self.compare, self.ablate):
                print(f"stopped; continue with: bipars report {self.directory}{flags}")
                return 130
        collection = collect(self.directory)
        page = None if self.text else write_report(collection, self.out)
        print(verdict_text(collection))
        if page is not None:
            print(f"\nwritten: {page}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Watch(OfRuns):
    """Show the report in a browser on this machine, and keep it up to date while runs continue.

    bipars watch runs/harmful
    """

    port: int = 8765
    """Port on this machine; 0 takes any that is free."""

    def run(self) -> int:
        from bipars.report.watch import watch

        return watch(self.directory, self.port)


@dataclass(frozen=True)
class Render:
    """Draw an episode of a trained agent, with its weighted terms beside it, as GIF or MP4.

    bipars render runs/harmful/seed-0000
    """

    run_directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run, or a saved agent."""
    out: Path | None = None
    """The picture, .gif or .mp4; by default episode.gif in the run's directory."""
    seed: int = 0
    """Seed of the episode."""
    frames: int = 300
    """Most frames to draw; a longer episode is shown faster."""
    allow_imports: bool = False
    """Import the code that the run's file names, such as import:module.function, without asking."""

    def run(self) -> int:
        from bipars.report.render import render

        drawn = with_consent(self.allow_imports, lambda: render(self.run_directory, self.out, self.seed, self.frames))
        print(f"written: {drawn}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Verify(OfRuns):
    """Check that every file of the runs in a directory is what was written; exit with status 1 if one is not.

    bipars verify runs/harmful
    """

    def run(self) -> int:
        from bipars.runs.directory import find_runs
        from bipars.runs.verify import damages
        from bipars.suite.manifest import is_suite, read_manifest

        found: list[str] = []
        if is_suite(self.directory):
            try:
                read_manifest(self.directory)
            except BiparsError as error:
                found.append(str(error))
        runs = find_runs(self.directory)
        for run in runs:
            found += damages(run)
        for line in found:
            print(printable(f"DAMAGED {line}"))
        outcome = f"{len(found):,} problem{'s' * (len(found) > 1)}" if found else "all intact"
        if not found and (old := sum(not run.checksummed for run in runs)):
            outcome += f"; {old:,} of them are older than checksums, and only their checkpoints could be verified"
        print(f"{self.directory}: {len(runs):,} runs, {outcome}")
        return 1 if found else 0
