"""`bipars bench jax`: MGL on the classic tasks of Gymnax, compiled whole, beside Gymnasium's, which Python steps.

Settings are the same on both sides: many environments and few gradient steps, as where environments are what costs.
Each side is a process of its own, one after the other. Rates are environment steps per second of whole updates once
compiled, without evaluation.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bipars.bench.measure import apart
from bipars.errors import UsageError
from bipars.metrics import with_tables
from bipars.runs.files import read_json, write_json

TASKS = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
PPO = {"num_envs": 256, "update_period": 32_768, "gradient_steps": 16, "batch_size": 1_024}
NEVER = 1_000_000
"""Updates between evaluations."""
FASTER = 10


def first(obs: Any, action: Any, next_obs: Any, info: Any) -> Any:
    """A term that costs nothing: what the first number of the observation is away from 0."""
    return -abs(next_obs[..., 0])


def measure(task: str, side: str, updates: int) -> dict[str, float]:
    """In this process."""
    import bipars

    env: Any = task
    if side == "gymnax":
        env = bipars.envs.from_gymnax(*import_module("gymnax").make(task))
    terms = [bipars.RewardTerm("first", first, vectorised=True)]
    period = PPO["update_period"]
    agent = bipars.BiPaRS(env, terms=terms, ppo=PPO, evaluation_every=NEVER).learn(2 * period)
    began, cpu = time.perf_counter(), time.process_time()
    steps = updates * period
    agent.learn(steps)
    return {"rate": steps / (time.perf_counter() - began), "cpu": steps / (time.process_time() - cpu)}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| task | Gymnax's, compiled whole | Gymnasium's, stepped from Python | times as fast |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        compiled, stepped = row["gymnax"]["rate"], row["gymnasium"]["rate"]
        lines.append(f"| {row['task']} | {compiled:,.0f} | {stepped:,.0f} | {compiled / stepped:.1f} |")
    return "\n".join(lines)


def run_bench(updates: int = 5, out: Path | None = None) -> int:
    if find_spec("gymnax") is None:
        raise UsageError("bench jax needs Gymnax, which wants gymnasium < 1.4: pip install gymnax six")
    print(f"MGL, {PPO['num_envs']} environments, {updates} updates of {PPO['update_period']:,} steps; steps per second")
    rows = []
    for task in TASKS:
        rows.append({"task": task, **{side: apart(measure, task, side, updates) for side in ("gymnax", "gymnasium")}})
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    if out is not None:
        versions = {name: version(name) for name in ("bipars", "jax", "gymnax", "gymnasium", "numpy")}
        out.mkdir(parents=True, exist_ok=True)
        command = f"bipars bench jax --updates {updates}"
        write_json(out / "jax.json", {"command": command, "versions": versions, "ppo": PPO, "rows": rows})
    print(f"\nbound: {FASTER} times on one of them")
    return 0


def documented(results: Path) -> str:
    """What the documentation says of a recorded measurement."""
    found = read_json(results / "jax.json")[0]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return f"\n{table(found['rows'])}\n\n`{found['command']}`, with {versions}.\n\n"


if __name__ == "__main__":
    page, results = map(Path, sys.argv[1:])
    page.write_text(with_tables(page.read_text(), [documented(results)]))
