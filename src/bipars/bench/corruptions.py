"""Random damage to any file of a run: named, or without effect on any result."""

import logging
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bipars.bench.faults import Tally, Try
from bipars.bench.kills import outcome, small_run
from bipars.errors import BiparsError
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import execute
from bipars.runs.verify import damages, reopen, result_damages


def flip_bit(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def change_digit(content: bytes, rng: random.Random) -> bytes:
    """What hurts most: the file stays what it seems to be."""
    digits = [i for i, byte in enumerate(content) if 48 <= byte <= 57]
    if not digits:
        return flip_bit(content, rng)
    place = rng.choice(digits)
    return content[:place] + bytes([48 + (content[place] - 48 + rng.randrange(1, 10)) % 10]) + content[place + 1 :]


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def cut_lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join(lines[: rng.randrange(len(lines))])


def lose_a_line(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def zero(content: bytes, rng: random.Random) -> bytes:
    place, size = rng.randrange(len(content)), rng.randrange(1, 512)
    return (content[:place] + bytes(size) + content[place + size :])[: len(content)]


def append(content: bytes, rng: random.Random) -> bytes:
    return content + rng.randbytes(rng.randrange(1, 100))


CHANGES: list[Callable[[bytes, random.Random], bytes]] = [
    flip_bit, change_digit, change_digit, cut, cut_lines, lose_a_line, zero, append,
]  # fmt: skip


@contextmanager
def corrupting(scratch: Path) -> Iterator[Try]:
    """One file at a time of a run that is finished, or was stopped."""
    logger, level = logging.getLogger("bipars"), logging.getLogger("bipars").level
    logger.setLevel(logging.CRITICAL)  # what is damaged is named here, over and over
    finished = small_run(scratch / "finished" / "run")
    stopped = small_run(scratch / "stopped" / "run", stop_after=10)
    expected = outcome(finished.path)

    def corrupt(tally: Tally, most: int, rng: random.Random) -> None:
        source = rng.choice([finished, stopped])
        tally.failures += _once(source, scratch / "copy" / "run", expected, rng, tally)

    try:
        yield corrupt
    finally:
        logger.setLevel(level)


def _once(source: RunDirectory, copy: Path, expected: dict[str, bytes], rng: random.Random, tally: Tally) -> list[str]:
    """One damage: it must be named by `bipars verify`, or the run must end as if there were none; never otherwise."""
    shutil.rmtree(copy.parent, ignore_errors=True)
    shutil.copytree(source.path, copy)
    file = rng.choice(sorted(path for path in copy.rglob("*") if path.is_file()))
    before, change = file.read_bytes(), rng.choice(CHANGES)
    if not before or rng.random() < 0.1:
        file.unlink()
        what = "removed"
    else:
        file.write_bytes(change(before, rng))
        what = change.__name__
    where = f"{source.path.parent.name}/{file.relative_to(copy)}: {what}"
    run = RunDirectory(copy)
    named = any(str(file) in line or file.stem in line for line in damages(run)) if copy.exists() else False
    tally.count("named" if named else "without effect")
    try:
        if run.finished and result_damages(run):
            reopen(run)
        execute(run, lambda: False)
        same = outcome(copy) == expected
        left = named and bool(damages(run))  # still said to be damaged, and so in no figure
    except BiparsError:
        same, left = False, named
    return [] if same or left else [f"{where}: {'named, but' if named else 'not named, and'} the results differ"]
