"""Vector environments whose reward counts every term by its learned, frozen weight."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from bipars.terms.steps import StepTerms
from bipars.wrappers.term_logger import TermLogger, VectorTermLogger

LearnedWeights = Callable[[Any, Any], np.ndarray]
"""From observations and actions to one weight per term: z(s, a)."""


class Shaped(TermLogger):
    """What a logger needs to shape as well. `info` also has `weight/NAME`."""

    weight_function: LearnedWeights

    def _shape(
        self, reward: Any, true: np.ndarray, values: np.ndarray, obs: Any, actions: Any
    ) -> tuple[Any, dict[str, np.ndarray]]:
        weights = self.weight_function(obs, actions)
        shaped = (true + np.sum(weights * values, axis=-1)).astype(np.asarray(reward).dtype)
        return shaped, {f"weight/{name}": weights[:, k] for k, name in enumerate(self.evaluator.names)}


class ShapedVectorEnv(Shaped, VectorTermLogger):
    """A Gymnasium vector environment whose reward is the true reward plus every term times its frozen weight."""

    def __init__(self, env: VectorEnv[Any, Any, Any], weight_function: LearnedWeights, evaluator: StepTerms) -> None:
        VectorWrapper.__init__(self, env)
        self._log_by(evaluator, env)
        self._begin_episodes(env)
        self.weight_function = weight_function
