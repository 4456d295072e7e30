"""`bipars train`, whose defaults follow the environment and the method."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

from bipars.cli.suite import count_workers
from bipars.errors import UsageError
from bipars.settings.config import Config, DDPGConfig, DPBAConfig, PPOConfig, UpperConfig, WeightConfig

PRESET = Config()
"""Defaults of the environment and method that stand on the command line."""


def follow_environment(arguments: Sequence[str]) -> None:
    """Makes the flags' defaults, and the help that shows them, those of `--env` and `--method`."""
    from bipars.envs.registry import preset

    global PRESET
    env, method = _flag(arguments, "--env") or Config.env, _flag(arguments, "--method") or Config.method
    PRESET = dataclasses.replace(preset(env, method), potential=_usual_potential(env, method))


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


def _usual_potential(env: str, method: str) -> str | None:
    """What `--potential` is where nobody gives it: the family's, for methods that take one."""
    from bipars.methods import METHODS
    from bipars.shaping.given import usual_potential

    takes = METHODS[method].potential_takes if method in METHODS else None
    return None if takes is None else usual_potential(env, takes)


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
    potential: str | None = field(default_factory=lambda: PRESET.potential)
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
        alike = {part.name for part in dataclasses.fields(Config)} - {"weights_from"}
        config = Config(
            env_options=dict(_parse_option(text) for text in self.env_option),
            terms=self.term,
            total_steps=self.steps,
            **{name: value for name, value in vars(self).items() if name in alike},
        )
        config = complete(config)
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
