"""One directory per run: config.json, metrics.jsonl, timings.jsonl, checkpoints/, and result.json when it is done."""

import fcntl
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bipars.config import Config
from bipars.errors import RunDirectoryError
from bipars.runs.files import write_json
from bipars.runs.metrics import read_metrics

RECORDED_PACKAGES = ("bipars", "jax", "jaxlib", "optax", "equinox", "numpy", "gymnasium", "mujoco", "safetensors")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in RECORDED_PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


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
        self.lock_file = self.path / "lock"

    @staticmethod
    def create(path: str | os.PathLike[str], config: Config, command: list[str] | None = None) -> "RunDirectory":
        """A new run, or the same run again; a directory that holds anything else is refused."""
        run = RunDirectory(path)
        if run.config_file.exists():
            existing = run.config
            if existing != config:
                raise RunDirectoryError(
                    f"{run.path} holds a run with other settings ({_difference(existing, config)}). "
                    "Choose another --out, or delete it"
                )
            return run
        if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            raise RunDirectoryError(f"{run.path} exists and is not a run of bipars. Choose another --out")
        run.path.mkdir(parents=True, exist_ok=True)
        write_json(
            run.config_file,
            {
                "config": config.to_dict(),
                "env_spec": env_spec(config.env),
                "versions": versions(),
                "command": command or sys.argv,
            },
        )
        return run

    @property
    def config(self) -> Config:
        return Config.from_dict(self.read_json(self.config_file)["config"])

    @property
    def finished(self) -> bool:
        return self.result_file.exists()

    @property
    def result(self) -> dict[str, Any]:
        return self.read_json(self.result_file)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.metrics_file) if self.metrics_file.exists() else []

    def read_json(self, path: Path) -> dict[str, Any]:
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError:
            raise RunDirectoryError(f"{self.path} is not a run of bipars: it has no {path.name}") from None
        except ValueError as error:
            raise RunDirectoryError(f"{path} is damaged: {error}") from error

    @contextmanager
    def owned(self) -> Iterator[None]:
        """One owner at a time; the lock dies with its process."""
        with open(self.lock_file, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise RunDirectoryError(
                    f"{self.path} belongs to a live run (process {file.read().strip() or 'unknown'}). "
                    "Wait for it, or stop it first"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def find_runs(path: str | os.PathLike[str]) -> list[RunDirectory]:
    """The run at `path`, or all runs below it, by name."""
    root = Path(path)
    if not root.is_dir():
        raise RunDirectoryError(f"{root} does not exist, or is not a directory")
    found = [RunDirectory(file.parent) for file in sorted(root.rglob("config.json"))]
    if not found:
        raise RunDirectoryError(f"{root} holds no run of bipars")
    return found


def _difference(old: Config, new: Config) -> str:
    a, b = old.to_dict(), new.to_dict()
    return ", ".join(f"{k}: {a[k]!r} there, {b[k]!r} now" for k in a if a[k] != b[k])


def seed_directory(root: str | os.PathLike[str], seed: int) -> Path:
    return Path(root) / f"seed-{seed:04d}"


OURS = {"curves.png", "figures", "results.csv", "results.md"}
"""What we write beside runs."""


def check_root(root: Path) -> None:
    """Refuses a directory for runs that holds anything but runs."""
    if root.exists() and not root.is_dir():
        raise RunDirectoryError(f"{root} is a file. Choose another --out")
    for entry in root.iterdir() if root.exists() else ():
        if entry.name not in OURS and not any(entry.rglob("config.json")):
            raise RunDirectoryError(f"{root} holds '{entry.name}', which is not a run of bipars. Choose another --out")
