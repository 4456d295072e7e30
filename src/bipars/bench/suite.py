"""`bipars bench suite`: what a plan costs per cell, two workers against one, Ray against local processes."""

import json
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from bipars.bench.measure import apart

SIZES = (1_000, 10_000)
GRID = """
[[grid]]
env = ["cartpole", "cartpole-continuous"]
term = ["harmful"]
name = "t{i}"
method = ["ns", "em", "mgl", "imgl", "single"]
"""
WORK = """
seeds = "0-4"
steps = {steps}
[[grid]]
env = ["cartpole", "cartpole-continuous"]
term = ["harmful"]
method = ["ns", "mgl"]
"""
"""20 runs of 4 cells."""


def measure_plan(cells: int) -> dict[str, float]:
    """In this process: seconds to plan, list and summarise runs that do nothing, and its memory."""
    import resource

    from bipars.results.summary import summarise_runs, table
    from bipars.suite.manifest import read_manifest, record
    from bipars.suite.plan import load_suite
    from bipars.suite.status import count_states

    load_suite("demo")  # what is loaded and compiled once does not count
    with tempfile.TemporaryDirectory() as scratch:
        file, root = Path(scratch) / "many.toml", Path(scratch) / "out"
        file.write_text("".join(GRID.format(i=i) for i in range(cells // 10)))
        began = time.perf_counter()
        runs = record(root, load_suite(str(file)), [str(file)]).runs(root)
        planned = time.perf_counter()
        for run in runs:
            _pretend(run.path, run.config.to_dict(), run.config.steps)
        pretended = time.perf_counter()
        assert count_states(read_manifest(root).runs(root))["all"]["done"] == cells
        listed = time.perf_counter()
        assert len(table(summarise_runs([run.directory for run in runs], root)).splitlines()) == cells + 2
        summarised = time.perf_counter()
    return {
        "plan": planned - began,
        "list": listed - pretended,
        "summarise": summarised - listed,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _pretend(path: Path, config: dict[str, object], steps: int) -> None:
    """A finished run that did nothing."""
    from bipars.runs.directory import FORMAT
    from bipars.runs.files import sha256, write_checked

    path.mkdir(parents=True)
    write_checked(path / "config.json", {"format": FORMAT, "kind": "run", "config": config})
    row = {"round": 1, "step": steps, "evaluation_return": 0.0, "evaluation_length": 0.0}
    metrics = (json.dumps(row) + "\n").encode()
    (path / "metrics.jsonl").write_bytes(metrics)
    result = {"steps": steps, "evaluation_return": 0.0, "evaluation_length": 0.0, "weights": {}}
    mark = {"metrics_size": len(metrics), "metrics_sha256": sha256(metrics)}
    write_checked(path / "result.json", result | mark)


def measure_engine(engine: str, workers: int, steps: int) -> float:
    """Seconds for 20 runs, from the plan to the last result."""
    from bipars.suite.finish import local_engine, ray_engine
    from bipars.suite.manifest import record
    from bipars.suite.plan import load_suite

    run = ray_engine(workers, None) if engine == "ray" else local_engine(workers)
    with tempfile.TemporaryDirectory() as scratch:
        file, root = Path(scratch) / "work.toml", Path(scratch) / "out"
        file.write_text(WORK.format(steps=steps))
        began = time.perf_counter()
        runs = record(root, load_suite(str(file)), [str(file)]).runs(root)
        assert run(runs, lambda standing: None)
        assert all(planned.finished for planned in runs)
        return time.perf_counter() - began


def run_bench(updates: int = 60) -> int:
    """Prints both tables; Ray's row only where it is installed."""
    print("runs that do nothing, per cell of one seed\n")
    print("cells".ljust(10), *(name.rjust(14) for name in ("plan", "list", "summarise", "memory")))
    for cells in SIZES:
        found = apart(measure_plan, cells)
        each = (f"{found[name] / cells * 1e3:.2f} ms" for name in ("plan", "list", "summarise"))
        print(f"{cells:,}".ljust(10), *(text.rjust(14) for text in (*each, f"{found['megabytes']:.0f} MB")), flush=True)
    steps = updates * 20_000
    print(f"\n20 runs of {steps:,} steps (4 cells of 5 seeds)\n")
    apart(measure_engine, "local", 2, 20_000)  # fills the compilation cache
    one, two = (apart(measure_engine, "local", workers, steps) for workers in (1, 2))
    print(f"local, 1 worker   {one:7.1f} s")
    print(f"local, 2 workers  {two:7.1f} s   {one / two:.2f} times as fast (bound 1.8)", flush=True)
    if find_spec("ray") is None:
        print("Ray is not installed; compare with it after: pip install 'bipars[ray]'")
        return 0
    ray = apart(measure_engine, "ray", 2, steps)
    print(f"ray, 2 workers    {ray:7.1f} s   {ray / two - 1:+.0%} against local (bound +15%)")
    return 0
