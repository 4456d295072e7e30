"""`bipars bench sweep`: weights learned in one run, against the best of many Optuna trials over the weights.

What people do today is to try weights: one training per trial, and the best true return wins. A trial here is naive
shaping with every term multiplied by what Optuna suggests. The one run learns the weights. Both have the same learner
and as many steps per training. Since the best of many trials is also the luckiest, its weights are trained again with
the seeds of the one run. Reported are environment steps and wall clock of both, and until the one run has reached the
best trial's true return.

A finished training is a line of trainings.jsonl: the benchmark may be killed, and goes on where it was.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bipars.errors import UsageError
from bipars.metrics import summarise
from bipars.program import LearnedWeights, build, complete, configure
from bipars.results.formats import text_table
from bipars.results.statistics import time_to_threshold
from bipars.runs.execute import LAST_EVALUATIONS
from bipars.runs.files import write_atomically, write_json
from bipars.runs.versions import versions

TRIALS = 20
SEEDS = 3
"""Trainings of the one run, and of the best trial's weights again."""
SMALLEST, LARGEST = 0.01, 10.0
"""Weights that are tried, on a logarithmic scale: 1 is the term as written."""
FIRST_SEED = 1_000
"""Of the one run; the trials have those below."""
TERMS = "import:bipars.terms.misspecified."


@dataclass(frozen=True)
class Task:
    """An environment with terms whose weights nobody knows, some of them poison."""

    env: str
    terms: tuple[str, ...]
    steps: int = 100_000
    ppo: Mapping[str, Any] = field(default_factory=dict)


TASKS = (
    Task(
        "Acrobot-v1",
        (*(f"{TERMS}acrobot_{name}" for name in ("height", "knee_high", "low", "calm", "speed")), "noise:1"),
    ),
    Task("MountainCar-v0", (*(f"{TERMS}mountain_car_{name}" for name in ("speed", "left", "brake")), "noise:1")),
)


@dataclass(frozen=True)
class Training:
    env: str
    kind: str
    """trial, learned or again."""
    number: int
    weights: tuple[float, ...]
    """Of a trial; none where they are learned."""
    steps: tuple[int, ...]
    returns: tuple[float, ...]
    """True return of every evaluation."""
    seconds: tuple[float, ...]
    """Wall clock up to each, compilation included."""

    @property
    def end(self) -> float:
        return float(np.mean(self.returns[-LAST_EVALUATIONS:]))

    def reached(self, value: float) -> int | None:
        """Index of the first evaluation by which the mean of the last ones is as high."""
        means = [np.mean(self.returns[max(0, i - LAST_EVALUATIONS + 1) : i + 1]) for i in range(len(self.returns))]
        first = time_to_threshold(np.arange(len(means)), np.array(means), value)
        return None if np.isnan(first) else int(first)


def train(task: Task, kind: str, number: int, seed: int, weights: Sequence[float] = ()) -> Training:
    """By naive shaping with these weights, or by the default method, which learns them."""
    began = time.perf_counter()
    settings: dict[str, Any] = {"env": task.env, "terms": list(task.terms), "steps": task.steps, "ppo": dict(task.ppo)}
    config = complete(configure(settings | ({"method": "ns"} if weights else {})))
    program = build(config)
    state = program.init(seed)
    if weights:
        given = replace(state.weights, value=np.asarray(weights, np.float32) - config.weights.initial)  # type: ignore[type-var]
        state = program.init(seed, LearnedWeights(given, None))
    steps, returns, seconds = [], [], []
    for round in range(program.rounds):
        state, stats = program.iterate(state, seed)
        if (round + 1) % config.evaluation_every and round + 1 < program.rounds:
            continue
        steps.append(program.steps_after(round + 1))
        returns.append(summarise(stats, program.term_names)["evaluation_return"])
        seconds.append(time.perf_counter() - began)
    return Training(task.env, kind, number, tuple(weights), tuple(steps), tuple(returns), tuple(seconds))


class Trainings:
    """Those that are finished, on disk; what is asked for again is not done again."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.done: list[Training] = []
        if file.exists():
            for data in map(json.loads, file.read_text().splitlines()):
                values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
                self.done.append(Training(**values))

    def get(self, task: Task, kind: str, number: int, seed: int, weights: Sequence[float] = ()) -> Training:
        for known in self.done:
            if (known.env, known.kind, known.number) == (task.env, kind, number):
                if known.steps[-1] < task.steps or known.weights != tuple(weights):
                    raise UsageError(
                        f"{self.file} has another {kind} {number} of {task.env}, of {known.steps[-1]:,} steps; "
                        "choose another --out, or ask for the same --trials and --steps"
                    )
                return known
        training = train(task, kind, number, seed, weights)
        self.done.append(training)
        write_atomically(self.file, "".join(json.dumps(asdict(t)) + "\n" for t in self.done).encode())
        print(f"  {task.env}, {kind} {number + 1}: true return {training.end:.1f} in {training.seconds[-1]:.0f} s")
        return training


def suggest(task: Task, done: Sequence[Training]) -> list[float]:
    """Optuna's next weights, after these trials: the same whenever it is asked, so that a killed sweep goes on."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=len(done)))
    spaces: dict[str, Any] = {
        term: optuna.distributions.FloatDistribution(SMALLEST, LARGEST, log=True) for term in task.terms
    }
    for trial in done:
        values = dict(zip(task.terms, trial.weights, strict=True))
        study.add_trial(optuna.trial.create_trial(params=values, distributions=spaces, value=trial.end))
    asked = study.ask(spaces)
    return [float(asked.params[term]) for term in task.terms]


def sweep(task: Task, trainings: Trainings, trials: int, seeds: int) -> dict[str, Any]:
    """Both sides on one task."""
    tried: list[Training] = []
    for number in range(trials):
        tried.append(trainings.get(task, "trial", number, number, suggest(task, tried)))
    best = max(tried, key=lambda trial: trial.end)
    places = [FIRST_SEED + i for i in range(seeds)]
    learned = [trainings.get(task, "learned", i, seed) for i, seed in enumerate(places)]
    again = [trainings.get(task, "again", i, seed, best.weights) for i, seed in enumerate(places)]
    at = [run.reached(best.end) for run in learned]
    return {
        "env": task.env,
        "terms": list(task.terms),
        "trials": trials,
        "best trial": best.number + 1,
        "best weights": list(best.weights),
        "best return": best.end,
        "best return, other seeds": float(np.mean([run.end for run in again])),
        "learned return": float(np.mean([run.end for run in learned])),
        "steps of all trials": sum(run.steps[-1] for run in tried),
        "seconds of all trials": sum(run.seconds[-1] for run in tried),
        "steps of one run": learned[0].steps[-1],
        "seconds of one run": float(np.mean([run.seconds[-1] for run in learned])),
        "reached by": [None if i is None else run.steps[i] for i, run in zip(at, learned, strict=True)],
        "seconds until": [None if i is None else run.seconds[i] for i, run in zip(at, learned, strict=True)],
    }


def as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["task", "", "true return", "environment steps", "seconds"]
    lines = []
    for row in rows:
        found = [step for step in row["reached by"] if step is not None]
        until = [second for second in row["seconds until"] if second is not None]
        seeds = len(row["reached by"])
        again = f"{row['best return']:.1f} (other seeds: {row['best return, other seeds']:.1f})"
        steps, seconds = f"{row['steps of all trials']:,}", f"{row['seconds of all trials']:.0f}"
        lines.append([row["env"], f"best of {row['trials']} trials", again, steps, seconds])
        steps, seconds = f"{row['steps of one run']:,}", f"{row['seconds of one run']:.0f}"
        lines.append(["", f"one run, weights learned ({seeds} seeds)", f"{row['learned return']:.1f}", steps, seconds])
        reached = f"best trial's return, {len(found)} of {seeds} seeds"
        steps, seconds = (f"{np.mean(found):,.0f}", f"{np.mean(until):.0f}") if found else ("-", "-")
        lines.append(["", reached, f"{row['best return']:.1f}", steps, seconds])
    return text_table(head, lines)


def run_bench(
    out: Path = Path("runs/sweep"),
    trials: int = TRIALS,
    steps: int | None = None,
    tasks: Sequence[Task] = TASKS,
    seeds: int = SEEDS,
) -> int:
    if find_spec("optuna") is None:
        raise UsageError("bench sweep tries weights with Optuna, which is not installed: pip install 'bipars[bench]'")
    out.mkdir(parents=True, exist_ok=True)
    trainings = Trainings(out / "trainings.jsonl")
    rows = [sweep(task if steps is None else replace(task, steps=steps), trainings, trials, seeds) for task in tasks]
    write_json(out / "sweep.json", {"tasks": rows, "versions": versions()})
    print(as_text(rows))
    print(f"written: {out / 'sweep.json'}")
    return 0
