"""`bipars bench recipe`: wall clock of the recipe beside PPO's, with one reward term and with 16.

Each training has one core and a process of its own. Rounds are timed from the first to the last, evaluations included,
once everything is compiled; what compiling takes is reported apart. The pairs are those of the suite `misspecified`.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bipars.bench.measure import apart
from bipars.errors import unknown
from bipars.results.formats import text_table
from bipars.runs.files import write_json
from bipars.runs.versions import versions
from bipars.runtime import keep_freed_memory, use_cores

PAIRS = (
    "CartPole-v1/edge",
    "Pendulum-v1/hang",
    "Acrobot-v1/height",
    "Hopper-v5/torque",
    "HalfCheetah-v5/torque-large",
    "Acrobot-v1/sixteen",
    "HalfCheetah-v5/sixteen",
)
BOUNDS = {1: 1.6, 16: 2.0}
"""Times of PPO's time, by number of terms, that we hold ourselves to."""
TURNS = 2
"""Of PPO and the recipe, one process after the other; the faster one counts."""


def measure_training(cell: str, steps: int) -> dict[str, float]:
    """Seconds that all rounds of a training take, and seconds before, which compile them."""
    use_cores([0])
    keep_freed_memory()
    import jax

    from bipars.program import build
    from bipars.suite.plan import Changes, load_suite

    config = next(c.config for c in load_suite("misspecified", Changes(steps=steps)).cells if c.name == cell)
    program = build(config)

    def train(rounds: int) -> float:
        began = time.perf_counter()
        state = program.init(0)
        for _ in range(rounds):
            state, stats = program.iterate(state, 0)
        jax.block_until_ready((state.learner, stats))
        return time.perf_counter() - began

    # A round with an evaluation and one without, since both have to be compiled.
    start = train(config.evaluation_every)
    return {"start_seconds": start, "seconds": train(program.rounds), "terms": len(config.terms)}


def run_bench(out: Path = Path("runs/recipe"), parts: Sequence[str] = PAIRS, steps: int = 100_000) -> int:
    for pair in parts:
        if pair not in PAIRS:
            raise unknown("part", pair, PAIRS)
    rows: list[dict[str, Any]] = []
    for pair in parts:
        cells = {"ppo": f"{pair.partition('/')[0]}/none/ppo", "mgl": f"{pair}/mgl"}
        turns = [{name: apart(measure_training, cell, steps) for name, cell in cells.items()} for _ in range(TURNS)]
        best = {name: min((turn[name] for turn in turns), key=lambda found: found["seconds"]) for name in cells}
        rows.append({"pair": pair, "terms": best["mgl"]["terms"]} | {name: best[name] for name in cells})
        print(f"{pair}: {best['mgl']['seconds'] / best['ppo']['seconds']:.2f} times PPO's time", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    command = f"bipars bench recipe --parts {' '.join(parts)} --steps {steps}"
    write_json(out / "recipe.json", {"command": command, "versions": versions(), "rows": rows})
    print(f"\n{table(rows)}\n\nwritten: {out / 'recipe.json'}")
    return 0


def table(rows: Sequence[dict[str, Any]]) -> str:
    head = ("pair", "terms", "ppo", "recipe", "times", "bound", "compiling, ppo", "recipe")
    return text_table(
        head,
        [
            (
                row["pair"],
                str(row["terms"]),
                *(f"{row[name]['seconds']:.1f} s" for name in ("ppo", "mgl")),
                f"{row['mgl']['seconds'] / row['ppo']['seconds']:.2f}",
                f"{BOUNDS[row['terms']]}",
                *(f"{row[name]['start_seconds']:.1f} s" for name in ("ppo", "mgl")),
            )
            for row in rows
        ],
    )
