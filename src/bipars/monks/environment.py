"""Monks and gruel as a PettingZoo environment (AEC: agents act one after the other).

    from bipars.monks.environment import MonksAndGruel

    env = MonksAndGruel(num_monks=3, gruel=1.0)
    env.reset()
    for agent in env.agent_iter():
        observation, reward, termination, truncation, info = env.last()
        env.step(None if termination else env.action_space(agent).sample())

The system's action is the index of a monk, a monk's the share of what is left that the monk whose turn it is shall get.
Everybody sees which step it is (one number per monk, 1 at the current one) and what part of the gruel is left.
"""

from typing import Any

import numpy as np
from gymnasium import Space, logger, spaces

from bipars.errors import UsageError, unknown
from bipars.monks.rules import Game

try:
    from pettingzoo import AECEnv
except ImportError as error:
    raise UsageError("monks and gruel as an environment needs PettingZoo: pip install 'bipars[monks]'") from error

SYSTEM = "system_0"
"""Agent 0 of the paper; PettingZoo wants a number in every name."""

RENDER_MODES = ("ansi",)
SET_BY_RESET = (
    "agents", "num_agents", "agent_selection", "rewards", "terminations", "truncations", "infos",
    "bowls", "assigners", "left",
)  # fmt: skip


class ResetNeededError(UsageError, AttributeError):
    """Something was asked that only a game that has begun can answer."""


class MonksAndGruel(AECEnv[str, np.ndarray, Any]):
    metadata = {"name": "monks_and_gruel_v0", "render_modes": list(RENDER_MODES), "is_parallelizable": False}  # noqa: RUF012

    def __init__(self, num_monks: int = 3, gruel: float = 1.0, render_mode: str | None = None) -> None:
        super().__init__()
        self.game = Game(num_monks, gruel)
        if render_mode not in (None, *RENDER_MODES):
            raise UsageError(f"render_mode is {render_mode!r}; expected 'ansi', whose text `render()` returns, or None")
        self.render_mode = render_mode
        self.monks = [f"monk_{i + 1}" for i in range(num_monks)]
        self.possible_agents = [SYSTEM, *self.monks]
        seen = spaces.Box(0.0, 1.0, (num_monks + 1,), np.float32)
        self.observation_spaces: dict[str, Space[Any]] = dict.fromkeys(self.possible_agents, seen)
        share = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_spaces: dict[str, Space[Any]] = {SYSTEM: spaces.Discrete(num_monks)}
        self.action_spaces |= dict.fromkeys(self.monks, share)

    def observation_space(self, agent: str) -> Space[Any]:
        return self.observation_spaces[self._known(agent)]

    def action_space(self, agent: str) -> Space[Any]:
        return self.action_spaces[self._known(agent)]

    def _known(self, agent: str) -> str:
        if agent not in self.possible_agents:
            raise unknown("agent", str(agent), self.possible_agents)
        return agent

    def __getattr__(self, name: str) -> Any:
        """Python comes here where an attribute is missing."""
        if name in SET_BY_RESET:
            raise ResetNeededError(f"no game has begun: call reset() before anything needs {name}")
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'", name=name, obj=self)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """The game has no chance in it: every seed gives the same."""
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.bowls: list[float] = []
        """What monks 1, 2, ... have got."""
        self.assigners: list[int] = []
        """Whom the system named at each step."""
        self.agent_selection = SYSTEM

    @property
    def left(self) -> float:
        return self.game.gruel - sum(self.bowls)

    def observe(self, agent: str) -> np.ndarray:
        self._known(agent)
        step = np.arange(self.game.num_monks) == len(self.bowls)
        part = np.clip(self.left / self.game.gruel, 0.0, 1.0)
        return np.append(step, part).astype(np.float32)

    def step(self, action: Any) -> None:
        if not self.agents:
            raise UsageError("the game is over; call reset() before the next step")
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        if not self.action_space(agent).contains(action):
            raise UsageError(f"the action of {agent} is {action!r}; expected one of {self.action_space(agent)}")
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        if agent == SYSTEM:
            self.assigners.append(int(action))
            self.agent_selection = self.monks[int(action)]
        else:
            self._assign(float(np.asarray(action)[0]))
            self.agent_selection = SYSTEM
        self._accumulate_rewards()

    def _assign(self, share: float) -> None:
        step, amount = len(self.bowls), self.game.amount(self.left, share)
        self.bowls.append(amount)
        self.rewards[SYSTEM] = float(self.game.system_reward(amount))
        for monk, reward in zip(self.monks, self.game.monk_rewards(step, np.float64(amount)), strict=True):
            self.rewards[monk] = float(reward)
        if len(self.bowls) == self.game.num_monks:
            self.terminations = dict.fromkeys(self.agents, True)

    def render(self) -> str | None:
        lines = [
            f"monk {assigner + 1} gave {bowl:.3g} to monk {step + 1}"
            for step, (assigner, bowl) in enumerate(zip(self.assigners, self.bowls, strict=False))
        ]
        if self.render_mode is None:
            logger.warn("render() needs a mode: make the environment with render_mode='ansi'")
            return None
        return "\n".join(lines)

    def close(self) -> None:
        """Nothing to end."""
