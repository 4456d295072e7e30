"""Checkpoints: arrays as safetensors, and a manifest with their SHA-256. Nothing is ever unpickled."""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from bipars.errors import CheckpointError, SettingError
from bipars.runs.files import (
    CHECKSUM,
    list_files,
    parse_json,
    read_file,
    read_json,
    refuse_links,
    sha256,
    sync_directory,
    verify_checksum,
    write_atomically,
    write_checked,
)
from bipars.settings.base import check_types
from bipars.settings.resolved import ResolvedConfig

FORMAT = 2
WITHOUT_CHECKSUM = 1
"""The format before it, whose manifests have no checksum."""
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
    settings_sha256: str | None = None
    """Of the settings of its run: a checkpoint of another run is no use here."""
    format: int = FORMAT

    @property
    def mark(self) -> tuple[int, str]:
        """Where the metrics stood."""
        return self.metrics_size, self.metrics_sha256


def settings_digest(config: ResolvedConfig) -> str:
    """Of all settings. Where reused weights lie is none of them: directories are moved."""
    return sha256(f"{config.seed} {config.program_text()}".encode())


def encode_tree(tree: Any, about: dict[str, str] | None = None) -> bytes:
    """A pytree of arrays, each named by its path, and a few words about it."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    arrays = {jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in leaves}
    return safetensors.numpy.save(arrays, about)


def read_about(content: bytes) -> dict[str, Any]:
    """The words about a tree; ValueError where it is none."""
    return parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})


def decode_tree(content: bytes, like: Tree, source: str) -> Tree:
    """The pytree of the same structure as `like`, or an error that names the first array that does not fit."""
    try:
        arrays = safetensors.numpy.load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{source} cannot be read: {error}") from error
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


def save_checkpoint(
    directory: Path, round: int, state: Any, metrics_mark: tuple[int, str], settings: str | None = None
) -> None:
    """Arrays first, manifest last: a checkpoint without a manifest does not exist. The last two are kept."""
    refuse_links(directory)
    directory.mkdir(exist_ok=True)
    content = encode_tree(state)
    tensors = directory / f"{round:08d}.safetensors"
    write_atomically(tensors, content)
    manifest = Manifest(round, tensors.name, sha256(content), *metrics_mark, settings)
    write_checked(directory / f"{round:08d}.json", asdict(manifest))
    for old in sorted(directory.glob("*.json"))[:-KEEP]:
        remove_checkpoint(old)
    sync_directory(directory)


def remove_checkpoint(manifest: Path) -> None:
    manifest.unlink()
    manifest.with_suffix(".safetensors").unlink(missing_ok=True)


def replace_checkpoint(
    directory: Path, round: int, state: Any, metrics_mark: tuple[int, str], settings: str | None = None
) -> None:
    """The one checkpoint of a saved agent. Its manifest names the old arrays until the new ones are complete."""
    refuse_links(directory)
    directory.mkdir(exist_ok=True)
    content = encode_tree(state)
    digest = sha256(content)
    tensors = directory / f"{digest[:16]}.safetensors"
    write_atomically(tensors, content)
    manifest = Manifest(round, tensors.name, digest, *metrics_mark, settings)
    write_checked(directory / f"{AGENT}.json", asdict(manifest))
    for old in directory.glob("*.safetensors"):
        if old != tensors:
            old.unlink()
    sync_directory(directory)


AGENT = "agent"
"""How the manifest of a saved agent is called; those of a run are called by their round."""


def verified_checkpoints(directory: Path, settings: str | None = None) -> list[tuple[Manifest, bytes]]:
    """Every intact checkpoint (of these settings), newest first; a damaged one is named in a warning and left out."""
    intact = []
    paths = list_files(directory, ".json")[::-1]
    for path in paths:
        try:
            intact.append(verify_checkpoint(path, settings))
        except CheckpointError as error:
            before = "there is none before it" if path == paths[-1] else "using the one before it"
            logger.warning("%s; %s", error, before)
    return intact


def newest_manifest(directory: Path) -> Manifest | None:
    """Of the newest checkpoint whose manifest is intact, whatever its arrays are."""
    for path in reversed(list_files(directory, ".json")):
        try:
            return read_manifest(path)
        except CheckpointError:
            continue
    return None


def verify_checkpoint(path: Path, settings: str | None = None) -> tuple[Manifest, bytes]:
    """A manifest and its arrays, or an error that says what is wrong with them."""
    manifest = read_manifest(path)
    if settings is not None and manifest.settings_sha256 not in (None, settings):
        raise CheckpointError(f"checkpoint {path} belongs to a run with other settings than its config.json has")
    tensors = path.parent / manifest.tensors
    try:
        content = read_file(tensors)
    except FileNotFoundError:
        raise CheckpointError(
            f"checkpoint {path} names arrays '{manifest.tensors}', which do not exist beside it"
        ) from None
    if sha256(content) != manifest.sha256:
        raise CheckpointError(f"checkpoint {tensors} is truncated or altered: its SHA-256 is not the recorded one")
    return manifest, content


def read_manifest(path: Path) -> Manifest:
    try:
        data, content = read_json(path)
        verify_checksum(path, data, content, needed=data.get("format") != WITHOUT_CHECKSUM)
        data.pop(CHECKSUM, None)
    except FileNotFoundError as error:  # removed meanwhile
        raise CheckpointError(f"checkpoint manifest {path} is gone") from error
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint manifest {error}") from error
    if data.get("format") not in (FORMAT, WITHOUT_CHECKSUM):
        raise CheckpointError(f"checkpoint {path} has format {data.get('format')!r:.40}; this version reads {FORMAT}")
    try:
        manifest = Manifest(**data)
        check_types(manifest, "")
    except (TypeError, SettingError) as error:
        raise CheckpointError(f"checkpoint manifest {path} is damaged ({error!s:.200})") from error
    named = path.stem if path.stem == AGENT else f"{manifest.round:08d}"
    if path.stem != named or Path(manifest.tensors).name != manifest.tensors or len(manifest.tensors) > 100:
        raise CheckpointError(
            f"checkpoint manifest {path} is damaged: it says round {manifest.round}, arrays {manifest.tensors!r:.60}"
        )
    return manifest
