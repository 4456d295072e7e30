"""`bipars suite ...` and `bipars resume`: each a dataclass whose fields are the flags, their docstrings the help."""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bipars.cli.asked import subcommands
from bipars.cli.consent import settle_imports, with_consent
from bipars.cli.last_words import last_words
from bipars.errors import BiparsError, UsageError
from bipars.runtime import cores
from bipars.suite.shipped import no_suite, shipped, template

if TYPE_CHECKING:
    from bipars.suite.finish import Engine
    from bipars.suite.manifest import Manifest
    from bipars.suite.plan import Changes, Suite


EngineName = Literal["local", "ray"]


def count_workers(asked: int) -> int:
    if asked < 0:
        raise UsageError(f"--workers is {asked}; expected a number of cores, or 0 for all")
    return asked or cores()


@dataclass(frozen=True, kw_only=True)
class OnEngine:
    """Where runs are executed."""

    workers: int = 0
    """Cores to use: one per run, or one per thread of a run; 0 takes all."""
    engine: EngineName = "local"
    """local: processes on this machine; ray: tasks on a Ray cluster."""
    address: str | None = None
    """Address of an existing Ray cluster, such as auto or 10.0.0.1:6379; without it Ray is started here."""

    def make_engine(self) -> "Engine":
        """Checked before any work starts."""
        from bipars.suite.finish import local_engine, ray_engine

        count = count_workers(self.workers)
        if self.engine == "ray":
            return ray_engine(count if self.address is None else self.workers or None, self.address)
        if self.address is not None:
            raise UsageError(f"--address is '{self.address}', which is for --engine ray; --engine is local")
        return local_engine(count)


def say_rounding(suite: "Suite") -> None:
    """Steps that somebody asked for and that are no whole number of updates."""
    rounded = [cell for cell in suite.cells if cell.config.whole_steps != cell.config.steps]
    if rounded:
        config = rounded[0].config
        print(
            f"{len(rounded)} of {len(suite.cells)} cells train for more steps than asked, such as {rounded[0].name} "
            f"for {config.whole_steps:,} instead of {config.steps:,}: {config.whole_updates}"
        )


def _finish_suite(manifest: "Manifest", root: Path, engine: "Engine") -> int:
    """Runs what is missing, then writes the results; a command that was told to stop leaves at once."""
    from bipars.report.suite_files import write_results
    from bipars.report.text import show_results
    from bipars.suite.finish import STOPPED, finish

    runs = manifest.runs(root)
    status = finish(runs, root, engine)
    if status != STOPPED:
        show_results(runs, root)
        write_results(manifest, root)
    return status


@dataclass(frozen=True, kw_only=True)
class Resume(OnEngine):
    """Finish everything unfinished below a directory, each run from its last checkpoint."""

    directory: Annotated[Path, tyro.conf.Positional]
    """A run, a directory of runs, or the directory of a suite."""
    allow_imports: bool = False
    """Import the code that the runs' files name, such as import:module.function, without asking."""

    def run(self) -> int:
        from bipars.report.text import show_results
        from bipars.runs.directory import find_runs, in_python_message
        from bipars.suite.finish import FAILED, STOPPED, finish, runner_of
        from bipars.suite.manifest import is_suite, read_manifest
        from bipars.suite.work import existing

        engine = self.make_engine()
        if is_suite(self.directory):
            with runner_of(self.directory):
                manifest = read_manifest(self.directory)
                settle_imports(self.allow_imports)
                return _finish_suite(manifest, self.directory, engine)
        found, runs, damaged = find_runs(self.directory), [], []
        for run in found:
            try:
                runs += existing([run] if run.kind == "run" else [])
            except BiparsError as error:
                damaged.append(error)
        if not runs:
            raise damaged[0] if damaged else UsageError(in_python_message(found[0]))
        for damage in damaged:
            print(f"DAMAGED {damage}", file=sys.stderr)
        settle_imports(self.allow_imports)
        with runner_of(self.directory):
            status = finish(runs, self.directory, engine)
        if status != STOPPED:
            show_results(runs, self.directory)
        return status or (FAILED if damaged else status)


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A suite's file, with changes."""

    seeds: str | None = None
    """Seeds instead of the suite's own, such as 0-4."""
    steps: int | None = None
    """Environment steps instead of the suite's own, rounded up to whole updates."""
    scale: float = 1.0
    """Multiplies all numbers of steps: 0.1 for a quick look."""
    allow_imports: bool = False
    """Import the code that the TOML file names, such as import:module.function, without asking."""

    @property
    def changes(self) -> "Changes":
        from bipars.suite.plan import Changes

        return Changes(self.seeds, self.steps, self.scale)


@dataclass(frozen=True, kw_only=True)
class Run(OnEngine, Changed):
    """Run suites: grids of environments, terms, methods and seeds. Finished runs are not repeated.

    bipars suite run paper/fig3 --out runs/fig3
    """

    suite: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="SUITE [SUITE ...]", help_behavior_hint="(required)"),
    ]
    """Names of shipped suites, or TOML files; what several have in common is run once."""
    out: Path
    """Directory for the runs and their results."""

    def run(self) -> int:
        from bipars.runs.root import check_root
        from bipars.suite.finish import runner_of
        from bipars.suite.manifest import is_suite, record
        from bipars.suite.plan import load_suites
        from bipars.suite.work import check_cores

        engine = self.make_engine()
        if not self.suite:
            raise UsageError(f"which suite? Known: {', '.join(shipped())}; or a TOML file of your own")
        with last_words(f"an environment of {', '.join(self.suite)}"):
            suite = with_consent(self.allow_imports, lambda: load_suites(self.suite, self.changes))
        if not is_suite(self.out):
            check_root(self.out)
        if self.address is None:
            for cell in suite.cells:
                check_cores(cell.name, cell.config, count_workers(self.workers))
        if self.steps is not None or self.scale != 1:
            say_rounding(suite)
        with runner_of(self.out):
            return _finish_suite(record(self.out, suite, self.suite, self.changes), self.out, engine)


@dataclass(frozen=True)
class ListSuites:
    """List the suites that come with bipars."""

    def run(self) -> int:
        from bipars.suite.plan import load_suite

        width = max(map(len, shipped()))
        for name in shipped():
            with warnings.catch_warnings(action="ignore"):
                suite = load_suite(name)
            runs = sum(len(cell.seeds) for cell in suite.cells)
            print(f"{name:{width}} {len(suite.cells):4} cells {runs:6,} runs   {suite.title}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Show(Changed):
    """Show what a suite consists of: its cells, seeds and steps, and its panels."""

    suite: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SUITE")]
    """Name of a shipped suite, or a TOML file."""

    def run(self) -> int:
        from bipars.suite.plan import load_suite

        with warnings.catch_warnings(action="ignore" if self.suite in shipped() else None):
            suite = with_consent(self.allow_imports, lambda: load_suite(self.suite, self.changes))
        print(suite.title)
        width = max((len(cell.name) for cell in suite.cells), default=0)
        for cell in suite.cells:
            reused = f"  weights of {cell.weights_from}" if cell.weights_from else ""
            print(f"  {cell.name:{width}} {len(cell.seeds):4} seeds {cell.config.steps:>10,} steps{reused}")
        steps = sum(len(cell.seeds) * cell.config.steps for cell in suite.cells)
        print(f"{sum(len(cell.seeds) for cell in suite.cells):,} runs, {steps:,} environment steps")
        for panel in suite.panels:
            print(f"panel {panel.name}: {panel.title}, {len(panel.statements)} statements of the paper")
        return 0


@dataclass(frozen=True)
class Status:
    """Show how far a suite has come, cell by cell."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Directory of a suite."""

    def run(self) -> int:
        from bipars.suite.status import show_status

        return show_status(self.directory)


@dataclass(frozen=True)
class Export:
    """Write every evaluation of every seed as CSV and Parquet, the paper's statements next to the results, and the
    table of pairs of environment and terms."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Directory of a suite."""
    grid: int | None = None
    """Lay the rows on every so many steps, such as the paper's 4000; without it, one row per evaluation."""

    def run(self) -> int:
        from bipars.report.suite_files import write_pairs, write_paper
        from bipars.results.table import export
        from bipars.suite.manifest import read_manifest

        manifest = read_manifest(self.directory)
        written = export(self.directory, self.grid)
        files = write_paper(manifest, self.directory) + write_pairs(manifest, self.directory)
        written += [self.directory / name for name in files]
        print(f"written: {', '.join(map(str, written))}")
        return 0


@dataclass(frozen=True)
class Template:
    """Print a suite file to start your own from: bipars suite template > mine.toml."""

    def run(self) -> int:
        print(template(), end="")
        return 0


COMMANDS = {
    "list": ListSuites, "show": Show, "run": Run, "status": Status, "export": Export, "template": Template
}  # fmt: skip


@dataclass(frozen=True)
class SuiteCommand:
    """Grids of runs: list, show, run, status, export, template."""

    command: Annotated[subcommands(COMMANDS), tyro.conf.arg(name="")]  # type: ignore[valid-type]
    """One of these."""

    def run(self) -> int:
        return self.command.run()


def with_run(arguments: Sequence[str]) -> list[str]:
    """`bipars suite NAME ...` is short for `bipars suite run NAME ...`."""
    if len(arguments) < 2 or arguments[0] != "suite" or arguments[1] in COMMANDS or arguments[1].startswith("-"):
        return list(arguments)
    name = arguments[1]
    if name not in shipped() and not Path(name).is_file():
        raise no_suite("suite or command", name, [*shipped(), *COMMANDS])
    return ["suite", "run", *arguments[1:]]
