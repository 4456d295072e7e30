"""From a configuration to compiled functions. Runs that differ in their seed alone share one program."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from bipars.config import Config
from bipars.envs import make_env
from bipars.errors import UsageError
from bipars.methods import find_method, resolve
from bipars.runtime import enable_compilation_cache
from bipars.shaping.terms import RewardTerm, check_terms, make_term
from bipars.shaping.weights import WeightFunction
from bipars.signals import Signals
from bipars.train import BiLevel, TrainState


@dataclass(frozen=True)
class Program:
    """The compiled training of one configuration, for any seed."""

    algorithm: BiLevel
    compiled_init: Callable[..., TrainState]
    compiled_iterate: Callable[..., tuple[TrainState, Signals]]

    @property
    def term_names(self) -> tuple[str, ...]:
        return tuple(term.name for term in self.algorithm.terms)

    @property
    def rounds(self) -> int:
        """Rounds that use up the configured number of environment steps."""
        return self.algorithm.config.num_updates - self.algorithm.samples_by_round

    def steps_after(self, rounds: int) -> int:
        """Environment steps taken; sampling mode `round` is one batch ahead of its policy."""
        return (rounds + self.algorithm.samples_by_round) * self.algorithm.config.ppo.update_period

    def init(self, seed: int, weights: WeightFunction | None = None) -> TrainState:
        return self.compiled_init(np.uint32(seed), weights)

    def iterate(self, state: TrainState, seed: int) -> tuple[TrainState, Signals]:
        """One round; `state` itself stays as it was."""
        return self.compiled_iterate(state, np.uint32(seed))

    def abstract_state(self) -> TrainState:
        """Shapes and types of the state, without computing anything."""
        return jax.eval_shape(self.algorithm.init, np.uint32(0))


def complete(config: Config, terms: Sequence[RewardTerm] | None = None) -> Config:
    """The configuration checked and with every default filled in. `terms`: objects instead of built-in names."""
    env = make_env(config.env, config.env_options)
    found = make_terms(config, terms)
    if terms is not None:
        config = replace(config, terms=tuple(term.name for term in terms))
    config = resolve(config, env)
    check_terms(found, env)
    return config


def make_terms(config: Config, given: Sequence[RewardTerm] | None) -> tuple[RewardTerm, ...]:
    """Term objects for the configuration: those given, or the built-in ones it names."""
    if given is None:
        return tuple(make_term(spec) for spec in config.terms)
    if config.terms and tuple(term.name for term in given) != config.terms:
        raise UsageError(
            f"the terms given are {[term.name for term in given]}; expected {list(config.terms)}, in that order"
        )
    return tuple(given)


def build(config: Config, terms: Sequence[RewardTerm] | None = None) -> Program:
    """The program of a complete configuration."""
    return _build(config.program_text(), make_terms(config, terms))


@functools.lru_cache(maxsize=8)
def _build(text: str, terms: tuple[RewardTerm, ...]) -> Program:
    enable_compilation_cache()
    config = Config.from_dict(json.loads(text))
    method = find_method(config.method)
    learns = method.estimator is not None and config.weights_from is None
    algorithm = BiLevel(
        config,
        make_env(config.env, config.env_options),
        terms,
        method,
        method.estimator(config) if learns and method.estimator else None,
    )
    return Program(algorithm, jax.jit(algorithm.init), jax.jit(algorithm.iterate))
