"""Weights that are plain numbers, in whatever trainer: what `bipars export --to scalars` or `--to schedule` wrote."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bipars.envs import spaces
from bipars.errors import UsageError
from bipars.export.weights import shape
from bipars.runs.files import is_number, read_file
from bipars.runs.objects import Terms
from bipars.terms.steps import StepSpaces
from bipars.terms.term import RewardTerm, TermFunction
from bipars.wrappers.term_logger import make_evaluator

Numbers = Mapping[str, float] | str | os.PathLike[str]


def shaped_env(
    env: Any, terms: Terms, weights: Numbers, true_reward: str | TermFunction = "env", num_envs: int = 1
) -> Any:
    """`env` with the true reward plus every term times a number, for any trainer.

        env = bipars.shaped_env(env, terms, {"upright": 0.3, "calm": 0.0})
        env = bipars.shaped_env(env, terms, "schedule.json")

    `weights` are numbers by name, or a file of `bipars export --to scalars` or `--to schedule`. The steps of a schedule
    are those of all environments together: where each is wrapped by itself, `num_envs` says how many there are.
    """
    evaluator = make_evaluator(env, terms, true_reward)
    stages, values = read_numbers(weights, evaluator.terms)
    given = StepSpaces(spaces.without_unusable(evaluator.spaces.observation_space)[0], evaluator.spaces.action_space)
    if num_envs < 1:
        raise UsageError(f"num_envs is {num_envs}; expected at least 1")
    numbers = NumberWeights(evaluator.names, stages, values, given, num_envs)
    return shape(env, numbers, evaluator.terms, evaluator.true_reward, evaluator.params)


class NumberWeights:
    """A weight function that looks at nothing but the number of steps."""

    def __init__(
        self, terms: tuple[str, ...], stages: np.ndarray, values: np.ndarray, of_steps: StepSpaces, num_envs: int
    ) -> None:
        self.terms, self.stages, self.values, self.num_envs, self.steps = terms, stages, values, num_envs, 0
        self.observation_space, self.action_space = of_steps.observation_space, of_steps.action_space

    def __call__(self, observation: Any, action: Any) -> np.ndarray:
        now = self.values[np.searchsorted(self.stages, self.steps, side="right") - 1]
        if not spaces.batched(self.action_space, action, "action"):
            self.steps += self.num_envs
            return now
        self.steps += len(action) * self.num_envs
        return np.broadcast_to(now, (len(action), len(now)))


def read_numbers(weights: Numbers, terms: tuple[RewardTerm, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The steps from which on weights hold, and weights by step and term."""
    about, steps = "weights", [0]
    data: dict[str, Any] = dict(weights) if isinstance(weights, Mapping) else {}
    if not isinstance(weights, Mapping):
        about = str(weights)
        try:
            found = json.loads(read_file(Path(weights)))
            data, steps = dict(found["weights"]), found.get("steps", steps)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            expected = "a file of `bipars export --to scalars` or `--to schedule`"
            raise UsageError(f"{about} cannot be read ({error!r:.100}); expected {expected}") from error
    columns: list[list[Any]] = []
    for name in (term.name for term in terms):
        value = data.get(name, data.get(name.rpartition(".")[2]))
        if value is None:
            has = ", ".join(map(repr, data)) or "none"
            raise UsageError(f"{about} has no weight for the term '{name}'; it has {has:.200}")
        columns.append(value if isinstance(value, list) else [value])
        if len(columns[-1]) != len(steps) or not all(is_number(w) and np.isfinite(w) for w in columns[-1]):
            raise UsageError(f"{about} has {value!r:.80} for the term '{name}'; expected {len(steps)} finite numbers")
    if not all(is_number(step) for step in steps) or steps[0] != 0 or sorted(set(steps)) != list(steps):
        raise UsageError(f"{about} has the steps {steps!r:.80}; expected 0 and then ever larger ones")
    return np.array(steps), np.array(columns, float).T
