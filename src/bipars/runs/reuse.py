"""Reusing a learned weight function, frozen, for a fresh policy: the paper's second adaptability test."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bipars.errors import UsageError
from bipars.methods import find_method
from bipars.nets.weights import Range, ScalarWeights, WeightFunction
from bipars.runs.directory import KINDS, RunDirectory, seed_directory
from bipars.settings.config import WeightsAs
from bipars.settings.resolved import ResolvedConfig, ResolvedWeights


def with_weights_from(
    config: ResolvedConfig, source: str | Path | None, seed: int, weights_as: WeightsAs = "function"
) -> ResolvedConfig:
    """The configuration of one seed; with a `source` run, its weight function replaces the learning of one.

    `source` may also be a directory of runs by seed, of which the same seed is taken.
    """
    config = replace(config, seed=seed)
    if source is None:
        if weights_as != "function":
            raise UsageError(f"weights_as is '{weights_as}', of no run; name one with weights_from", ["weights_from"])
        return config
    path = seed_directory(source, seed)
    run = RunDirectory(path if path.is_dir() else source)
    learned = run.config
    if run.in_python:
        raise UsageError(f"{run.path} is {KINDS[run.kind]}; weights are reused from a finished run of `bipars train`")
    check_reuse(config, learned, str(run.path))
    if learned.seed != seed and any(term.startswith("random") for term in config.terms):
        raise UsageError(
            f"{run.path} learned with seed {learned.seed}; term 'random' is another function with seed {seed}"
        )
    return reusing(config, learned, run.path, weights_as)


def reusing(
    config: ResolvedConfig, learned: ResolvedConfig, path: Path, weights_as: WeightsAs = "function"
) -> ResolvedConfig:
    """The configuration with the weights of the run at `path` in place of its own."""
    weights = learned.weights if weights_as == "function" else ResolvedWeights(form="scalar", initial=0.0)
    return replace(config, weights=weights, weights_from=str(path.resolve()), weights_as=weights_as)


def mean_weights(terms: Sequence[str], rows: Sequence[Mapping[str, Any]], last: int = 5) -> WeightFunction:
    """The weights of the last rows of metrics, over states: one number per term, everywhere the same."""
    means = [np.mean([row[f"weight/{term}"] for row in rows[-last:]]) for term in terms]
    return ScalarWeights(jnp.array(means, float), Range(0.0, None, None))


def check_reuse(config: ResolvedConfig, learned: ResolvedConfig, source: str) -> None:
    """Weights mean something to the environment, terms and method they were learned with alone."""
    for name in ("env", "env_options", "terms", "method"):
        mine, theirs = getattr(config, name), getattr(learned, name)
        if mine != theirs:
            raise UsageError(f"{source} learned its weights with {name} {theirs!r}; this run has {mine!r}")
    if config.ppo.normalise_observations != learned.ppo.normalise_observations:
        raise UsageError(
            f"{source} learned its weights with ppo.normalise_observations {learned.ppo.normalise_observations}; "
            "this run must have the same"
        )
    if not find_method(learned.method).learns_weights:
        raise UsageError(f"{source} used method '{learned.method}', which learns no weights")
