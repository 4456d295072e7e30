"""What the weight function looked like at every tenth of a run, where the agent was, and one of its episodes.

Small files, for people to look at: training itself never reads them. They are written before the checkpoint of the same
round, so a killed run that goes on writes the same bytes again.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from bipars.errors import CheckpointError
from bipars.nets.mlp import encode_action
from bipars.nets.running import RunningMoments
from bipars.nets.spaces import MultiDiscreteActions
from bipars.nets.weights import WeightFunction
from bipars.program import Program
from bipars.rollout.stats import Visited
from bipars.runs.checkpoint import encode_tree, read_about
from bipars.runs.directory import RunDirectory
from bipars.runs.files import CHECKSUM, list_files, read_file, refuse_links, sha256, write_atomically
from bipars.runs.recording import Episode, record_episode, weigh
from bipars.train import TrainState

COUNT = 10
APART = 0.05
"""Snapshots of an agent that learns in many small pieces are at least this part of its training apart."""


class Content(NamedTuple):
    """What a file holds."""

    weights: WeightFunction
    observations: RunningMoments | None
    visited: Visited
    visited_weights: np.ndarray
    episode: Episode


@dataclass(frozen=True)
class Snapshot:
    """A file as it is read again, without building the program that wrote it."""

    round: int
    arrays: dict[str, np.ndarray]

    def _below(self, prefix: str) -> dict[str, Any]:
        return {key.removeprefix(prefix): value for key, value in self.arrays.items() if key.startswith(prefix)}

    @property
    def visited(self) -> Visited:
        return Visited(**self._below(".visited."))

    @property
    def visited_inputs(self) -> np.ndarray:
        """Observations, and beside them the actions taken there."""
        action = np.asarray(self.visited.action)
        return np.column_stack([np.asarray(self.visited.obs), action if action.ndim > 1 else action[:, None]])

    @property
    def visited_weights(self) -> np.ndarray:
        return self.arrays[".visited_weights"]

    @property
    def episode(self) -> Episode:
        return Episode(**self._below(".episode."))

    @property
    def moments(self) -> dict[str, np.ndarray] | None:
        """By which observations are normalised before the weight function sees them."""
        return self._below(".observations.") or None

    @property
    def scalar(self) -> np.ndarray | None:
        """Where the weights are the same everywhere: one number per term, before its range is applied."""
        return self.arrays.get(".weights.value", self.arrays.get(".weights.deviation.value"))

    @property
    def base(self) -> np.ndarray | None:
        """One number per term that the rest is added to, where weights follow the evidence."""
        return self.arrays.get(".weights.base")

    @property
    def unit(self) -> np.ndarray | None:
        """In which the weights of deterministic methods move, or that rest is."""
        return self.arrays.get(".weights.unit", self.arrays.get(".weights.range.unit"))

    @property
    def layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Weight and bias of each layer of the weight network; none where there is but one weight per term."""
        found = self._below(".weights.net.layers") or self._below(".weights.deviation.net.layers")
        numbers = sorted({int(re.findall(r"\d+", name)[0]) for name in found})
        return [(found[f"[{i}].weight"], found[f"[{i}].bias"]) for i in numbers]


def snapshot_rounds(rounds: int) -> set[int]:
    """Every tenth of a run, and its end."""
    return {-(-rounds * i // COUNT) for i in range(1, COUNT + 1)}


def snapshot_due(round: int, start: int, end: int, last: int) -> bool:
    """The same for an agent that learns in pieces, this one from `start` to `end`, where the newest is of `last`."""
    return round - start in snapshot_rounds(end - start) and round - last >= APART * round


def take_snapshot(program: Program, state: TrainState, visited: Visited, seed: int) -> Content:
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(np.uint32(seed)), 2**31 + 1), state.round)
    return Content(
        state.weights,
        state.observations,
        _shown(program, visited),
        weigh(state.weights, state.observations, visited.obs, visited.action),
        record_episode(program.algorithm, state, key),
    )


def glance(program: Program, state: TrainState, visited: Visited) -> Content:
    """The same without an episode."""
    return without_episode(state.weights, state.observations, visited)._replace(visited=_shown(program, visited))


def without_episode(weights: WeightFunction, observations: RunningMoments | None, visited: Visited) -> Content:
    z = weigh(weights, observations, visited.obs, visited.action)
    return Content(weights, observations, visited, z, Episode.none(z.shape[-1]))


def _shown(program: Program, visited: Visited) -> Visited:
    """Several choices at once are kept as networks are told of them, one-hot: readers need not know their sizes."""
    actions = program.algorithm.sampler.actions
    if not isinstance(actions, MultiDiscreteActions):
        return visited
    return visited._replace(action=encode_action(actions, visited.action, np.float32))


def encode_snapshot(content: Content) -> bytes:
    return encode_tree(content, {CHECKSUM: sha256(encode_tree(content))})


def write_snapshot(run: RunDirectory, round: int, content: bytes) -> None:
    refuse_links(run.snapshots)
    run.snapshots.mkdir(exist_ok=True)
    write_atomically(snapshot_file(run, round), content)


def snapshot_file(run: RunDirectory, round: int) -> Path:
    return run.snapshots / f"{round:08d}.safetensors"


def read_snapshots(run: RunDirectory) -> dict[int, bytes]:
    """As they are, by round; a file with another name is none."""
    paths = list_files(run.snapshots, ".safetensors")
    return {int(path.stem): read_file(path) for path in paths if path.stem.isdecimal()}


def load_snapshots(run: RunDirectory, damaged: list[str] | None = None) -> list[Snapshot]:
    """All there are, oldest first; runs of earlier versions have none.

    What is wrong with a file is added to `damaged`, and the others are returned; without that list it is raised.
    """
    found: list[Snapshot] = []
    try:
        paths = list_files(run.snapshots, ".safetensors")
    except CheckpointError as error:
        _name(error, damaged)
        return found
    for path in paths:
        try:
            found.append(load_snapshot(run, path))
        except CheckpointError as error:
            _name(error, damaged)
    return found


def _name(error: CheckpointError, damaged: list[str] | None) -> None:
    if damaged is None:
        raise error
    damaged.append(str(error))


def load_snapshot(run: RunDirectory, path: Path) -> Snapshot:
    try:
        content = read_file(path)
        about = read_about(content)
        arrays: dict[str, Any] = safetensors.numpy.load(content)
        if run.checksummed or about:
            as_written = safetensors.numpy.save(arrays, about) == content
            if not as_written or about[CHECKSUM] != sha256(safetensors.numpy.save(arrays)):
                raise ValueError("its checksum is not that of its content")
        return checked(Snapshot(int(path.stem), arrays), run)
    except (SafetensorError, FileNotFoundError, ValueError, KeyError, AttributeError, TypeError, IndexError) as error:
        raise CheckpointError(f"{path} is damaged: {error!s:.200}. Delete it; the report does without") from error


def checked(snapshot: Snapshot, run: RunDirectory) -> Snapshot:
    """The same, if its arrays fit together: a file with a good checksum may still be somebody's invention."""
    visited, episode, terms = snapshot.visited, snapshot.episode, len(run.config.terms)
    count, size = visited.obs.shape
    steps = len(episode.reward)
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "visited.action": (visited.action, (count, *visited.action.shape[1:2])),
        "visited.terms": (visited.terms, (count, terms)),
        "visited_weights": (snapshot.visited_weights, (count, terms)),
        "episode.reward": (episode.reward, (steps,)),
        "episode.terms": (episode.terms, (steps, terms)),
        "episode.weights": (episode.weights, (steps, terms)),
        "episode.effort": (episode.effort, (steps,)),
    }
    if snapshot.moments is not None:
        expected |= {f"observations.{name}": (snapshot.moments[name], (size,)) for name in ("mean", "var")}
    for name in ("scalar", "base", "unit"):
        if (array := getattr(snapshot, name)) is not None:
            expected[name] = array, (terms,)
    layers, form, discrete = snapshot.layers, run.config.weights.form, visited.action.ndim == 1
    if layers and form != "scalar":
        width, outputs = len(layers[0][0]), len(layers[-1][1])
        if form != "state-action" or not discrete:
            width = size + (0 if form != "state-action" else visited.action.shape[1])
        choices = {"state-action": width - size, "per-action": outputs // max(1, terms)}.get(form, outputs)
        if form != "state" and discrete and not 0 <= visited.action.min() <= visited.action.max() < choices:
            raise ValueError(f"visited.action is outside the {choices} actions that its weight function knows")
        expected["last bias"] = layers[-1][1], (terms * choices if form == "per-action" else terms,)
        for i, (weight, bias) in enumerate(layers):
            expected |= {f"layer {i}": (weight, (width, len(bias))), f"bias {i}": (bias, (len(bias),))}
            width = len(bias)
    for name, (array, shape) in expected.items():
        if array.shape != shape or array.dtype.kind not in "fiu":
            raise ValueError(f"{name} is {array.dtype}{list(array.shape)}; expected numbers of shape {list(shape)}")
    finite = all(np.isfinite(array).all() for array in snapshot.arrays.values())
    if not (count and (steps or run.in_python) and finite):
        raise ValueError("it is empty, or holds what is no finite number")
    return snapshot
