"""Commands that need no run of your own: `list`, `demo`, `bench` and `monks`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from bipars.cli.asked import asked, given
from bipars.cli.suite import count_workers
from bipars.errors import UsageError, unknown
from bipars.monks.config import MonksConfig


@dataclass(frozen=True)
class List:
    """List the environments, terms, methods and suites that exist."""

    def run(self) -> int:
        from bipars.envs.registry import ANY, known_names
        from bipars.methods import METHODS
        from bipars.suite.shipped import shipped
        from bipars.terms.builtin import TERMS

        print("environments:", ", ".join([*known_names(), ANY]))
        forms = {"info": "info:KEY", "import": "import:module.function"}
        print("terms:       ", ", ".join(forms.get(name, name) for name in TERMS))
        print("suites:      ", ", ".join(shipped()))
        print("methods:")
        for name, method in METHODS.items():
            print(f"  {name:14}{method.summary}")
        return 0


LABELS = {"ppo": "no shaping", "ns": "naive shaping", "mgl": "learned weights"}


@dataclass(frozen=True)
class Demo:
    """Train on cart-pole with three reward terms, used in three ways, and print advice on each term."""

    out: Path = Path("demo")
    """Directory for runs, table and curves."""
    workers: int = 0
    """Cores to use, one per run; 0 takes all."""

    def run(self) -> int:
        """Trains, prints a verdict, writes curves.png and report.html. Started again, it goes on where it was."""
        from bipars.report.build import write_report
        from bipars.report.curves import plot_curves
        from bipars.report.text import show_results
        from bipars.results.panels import collect
        from bipars.runs.root import check_root
        from bipars.suite.finish import DONE, finish, local_engine, runner_of
        from bipars.suite.manifest import is_suite, record
        from bipars.suite.plan import load_suite

        workers = count_workers(self.workers)
        print("cart-pole pays -1 when the pole falls. Somebody added three terms: `upright` pays for a small angle,")
        print("`harmful` takes 0.1 for every push that rights the pole, and `noise` is drawn at random.")
        print("Which should count? Training without them, with them, and with weights that are learned ...")
        suite = load_suite("demo")
        if not is_suite(self.out):
            check_root(self.out)
        with runner_of(self.out):
            runs = record(self.out, suite, ["demo"]).runs(self.out)
            status = finish(runs, self.out, local_engine(workers), f"bipars demo --out {self.out}")
        if status != DONE:
            return status
        picture = self.out / "curves.png"
        by_label = {
            label: [run.directory for run in runs if run.config.method == method] for method, label in LABELS.items()
        }
        plot_curves(by_label, "cart-pole with three terms", picture)
        show_results(runs, self.out)
        print(f"\nCurves: {picture}")
        print(f"Report: {write_report(collect(self.out))}")
        return 0


@dataclass(frozen=True)
class Bench:
    """Measure speed, or what faults do; what is compared is measured in the same run."""

    what: Annotated[str, tyro.conf.Positional] = "cartpole"
    """What to measure: cartpole, methods, mujoco, jax or suite; sweep: weights learned in one run against trials of
    Optuna; trainer: weights learned inside Stable-Baselines3 and taken to a fresh PPO; learner: PPO beside
    Stable-Baselines3's; recipe: wall clock of the recipe beside PPO's; or faults. The last five take from half an hour
    to several hours at their full size."""
    updates: int | None = None
    """Updates to time per method; by default 30 on cartpole, 10 for methods, 4 (twice) on mujoco, 5 for jax
    and 60 for suite."""
    methods: tuple[str, ...] | None = None
    """`bench methods`: measure these alone, such as mgl imgl, and what they are compared with."""
    out: Path | None = None
    """Directory for results. `bench methods`: tables (CSV) and a figure (PNG); `bench jax` and `bench faults`: JSON;
    `bench sweep`, `trainer`, `learner` and `recipe`: by default runs/sweep and so on. `faults`, `sweep`, `trainer` and
    `learner` continue from the results there."""
    envs: int | None = None
    """`bench mujoco`: environments side by side; by default 20, as in training."""
    scale: float | None = None
    """`bench faults`: multiplies 300 kills, 1,000 corruptions, 500 hostile files and 10 lost nodes; such as 0.02."""
    trials: int | None = None
    """`bench sweep`: how many weights Optuna tries; by default 20."""
    steps: int | None = None
    """`bench sweep`, `trainer`, `learner` and `recipe`: environment steps per training; by default 100,000."""
    parts: tuple[str, ...] | None = None
    """`bench faults`: these alone, such as hopper suite corruptions hostile nodes. `bench trainer`: environments, such
    as CartPole-v1, and time. `bench learner`: environments. `bench recipe`: pairs, such as Hopper-v5/torque."""

    def run(self) -> int:
        from bipars.bench import cartpole, faults, jax, learner, methods, mujoco, recipe, suite, sweep, trainer

        modules = (cartpole, methods, mujoco, suite, jax, faults, sweep, trainer, learner, recipe)
        benchmarks: dict[str, Callable[..., int]] = {m.__name__.rpartition(".")[2]: m.run_bench for m in modules}
        if self.what not in benchmarks:
            raise unknown("benchmark", self.what, benchmarks)
        takes = {name: inspect.signature(run_bench).parameters for name, run_bench in benchmarks.items()}
        flags = {name: value for name, value in vars(self).items() if name != "what" and value is not None}
        for name, value in flags.items():
            if name not in takes[self.what]:
                others = ", ".join(f"bench {other}" for other in takes if name in takes[other])
                raise UsageError(f"bench {self.what} does not take --{name}; {others} may")
            if value == ():
                raise UsageError(f"--{name} is empty; expected names, or leave it out for all of them")
            if isinstance(value, int) and value < 1:
                raise UsageError(f"--{name} is {value}; expected at least 1")
        return benchmarks[self.what](**flags)


LearnFlags = asked(MonksConfig(), "learn")


@dataclass(frozen=True)
class Monks:
    """Let independent learners play monks and gruel, the paper's game of M + 1 agents."""

    monks: int = 2
    """Number of monks."""
    gruel: float = 1.0
    """How much there is to share."""
    seed: int = 0
    """Seed of everything random."""
    learn: LearnFlags = field(default_factory=LearnFlags)  # type: ignore[valid-type]
    """Settings of the learners."""

    def run(self) -> int:
        import numpy as np

        from bipars.monks.learn import Monastery
        from bipars.monks.report import describe
        from bipars.monks.rules import Game
        from bipars.runtime import enable_compilation_cache

        enable_compilation_cache()
        game = Game(self.monks, self.gruel)
        settings = MonksConfig(**given(self.learn))
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"--seed is {self.seed}; expected a whole number in [0, 2^32)")
        monastery, many = Monastery(game, settings), "s" if self.monks > 1 else ""
        rounds_of_games = f"{settings.rounds} rounds of {settings.games} games"
        print(f"{self.monks} monk{many} and the system play {rounds_of_games} ...")
        _, rounds = monastery.learn(np.uint32(self.seed))
        print(describe(game, settings, rounds))
        return 0
