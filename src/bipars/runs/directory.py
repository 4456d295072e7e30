"""One directory per run: config.json, metrics.jsonl, timings.jsonl, checkpoints/, and result.json when it is done."""

import functools
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from bipars.errors import CheckpointError, RunDirectoryError, UsageError
from bipars.runs.files import LEFTOVERS, write_json
from bipars.runs.lock import held, locked
from bipars.runs.metrics import read_metrics
from bipars.settings.resolved import ResolvedConfig

Kind = Literal["run", "agent"]
"""Made by training on disk, or by `agent.save`."""
State = Literal["done", "running", "failed", "stopped", "waiting"]
"""`running`: a live process owns it. `waiting`: nothing has come of it yet."""

FORMAT = 2
"""Of a run's files; runs of other formats are refused."""
RECORDED_PACKAGES = ("bipars", "jax", "jaxlib", "optax", "numpy", "gymnasium", "mujoco", "numba", "safetensors")


@functools.cache
def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in RECORDED_PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@functools.cache
def env_spec(name: str) -> dict[str, Any] | None:
    """How Gymnasium makes the environment, where it knows it."""
    import gymnasium

    try:
        return json.loads(gymnasium.spec(name).to_json())
    except Exception:  # an environment of our own, a function, or a spec that holds one
        return None


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
        elsewhere = "Choose another --out" if kind == "run" else "Save to another directory"
        own = None if objects is None else dict(objects)
        try:
            if run.config_file.exists():
                run._check_same(config, kind, own, elsewhere)
                return run
            if run.path.exists() and not _is_unused(run.path):
                raise RunDirectoryError(f"{run.path} exists and is not a run of bipars. {elsewhere}")
            run.path.mkdir(parents=True, exist_ok=True)
            write_json(
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
        except FileExistsError:  # another process was quicker
            run._check_same(config, kind, own, elsewhere)
        except OSError as error:
            raise RunDirectoryError(f"{run.path} cannot be used: {error.strerror}. {elsewhere}") from error
        return run

    def _check_same(self, config: ResolvedConfig, kind: Kind, objects: dict[str, Any] | None, elsewhere: str) -> None:
        if self.kind != kind:
            what = "a saved agent" if self.kind == "agent" else "a training run, whose files saving would destroy"
            raise RunDirectoryError(f"{self.path} is {what}. {elsewhere}")
        existing = _with_absolute_source(self.config)
        difference = _difference(existing.flat(), _with_absolute_source(config).flat())
        if not difference and objects != self.objects:
            difference = f"your own Python objects: {self.objects} there, {objects} now"
        if difference:
            what = "a run" if kind == "run" else "an agent"
            raise RunDirectoryError(
                f"{self.path} holds {what} with other settings ({difference}). {elsewhere}, or delete it"
            )

    @functools.cached_property
    def config(self) -> ResolvedConfig:
        """Written once, so read once."""
        try:
            return ResolvedConfig.read(self._about["config"])
        except UsageError as error:
            raise RunDirectoryError(f"{self.config_file} cannot be used: {error}") from error

    @property
    def kind(self) -> Kind:
        return "agent" if self._about.get("kind") == "agent" else "run"

    @property
    def objects(self) -> dict[str, Any] | None:
        """What of it were Python objects: env, terms, true_reward; None where nobody recorded it."""
        return self._about.get("objects")

    @property
    def _about(self) -> dict[str, Any]:
        about = self.read_json(self.config_file)
        if not isinstance(about.get("config"), dict):
            raise RunDirectoryError(
                f"{self.config_file} is not of bipars: it has no settings of a run under 'config'. Move it elsewhere"
            )
        if about.get("format") != FORMAT:
            written = about.get("versions", {}).get("bipars", "another version")
            raise RunDirectoryError(
                f"{self.path} was written by bipars {written}, whose runs this version neither continues nor reads. "
                f"Install that version for it, or train again"
            )
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
        result = self.read_json(self.result_file)
        number = (int, float)
        kinds = {"steps": int, "evaluation_return": number, "evaluation_length": number, "weights": dict}
        for name, kind in kinds.items():
            if not isinstance(result.get(name), kind):  # type: ignore[arg-type]
                raise CheckpointError(
                    f"{self.result_file} is damaged: its {name} is {result.get(name)!r}. Delete it, and "
                    f"bipars resume {self.path} makes it again"
                )
        return result

    @property
    def error(self) -> str:
        """Why it failed."""
        return str(self.read_json(self.error_file).get("error", f"see {self.error_file}"))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.metrics_file) if self.metrics_file.exists() else []

    def read_json(self, path: Path) -> dict[str, Any]:
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            problem = f"it has no {path.name}" if self.path.exists() else "it was not found"
            first = min(self.path.rglob(self.config_file.name), default=None)
            hint = f". It holds runs, such as {first.parent}: name one of them" if first else ""
            raise RunDirectoryError(f"{self.path} is not a run of bipars: {problem}{hint}") from None
        except OSError as error:
            raise RunDirectoryError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise RunDirectoryError(f"{path} is damaged: {error}") from error
        if not isinstance(value, dict):
            raise RunDirectoryError(f"{path} is damaged: it holds {value!r:.40}; expected names and values")
        return value

    @contextmanager
    def owned(self, wait: float = 0.0) -> Iterator[None]:
        """One owner at a time; the lock dies with its process. What a killed owner left half written is removed."""
        with locked(self.lock_file, "belongs to a live run", wait):
            for place in (self.path, self.checkpoints, self.snapshots):
                for leftover in place.glob(LEFTOVERS):
                    leftover.unlink(missing_ok=True)
            yield


def saved_agent_message(run: RunDirectory) -> str:
    return (
        f"{run.path} is a saved agent, not a training run. Go on with it in Python: "
        f"agent = bipars.BiPaRS.load({str(run.path)!r}); agent.learn(...)"
    )


def find_runs(path: str | os.PathLike[str]) -> list[RunDirectory]:
    """The run at `path`, or all runs below it, by name."""
    root = Path(path)
    if not root.is_dir():
        raise RunDirectoryError(f"{root} does not exist, or is not a directory")
    found = [RunDirectory(file.parent) for file in sorted(root.rglob("config.json"))]
    if not found:
        raise RunDirectoryError(f"{root} holds no run of bipars")
    return found


def _with_absolute_source(config: ResolvedConfig) -> ResolvedConfig:
    """Older runs recorded the run whose weights they reuse as it was typed."""
    return replace(config, weights_from=config.weights_from and str(Path(config.weights_from).resolve()))


def _difference(a: dict[str, Any], b: dict[str, Any]) -> str:
    return ", ".join(f"{k}: {a[k]!r} there, {b[k]!r} now" for k in a if a[k] != b[k])


def seed_directory(root: str | os.PathLike[str], seed: int) -> Path:
    return Path(root) / f"seed-{seed:04d}"


OURS = {
    "curves.csv", "curves.parquet", "curves.png", "figures", "paper.json", "paper.md", "report", "report.html",
    "results.csv", "results.md", "runner.lock", "suite.json",
}  # fmt: skip
"""What we write beside runs."""


def _is_unused(path: Path) -> bool:
    """A directory without files: new, or of a process that was killed before it wrote its first one."""
    return path.is_dir() and all(entry.is_dir() or entry.match(LEFTOVERS) for entry in path.rglob("*"))


def check_root(root: Path) -> None:
    """Refuses a directory for runs that holds anything but runs."""
    try:
        if root.exists() and not root.is_dir():
            raise RunDirectoryError(f"{root} is a file. Choose another --out")
        entries = list(root.iterdir()) if root.exists() else []
    except OSError as error:
        raise RunDirectoryError(f"{root} cannot be used: {error.strerror}. Choose another --out") from error
    for entry in entries:
        if entry.name not in OURS and not any(entry.rglob("config.json")) and not _is_unused(entry):
            raise RunDirectoryError(f"{root} holds '{entry.name}', which is not a run of bipars. Choose another --out")
