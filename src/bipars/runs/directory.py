"""One directory per run: config.json, metrics.jsonl, timings.jsonl, checkpoints/, and result.json when it is done."""

import functools
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from bipars.errors import BiparsError, CheckpointError, RunDirectoryError, UsageError, printable
from bipars.runs.checkpoint import newest_manifest
from bipars.runs.consent import remember, take_names
from bipars.runs.files import (
    LEFTOVERS,
    find_below,
    is_number,
    is_unused,
    read_file,
    read_json,
    refuse_links,
    sha256,
    verify_checksum,
    write_checked,
)
from bipars.runs.lock import held, locked
from bipars.runs.metrics import parse_metrics
from bipars.runs.versions import env_spec, versions
from bipars.settings.importing import named_code
from bipars.settings.resolved import ResolvedConfig

Kind = Literal["run", "agent", "sb3"]
"""Made by training on disk, by `agent.save`, or by `bipars.sb3.ShapedPPO`."""
State = Literal["done", "running", "failed", "stopped", "waiting"]
"""`running`: a live process owns it. `waiting`: nothing has come of it yet."""

FORMAT = 3
"""Of a run's files; runs of other formats are refused, but for those ..."""
WITHOUT_CHECKSUM = 2
"""... of the one before it, which differs in that its files have no checksum of their own."""
LONGEST_NAME = 1_000
"""Characters of a setting that is text ..."""
LONGEST_ERROR = 5_000
"""... and of why a run failed."""


KINDS = {"agent": "a saved agent", "sb3": "the record of a bipars.sb3.ShapedPPO"}
"""What is no training run, in words."""


class RunDirectory:
    """Names and guards the files of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.timings_file = self.path / "timings.jsonl"
        self.result_file = self.path / "result.json"
        self.error_file = self.path / "error.json"
        self.checkpoints = self.path / "checkpoints"
        self.snapshots = self.path / "snapshots"
        self.lock_file = self.path / "lock"
        self.tensorboard = self.path / "tensorboard"

    @property
    def written(self) -> tuple[Path, ...]:
        """All that training writes."""
        return (
            self.config_file, self.metrics_file, self.timings_file, self.result_file, self.error_file,
            self.checkpoints, self.snapshots, self.lock_file, self.tensorboard,
        )  # fmt: skip

    @staticmethod
    def create(
        path: str | os.PathLike[str],
        config: ResolvedConfig,
        kind: Kind = "run",
        objects: Mapping[str, Any] | None = None,
    ) -> "RunDirectory":
        """A new run or saved agent, or the same one again; a directory that holds anything else is refused.

        `objects` says what of it were Python objects, which no file can hold.
        """
        run = RunDirectory(path)
        elsewhere = {"run": "Choose another --out", "sb3": "Choose another out"}.get(kind, "Save to another directory")
        own = None if objects is None else dict(objects)
        refuse_links(*run.written)
        try:
            if run.config_file.exists():
                run._check_same(config, kind, own, elsewhere)
                return run
            if run.path.exists() and not is_unused(run.path):
                raise RunDirectoryError(f"{run.path} exists and is not a run of bipars. {elsewhere}")
            run.path.mkdir(parents=True, exist_ok=True)
            write_checked(
                run.config_file,
                {
                    "format": FORMAT,
                    "kind": kind,
                    "config": config.to_dict(),
                    "objects": own,
                    "env_spec": env_spec(config.env),
                    "versions": versions(),
                    "command": sys.argv,
                },
                replace=False,
            )
            if named_code(config):
                remember(run.config_file, read_file(run.config_file))
        except FileExistsError:  # another process was quicker
            run._check_same(config, kind, own, elsewhere)
        except OSError as error:
            raise RunDirectoryError(f"{run.path} cannot be used: {error.strerror}. {elsewhere}") from error
        return run

    def _check_same(self, config: ResolvedConfig, kind: Kind, objects: dict[str, Any] | None, elsewhere: str) -> None:
        if self.kind != kind:
            what = "a training run, whose files saving would destroy" if self.kind == "run" else KINDS[self.kind]
            raise RunDirectoryError(f"{self.path} is {what}. {elsewhere}")
        difference = _difference(self.config.flat(), config.flat())
        if not difference and objects != self.objects:
            difference = f"your own Python objects: {self.objects} there, {objects} now"
        if difference:
            what = "an agent" if kind == "agent" else "a run"
            raise RunDirectoryError(
                f"{self.path} holds {what} with other settings ({difference}). {elsewhere}, or delete it"
            )

    @functools.cached_property
    def config(self) -> ResolvedConfig:
        """Written once, so read once."""
        try:
            config = ResolvedConfig.read(self._about["config"])
            for name, value in config.flat().items():
                for text in value if isinstance(value, list) else (value,):
                    if isinstance(text, str) and len(text) > LONGEST_NAME:
                        raise UsageError(f"{name} has {len(text):,} characters; expected at most {LONGEST_NAME:,}")
        except (UsageError, OverflowError) as error:
            raise RunDirectoryError(f"{self.config_file} cannot be used: {error!s:.300}") from error
        if names := named_code(config):
            take_names(names, self.config_file, read_file(self.config_file))
        return config

    @property
    def kind(self) -> Kind:
        kind = self._about.get("kind")
        return kind if kind in KINDS else "run"

    @property
    def in_python(self) -> bool:
        """Whether it was trained in Python, for as long as it was asked to, and cannot go on without Python."""
        return self.kind != "run"

    @property
    def objects(self) -> dict[str, Any] | None:
        """What of it were Python objects: env, terms, true_reward; None where nobody recorded it."""
        objects = self._about.get("objects")
        if objects is None:
            return None
        terms = objects.get("terms", []) if isinstance(objects, dict) else None
        if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
            raise RunDirectoryError(f"{self.config_file} is damaged: its objects are {objects!r:.80}")
        return objects

    @property
    def checksummed(self) -> bool:
        """Whether its files have checksums: runs of earlier versions have none."""
        return self._about["format"] != WITHOUT_CHECKSUM

    @functools.cached_property
    def _about(self) -> dict[str, Any]:
        about, content = self._read(self.config_file)
        if not isinstance(about.get("config"), dict):
            raise RunDirectoryError(
                f"{self.config_file} is not of bipars: it has no settings of a run under 'config'. Move it elsewhere"
            )
        if about.get("format") not in (FORMAT, WITHOUT_CHECKSUM):
            versions = about.get("versions")
            written = versions.get("bipars") if isinstance(versions, dict) else None
            raise RunDirectoryError(
                f"{self.path} was written by bipars {written or 'another version'!s:.40}, whose runs this version "
                f"neither continues nor reads. Install that version for it, or train again"
            )
        try:
            verify_checksum(self.config_file, about, content, needed=about["format"] != WITHOUT_CHECKSUM)
        except CheckpointError as error:
            raise RunDirectoryError(f"{error}. Restore it from a copy, or train again") from error
        return about

    @property
    def finished(self) -> bool:
        return self.result_file.exists()

    @property
    def state(self) -> State:
        if self.finished:
            return "done"
        if held(self.lock_file):
            return "running"
        if self.error_file.exists():
            return "failed"
        return "stopped" if self.metrics_file.exists() else "waiting"

    @property
    def result(self) -> dict[str, Any]:
        again = f"Delete it, and bipars resume {self.path} makes it again"
        result, content = self._read(self.result_file)
        kinds = {"steps": _whole, "evaluation_return": is_number, "evaluation_length": is_number, "weights": _numbers}
        if self.checksummed:
            kinds |= {"metrics_size": _whole, "metrics_sha256": lambda value: isinstance(value, str)}
        for name, fits in kinds.items():
            if not fits(result.get(name)):
                raise CheckpointError(f"{self.result_file} is damaged: its {name} is {result.get(name)!r:.40}. {again}")
        try:
            verify_checksum(self.result_file, result, content, self.checksummed)
        except CheckpointError as error:
            raise CheckpointError(f"{error}. {again}") from error
        return result

    @property
    def error(self) -> str:
        try:
            error = str(self.read_json(self.error_file).get("error", f"see {self.error_file}"))
            return printable(error[:LONGEST_ERROR])
        except BiparsError as error:
            return str(error)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Every row, where they are those that were recorded: at the end of the run, or at its newest checkpoint."""
        mark = self.metrics_mark  # before the rows, of which there may be more meanwhile
        try:
            content = read_file(self.metrics_file)
        except FileNotFoundError:
            content = b""
        size, digest = mark
        finished = self.finished
        if finished and not content:
            lost = "empty" if self.metrics_file.exists() else "gone"
            raise CheckpointError(f"{self.metrics_file} is {lost}, though the run was finished")
        complete = finished or self.kind == "agent"
        if len(content) < size or sha256(content[:size]) != digest or (complete and len(content) > size > 0):
            when = "after the run was finished" if finished else "after its newest checkpoint"
            again = "" if self.kind == "agent" else f", or try: bipars resume {self.path}"
            raise CheckpointError(
                f"{self.metrics_file} was altered {when}: it is not what was recorded. Restore it{again}"
            )
        return parse_metrics(content, self.metrics_file)

    @property
    def metrics_mark(self) -> tuple[int, str]:
        """How many bytes of metrics are recorded, and their SHA-256."""
        nothing = 0, sha256(b"")
        if self.finished:
            result = self.result
            return (result["metrics_size"], result["metrics_sha256"]) if "metrics_sha256" in result else nothing
        manifest = newest_manifest(self.checkpoints)
        return nothing if manifest is None else manifest.mark

    def read_json(self, path: Path) -> dict[str, Any]:
        return self._read(path)[0]

    def _read(self, path: Path) -> tuple[dict[str, Any], bytes]:
        try:
            return read_json(path)
        except FileNotFoundError:
            problem = f"it has no {path.name}" if self.path.exists() else "it was not found"
            below = find_below(self.path, self.config_file.name)
            hint = f". It holds runs, such as {below[0].parent}: name one of them" if below else ""
            raise RunDirectoryError(f"{self.path} is not a run of bipars: {problem}{hint}") from None
        except CheckpointError as error:
            if path == self.config_file:
                raise RunDirectoryError(str(error)) from error
            raise

    @contextmanager
    def owned(self, wait: float = 0.0) -> Iterator[None]:
        """One owner at a time; the lock dies with its process. What a killed owner left half written is removed."""
        refuse_links(*self.written)
        with locked(self.lock_file, "belongs to a live run", wait):
            for place in (self.path, self.checkpoints, self.snapshots):
                for leftover in place.glob(LEFTOVERS):
                    if not leftover.is_dir():
                        leftover.unlink(missing_ok=True)
            yield


def _whole(value: Any) -> bool:
    return isinstance(value, int) and is_number(value) and value >= 0


def _numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_number, value.values()))


def in_python_message(run: RunDirectory) -> str:
    again = "model = bipars.sb3.ShapedPPO.load(...); model.learn(...)"
    if run.kind == "agent":
        again = f"agent = bipars.BiPaRS.load({str(run.path)!r}); agent.learn(...)"
    return f"{run.path} is {KINDS[run.kind]}, not a training run. Go on with it in Python: {again}"


def find_runs(path: str | os.PathLike[str]) -> list[RunDirectory]:
    """The run at `path`, or all runs below it, by name."""
    root = Path(path)
    if not root.is_dir():
        raise RunDirectoryError(f"{root} does not exist, or is not a directory")
    found = [RunDirectory(file.parent) for file in find_below(root, "config.json")]
    if not found:
        raise RunDirectoryError(f"{root} holds no run of bipars")
    return found


def _difference(a: dict[str, Any], b: dict[str, Any]) -> str:
    return ", ".join(f"{k}: {a[k]!r} there, {b[k]!r} now" for k in a if a[k] != b[k])


def seed_directory(root: str | os.PathLike[str], seed: int) -> Path:
    return Path(root) / f"seed-{seed:04d}"
