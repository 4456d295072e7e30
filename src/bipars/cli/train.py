"""`bipars train`: flags that are not given follow the preset and the method."""

from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bipars.cli.asked import Whole, asked, explained, flag, given
from bipars.cli.consent import settle_imports
from bipars.cli.last_words import last_words
from bipars.cli.suite import count_workers
from bipars.errors import UsageError
from bipars.settings.recipe import recipe

ROOMS: dict[str, Literal["ppo", "ddpg"]] = {
    "ppo": "ppo", "weights": "ppo", "upper": "ppo", "dpba": "ppo", "ddpg": "ddpg", "ddpg_upper": "ddpg"
}  # fmt: skip
"""The parts that have settings, and the learner whose preset the help shows."""
NOT_SETTINGS = ("out", "seeds", "workers", "term", "env_option", "weights_from", "weights_as", "allow_imports")


@dataclass(frozen=True)
class TrainFlags:
    """Train a policy and learn what its reward terms are worth.

    bipars train --env cartpole --term harmful --method mgl --seeds 0-4 --out runs/harmful

    `bipars train --help-all` also shows the settings of each part: ppo, weights, upper, dpba, ddpg, ddpg_upper.
    """

    out: Path
    """Directory for the runs, one below it per seed."""
    env: str = "cartpole"
    """Environment: one of `bipars list`, or any Gymnasium id, also as module:id."""
    term: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Reward term, such as torque:16 or info:reward_ctrl; repeat the flag for several."""
    true_reward: str = "env"
    """The true reward: env, env-minus-terms, info:KEY or import:module.function."""
    method: str = "mgl"
    """How the terms are used; `bipars list` explains each. import:module.name is a method of your own."""
    potential: str | None = None
    """Potential of the methods pbrs, pba and dynamic-pbrs, such as upright or import:module.function."""
    preset: str = "default"
    """What the other settings start from. default: the same for every environment; paper: the paper's settings for its
    tasks."""
    seeds: str = "0"
    """Seeds, such as 0-4 or 0,3,7; one run each."""
    steps: Whole | None = None
    """Environment steps per run, such as 1e6, rounded up to whole updates (default follows --preset)."""
    workers: Whole = 0
    """Cores to use: --threads per run; 0 takes all."""
    threads: Whole = 1
    """Cores per run: MuJoCo steps its environments on all of them; PPO's critics learn at the same time as the
    policy."""
    weights_from: Path | None = None
    """A finished run (or a directory of seeds) whose learned weights are reused, frozen."""
    weights_as: Literal["function", "scalars"] = "function"
    """function: the weights by state and action; scalars: their mean at the end, one number per term."""
    env_option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A setting of the environment itself, such as force=20; repeat the flag for several."""
    vector: Literal["auto", "sync", "async"] = "auto"
    """auto: the fastest way; sync: Gymnasium in one process; async: a process per environment."""
    env_timeout: float | None = None
    """Longest time in seconds for a step or reset of an environment that Gymnasium steps; by default no limit."""
    evaluation_episodes: Whole | None = None
    """Greedy episodes per evaluation (default follows --preset)."""
    evaluation_every: Whole | None = None
    """Updates between evaluations (default follows --preset)."""
    checkpoint_every: Whole | None = None
    """Updates between checkpoints (default follows --preset)."""
    tensorboard: bool = False
    """Write TensorBoard scalars into each run's directory."""
    allow_imports: bool = False
    """Import the code that the run of --weights-from names, without asking."""

    def run(self) -> int:
        from bipars.program import complete, configure
        from bipars.report.text import show_results
        from bipars.runs.directory import RunDirectory, seed_directory
        from bipars.runs.reuse import with_weights_from
        from bipars.runs.root import check_root
        from bipars.settings.importing import agree_typed
        from bipars.settings.seeds import parse_seeds
        from bipars.suite.finish import STOPPED, finish, local_engine, runner_of
        from bipars.suite.work import check_cores, existing

        workers = count_workers(self.workers)
        settings = {name: value for name, value in given(self).items() if name not in NOT_SETTINGS}
        options = dict(map(parse_option, self.env_option))
        agree_typed(self.env, self.method, self.potential, self.true_reward, *self.term, *options.values())
        settings |= {"terms": self.term, "env_options": options}
        with last_words(f"environment '{self.env}'"):
            config = complete(configure(settings))
        refuse_idle(config.method, settings.get("upper", {}), self.weights_from)
        check_cores(self.out, config, workers)
        seeds = parse_seeds(self.seeds)
        configs = [with_weights_from(config, self.weights_from, seed, self.weights_as) for seed in seeds]
        settle_imports(self.allow_imports)
        check_root(self.out)
        if self.steps is not None and config.whole_steps != self.steps:
            why = config.whole_updates.replace(
                f"{config.learner}.update_period", flag(f"{config.learner}.update_period")
            )
            print(f"--steps {self.steps:,} is rounded up to {config.whole_steps:,}: {why}")
        with runner_of(self.out):
            runs = existing(RunDirectory.create(seed_directory(self.out, c.seed), c) for c in configs)
            status = finish(runs, self.out, local_engine(workers))
        if status != STOPPED:
            show_results(runs, self.out)
        return status


def train_command(show_all: bool) -> Any:
    """The flags with those of every part; only `--help-all` shows these."""
    rooms = [(room, asked(getattr(recipe(learner), room), room)) for room, learner in ROOMS.items()]
    hide = (lambda flags: flags) if show_all else (lambda flags: Annotated[flags, tyro.conf.Suppress])
    fields = [(name, hide(flags), field(default_factory=flags)) for name, flags in rooms]
    made = make_dataclass("Train", fields, bases=(TrainFlags,), frozen=True)
    made.__doc__ = TrainFlags.__doc__
    return explained(made)


def refuse_idle(name: str, typed: dict[str, Any], weights_from: Path | None) -> None:
    """A flag of the upper level that the method has no use for is a mistake. (A suite's methods may share them.)"""
    from bipars.methods import METHODS, find_method

    for setting, value in typed.items():
        path = f"upper.{setting}"
        if weights_from is not None:
            raise UsageError(f"{path} is {value}, but the weights of --weights-from are not learned any more", [path])
        if setting in ("follow_weights", "control_group") and value and typed.get("sampling") == "round":
            raise UsageError(
                f"{path} has no effect with upper.sampling 'round': leave it out", [path, "upper.sampling"]
            )
        if setting not in find_method(name).settings:
            users = ", ".join(other for other, method in METHODS.items() if setting in method.settings)
            raise UsageError(
                f"method '{name}' has no use for {path} (here {value}): leave it out; it is for {users}", [path]
            )


def parse_option(text: str) -> tuple[str, Any]:
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
