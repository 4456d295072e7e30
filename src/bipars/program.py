"""From a configuration to compiled functions. Runs that differ in their seed alone share one program."""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from bipars.envs.registry import family_preset
from bipars.errors import UsageError
from bipars.methods import Method, find_method
from bipars.nets.running import RunningMoments
from bipars.nets.spaces import Spaces
from bipars.nets.weights import WeightFunction, make_weights
from bipars.resolve import resolve
from bipars.rollout.make import Env, check_sampler, check_threads, is_compiled, make_sampler
from bipars.rollout.stats import RoundStats
from bipars.runtime import enable_compilation_cache
from bipars.settings.base import require
from bipars.settings.config import Config
from bipars.settings.resolved import ResolvedConfig
from bipars.shaping.given import GivenPotential, Potential, make_potential
from bipars.tensorboard import require_tensorboard
from bipars.terms.builtin import make_term, task_term
from bipars.terms.term import RewardTerm, TermFunction
from bipars.terms.true_reward import TrueReward
from bipars.train import BiLevel, TrainState
from bipars.upper.schedule import Fixed


@dataclass(frozen=True)
class Program:
    """The compiled training of one configuration, for any seed."""

    algorithm: BiLevel
    compiled_init: Callable[..., TrainState]
    compiled_iterate: Callable[..., tuple[TrainState, RoundStats]]

    terms: tuple[RewardTerm, ...]
    update_period: int

    @property
    def term_names(self) -> tuple[str, ...]:
        return tuple(term.name for term in self.terms)

    @property
    def rounds(self) -> int:
        """Rounds that use up the configured number of environment steps."""
        return self.algorithm.rounds

    def steps_after(self, rounds: int) -> int:
        return rounds * self.update_period

    def init(self, seed: int, learned: "LearnedWeights | None" = None) -> TrainState:
        """The state before the first round, with a weight function learned before in place of a fresh one."""
        weights, observations = learned or (None, None)
        return self.compiled_init(np.uint32(seed), weights, observations)

    def iterate(self, state: TrainState, seed: int, end: int | None = None) -> tuple[TrainState, RoundStats]:
        """One round; `state` itself stays as it was. The training ends after `end` rounds, usually all of them."""
        return self.compiled_iterate(state, np.uint32(seed), np.int32(self.rounds if end is None else end))

    def abstract_state(self) -> TrainState:
        """Shapes and types of the state."""
        if self.algorithm.sampler.compiled:
            return jax.eval_shape(self.algorithm.init, np.uint32(0))
        return self.init(0)


class LearnedWeights(NamedTuple):
    """A weight function, and the statistics of the observations it was shown."""

    weights: WeightFunction
    observations: RunningMoments | None


@dataclass(frozen=True)
class Objects:
    """What a configuration can only name: environments, terms and rewards that are Python objects."""

    env: Env | None = None
    terms: tuple[RewardTerm, ...] | None = None
    true_reward: TermFunction | None = None
    potential: Potential | None = None
    method: Method | None = None


NO_OBJECTS = Objects()


def preset(env: str, method: str | Method = Config.method, name: str = Config.preset) -> Config:
    """A configuration for the environment and method, every setting open to change."""
    row = find_method(method)
    called = method if isinstance(method, str) else row.name
    return Config.from_dict(dict(row.usual), family_preset(env, name, called, row.learner))


def configure(settings: Mapping[str, Any], method: Method | None = None) -> Config:
    """The configuration with these settings; all others follow the preset and the method.

    `method` is the object, where the settings can only name it.
    """
    require(isinstance(settings, Mapping), "config", settings, "settings by name")
    name, env = str(settings.get("method", Config.method)), str(settings.get("env", Config.env))
    base = preset(env, method or name, str(settings.get("preset", Config.preset)))
    return Config.from_dict(dict(settings), replace(base, method=name))


def complete(config: Config, objects: Objects = NO_OBJECTS, tried: dict[Any, Spaces] | None = None) -> ResolvedConfig:
    """The configuration checked and with every default filled in.

    `tried` remembers environments with their terms, so that a plan of many runs tries each of them once.
    """
    method = objects.method or find_method(config.method)
    config = replace(config, learner=method.learner)
    if objects.terms is not None:
        config = replace(config, terms=tuple(term.name for term in objects.terms))
    else:
        config = replace(config, terms=tuple(task_term(spec, config.env) for spec in config.terms))
    if config.tensorboard:
        require_tensorboard()
    if objects.potential is not None:
        config = replace(config, potential=objects.potential.name)
    true_reward = TrueReward(config.true_reward, objects.true_reward)
    shaping = method.shaping(config, find_potential(config, objects.potential))
    given = shaping if isinstance(shaping, GivenPotential) else None
    check_threads(config, objects.env)
    tried = {} if tried is None else tried
    options = json.dumps(config.env_options, sort_keys=True)
    trial = (config.env, options, config.terms, config.true_reward, config.vector, config.method, config.potential)
    if trial not in tried:
        tried[trial] = check_sampler(config, make_terms(config, objects), true_reward, objects.env, given)
    return resolve(config, tried[trial], method)


def find_potential(config: Config, given: Potential | None) -> Potential | None:
    """The potential of the configuration: the object given, or the one it names."""
    if given is not None and given.name == config.potential:
        return given
    return None if config.potential is None else make_potential(config.potential)


def make_terms(config: Config, objects: Objects) -> tuple[RewardTerm, ...]:
    """Term objects for the configuration: those given, or the built-in ones it names."""
    given = objects.terms
    if given is None:
        terms = tuple(make_term(spec) for spec in config.terms)
    elif config.terms and tuple(term.name for term in given) != config.terms:
        raise UsageError(
            f"the terms given are {[term.name for term in given]}; expected {list(config.terms)}, in that order"
        )
    else:
        terms = tuple(given)
    return (objects.method or find_method(config.method)).prepare_terms(config.method, terms)


def build(config: ResolvedConfig, objects: Objects = NO_OBJECTS, share: bool = True) -> Program:
    """The program of a complete configuration.

    Shared by all who ask for it one after the other. Who holds on to it, as an agent does, must not `share`
    environments that are stepped from Python: they can only be in one place at a time.
    """
    shared = share or is_compiled(config, objects.env)
    make = _build if shared else _build.__wrapped__
    return make(config.program_text(), make_terms(config, objects), objects)


@functools.lru_cache(maxsize=8)
def _build(text: str, terms: tuple[RewardTerm, ...], objects: Objects) -> Program:
    enable_compilation_cache()
    config = ResolvedConfig.read(json.loads(text))
    method = objects.method or find_method(config.method)
    sampler = make_sampler(config, terms, TrueReward(config.true_reward, objects.true_reward), objects.env)
    lower = method.lower(config, sampler, len(terms))
    algorithm = BiLevel(
        sampler,
        lower,
        method.upper(config, lower) if config.weights_from is None else Fixed(lower),
        method.shaping(config, find_potential(config, objects.potential)),
        lambda key: make_weights(key, config.weights, sampler, len(terms)),
        len(terms),
        config.num_updates,
        config.evaluation_every,
    )
    period = config.lower.update_period
    if sampler.compiled:
        return Program(algorithm, jax.jit(algorithm.init), jax.jit(algorithm.iterate), terms, period)
    return Program(algorithm, algorithm.init, algorithm.iterate, terms, period)
