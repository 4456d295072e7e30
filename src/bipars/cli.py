"""The command line. Each command is a dataclass: its fields are the flags, their docstrings the help."""

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bipars.errors import BiparsError, UsageError
from bipars.monks.config import MonksConfig
from bipars.report.commands import Render, Report, Watch
from bipars.settings.base import unchecked
from bipars.settings.config import Config, DDPGConfig, DPBAConfig, PPOConfig, UpperConfig, WeightConfig
from bipars.suite.commands import Resume, SuiteCommand, count_workers, with_run

PRESET = Config()
"""Defaults of the environment and method that stand on the command line."""


def follow_environment(arguments: Sequence[str]) -> None:
    """Makes the flags' defaults, and the help that shows them, those of `--env` and `--method`."""
    from bipars.presets import preset

    global PRESET
    PRESET = preset(_flag(arguments, "--env") or Config.env, _flag(arguments, "--method") or Config.method)


SHORT = {"--unroll": "--upper.unroll", "--noise-penalty": "--upper.noise-penalty"}
"""Flags that are typed often enough to have a second name."""


def expand(arguments: Sequence[str]) -> list[str]:
    """The command line with short names replaced by whole ones."""
    parts = [argument.partition("=") for argument in arguments]
    return [SHORT.get(name, name) + equals + value for name, equals, value in parts]


OTHER_NAMES = {"total_steps": "steps", "terms": "term", "env_options": "env_option"}
"""Flags that are not called as the setting they change."""
ROOMS = ("ppo", "weights", "upper", "dpba", "ddpg")


def as_typed(message: str, arguments: Sequence[str]) -> str:
    """A message about settings, with each called as the flag that a person typed or could type."""

    def flag(found: re.Match[str]) -> str:
        room, _, name = found[0].rpartition(".")
        home = getattr(Config(), room) if room in ROOMS else Config()
        if name not in {part.name for part in dataclasses.fields(home)}:
            return found[0]
        whole = f"--{room}." if room in ROOMS else "--"
        return (whole + OTHER_NAMES.get(name, name)).replace("_", "-")

    message = re.sub(rf"(?<![\w.:'-])(?:(?:config|{'|'.join(ROOMS)})\.\w+|total_steps)\b", flag, message)
    for short, whole in SHORT.items():
        if any(argument.partition("=")[0] == short for argument in arguments):
            message = message.replace(whole, short)
    return message


def _usual_potential() -> str | None:
    """What `--potential` is where nobody gives it: the built-in one of cart-pole, for methods that take one."""
    from bipars.envs import find_compiled
    from bipars.methods import METHODS
    from bipars.shaping.given import usual_potential

    method = METHODS.get(PRESET.method)
    takes = None if method is None else method.potential_takes
    return None if takes is None or find_compiled(PRESET.env) is None else usual_potential(takes)


def _flag(arguments: Sequence[str], name: str) -> str | None:
    """The last value given for a flag, which is the one that counts."""
    found = None
    for i, argument in enumerate(arguments):
        if argument == name and i + 1 < len(arguments):
            found = arguments[i + 1]
        elif argument.startswith(f"{name}="):
            found = argument.removeprefix(f"{name}=")
    return found


@dataclass(frozen=True)
class Train:
    """Train a policy and learn what its reward terms are worth.

    bipars train --env cartpole --term harmful --method mgl --seeds 0-4 --out runs/harmful

    Short flags: --unroll for --upper.unroll, --noise-penalty for --upper.noise-penalty.
    """

    out: Path
    """Directory for the runs; each seed gets its own below it."""
    env: str = "cartpole"
    """Environment: one of `bipars list`, or any Gymnasium id, also as module:id. Defaults below follow it."""
    term: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Reward term, such as torque:16 or info:reward_ctrl; repeat the flag for several."""
    reward: str = "env"
    """The true reward: env, env-minus-terms, or a key of info, such as info:is_success."""
    method: str = "mgl"
    """How the terms are used; `bipars list` explains each."""
    potential: str | None = field(default_factory=_usual_potential)
    """Potential of the methods pbrs, pba and dynamic-pbrs, such as upright or import:module.function."""
    seeds: str = "0"
    """Seeds, such as 0-4 or 0,3,7; one run each."""
    steps: int = field(default_factory=lambda: PRESET.total_steps)
    """Environment steps per run, rounded up to whole updates."""
    workers: int = 0
    """Cores to use, one per run, or as many as --threads; 0 takes all."""
    threads: int = 1
    """Cores per run: MuJoCo steps its environments on all of them, PPO's critics learn beside the policy."""
    weights_from: Path | None = None
    """A finished run (or a directory of seeds) whose learned weights are reused, frozen."""
    env_option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A setting of the environment itself, such as force=20; repeat the flag for several."""
    vector: Literal["auto", "sync", "async"] = "auto"
    """auto: the fastest way there is; sync: Gymnasium in one process; async: Gymnasium, one process per environment."""
    evaluation_episodes: int = field(default_factory=lambda: PRESET.evaluation_episodes)
    """Greedy episodes per evaluation."""
    evaluation_every: int = field(default_factory=lambda: PRESET.evaluation_every)
    """Updates between evaluations."""
    checkpoint_every: int = field(default_factory=lambda: PRESET.checkpoint_every)
    """Updates between checkpoints."""
    tensorboard: bool = False
    """Write TensorBoard scalars into each run's directory."""
    ppo: PPOConfig = field(default_factory=lambda: PRESET.ppo)
    weights: WeightConfig = field(default_factory=lambda: PRESET.weights)
    upper: UpperConfig = field(default_factory=lambda: PRESET.upper)
    dpba: DPBAConfig = field(default_factory=lambda: PRESET.dpba)
    ddpg: DDPGConfig = field(default_factory=lambda: PRESET.ddpg)

    def run(self) -> int:
        from bipars.program import complete
        from bipars.report.text import show_results
        from bipars.runs.directory import RunDirectory, check_root, seed_directory
        from bipars.runs.reuse import with_weights_from
        from bipars.settings.seeds import parse_seeds
        from bipars.suite.finish import STOPPED, finish, local_engine, runner_of
        from bipars.suite.work import check_cores, existing

        workers = count_workers(self.workers)
        config = complete(
            Config(
                env=self.env,
                env_options=dict(_parse_option(text) for text in self.env_option),
                terms=self.term,
                potential=self.potential,
                method=self.method,
                total_steps=self.steps,
                vector=self.vector,
                reward=self.reward,
                evaluation_episodes=self.evaluation_episodes,
                evaluation_every=self.evaluation_every,
                checkpoint_every=self.checkpoint_every,
                tensorboard=self.tensorboard,
                threads=self.threads,
                ppo=self.ppo,
                weights=self.weights,
                upper=self.upper,
                dpba=self.dpba,
                ddpg=self.ddpg,
            )
        )
        self._refuse_idle()
        check_cores(self.out, config, workers)
        configs = [with_weights_from(config, self.weights_from, seed) for seed in parse_seeds(self.seeds)]
        check_root(self.out)
        if config.whole_steps != self.steps != PRESET.total_steps:
            print(
                f"--steps {self.steps:,} is rounded up to {config.whole_steps:,}: {as_typed(config.whole_updates, ())}"
            )
        with runner_of(self.out):
            runs = existing(RunDirectory.create(seed_directory(self.out, c.seed), c) for c in configs)
            status = finish(runs, self.out, local_engine(workers))
        if status != STOPPED:
            show_results(runs, self.out)
        return status

    def _refuse_idle(self) -> None:
        """A flag of the upper level that the method has no use for is a mistake. (A suite's methods may share them.)"""
        from bipars.methods import METHODS

        for part in dataclasses.fields(self.upper):
            value = getattr(self.upper, part.name)
            if value == getattr(PRESET.upper, part.name):
                continue
            if self.weights_from is not None:
                raise UsageError(
                    f"upper.{part.name} is {value}, but the weights of --weights-from are not learned any more"
                )
            if part.name == "follow_weights" and self.upper.sampling == "round":
                raise UsageError("upper.follow_weights has no effect with upper.sampling 'round': leave it out")
            if part.name not in METHODS[self.method].settings:
                users = [name for name, method in METHODS.items() if part.name in method.settings]
                raise UsageError(
                    f"method '{self.method}' has no use for upper.{part.name} (here {value}): leave it out; it is for "
                    f"{', '.join(users)}"
                )


@dataclass(frozen=True)
class List:
    """List the environments, terms, methods and suites that exist."""

    def run(self) -> int:
        from bipars.envs import ENVIRONMENTS
        from bipars.methods import METHODS
        from bipars.suite.shipped import shipped
        from bipars.terms.builtin import TERMS

        print("environments:", ", ".join(ENVIRONMENTS))
        print("terms:       ", ", ".join(TERMS))
        print("suites:      ", ", ".join(shipped()))
        print("methods:")
        for name, method in METHODS.items():
            print(f"  {name:14}{method.summary}")
        return 0


@dataclass(frozen=True)
class Demo:
    """Three ways to use a harmful reward term on cart-pole, side by side."""

    out: Path = Path("demo")
    """Directory for runs, table and curves."""
    workers: int = 0
    """Cores to use, one per run; 0 takes all."""

    def run(self) -> int:
        from bipars.demo import run_demo

        return run_demo(self.out, count_workers(self.workers))


@dataclass(frozen=True)
class Bench:
    """Measure speed, side by side in one run."""

    what: Annotated[str, tyro.conf.Positional] = "cartpole"
    """What to measure: cartpole, methods, mujoco or suite."""
    updates: int | None = None
    """Updates to time per method; by default 30 on cartpole, 10 for methods, 4 (twice) on mujoco and 60 for suite."""
    methods: tuple[str, ...] | None = None
    """`bench methods`: measure these alone, such as mgl imgl, and what they are compared to."""
    out: Path | None = None
    """`bench methods`: directory for tables (CSV) and the figure of growth (PNG)."""
    envs: int | None = None
    """`bench mujoco`: environments side by side; by default 20, as in training."""

    def run(self) -> int:
        from bipars.bench import cartpole, methods, mujoco, suite
        from bipars.errors import unknown

        benchmarks: dict[str, tuple[Callable[[int], int], int]] = {
            "cartpole": (cartpole.run_bench, 30),
            "methods": (partial(methods.run_bench, methods=self.methods or (), out=self.out), 10),
            "mujoco": (partial(mujoco.run_bench, num_envs=mujoco.NUM_ENVS if self.envs is None else self.envs), 4),
            "suite": (suite.run_bench, 60),
        }
        if self.what not in benchmarks:
            raise unknown("benchmark", self.what, benchmarks)
        if self.updates is not None and self.updates < 1:
            raise UsageError(f"--updates is {self.updates}; expected at least 1")
        if self.methods == ():
            raise UsageError("--methods is empty; expected names, such as mgl imgl, or leave it out for all of them")
        if self.what != "methods" and (self.methods or self.out):
            raise UsageError(f"bench {self.what} takes neither --methods nor --out; bench methods does")
        if self.what != "mujoco" and self.envs is not None:
            raise UsageError(f"bench {self.what} does not take --envs; bench mujoco does")
        run_bench, usual = benchmarks[self.what]
        return run_bench(self.updates or usual)


@dataclass(frozen=True)
class Monks:
    """Let independent learners play monks and gruel, the paper's game of M + 1 agents."""

    monks: int = 2
    """Number of monks."""
    gruel: float = 1.0
    """How much there is to share."""
    seed: int = 0
    """Seed of everything random."""
    learn: MonksConfig = field(default_factory=MonksConfig)

    def run(self) -> int:
        import numpy as np

        from bipars.monks.learn import Monastery
        from bipars.monks.report import describe
        from bipars.monks.rules import Game
        from bipars.runtime import enable_compilation_cache

        enable_compilation_cache()
        game = Game(self.monks, self.gruel)
        self.learn.check()
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"--seed is {self.seed}; expected a whole number in [0, 2^32)")
        monastery, many = Monastery(game, self.learn), "s" if self.monks > 1 else ""
        rounds_of_games = f"{self.learn.rounds} rounds of {self.learn.games} games"
        print(f"{self.monks} monk{many} and the system play {rounds_of_games} ...")
        _, rounds = monastery.learn(np.uint32(self.seed))
        print(describe(game, self.learn, rounds))
        return 0


Command = (
    Annotated[Train, tyro.conf.subcommand("train"), tyro.conf.FlagConversionOff]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[SuiteCommand, tyro.conf.subcommand("suite")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Monks, tyro.conf.subcommand("monks")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Watch, tyro.conf.subcommand("watch")]
    | Annotated[Render, tyro.conf.subcommand("render")]
)


def _parse_option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--env-option is '{text}'; expected name=value, such as force=20")
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return name, words[value.lower()]
    try:
        number = float(value)
    except ValueError:
        return name, value
    return name, int(number) if number.is_integer() and "." not in value else number


def _parse(arguments: list[str]) -> Any:
    follow_environment(arguments)
    with unchecked():  # `Config` checks all of it, and its message is ours
        return tyro.cli(
            Command,
            prog="bipars",
            description="Learn how much each hand-written reward term should count, and where.",
            args=arguments,
            config=(tyro.conf.FlagCreatePairsOff,),
        )


def main(arguments: list[str] | None = None) -> int:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    typed = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            return _parse(with_run(expand(typed))).run()
        finally:
            sys.stdout.flush()  # here, where it may fail: not when Python leaves
    except BiparsError as error:
        message = as_typed(str(error), typed) if typed[:1] == ["train"] else str(error)
        print(f"bipars: {message}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who read our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.filename is None:
            raise
        print(f"bipars: {error.filename} cannot be used: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
