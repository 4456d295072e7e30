"""One run from its directory: start or resume, train, log, checkpoint, finish."""

import functools
import json
import logging
import os
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from bipars.errors import BiparsError, CheckpointError, NonFiniteError, RunDirectoryError, no_space
from bipars.metrics import summarise
from bipars.program import NO_OBJECTS, LearnedWeights, Objects, Program, build
from bipars.rollout.finite import check_finite
from bipars.rollout.stats import RoundStats
from bipars.runs.checkpoint import (
    decode_tree,
    encode_tree,
    remove_checkpoint,
    save_checkpoint,
    settings_digest,
    verified_checkpoints,
)
from bipars.runs.directory import RunDirectory, in_python_message
from bipars.runs.files import list_files, open_own, read_file, sha256, write_atomically, write_checked, write_json
from bipars.runs.metrics import MetricsWriter, evaluated
from bipars.runs.reuse import mean_weights
from bipars.runs.snapshots import encode_snapshot, snapshot_rounds, take_snapshot, write_snapshot
from bipars.runs.stopping import Stop
from bipars.settings.importing import named_code, require_agreed
from bipars.tensorboard import ScalarWriter
from bipars.terms.values import odd_terms
from bipars.train import TrainState

logger = logging.getLogger(__name__)

LAST_EVALUATIONS = 5
"""Evaluations at the end of a run that its result averages."""


def execute(run: RunDirectory, stop: Stop, learned: Path | None = None, wait: float = 0.0) -> bool:
    """Trains until the run is finished (True) or a stop is asked for (False, after a checkpoint).

    `learned` is where the run whose weights it reuses stands here, if elsewhere than recorded; `wait` are the seconds
    that an owner of the directory gets to leave.
    """
    if run.in_python:
        raise RunDirectoryError(in_python_message(run))
    with run.owned(wait):
        if run.finished:
            return True
        run.error_file.unlink(missing_ok=True)
        try:
            return _train(run, stop, learned)
        except Exception as error:
            if no_space(error):
                raise
            if isinstance(error, NonFiniteError) and any(run.checkpoints.glob("*.json")):
                error = NonFiniteError(
                    f"{error}. The last checkpoint is kept: bipars resume {run.path} goes on from it"
                )
            message = (
                str(error) if isinstance(error, BiparsError) else f"{error!r} (traceback in its {run.error_file.name})"
            )
            write_json(run.error_file, {"error": message, "traceback": traceback.format_exc()})
            raise error


def _train(run: RunDirectory, stop: Stop, learned: Path | None) -> bool:
    config = run.config
    require_agreed(named_code(config))
    program = build(config)
    state, start, writer = restore(run, program) or begin(run, program, learned)
    settings = settings_digest(config)
    period, snapshots = config.lower.update_period, snapshot_rounds(program.rounds)
    scalars = ScalarWriter(run.tensorboard, program.steps_after(start) + 1) if config.tensorboard else None
    try:
        cut_timings(run.timings_file, start)
        with open(open_own(run.timings_file), "a", buffering=1) as timings:  # by lines
            for round in range(start, program.rounds):
                began = time.perf_counter()
                state, stats = program.iterate(state, config.seed)
                check_finite(stats, program.term_names, round * period)
                row = {"round": round + 1, "step": program.steps_after(round + 1)}
                figures = row | summarise(stats, program.term_names)
                writer.append(figures)
                if round == 0:
                    name_odd_terms(stats, program.term_names)
                if scalars is not None:
                    scalars.write(figures)
                seconds = time.perf_counter() - began
                timings.write(json.dumps(row | {"seconds": seconds, "steps_per_second": period / seconds}) + "\n")
                if round + 1 in snapshots:
                    seen = take_snapshot(program, state, stats.visited, config.seed)
                    write_snapshot(run, round + 1, encode_snapshot(seen))
                stopping = stop()
                if stopping or (round + 1) % config.checkpoint_every == 0 or round + 1 == program.rounds:
                    save_checkpoint(run.checkpoints, round + 1, state, writer.mark(), settings)
                if stopping and round + 1 < program.rounds:
                    return False
        write_checked(run.result_file, make_result(run, program, state, writer.mark()))
    finally:
        writer.close()
        if scalars is not None:
            scalars.close()
    return True


def name_odd_terms(stats: RoundStats, names: Sequence[str]) -> None:
    """In the first update: terms that are zero, constant, the same as another, or the reward itself."""
    for line in odd_terms(np.asarray(stats.terms), names, np.asarray(stats.reward)):
        _name_once(line)


@functools.cache
def _name_once(line: str) -> None:
    """Once per process, whatever the number of seeds."""
    logger.warning("%s", line)


def begin(run: RunDirectory, program: Program, learned: Path | None) -> tuple[TrainState, int, MetricsWriter]:
    config = run.config
    weights = None
    if config.weights_from is not None:
        weights = load_weights(learned or config.weights_from, config.weights_as == "scalars")
    return program.init(config.seed, weights), 0, MetricsWriter(run.metrics_file)


def restore(run: RunDirectory, program: Program) -> tuple[TrainState, int, MetricsWriter] | None:
    """The newest checkpoint that is intact and whose metrics are too; None when the run never reached one."""
    if not list_files(run.checkpoints, ".json"):
        return None
    problems = []
    for manifest, content in verified_checkpoints(run.checkpoints, settings_digest(run.config)):
        state = decode_tree(content, program.abstract_state(), f"{run.checkpoints / manifest.tensors}")
        try:
            writer = MetricsWriter(run.metrics_file, manifest.mark)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for path in run.checkpoints.glob("*.json"):
            if path.stem > f"{manifest.round:08d}":  # of no use: it is written again, the same
                remove_checkpoint(path)
        return state, manifest.round, writer
    raise CheckpointError(
        f"no checkpoint of {run.path} can be used ({'; '.join(problems) or 'all are damaged'}). "
        f"Delete {run.checkpoints} to start this run again from the beginning"
    )


def load_state(path: str | os.PathLike[str], objects: Objects = NO_OBJECTS) -> tuple[Program, TrainState, int]:
    """The newest intact state of a run (or saved agent), without touching it."""
    run = RunDirectory(path)
    if objects is NO_OBJECTS:
        require_agreed(named_code(run.config))
    try:
        program = build(run.config, objects, share=False)
    except BiparsError:
        raise
    except Exception as error:  # whatever somebody's environment, or settings beyond reason, bring about
        raise RunDirectoryError(
            f"{run.path} cannot be loaded: {type(error).__name__}: {error!s:.300}. Are its settings, and what it was "
            "trained with, the same as then?"
        ) from error
    for manifest, content in verified_checkpoints(run.checkpoints, settings_digest(run.config)):
        source = str(run.checkpoints / manifest.tensors)
        return program, decode_tree(content, program.abstract_state(), source), manifest.round
    remedy = f"delete {run.path} and train again" if any(run.checkpoints.glob("*.json")) else "train it first"
    raise CheckpointError(f"{run.path} holds no intact checkpoint; {remedy}")


def load_weights(path: str | os.PathLike[str], as_scalars: bool = False) -> LearnedWeights:
    """The weight function of another run, which must be finished, or its mean over states."""
    run = RunDirectory(path)
    if not run.config_file.exists():
        raise RunDirectoryError(f"{path}, whose weights are to be reused, was not found. Was it moved or deleted?")
    if not run.finished:
        raise RunDirectoryError(f"{path} is not finished, so its weights are not final. Resume it first")
    program, state, _ = load_state(path)
    weights = mean_weights(program.term_names, run.metrics) if as_scalars else state.weights
    return LearnedWeights(weights, state.observations)


def cut_timings(path: Path, rounds: int) -> None:
    """Leaves the rows of the rounds that are not done again, each once."""
    try:
        lines = read_file(path).splitlines(keepends=True)
    except FileNotFoundError:
        return
    kept: dict[int, bytes] = {}
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):  # torn, or damaged: nobody computes with times
            kept.setdefault(json.loads(line)["round"], line)
    left = b"".join(kept[round] for round in range(1, rounds + 1) if round in kept)
    if left != b"".join(lines):
        write_atomically(path, left)


def make_result(run: RunDirectory, program: Program, state: TrainState, mark: tuple[int, str]) -> dict[str, Any]:
    """What a finished run amounts to, and its metrics' `mark`. Holds no times: the same run gives the same bytes."""
    rows = run.metrics
    last = evaluated(rows, run.config.evaluation_every)[-LAST_EVALUATIONS:]
    return {
        "steps": rows[-1]["step"],
        "evaluations_averaged": len(last),
        "evaluation_return": float(np.mean([row["evaluation_return"] for row in last])),
        "evaluation_length": float(np.mean([row["evaluation_length"] for row in last])),
        "weights": {name: rows[-1][f"weight/{name}"] for name in program.term_names},
        "state_sha256": sha256(encode_tree(state)),
        "metrics_size": mark[0],
        "metrics_sha256": mark[1],
    }
