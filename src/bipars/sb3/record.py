"""What is kept of a training: rows of metrics, snapshots of the weights, and the run directory that holds both."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bipars.errors import RunDirectoryError
from bipars.metrics import summarise
from bipars.report.report import Report, report_record
from bipars.rollout.batch import Evaluation
from bipars.rollout.stats import RoundStats, episode_sums, no_sums, sample_visited
from bipars.runs.directory import RunDirectory
from bipars.runs.files import read_file
from bipars.runs.metrics import MetricsWriter, encode_row
from bipars.runs.snapshots import encode_snapshot, snapshot_due, without_episode, write_snapshot
from bipars.sb3.rollout import Rollout
from bipars.sb3.upper import Knowledge, bare_batch
from bipars.settings.resolved import ResolvedConfig

sum_up = jax.jit(episode_sums)


class Record:
    """Everything that a report needs, as our own trainer writes it."""

    def __init__(self, config: ResolvedConfig, objects: Mapping[str, Any], out: str | None) -> None:
        self.config, self.objects, self.out = config, dict(objects), out
        self.metrics: list[dict[str, Any]] = []
        self.snapshots: dict[int, bytes] = {}
        self._sums = no_sums(config.ppo.num_envs, len(config.terms), has_potential=False)
        self._lengths = np.zeros(config.ppo.num_envs, int)
        self._plan = 0, 1
        self._writer: MetricsWriter | None = None
        self._run: RunDirectory | None = None

    @property
    def rounds(self) -> int:
        return self.metrics[-1]["round"] if self.metrics else 0

    @contextmanager
    def open(self, total_timesteps: int) -> Iterator[None]:
        """For the rounds that `total_timesteps` take. The directory, if there is one, has every row at once."""
        self._plan = self.rounds, self.rounds + max(1, -(-total_timesteps // self.config.ppo.update_period))
        if self.out is None:
            yield
            return
        run = RunDirectory.create(self.out, self.config, "sb3", self.objects)
        with run.owned():
            rows = b"".join(map(encode_row, self.metrics))
            if run.metrics_file.exists() and not rows.startswith(read_file(run.metrics_file)):
                raise RunDirectoryError(f"{run.path} holds another training. Choose another out, or delete it")
            self._run, self._writer = run, MetricsWriter(run.metrics_file)
            for row in self.metrics:
                self._writer.append(row)
            for round, content in self.snapshots.items():
                write_snapshot(run, round, content)
            try:
                yield
            finally:
                self._writer.close()
                self._run = self._writer = None

    def add(
        self,
        rollout: Rollout,
        z: np.ndarray,
        seen: tuple[np.ndarray, np.ndarray],
        restarted: bool,
        log: Mapping[str, Any],
        knowledge: Callable[[], Knowledge],
    ) -> dict[str, Any]:
        """The row of one more round. `seen`: observations and actions as the weight function takes them."""
        batch = bare_batch(rollout, restarted)._replace(obs=seen[0], action=seen[1])  # type: ignore[arg-type]
        sums, self._sums = sum_up(self._sums, batch._replace(obs=None, action=None), z)  # type: ignore[arg-type]
        visited = sample_visited(batch)
        stats = RoundStats(
            rollout.reward, rollout.terms, z, rollout.done, sums, visited, dict(log),  # type: ignore[arg-type]
            self._evaluate(rollout, np.asarray(sums["true_return"]), restarted),
        )  # fmt: skip
        round = self.rounds + 1
        row = {"round": round, "step": round * self.config.ppo.update_period}
        row |= summarise(stats, self.config.terms)
        self.metrics.append(row)
        if self._writer is not None:
            self._writer.append(row)
        if snapshot_due(round, *self._plan, max(self.snapshots, default=0)):
            self._keep(round, visited, knowledge())
        return row

    def _evaluate(self, rollout: Rollout, returns: np.ndarray, restarted: bool) -> Evaluation:
        """By the episodes that ended in the round, as they were played."""
        lengths, self._lengths = episode_lengths(
            rollout.done, np.zeros_like(self._lengths) if restarted else self._lengths
        )
        acted = rollout.action
        size = float(np.abs(acted).mean()) if acted.dtype.kind == "f" else 0.0
        if not rollout.done.any():
            return Evaluation(np.array([np.nan]), np.array([np.nan]), np.float32(size))  # type: ignore[arg-type]
        return Evaluation(returns[rollout.done], lengths, np.float32(size))  # type: ignore[arg-type]

    def _keep(self, round: int, visited: Any, knowledge: Knowledge) -> None:
        self.snapshots[round] = encode_snapshot(without_episode(knowledge.weights, knowledge.observations, visited))
        if self._run is not None:
            write_snapshot(self._run, round, self.snapshots[round])

    def report(self, path: str | os.PathLike[str] | None) -> Report:
        return report_record(self.config, "sb3", self.objects, self.metrics, self.snapshots, path)


def episode_lengths(done: np.ndarray, running: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the episodes that ended, in the order of `returns[done]`; and how long those are that go on."""
    lengths, running = np.zeros(done.shape, int), running.copy()
    for time, ended in enumerate(done):
        running += 1
        lengths[time, ended] = running[ended]
        running[ended] = 0
    return lengths[done], running


def absolute(out: str | os.PathLike[str] | None) -> str | None:
    return None if out is None else str(Path(out).resolve())
