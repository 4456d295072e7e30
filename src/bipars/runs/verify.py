"""Whether the files of a run are still what was written."""

from bipars.errors import BiparsError, CheckpointError
from bipars.runs.checkpoint import newest_manifest, settings_digest, verify_checkpoint
from bipars.runs.directory import RunDirectory
from bipars.runs.files import list_files, refuse_links
from bipars.runs.metrics import read_marked
from bipars.runs.snapshots import load_snapshot, snapshot_file, snapshot_rounds
from bipars.settings.resolved import ResolvedConfig


def damages(run: RunDirectory) -> list[str]:
    """What is wrong with a run or saved agent, one sentence each; nothing where all of it is as it was written.

    Rows after the newest checkpoint of an unfinished run are not recorded yet: they are cut off and made again.
    """
    try:
        config = run.config
    except BiparsError as error:
        return [str(error)]
    found = [*result_damages(run)]
    try:
        refuse_links(*run.written)
        if run.error_file.exists():
            run.read_json(run.error_file)
    except BiparsError as error:
        found.append(str(error))
    for part in (_checkpoint_damages, _snapshot_damages):
        try:
            found += part(run, config)
        except CheckpointError as error:  # a directory that cannot be listed
            found.append(str(error))
    return list(dict.fromkeys(found))


def result_damages(run: RunDirectory) -> list[str]:
    """The same of what reports are made from: the result and the metrics."""
    try:
        _ = run.metrics
    except BiparsError as error:
        return [str(error)]
    return []


def _checkpoint_damages(run: RunDirectory, config: ResolvedConfig) -> list[str]:
    found, paths, settings = [], list_files(run.checkpoints, ".json"), settings_digest(config)
    for path in paths:
        try:
            verify_checkpoint(path, settings)
        except CheckpointError as error:
            found.append(str(error))
    newest = newest_manifest(run.checkpoints)
    if run.finished and newest is not None and newest.round != config.num_updates:
        found.append(f"{run.checkpoints} lacks the checkpoint of the last round; its newest is of round {newest.round}")
    if run.kind == "agent" and not paths:
        found.append(f"{run.path} is a saved agent without a checkpoint")
    return found


def _snapshot_damages(run: RunDirectory, config: ResolvedConfig) -> list[str]:
    found, paths = [], list_files(run.snapshots)
    for path in paths:
        try:
            load_snapshot(run, path)
        except CheckpointError as error:
            found.append(str(error))
    newest = newest_manifest(run.checkpoints)
    if run.checksummed and run.kind == "run" and newest is not None:
        due = [
            snapshot_file(run, round) for round in sorted(snapshot_rounds(config.num_updates)) if round <= newest.round
        ]
        found += [f"{path} is gone. The report does without" for path in due if path not in paths]
    return found


def reopen(run: RunDirectory) -> bool:
    """Takes back that a damaged run is finished, where a checkpoint is intact from which its files come again."""
    settings = settings_digest(run.config)
    try:
        paths = list_files(run.checkpoints, ".json")
    except CheckpointError:
        return False
    for path in reversed(paths):
        try:
            read_marked(run.metrics_file, verify_checkpoint(path, settings)[0].mark)
        except CheckpointError:
            continue
        run.result_file.unlink()
        return True
    return False
