"""What a rollout of Stable-Baselines3 was, beside what its own buffer keeps: the true reward, the terms, the ends."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from bipars.wrappers.vec_env import VecEnvTermLogger


class Truncation(NamedTuple):
    """The state that an episode reached when its time was up: its value is bootstrapped from."""

    time: int
    env: int
    obs: Any
    """As the policy sees it."""


class Rollout(NamedTuple):
    """Axes are (time, env, ...)."""

    obs: list[Any]
    """As the environments gave them, step by step."""
    action: np.ndarray
    """As the environments took them."""
    reward: np.ndarray
    """The true reward."""
    terms: np.ndarray
    terminated: np.ndarray
    done: np.ndarray
    truncations: list[Truncation]


class Recorder(BaseCallback):
    """Keeps what happens in a rollout. One of Stable-Baselines3's callbacks, first among the user's."""

    def __init__(self, logger_of: Callable[[], VecEnvTermLogger]) -> None:
        super().__init__()
        self.logger_of = logger_of
        self._clear()

    def _clear(self) -> None:
        self._steps: list[Any] = []
        self._done: list[np.ndarray] = []
        self._truncations: list[Truncation] = []

    def _on_rollout_start(self) -> None:
        self._clear()

    def _on_step(self) -> bool:
        done, infos = self.locals["dones"], self.locals["infos"]
        for env in np.flatnonzero(done):
            final = infos[env].get("terminal_observation")
            if final is not None and infos[env].get("TimeLimit.truncated", False):
                self._truncations.append(Truncation(len(self._steps), int(env), final))
        self._steps.append(self.logger_of().newest)
        self._done.append(np.array(done, bool))
        return True

    def take(self) -> Rollout:
        done = np.stack(self._done)
        terminated = done.copy()
        for time, env, _ in self._truncations:
            terminated[time, env] = False
        return Rollout(
            [step.obs for step in self._steps],
            np.stack([step.actions for step in self._steps]),
            np.stack([step.true for step in self._steps]).astype(np.float32),
            np.stack([step.values for step in self._steps]).astype(np.float32),
            terminated,
            done,
            self._truncations,
        )
