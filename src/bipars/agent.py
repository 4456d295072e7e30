"""`BiPaRS`: the agent most users meet. Thin over `program` (training), `runs` (files) and `export`."""

import dataclasses
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import gymnasium
import jax
import numpy as np

from bipars.callbacks import Callback, UpdateFunction, as_callbacks
from bipars.errors import UsageError
from bipars.export import LearnedWeightFunction, ShapedEnv
from bipars.methods import find_method
from bipars.presets import task_term
from bipars.program import Objects, Program, build, complete
from bipars.progress import training_bar
from bipars.rollout.acting import ActingPolicy
from bipars.rollout.host_sampler import HostSampler
from bipars.rollout.make import Env, environment_name
from bipars.runs.checkpoint import replace_checkpoint
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import load_state
from bipars.runs.stopping import stop_requests
from bipars.settings.config import Config, DDPGConfig, DPBAConfig, PPOConfig, UpperConfig, WeightConfig
from bipars.shaping.given import Potential
from bipars.signals import check_finite, summarise
from bipars.terms.builtin import make_term
from bipars.terms.term import RewardTerm, TermFunction
from bipars.terms.true_reward import TrueReward
from bipars.train import TrainState
from bipars.upper.trust import trust

Terms = Sequence[RewardTerm | str] | RewardTerm | str

ENDLESS = 10**12
"""Steps of training, where nobody has said how many."""


class BiPaRS:
    """Learns a policy and, at the same time, how much each reward term should count, and where.

        agent = BiPaRS("Pendulum-v1", terms=[RewardTerm("still", still)], method="mgl", seed=0)
        agent.learn(200_000)
        agent.weights(obs, action)      # one weight per term

    `env` is a Gymnasium id, an environment, or a function that makes one; `terms` are `RewardTerm`s or names of
    built-in ones; `method` is a row of the methods table. `true_reward` is "env" (the environment's),
    "env-minus-terms", "info:KEY", or a function of (obs, action, next_obs, info). `potential` is a `Potential`, or the
    name of a built-in one, for the methods that take one. `ppo`, `weight_function`, `upper`, `dpba` and `ddpg` change
    settings of one part: a dict changes what it names, a config object everything. With `threads`, MuJoCo steps its
    environments on several cores, and PPO's critics learn beside the policy.
    """

    def __init__(
        self,
        env: str | Env,
        terms: Terms | None = (),
        method: str = "mgl",
        seed: int = 0,
        *,
        true_reward: str | TermFunction = "env",
        potential: Potential | str | None = None,
        vector: Literal["auto", "sync", "async"] = "auto",
        env_options: Mapping[str, Any] | None = None,
        ppo: PPOConfig | Mapping[str, Any] | None = None,
        weight_function: WeightConfig | Mapping[str, Any] | None = None,
        upper: UpperConfig | Mapping[str, Any] | None = None,
        dpba: DPBAConfig | Mapping[str, Any] | None = None,
        ddpg: DDPGConfig | Mapping[str, Any] | None = None,
        evaluation_episodes: int | None = None,
        threads: int = 1,
    ) -> None:
        find_method(method)
        settings: dict[str, Any] = {
            "env": environment_name(env),
            "env_options": dict(env_options or {}),
            "vector": vector,
            "potential": potential if potential is None or isinstance(potential, str) else _potential_name(potential),
            "method": method,
            "seed": seed,
            "threads": threads,
            "reward": true_reward if isinstance(true_reward, str) else "function",
            "ppo": _as_dict(ppo),
            "weights": _as_dict(weight_function),
            "upper": _as_dict(upper),
            "dpba": _as_dict(dpba),
            "ddpg": _as_dict(ddpg),
        }
        if evaluation_episodes is not None:
            settings["evaluation_episodes"] = evaluation_episodes
        terms = _as_terms(terms)
        objects = _objects(env, settings["env"], terms, true_reward, potential)
        config = Config.from_dict(settings)
        # How long `learn` will be asked to learn nobody knows yet: the replay had better be as large as it may.
        whole = complete(dataclasses.replace(config, total_steps=ENDLESS), objects)
        config = dataclasses.replace(whole, total_steps=config.total_steps)
        program = build(config, objects, share=False)
        own = _own(env, terms, true_reward, potential)
        self._set_up(config, objects, own, program, program.init(config.seed), 0)

    def _set_up(
        self, config: Config, objects: Objects, own: dict[str, Any], program: Program, state: TrainState, rounds: int
    ) -> None:
        self.config, self._objects, self._program, self._state, self._rounds = config, objects, program, state, rounds
        self._own = own
        self.terms = program.terms
        self._acting: tuple[TrainState, ActingPolicy] | None = None
        self.metrics: list[dict[str, Any]] = []
        """One row per update since this object was made."""

    def learn(
        self,
        total_timesteps: float,
        callback: Callback | UpdateFunction | Sequence[Callback | UpdateFunction] | None = None,
        progress_bar: bool = False,
    ) -> "BiPaRS":
        """Trains for at least so many more environment steps, in whole updates. Ctrl-C ends it after the update."""
        period = self.config.lower.update_period
        steps = _whole(total_timesteps)
        if steps is None or steps < 1:
            raise UsageError(f"total_timesteps is {total_timesteps!r}; expected a whole number of at least 1")
        callbacks = as_callbacks(callback)
        end = self._rounds + -(-steps // period)

        with stop_requests() as stop, training_bar((end - self._rounds) * period, progress_bar) as show:
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
        state, signals = self._program.iterate(self._state, self.config.seed)
        check_finite(signals, names, self._rounds * self.config.lower.update_period)
        self._state = state
        self._rounds += 1
        row = {"round": self._rounds, "step": self.num_timesteps} | summarise(signals, names)
        self.metrics.append(row)
        return row

    @property
    def num_timesteps(self) -> int:
        return self._program.steps_after(self._rounds)

    @property
    def policy(self) -> ActingPolicy:
        """The policy as it is now, by itself: `agent.policy.predict(observations)`."""
        if self._acting is None or self._acting[0] is not self._state:
            sampler = self._program.algorithm.sampler
            policy = self._program.algorithm.acting(self._state)
            acting = ActingPolicy(policy, sampler.observation_space, sampler.action_space, self.config.seed)
            self._acting = self._state, acting
        return self._acting[1]

    def predict(
        self,
        observation: Any,
        state: None = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, None]:
        """The action for one observation or a batch; `state` and `episode_start` are what other libraries pass."""
        return self.policy.predict(observation, state, episode_start, deterministic)

    def weights(self, observation: Any, action: Any) -> np.ndarray:
        """z(s, a): one column per reward term."""
        return self.weight_function()(observation, action)

    def weight_function(self) -> LearnedWeightFunction:
        """The weights as they are now, frozen, as a plain callable that can be saved to one small file."""
        sampler, state = self._program.algorithm.sampler, self._state
        return LearnedWeightFunction(
            state.weights,
            state.scales.observations,
            self.config.weights,
            self._program.term_names,
            sampler.observation_space,
            sampler.action_space,
        )

    def shaped_env(self, env: gymnasium.Env[Any, Any]) -> ShapedEnv:
        """`env` with the true reward plus every term times its learned weight, for any other library."""
        if self._program.algorithm.potential is not None:
            raise UsageError(f"method '{self.config.method}' shapes by a potential; it has no weights to take away")
        evidence = self._state.evidence
        if evidence is not None and trust(evidence) == 0:
            warnings.warn(
                "this agent's own policy no longer follows its terms (trust 0): new samples do not say that they point "
                "up the true return. Another library will follow them; try without them as well",
                stacklevel=2,
            )
        reward = TrueReward(self.config.reward, self._objects.true_reward)
        return ShapedEnv(env, self.weight_function(), self.terms, reward, self._state.env.term_params)

    def close(self) -> None:
        """Ends the environments; only those with processes of their own (`vector="async"`) need it."""
        sampler = self._program.algorithm.sampler
        if isinstance(sampler, HostSampler):
            sampler.close()

    def evaluate(self, seed: int = 0) -> tuple[float, float]:
        """Mean true return and mean length of greedy episodes."""
        whole = _whole(seed)
        if whole is None or not 0 <= whole < 2**32:
            raise UsageError(f"seed is {seed!r}; expected a whole number in [0, 2^32)")
        algorithm = self._program.algorithm
        result = algorithm.sampler.evaluate(algorithm.acting(self._state), jax.random.key(np.uint32(whole)))
        return float(np.mean(result.true_return)), float(np.mean(result.length))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes a directory from which `load` restores everything, optimisers included.

        An earlier save of the same agent there is replaced, and stays valid until the new one is complete.
        """
        run = RunDirectory.create(path, self.config, "agent", self._own)
        with run.owned():
            replace_checkpoint(run.checkpoints, self._rounds, self._state)
        return run.path

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        env: str | Env | None = None,
        terms: Terms | None = None,
        true_reward: str | TermFunction | None = None,
        potential: Potential | None = None,
    ) -> "BiPaRS":
        """An agent saved by `save`, or the newest checkpoint of a training run.

        Functions are not stored: pass environments, terms, true rewards and potentials of your own again.
        """
        run = RunDirectory(path)
        config, recorded = run.config, run.objects or {}
        if env is not None and environment_name(env) != config.env:
            raise UsageError(f"{path} was trained on '{config.env}', not on '{environment_name(env)}'")
        if recorded.get("env") and (env is None or isinstance(env, str)):
            raise UsageError(f"{path} was trained in an environment of your own, '{config.env}'; pass it: env=...")
        terms = config.terms if terms is None else _as_terms(terms)
        _check_own_terms(path, config, recorded.get("terms"), terms)
        reward = true_reward if true_reward is not None else config.reward
        kind = reward if isinstance(reward, str) else "function"
        if kind != config.reward or reward == "function":
            raise UsageError(f"{path} was trained with the true reward '{config.reward}'; pass it: true_reward=...")
        if recorded.get("potential") and (potential is None or _potential_name(potential) != config.potential):
            raise UsageError(f"{path} was trained with a potential of your own, '{config.potential}'; pass it again")
        objects = _objects(env or config.env, config.env, terms, reward, potential)
        program, state, rounds = load_state(path, objects)
        agent = BiPaRS.__new__(BiPaRS)
        agent._set_up(config, objects, _own(env or config.env, terms, reward, potential), program, state, rounds)
        return agent


def _as_terms(terms: Any) -> tuple[RewardTerm | str, ...]:
    """None is no term; one alone need not stand in a list."""
    if terms is None:
        return ()
    given = tuple(terms) if isinstance(terms, Iterable) and not isinstance(terms, str) else (terms,)
    for term in given:
        if not isinstance(term, (RewardTerm, str)):
            name = getattr(term, "__name__", "name")
            hint = f"; give the function a name: RewardTerm({name!r}, {name})" if callable(term) else ""
            raise UsageError(f"terms holds {term!r}; expected RewardTerm objects and names of built-in terms{hint}")
    return given


def _potential_name(potential: Any) -> str:
    if not isinstance(potential, Potential):
        name = getattr(potential, "__name__", "name")
        hint = f"; give the function a name: Potential({name!r}, {name})" if callable(potential) else ""
        raise UsageError(f"potential is {potential!r}; expected a Potential or the name of a built-in one{hint}")
    return potential.name


def _own(
    env: str | Env,
    terms: Sequence[RewardTerm | str],
    true_reward: str | TermFunction,
    potential: Potential | str | None,
) -> dict[str, Any]:
    """What are Python objects, which no file can hold and `load` asks for again."""
    return {
        "env": not isinstance(env, str),
        "terms": [term.name for term in terms if isinstance(term, RewardTerm)],
        "true_reward": not isinstance(true_reward, str),
        "potential": isinstance(potential, Potential),
    }


def _check_own_terms(path: Any, config: Config, recorded: list[str] | None, terms: Sequence[RewardTerm | str]) -> None:
    """Terms that were Python objects must be that again; built-in ones must not have become it."""
    expected = [name for name in config.terms if not _built_in(name)] if recorded is None else recorded
    given = [term.name for term in terms if isinstance(term, RewardTerm)]
    if any(name not in given for name in expected):
        raise UsageError(f"{path} was trained with terms of your own, {expected}; pass them again: terms=[...]")
    replaced = [name for name in given if name in config.terms and name not in expected]
    if replaced:
        raise UsageError(f"{path} was trained with the built-in terms {replaced}; pass their names, not functions")


def _whole(value: Any) -> int | None:
    """1e5 is a whole number too; None where it is none."""
    try:
        return int(value) if int(value) == value else None
    except (TypeError, ValueError, OverflowError):
        return None


def _objects(
    env: str | Env,
    name: str,
    terms: Sequence[RewardTerm | str],
    true_reward: str | TermFunction,
    potential: Potential | str | None,
) -> Objects:
    made = tuple(make_term(task_term(term, name)) if isinstance(term, str) else term for term in terms)
    return Objects(
        None if isinstance(env, str) else env,
        made,
        None if isinstance(true_reward, str) else true_reward,
        potential if isinstance(potential, Potential) else None,
    )


def _built_in(name: str) -> bool:
    try:
        make_term(name)
    except UsageError:
        return False
    return True


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
