"""Files that somebody made to do harm: no code is run, nothing is written outside, and there is no traceback."""

import functools
import io
import json
import operator
import os
import random
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from multiprocessing import TimeoutError, get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

from bipars.bench.faults import Tally, Try
from bipars.bench.kills import small_run
from bipars.runs.directory import find_runs
from bipars.runs.files import sha256, write_checked
from bipars.runs.metrics import encode_row
from bipars.suite.manifest import record
from bipars.suite.panels import Panel, Statement
from bipars.suite.plan import Cell, Suite

SECONDS = 120
"""What a command gets before it counts as hanging."""
VALUES: list[Any] = [
    None, True, -1, 0, 1.5, 10**18, 10**40, "", "x", "../../outside/x", "/outside/x", "a/../../b", "x" * 2**20,
    "\x1b[2J", "=1+1", "import:hostile.term", "hostile:Env-v0", [], [1], [[]], {}, {"a": 1}, ["x" * 2**20], "\ud800",
    "nan", 1e308, ["import:hostile.term"],
]  # fmt: skip
MODULE = "import pathlib\npathlib.Path({marker!r}).touch()\ndef term(*_): return 0.0\n"


class Commands:
    """One process that executes commands, begun anew where one of them hangs: a process for each would take hours."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self.pool = self._start()

    def _start(self) -> Pool:
        return get_context("spawn").Pool(1, os.chdir, (self.cwd,))

    def run(self, arguments: list[str]) -> tuple[Any, str]:
        try:
            return self.pool.apply_async(execute, (arguments,)).get(SECONDS)
        except TimeoutError:
            self.pool.terminate()
            self.pool = self._start()
            return "it hung, or ended the process", ""


def execute(arguments: list[str]) -> tuple[Any, str]:
    """How a command ended, its status or a traceback, and what it said."""
    main, out = import_module("bipars.cli").main, io.StringIO()  # by name: commands stand above benchmarks
    with redirect_stdout(out), redirect_stderr(out):
        try:
            status: Any = main(arguments)
        except SystemExit as error:
            status = error.code
        except BaseException:
            status = traceback.format_exc()
    return status, out.getvalue()[-20_000:]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a JSON document something stands."""
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        found += places(part, (*path, key))
    return found


def forge_json(file: Path, rng: random.Random) -> str:
    """Another value somewhere, and a checksum that is right."""
    data = json.loads(file.read_bytes())
    data.pop("checksum", None)
    path, value = rng.choice(places(data)), rng.choice(VALUES)
    functools.reduce(operator.getitem, path[:-1], data)[path[-1]] = value
    write_checked(file, data)
    return f"{'.'.join(map(str, path))} = {value!r:.40}"


def forge_rows(run: Path, rng: random.Random) -> str:
    """Another value in a row of metrics, with all checksums right."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    row, value = rng.choice(rows), rng.choice(VALUES)
    name = rng.choice(sorted(row))
    if rng.random() < 0.3:
        del row[name]
    else:
        row[name] = value
    try:
        content = b"".join(map(encode_row, rows))
    except ValueError:
        content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    (run / "metrics.jsonl").write_bytes(content)
    result = json.loads((run / "result.json").read_bytes())
    del result["checksum"]
    write_checked(run / "result.json", result | {"metrics_size": len(content), "metrics_sha256": sha256(content)})
    return f"metrics {name} = {value!r:.40}"


def forge_snapshot(run: Path, rng: random.Random) -> str:
    """An array of another shape or type in every snapshot, with a checksum that is right."""
    import numpy as np
    import safetensors.numpy

    nans, booleans = np.full((512, 4), np.nan, np.float32), np.ones((512, 1), bool)
    array: Any = rng.choice([np.zeros(3), np.zeros((2, 2, 2)), np.zeros(0), nans, booleans])
    name = ""
    for file in sorted((run / "snapshots").iterdir()):
        arrays = safetensors.numpy.load(file.read_bytes())
        name = name or rng.choice([*sorted(arrays), ".visited.more", ".weights.net.layers[9].weight"])
        arrays[name] = array
        file.write_bytes(safetensors.numpy.save(arrays, {"checksum": sha256(safetensors.numpy.save(arrays))}))
    return f"snapshots {name} is {array.dtype}{list(array.shape)}"


def forge_place(root: Path, outside: Path, rng: random.Random) -> str:
    """A link, a pipe or a directory in the place of a file, or a link in the place of a directory."""
    entries = [path for path in sorted(root.rglob("*")) if path.name != "config.json" or rng.random() < 0.2]
    path, kind = rng.choice(entries), rng.choice(["link", "pipe", "directory", "noise", "deep"])
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "link":
        path.symlink_to(outside if "." not in path.name else outside / "thesis.tex")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(rng.randbytes(200) if kind == "noise" else b"[" * 100_000)
    return f"{path.relative_to(root)} is a {kind}"


@contextmanager
def attacking(scratch: Path) -> Iterator[Try]:
    """One forged file at a time in a suite of two runs, and the commands that would read it."""
    outside, marker, here = scratch / "outside", scratch / "was-executed", scratch / "here"
    for place in (outside, here):
        place.mkdir()
    (outside / "thesis.tex").write_text("years of work")
    (here / "hostile.py").write_text(MODULE.format(marker=str(marker)))
    for seed in (0, 1):
        small_run(scratch / "whole" / "cartpole" / "harmful" / "mgl" / f"seed-{seed:04d}", seed=seed)
    _write_suite(scratch / "whole")
    commands = Commands(here)

    def attack(tally: Tally, most: int, rng: random.Random) -> None:
        root = scratch / "deep" / "er" / "runs"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(scratch / "whole", root)
        kind, what, asked = _forge(root, outside, rng)
        tally.count(kind)
        for command in asked:
            status, text = commands.run(command)
            if problem := _problem(status, text, outside, marker):
                tally.failures.append(f"{what}, then bipars {' '.join(command[:2])}: {problem}")

    try:
        yield attack
    finally:
        commands.pool.terminate()


def _forge(root: Path, outside: Path, rng: random.Random) -> tuple[str, str, list[list[str]]]:
    run = root / "cartpole" / "harmful" / "mgl" / "seed-0001"
    looks = [["report", str(root)], ["verify", str(root)], ["render", str(run), "--frames", "2"]]
    # Not `resume`: it may rightly train what a forged file asks for, which takes minutes.
    suite = [["suite", "status", str(root)], ["suite", "export", str(root)]]
    forgeries: dict[str, tuple[Callable[[], str], list[list[str]]]] = {
        "config.json": (lambda: forge_json(run / "config.json", rng), looks),
        "result.json": (lambda: forge_json(run / "result.json", rng), looks[:2]),
        "manifests": (lambda: forge_json(max((run / "checkpoints").glob("*.json")), rng), looks),
        "metrics": (lambda: forge_rows(run, rng), looks[:2]),
        "snapshots": (lambda: forge_snapshot(run, rng), looks[:2]),
        "suite.json": (lambda: forge_json(root / "suite.json", rng), [*suite, looks[0]]),
        "links and pipes": (lambda: forge_place(root, outside, rng), [*looks[:2], *suite]),
    }
    kind = rng.choice(sorted(forgeries))
    forge, commands = forgeries[kind]
    return kind, forge(), commands


def _write_suite(root: Path) -> None:
    """As if `bipars suite run` had made the two runs."""
    cell = Cell("cartpole/harmful/mgl", find_runs(root)[0].config, (0, 1))
    statement = Statement("s", (cell.name,), "steps", above=1.0)
    record(root, Suite("hostile", (cell,), (Panel("a", "t", (cell.name,), (statement,)),)), ["hostile"])


def _problem(status: Any, text: str, outside: Path, marker: Path) -> str:
    if marker.exists():
        marker.unlink()
        return "its code was run"
    if [path.name for path in outside.iterdir()] != ["thesis.tex"] or len((outside / "thesis.tex").read_bytes()) != 13:
        return "something was written outside"
    if not isinstance(status, int) or "Traceback" in text:
        return f"a traceback: {(status if isinstance(status, str) else text).strip().splitlines()[-1]:.200}"
    return ""
