"""The term logger for Stable-Baselines3's vector environments."""

from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from bipars.terms.call import pick
from bipars.wrappers.term_logger import ENDED, TermLogger, stack


class LoggedStep(NamedTuple):
    """What was logged of a step, before other wrappers change it."""

    obs: Any
    """As the environments gave them."""
    actions: np.ndarray
    true: np.ndarray
    values: np.ndarray


class VecEnvTermLogger(TermLogger, VecEnvWrapper):
    """Of a `VecEnv`: episodes restart within the step that ends them, and `info` has the last observation."""

    newest: LoggedStep

    def _wrap(self, env: VecEnv, **arguments: Any) -> None:
        VecEnvWrapper.__init__(self, env)
        self._obs: Any = None
        self._actions: Any = None

    def reset(self) -> Any:
        self._obs = self.venv.reset()
        self.log.restart()
        return self._obs

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        obs, reward, done, infos = self.venv.step_wait()
        reached = obs
        if done.any():
            last = [info.get("terminal_observation") if over else None for info, over in zip(infos, done, strict=True)]
            reached = stack([pick(obs, env) if final is None else final for env, final in enumerate(last)])
        values, true = self.evaluator.several(self._obs, self._actions, reached, reward, infos)
        self.newest = LoggedStep(self._obs, self._actions, true, values)
        shaped, found = self._shape(reward, true, values, self._obs, self._actions)
        ended = self.log.add(true, values, done)
        columns = {key: column.tolist() for key, column in found.items()}
        for env, info in enumerate(infos):
            info.update({key: column[env] for key, column in columns.items()})
            if env in ended:
                info[ENDED] = ended[env]
        self._obs = obs
        return obs, shaped, done, infos


class ShapedVecEnv(VecEnvTermLogger):
    """A `VecEnv` whose reward is the true reward plus every term times its frozen weight."""
