"""`BiPaRS`: the agent most users meet. Thin over `program`, which trains, and `trained`, which does the rest."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rich.console import Console

from bipars.errors import UsageError
from bipars.integrations.callbacks import Callback, UpdateFunction, as_callbacks
from bipars.methods import Method, find_method
from bipars.metrics import summarise
from bipars.program import build, complete, configure
from bipars.rollout.finite import check_finite
from bipars.rollout.make import Env, environment_name
from bipars.runs.objects import Terms, as_terms, method_name, potential_name, take_objects
from bipars.runs.progress import describe, make_bar
from bipars.runs.stopping import stop_requests
from bipars.settings.config import DDPGConfig, DDPGUpperConfig, DPBAConfig, PPOConfig, UpperConfig, WeightConfig
from bipars.settings.importing import agree_typed
from bipars.shaping.given import Potential
from bipars.terms.term import TermFunction
from bipars.trained import TrainedAgent, whole_number

ENDLESS = 10**12
"""Steps of training, where nobody has said how many."""


class BiPaRS(TrainedAgent):
    """Learns a policy and, at the same time, how much each reward term should count, and where.

        agent = BiPaRS("Pendulum-v1", terms=[RewardTerm("still", still)], method="mgl", seed=0)
        agent.learn(200_000)
        agent.weights(obs, action)      # one weight per term

    `env` is a Gymnasium id, an environment, or a function that makes one; `terms` are `RewardTerm`s or names of
    built-in ones; `method` is the name of one, or a `Method` of your own. `true_reward` is "env" (the environment's),
    "env-minus-terms", "info:KEY", or a function of (obs, action, next_obs, info). `potential` is a `Potential`, or the
    name of a built-in one, for the methods that take one. `ppo`, `weights`, `upper`, `dpba`, `ddpg` and `ddpg_upper`
    change settings of one part: a dict changes what it names, a config object everything. With `threads`, MuJoCo steps
    its environments on several cores, and PPO's critics learn beside the policy.
    """

    def __init__(
        self,
        env: str | Env,
        terms: Terms | None = (),
        method: str | Method = "mgl",
        seed: int = 0,
        *,
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
        threads: int = 1,
    ) -> None:
        own = find_method(method) if not isinstance(method, str) else None
        settings: dict[str, Any] = {
            "env": environment_name(env),
            "env_options": dict(env_options or {}),
            "vector": vector,
            "potential": potential if potential is None or isinstance(potential, str) else potential_name(potential),
            "method": method if isinstance(method, str) else method_name(method),
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
        if evaluation_episodes is not None:
            settings["evaluation_episodes"] = evaluation_episodes
        agree_typed(env, method, potential, *as_terms(terms))
        objects, recorded = take_objects(env, settings["env"], as_terms(terms), true_reward, potential, own)
        config = configure(settings, own)
        # How long `learn` will be asked to learn nobody knows yet: the replay had better be as large as it may.
        whole = complete(dataclasses.replace(config, steps=ENDLESS), objects)
        config = dataclasses.replace(whole, steps=config.steps)
        program = build(config, objects, share=False)
        super().__init__(config, objects, recorded, program, program.init(config.seed), 0)

    @functools.cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One row per update since this object was made."""
        return []

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
        end = self._rounds + -(-steps // period)

        with stop_requests() as stop, _training_bar((end - self._rounds) * period, progress_bar) as show:
            try:
                answers = [each.on_start(self) for each in callbacks]
                while False not in answers and self._rounds < end and not stop():
                    row = self._update()
                    show(period, row)
                    answers = [each.on_update(self, row) for each in callbacks]
                    if self._rounds % self.config.evaluation_every == 0:
                        answers += [each.on_evaluation(self, row) for each in callbacks]
            finally:
                for each in callbacks:
                    each.on_end(self)
        return self

    def _update(self) -> dict[str, Any]:
        names = self._program.term_names
        state, stats = self._program.iterate(self._state, self.config.seed)
        check_finite(stats, names, self._rounds * self.config.lower.update_period)
        self._state = state
        self._rounds += 1
        row = {"round": self._rounds, "step": self.num_timesteps} | summarise(stats, names)
        self.metrics.append(row)
        return row


@contextmanager
def _training_bar(total: int, enabled: bool) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """Shows how far an agent in this process is."""
    if not enabled:
        yield lambda steps, row: None
        return
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
