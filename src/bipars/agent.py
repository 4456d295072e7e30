"""`BiPaRS`: the agent most users meet. Thin over `program`, which trains, and `trained`, which does the rest."""

import dataclasses
import functools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from rich.console import Console

from bipars.envs.base import Environment
from bipars.envs.gym import Factory
from bipars.errors import UsageError
from bipars.integrations.callbacks import Callback, UpdateFunction, as_callbacks
from bipars.methods import Method, find_method
from bipars.metrics import summarise
from bipars.program import LearnedWeights, build, complete, configure
from bipars.report.compare import FROZEN, ROLES, comparison_method
from bipars.report.report import Report, make_report, report_record
from bipars.results.panels import collect
from bipars.rollout.finite import check_finite
from bipars.rollout.make import Env, environment_name
from bipars.runs.directory import RunDirectory, seed_directory
from bipars.runs.objects import Terms, as_terms, method_name, potential_name, take_objects
from bipars.runs.progress import NotebookBar, describe, in_notebook, make_bar
from bipars.runs.reuse import mean_weights, reusing
from bipars.runs.snapshots import encode_snapshot, glance, snapshot_due, take_snapshot
from bipars.runs.stopping import stop_requests
from bipars.settings.config import (
    DDPGConfig,
    DDPGUpperConfig,
    DPBAConfig,
    PPOConfig,
    UpperConfig,
    WeightConfig,
    WeightsAs,
)
from bipars.settings.importing import agree_typed
from bipars.shaping.given import Potential
from bipars.terms.term import TermFunction
from bipars.terms.values import odd_terms
from bipars.trained import TrainedAgent, whole_number

ENDLESS = 10**12
"""Steps of training, where nobody has said how many."""


class BiPaRS(TrainedAgent):
    """Learns a policy and, at the same time, how much each reward term should count, and where.

        agent = BiPaRS("Pendulum-v1", terms=[RewardTerm("still", still)], method="mgl", seed=0)
        agent.learn(200_000)
        agent.weights(obs, action)      # one weight per term

    `env` is a Gymnasium id, an environment, a function that makes one, or one written in JAX (`bipars.envs.from_gymnax`
    and `from_brax`); `terms` are `RewardTerm`s or names of built-in ones, or "auto" for those that an environment of
    Brax or MuJoCo Playground reports itself; `method` is the name of one, or a `Method` of your own. `true_reward` is
    "env" (the environment's), "env-minus-terms", "info:KEY", or a function of (obs, action, next_obs, info), itself or
    as "import:MODULE.FUNCTION". `preset="paper"` starts from the paper's settings for one of its tasks; the default is
    the same for every environment. `potential` is a `Potential`, or the name of a built-in one, for the methods that
    take one. `ppo`, `weights`, `upper`, `dpba`, `ddpg` and `ddpg_upper` change settings of one part: a dict changes
    what it names, a config object everything. With `threads`, MuJoCo steps its environments on several cores, and PPO's
    critics learn beside the policy.
    """

    def __init__(
        self,
        env: str | Env,
        terms: Terms | None = (),
        method: str | Method = "mgl",
        seed: int = 0,
        *,
        preset: str = "default",
        true_reward: str | TermFunction = "env",
        potential: Potential | str | None = None,
        vector: Literal["auto", "sync", "async"] = "auto",
        env_options: Mapping[str, Any] | None = None,
        ppo: PPOConfig | Mapping[str, Any] | None = None,
        weights: WeightConfig | Mapping[str, Any] | None = None,
        upper: UpperConfig | Mapping[str, Any] | None = None,
        dpba: DPBAConfig | Mapping[str, Any] | None = None,
        ddpg: DDPGConfig | Mapping[str, Any] | None = None,
        ddpg_upper: DDPGUpperConfig | Mapping[str, Any] | None = None,
        evaluation_episodes: int | None = None,
        evaluation_every: int | None = None,
        threads: int = 1,
    ) -> None:
        own = find_method(method) if not isinstance(method, str) else None
        given = as_terms(terms, env)
        settings: dict[str, Any] = {
            "env": environment_name(env),
            "env_options": dict(env_options or {}),
            "vector": vector,
            "potential": potential if potential is None or isinstance(potential, str) else potential_name(potential),
            "method": method if isinstance(method, str) else method_name(method),
            "preset": preset,
            "seed": seed,
            "threads": threads,
            "true_reward": true_reward if isinstance(true_reward, str) else "function",
            "ppo": _as_dict(ppo),
            "weights": _as_dict(weights),
            "upper": _as_dict(upper),
            "dpba": _as_dict(dpba),
            "ddpg": _as_dict(ddpg),
            "ddpg_upper": _as_dict(ddpg_upper),
        }
        if isinstance(env, VectorEnv):
            learner = find_method(method).learner
            settings[learner] = {"num_envs": env.num_envs} | settings[learner]
        often = {"evaluation_episodes": evaluation_episodes, "evaluation_every": evaluation_every}
        settings |= {name: value for name, value in often.items() if value is not None}
        agree_typed(env, method, potential, true_reward, *given, *settings["env_options"].values())
        objects, recorded = take_objects(env, settings["env"], given, true_reward, potential, own)
        config = configure(settings, own)
        # How long `learn` will be asked to learn nobody knows yet: the replay had better be as large as it may.
        whole = complete(dataclasses.replace(config, steps=ENDLESS), objects)
        config = dataclasses.replace(whole, steps=config.steps)
        program = build(config, objects, share=False)
        super().__init__(config, objects, recorded, program, program.init(config.seed), 0)

    def learn(
        self,
        total_timesteps: float,
        callback: Callback | UpdateFunction | Sequence[Callback | UpdateFunction] | None = None,
        progress_bar: bool = False,
    ) -> "BiPaRS":
        """Trains for at least so many more environment steps, in whole updates. Ctrl-C ends it after the update."""
        period = self.config.lower.update_period
        steps = whole_number(total_timesteps)
        if steps is None or steps < 1:
            raise UsageError(f"total_timesteps is {total_timesteps!r}; expected a whole number of at least 1")
        callbacks = as_callbacks(callback)
        start, end = self._rounds, self._rounds + -(-steps // period)

        with stop_requests() as stop, _training_bar((end - self._rounds) * period, progress_bar) as show:
            try:
                answers = [each.on_start(self) for each in callbacks]
                while False not in answers and self._rounds < end and not stop():
                    row = self._update(end, start)
                    show(period, row)
                    answers = [each.on_update(self, row) for each in callbacks]
                    if self._rounds % self.config.evaluation_every == 0:
                        answers += [each.on_evaluation(self, row) for each in callbacks]
            finally:
                for each in callbacks:
                    each.on_end(self)
        return self

    def report(self, path: str | os.PathLike[str] | None = None) -> Report:
        """What to do with each term, and why; with a `path` such as "report.html", also as a page there.

            report = agent.report("report.html")
            for v in report.verdicts:
                print(v.term, v.advice, v.evidence)     # advice: "keep", "drop", "reverse" or "unsure"

        One run tells which way each term points. `compare` tells what they gain, from several.
        """
        if not self.metrics:
            raise UsageError(
                "this agent has not learned yet, so there is nothing to report: call agent.learn(...) first"
            )
        return report_record(self.config, "agent", self._recorded, self.metrics, self._snapshots, path)

    def _update(self, end: int, start: int) -> dict[str, Any]:
        names = self._program.term_names
        state, stats = self._program.iterate(self._state, self.config.seed, end)
        check_finite(stats, names, self._rounds * self.config.lower.update_period)
        self._state = state
        self._rounds += 1
        row = {"round": self._rounds, "step": self.num_timesteps} | summarise(stats, names)
        self.metrics.append(row)
        if self._rounds == 1 and names:
            for line in odd_terms(np.asarray(stats.terms), names, np.asarray(stats.reward)):
                warnings.warn(line, stacklevel=3)
        if snapshot_due(self._rounds, start, end, max(self._snapshots, default=0)):
            # An episode costs as many steps as an update may have, so there is one of the last snapshot alone.
            keep = functools.partial(take_snapshot, seed=self.config.seed) if self._rounds == end else glance
            self._snapshots[self._rounds] = encode_snapshot(keep(self._program, state, stats.visited))
        return row

    @classmethod
    def _on_weights_of(cls, learned: "BiPaRS", source: Path, weights_as: WeightsAs) -> "BiPaRS":
        """A fresh agent whose weights are those of another, frozen, which was saved at `source`."""
        config = reusing(learned.config, learned.config, source, weights_as)
        program = build(config, learned._objects, share=False)
        means = mean_weights(program.term_names, learned.metrics)
        weights = means if weights_as == "scalars" else learned._state.weights
        state = program.init(config.seed, LearnedWeights(weights, learned._state.observations))
        agent = cls.__new__(cls)
        TrainedAgent.__init__(agent, config, learned._objects, learned._recorded, program, state, 0)
        return agent


def compare(
    env: str | Factory | Environment,
    terms: Terms,
    total_timesteps: float,
    method: str | Method = "mgl",
    *,
    seeds: int | Sequence[int] = 5,
    out: str | os.PathLike[str] | None = None,
    path: str | os.PathLike[str] | None = None,
    progress_bar: bool = False,
    **settings: Any,
) -> Report:
    """What the terms gain: trains each seed with learned weights, as written, without them, and on the frozen weights.

        report = bipars.compare(make_env, [RewardTerm("upright", upright)], 200_000, seeds=5, path="report.html")
        print(report)

    `env` is a Gymnasium id, a function that makes an environment, or one written in JAX; `settings` are those of
    `BiPaRS`. Trainings run in this process, one after the other: five times as many as there are seeds. `out` is a
    directory that keeps the agents; given again, it goes on with what is missing. `path` is for the page, as in
    `BiPaRS.report`.
    """
    many = isinstance(env, (str, Environment)) or (callable(env) and not isinstance(env, gymnasium.Env))
    if not many:
        raise UsageError(
            f"env is {env!r:.80}; expected a Gymnasium id, a function that makes an environment, or one written in JAX"
        )
    chosen = range(seeds) if isinstance(seeds, int) else seeds
    if not len(chosen):
        raise UsageError(f"seeds is {seeds!r}; expected how many, or which, such as 5 or [0, 1, 2]")
    if not find_method(method).learns_weights:
        raise UsageError(f"method is {method!r:.80}, which learns no weights; expected one that does, such as 'mgl'")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch if out is None else out) / "compare"
        for seed in chosen:
            for name, make in _to_compare(env, terms, method, seed, settings, root).items():
                place = seed_directory(root / name, seed)
                saved = RunDirectory(place)
                rows = saved.metrics if saved.config_file.exists() else []
                if not rows or rows[-1]["step"] < total_timesteps:
                    make().learn(total_timesteps, progress_bar=progress_bar).save(place)
        return make_report(collect(root), path)


def _to_compare(
    env: str | Factory | Environment,
    terms: Terms,
    method: str | Method,
    seed: int,
    settings: Mapping[str, Any],
    root: Path,
) -> dict[str, Callable[[], BiPaRS]]:
    """By the name of its directory, how each agent of a seed is made; the one with learned weights first."""
    row = find_method(method)
    own = method if isinstance(method, str) else method_name(method)
    shared = {name: value for name, value in settings.items() if name not in LEARNERS_OWN}
    agents: dict[str, Callable[[], BiPaRS]] = {own: functools.partial(BiPaRS, env, terms, method, seed, **settings)}
    for role in ROLES:
        other = comparison_method(row.learner, role)
        agents[other] = functools.partial(BiPaRS, env, terms, other, seed, **shared)

    def frozen(weights_as: WeightsAs) -> BiPaRS:
        place, given = seed_directory(root / own, seed), None if isinstance(method, str) else method
        learned = BiPaRS.load(place, env, terms, settings.get("true_reward"), method=given)
        return BiPaRS._on_weights_of(learned, place, weights_as)

    if row.shows_weights:
        return agents
    return agents | {name: functools.partial(frozen, weights_as) for name, weights_as in FROZEN.items()}


LEARNERS_OWN = ("weights", "upper", "ddpg_upper", "dpba")
"""Settings that agents with fixed weights have no use for."""


@contextmanager
def _training_bar(total: int, enabled: bool) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """Shows how far an agent in this process is."""
    if not enabled:
        yield lambda steps, row: None
    elif in_notebook():
        yield NotebookBar(total).advance
    else:
        with make_bar(Console(stderr=True)) as bar:
            task = bar.add_task("training", total=total, now="")
            yield lambda steps, row: bar.update(task, advance=steps, now=describe(row))


def _as_dict(settings: Any) -> dict[str, Any]:
    """Settings that differ from the defaults: a config object means all of its values, a dict only those it names."""
    if settings is None:
        return {}
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        return dataclasses.asdict(settings)
    if not isinstance(settings, Mapping):
        raise UsageError(
            f"settings are {settings!r}; expected a dictionary or an object such as bipars.settings.config.PPOConfig"
        )
    return dict(settings)
