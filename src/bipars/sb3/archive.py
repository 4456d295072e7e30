"""What `ShapedPPO` adds to the archive that Stable-Baselines3 writes. None of it is a pickle."""

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from stable_baselines3.common.save_util import open_path

from bipars.envs import spaces
from bipars.errors import BiparsError, CheckpointError, UsageError
from bipars.runs.checkpoint import encode_tree, read_about
from bipars.runs.metrics import encode_row, parse_metrics
from bipars.sb3.settings import Asked
from bipars.terms.steps import StepSpaces

KNOWLEDGE, ROWS, SNAPSHOTS = "bipars/knowledge.safetensors", "bipars/metrics.jsonl", "bipars/snapshots/"


class Held(NamedTuple):
    """Ours in an archive."""

    asked: Asked
    single: StepSpaces
    knowledge: bytes
    metrics: list[dict[str, Any]]
    snapshots: dict[int, bytes]


def write_archive(
    path: Any,
    content: io.BytesIO,
    asked: Asked,
    single: StepSpaces,
    knowledge: Any,
    metrics: Sequence[Mapping[str, Any]],
    snapshots: Mapping[int, bytes],
) -> None:
    """The archive in `content`, with ours added, to a path or an open file."""
    about = {
        "asked": json.dumps(asdict(asked)),
        "observation_space": json.dumps(spaces.describe(single.observation_space)),
        "action_space": json.dumps(spaces.describe(single.action_space)),
    }
    with zipfile.ZipFile(content, "a") as archive:
        archive.writestr(KNOWLEDGE, encode_tree(knowledge, about))
        archive.writestr(ROWS, b"".join(map(encode_row, metrics)))
        for round, snapshot in snapshots.items():
            archive.writestr(f"{SNAPSHOTS}{round:08d}", snapshot)
    file = open_path(path, "w", verbose=0, suffix="zip")
    file.write(content.getvalue())
    if isinstance(path, (str, os.PathLike)):
        file.close()


def read_archive(path: Any) -> Held:
    file = open_path(path, "r", verbose=0, suffix="zip")
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            if KNOWLEDGE not in names:
                raise UsageError(
                    f"{path} was not saved by bipars.sb3.ShapedPPO: it holds no weights of terms. Load it with the "
                    "algorithm that saved it, and train a ShapedPPO for the weights"
                )
            knowledge, rows = archive.read(KNOWLEDGE), parse_metrics(archive.read(ROWS), Path(ROWS))
            kept = {
                int(name.removeprefix(SNAPSHOTS)): archive.read(name) for name in names if name.startswith(SNAPSHOTS)
            }
        header = read_about(knowledge)
        asked = json.loads(header["asked"])
        single = (spaces.from_description(json.loads(header[name])) for name in ("observation_space", "action_space"))
        return Held(Asked(**asked | {"terms": tuple(asked["terms"])}), StepSpaces(*single), knowledge, rows, kept)
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{path} is no archive of Stable-Baselines3") from error
    except (KeyError, ValueError, TypeError) as error:
        if isinstance(error, BiparsError):
            raise
        raise CheckpointError(f"{path} is damaged: {error!r:.200}") from error
    finally:
        if isinstance(path, (str, os.PathLike)):
            file.close()
        else:
            file.seek(0)
