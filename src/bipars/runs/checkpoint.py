"""Checkpoints: arrays as safetensors, and a manifest with their SHA-256. Nothing is ever unpickled."""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import safetensors.numpy

from bipars.errors import CheckpointError
from bipars.runs.files import sha256, sync_directory, write_atomically, write_json

FORMAT = 1
KEEP = 2

logger = logging.getLogger("bipars")
Tree = TypeVar("Tree")


@dataclass(frozen=True)
class Manifest:
    """What must be true of a checkpoint's files."""

    round: int
    tensors: str
    """File name of the arrays."""
    sha256: str
    metrics_size: int
    metrics_sha256: str
    format: int = FORMAT


def encode_tree(tree: Any, about: dict[str, str] | None = None) -> bytes:
    """A pytree of arrays, each named by its path, and a few words about it."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    arrays = {jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in leaves}
    return safetensors.numpy.save(arrays, about)


def decode_tree(content: bytes, like: Tree, source: str) -> Tree:
    """The pytree of the same structure as `like`, or an error that names the first array that does not fit."""
    arrays = safetensors.numpy.load(content)
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    found = []
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path)
        array = arrays.get(name)
        if array is None:
            raise CheckpointError(
                f"{source} has no array '{name}'; it was written for another configuration or by an older bipars"
            )
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise CheckpointError(
                f"{source}: array '{name}' is {array.dtype}{list(array.shape)}; "
                f"this configuration needs {leaf.dtype}{list(leaf.shape)}"
            )
        found.append(array)
    return jax.tree_util.tree_unflatten(structure, found)


def save_checkpoint(directory: Path, round: int, state: Any, metrics_mark: tuple[int, str]) -> None:
    """Arrays first, manifest last: a checkpoint without a manifest does not exist. The last two are kept."""
    directory.mkdir(exist_ok=True)
    content = encode_tree(state)
    tensors = directory / f"{round:08d}.safetensors"
    write_atomically(tensors, content)
    manifest = Manifest(round, tensors.name, sha256(content), *metrics_mark)
    write_json(directory / f"{round:08d}.json", asdict(manifest))
    for old in sorted(directory.glob("*.json"))[:-KEEP]:
        old.unlink()
        (directory / f"{old.stem}.safetensors").unlink(missing_ok=True)
    sync_directory(directory)


def replace_checkpoint(directory: Path, round: int, state: Any) -> None:
    """The one checkpoint of a saved agent. Its manifest names the old arrays until the new ones are complete."""
    directory.mkdir(exist_ok=True)
    content = encode_tree(state)
    digest = sha256(content)
    tensors = directory / f"{digest[:16]}.safetensors"
    write_atomically(tensors, content)
    write_json(directory / "agent.json", asdict(Manifest(round, tensors.name, digest, 0, sha256(b""))))
    for old in directory.glob("*.safetensors"):
        if old != tensors:
            old.unlink()
    sync_directory(directory)


def verified_checkpoints(directory: Path) -> list[tuple[Manifest, bytes]]:
    """Every intact checkpoint, newest first; a damaged one is named in a warning and left out."""
    intact = []
    oldest = min(directory.glob("*.json"), default=None)
    for path in sorted(directory.glob("*.json"), reverse=True):
        try:
            intact.append(_verify(path))
        except CheckpointError as error:
            logger.warning("%s; %s", error, "there is none before it" if path == oldest else "using the one before it")
    return intact


def _verify(path: Path) -> tuple[Manifest, bytes]:
    try:
        manifest = Manifest(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"checkpoint manifest {path} is damaged ({error})") from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"checkpoint {path} has format {manifest.format}; this version reads {FORMAT}")
    tensors = path.parent / manifest.tensors
    if tensors.parent != path.parent or not tensors.is_file():
        raise CheckpointError(f"checkpoint {path} names arrays '{manifest.tensors}', which do not exist beside it")
    content = tensors.read_bytes()
    if sha256(content) != manifest.sha256:
        raise CheckpointError(f"checkpoint {tensors} is truncated or altered: its SHA-256 is not the recorded one")
    return manifest, content
