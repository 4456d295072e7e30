"""`bipars bench trainer`: Stable-Baselines3's PPO beside `ShapedPPO`, and learned weights in a fresh PPO.

Every task is an environment of Gymnasium with one term that somebody might have written. The same PPO, with the same
settings, learns from the true reward alone, from the naive sum, and with weights that are learned along. Then a fresh,
unmodified PPO learns from what was learned with the same seed: from the weight function, frozen; from one number per
term; from the schedule of that number. Greedy episodes tell the true return.

Wall clock is measured apart, PPO and `ShapedPPO` in turns of a few seconds: a machine that is busy in one minute and
not in the next slows both down. A finished training is a file: the benchmark may be killed, and goes on where it was.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from bipars.bench.measure import apart
from bipars.bench.sweep import Training
from bipars.errors import UsageError, unknown
from bipars.metrics import with_tables
from bipars.results.formats import text_table
from bipars.results.statistics import area_under_curve
from bipars.runs.files import read_json, write_atomically, write_json
from bipars.runs.versions import versions
from bipars.terms import misspecified
from bipars.terms.term import RewardTerm

SEEDS = 5
EVALUATIONS = 20
EPISODES = 10
"""Greedy ones, of each evaluation."""
COMMON: Mapping[str, Any] = {"policy": "MlpPolicy", "n_steps": 256, "device": "cpu"}
NUM_ENVS = 8
A_TURN = 20_000
"""Steps of one system before it is the other's turn, where times are measured."""


@dataclass(frozen=True)
class Task:
    """An environment, a term, and what of PPO's settings differs from Stable-Baselines3's own."""

    name: str
    """The environment; what comes after a comma tells it from another task on the same."""
    term: str
    """One of `bipars.terms.misspecified`."""
    steps: int = 100_000
    harmful: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    own_reward: str | None = None
    """The true reward in place of the environment's, one of the same module."""

    @property
    def env(self) -> str:
        return self.name.partition(",")[0]

    @property
    def true_reward(self) -> Any:
        return "env" if self.own_reward is None else getattr(misspecified, self.own_reward)

    @property
    def terms(self) -> list[RewardTerm]:
        return [RewardTerm(self.term, getattr(misspecified, self.term), vectorised=True)]


PENDULUM = {"gamma": 0.9, "learning_rate": 1e-3}
TASKS = (
    Task("CartPole-v1", "cartpole_cost"),
    Task("Acrobot-v1", "acrobot_low"),
    Task("Pendulum-v1", "pendulum_hang", settings=PENDULUM),
    Task("Pendulum-v1, sparse", "pendulum_up", 100_000, False, PENDULUM, "pendulum_held"),
)
TRUE, NAIVE, LEARNED = "true reward alone", "naive sum", "ShapedPPO"
FROZEN, SCALARS, SCHEDULE = "weight function", "scalars", "schedule"
SYSTEMS = (TRUE, NAIVE, LEARNED, FROZEN, SCALARS, SCHEDULE)
UNTRAINED, TIME = "untrained", "time"


def cell_file(out: Path, task: Task, system: str, seed: int) -> Path:
    return out / task.name.replace(", ", "-") / system.replace(" ", "-").lower() / f"seed-{seed}.json"


def make_model(task: Task, system: str, seed: int, out: Path) -> Any:
    """A PPO that learns from what the system says. `out` has what ShapedPPO learned with this seed, or will have."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    from bipars.sb3 import ShapedPPO

    torch.set_num_threads(1)
    env, given = make_vec_env(task.env, NUM_ENVS, seed), {**COMMON, **task.settings, "seed": seed}
    learned = cell_file(out, task, LEARNED, seed).with_suffix("")
    if system == LEARNED:
        shutil.rmtree(learned, ignore_errors=True)  # of a training that was killed
        return ShapedPPO(env=env, terms=task.terms, true_reward=task.true_reward, out=learned, **given)
    return PPO(env=shaped_by(env, task, system, learned), **given)


def shaped_by(env: Any, task: Task, system: str, learned: Path) -> Any:
    """The environments with the reward that a fresh PPO gets to see."""
    from bipars.export import LearnedWeightFunction, shape, shaped_env
    from bipars.terms.true_reward import TrueReward

    if system == TRUE and task.own_reward is None:
        return env
    if system == FROZEN:
        weights, reward = LearnedWeightFunction.load(learned / "weights.safetensors"), task.true_reward
        return shape(
            env, weights, task.terms, TrueReward("env") if reward == "env" else TrueReward("function", reward), ()
        )
    numbers: Any = {TRUE: {task.term: 0.0}, NAIVE: {task.term: 1.0}}.get(system, learned / f"{system}.json")
    return shaped_env(env, task.terms, numbers, task.true_reward)


def export(model: Any, run: Path) -> None:
    """What `ShapedPPO` has learned, in the three forms that a fresh PPO takes."""
    from bipars.results.panels import collect
    from bipars.results.scalars import FORMATS, read_scalars, the_learner

    model.weight_function().save(run / "weights.safetensors")
    numbers = read_scalars(the_learner(collect(run)))
    for form in (SCALARS, SCHEDULE):
        write_atomically(run / f"{form}.json", FORMATS[form](numbers).encode())


def true_return(model: Any, task: Task, seed: int, episodes: int = EPISODES, greedy: bool = True) -> float:
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv

    env = DummyVecEnv([lambda: gymnasium.make(task.env)] * EPISODES)  # a Monitor would tell the environment's reward
    env.seed(seed)
    judge = shaped_by(env, task, TRUE, Path())
    return float(np.mean(evaluate_policy(model, judge, episodes, deterministic=greedy, warn=False)[0]))


def train(task: Task, system: str, seed: int, out: Path) -> Training:
    """One training with greedy evaluations in between, which take none of its seconds."""
    model = make_model(task, system, seed, out)
    steps, returns, seconds = [], [], []
    due, began = [*np.linspace(0, task.steps, EVALUATIONS + 1)[1:]], time.perf_counter()

    def evaluate(*_: Any) -> bool:
        nonlocal began
        if due and model.num_timesteps >= due[0]:
            due[:] = [step for step in due if step > model.num_timesteps]
            now = time.perf_counter()
            steps.append(model.num_timesteps)
            returns.append(true_return(model, task, 1_000 * (seed + 1) + len(steps)))
            seconds.append(now - began)
            began += time.perf_counter() - now
        return True

    model.learn(task.steps, callback=evaluate)
    if system == LEARNED:
        export(model, cell_file(out, task, system, seed).with_suffix(""))
    return Training(task.name, system, seed, (), tuple(steps), tuple(returns), tuple(seconds))


def measure_time(name: str, seed: int, steps: int) -> dict[str, float]:
    """In this process: seconds of both trainings, compilation included, in turns of several updates."""
    task = next(task for task in TASKS if task.name == name)
    with tempfile.TemporaryDirectory() as scratch:
        seconds = dict.fromkeys((TRUE, LEARNED), 0.0)
        models = {system: make_model(task, system, seed, Path(scratch)) for system in seconds}
        while models[TRUE].num_timesteps < steps:
            for system, model in models.items():
                began = time.perf_counter()
                model.learn(A_TURN, reset_num_timesteps=False)
                seconds[system] += time.perf_counter() - began
    return seconds


def untrained(task: Task, out: Path) -> Training:
    """True return before anything is learned: where gains are counted from."""
    found = true_return(make_model(task, TRUE, 0, out), task, 0, 10 * EPISODES, greedy=False)
    return Training(task.name, UNTRAINED, 0, (), (0,), (found,), (0.0,))


def read_cell(file: Path) -> Training:
    data = {name: tuple(v) if isinstance(v, list) else v for name, v in read_json(file)[0].items()}
    return Training(**data)  # type: ignore[arg-type]


def do_cell(out: Path, task: Task, system: str, seed: int) -> None:
    """Unless it is done already. A time is a training without returns, whose seconds are those of both."""
    file = cell_file(out, task, system, seed)
    if file.exists():
        if (known := read_cell(file).steps[-1]) < task.steps and system != UNTRAINED:
            raise UsageError(f"{file} has {known:,} steps; choose another --out, or ask for the same --steps")
        return
    if system == TIME:
        seconds = apart(measure_time, task.name, seed, task.steps)
        done = Training(task.name, system, seed, (), (task.steps,), (), (seconds[TRUE], seconds[LEARNED]))
    else:
        done = untrained(task, out) if system == UNTRAINED else train(task, system, seed, out)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, asdict(done))
    said = f"true return {done.end:.1f}" if done.returns else f"{done.seconds[1] / done.seconds[0]:.2f} times the time"
    print(f"  {task.name}, {system}, seed {seed}: {said} in {sum(done.seconds[-1:]):.0f} s", flush=True)


def summarise(task: Task, cells: Sequence[Training]) -> dict[str, Any]:
    """Of one task: true returns of the last evaluations, and over all of training, per system and seed."""
    of = {name: [cell for cell in cells if cell.kind == name] for name in (*SYSTEMS, UNTRAINED, TIME)}
    return {
        "task": task.name,
        "term": task.term,
        "harmful": task.harmful,
        "steps": task.steps,
        "untrained": of[UNTRAINED][0].end,
        "end": {name: [cell.end for cell in of[name]] for name in SYSTEMS},
        "area": {
            name: [float(area_under_curve(*map(np.array, (c.steps, c.returns)))) for c in of[name]] for name in SYSTEMS
        },
        "seconds": [cell.seconds for cell in of[TIME]],
    }


def gained(row: Mapping[str, Any], system: str, what: str) -> str:
    """Share of what PPO gains over the untrained policy by the true reward alone."""
    if not row[what][system] or not row[what][TRUE]:
        return "-"
    gain, whole = (np.mean(row[what][name]) - row["untrained"] for name in (system, TRUE))
    return f"{gain / whole:.0%}"


def tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Both, in Markdown. Returns are means over seeds, with the standard deviation."""

    def cell(row: Mapping[str, Any], system: str, what: str = "end") -> str:
        found = row[what][system]
        return f"{np.mean(found):.1f} ± {np.std(found):.1f}" if found else "-"

    beside, fresh = [], []
    for row in rows:
        name = f"{row['task']}, {row['term']}"
        for what, title in (("end", name), ("area", "over all of training")):
            shares = [gained(row, s, what) if row["harmful"] else "-" for s in (NAIVE, LEARNED)]
            ratios = [shaped / plain for plain, shaped in row["seconds"]] if what == "end" else []
            slower = f"{np.median(ratios):.2f}" if ratios else ""
            beside.append([title, *(cell(row, s, what) for s in (TRUE, NAIVE, LEARNED)), *shares, slower])
        fresh.append([name, *(cell(row, system) for system in (TRUE, NAIVE, FROZEN, SCALARS, SCHEDULE))])
    head = ["task and term", "PPO, true reward", "PPO, naive sum", LEARNED, "naive keeps", f"{LEARNED} keeps", "time"]
    second = ["task and term", TRUE, NAIVE, FROZEN, SCALARS, SCHEDULE]
    return f"\n{text_table(head, beside)}\n\n{text_table(second, fresh)}\n\n"


def run_bench(
    out: Path = Path("runs/trainer"),
    parts: Sequence[str] = (),
    steps: int | None = None,
    tasks: Sequence[Task] = TASKS,
    seeds: int = SEEDS,
) -> int:
    """`parts` are tasks, and "time"; one that is not asked for is summarised as far as it is there."""
    if find_spec("stable_baselines3") is None:
        raise UsageError("bench trainer needs Stable-Baselines3: pip install 'bipars[sb3]'")
    known = [*(task.name for task in tasks), TIME]
    for name in parts:
        if name not in known:
            raise unknown("part of bench trainer", name, known)
    asked = parts or known
    tasks = [task if steps is None else replace(task, steps=steps) for task in tasks]
    for task in tasks:
        systems = [*(SYSTEMS if task.name in asked else ()), *([TIME] if TIME in asked and task.harmful else ())]
        for system, seed in [(UNTRAINED, 0), *((system, seed) for seed in range(seeds) for system in systems)]:
            do_cell(out, task, system, seed)
    rows = [
        summarise(t, [read_cell(file) for file in sorted(cell_file(out, t, TIME, 0).parents[1].glob("*/seed-*.json"))])
        for t in tasks
    ]
    write_json(out / "trainer.json", {"tasks": rows, "versions": versions()})
    print(tables(rows))
    print(f"written: {out / 'trainer.json'}")
    return 0


if __name__ == "__main__":
    page, results = map(Path, sys.argv[1:])
    page.write_text(with_tables(page.read_text(), [tables(read_json(results / "trainer.json")[0]["tasks"])]))
