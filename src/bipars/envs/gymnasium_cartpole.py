"""The cart-pole tasks as ordinary Gymnasium environments, for any other library."""

from typing import Any

import gymnasium
import numpy as np

from bipars.envs.cartpole import RESET_RANGE, advance, fallen


class CartPoleEnv(gymnasium.Env[np.ndarray, Any]):
    """Sparse reward: -1 on the step that ends the episode by falling, else 0. Truncated at 200 steps by Gymnasium."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own declaration)

    def __init__(self, continuous: bool = False, force: float = 10.0) -> None:
        self.continuous, self.force = continuous, force
        limit = np.full(4, np.inf, np.float32)
        self.observation_space = gymnasium.spaces.Box(-limit, limit)
        self.action_space = (
            gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else gymnasium.spaces.Discrete(2)
        )
        self.state = np.zeros(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-RESET_RANGE, RESET_RANGE, 4)
        return self.state.astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        push = float(np.clip(action[0], -1.0, 1.0)) if self.continuous else 2.0 * int(action) - 1.0
        self.state = advance(self.state, self.force * push, np)
        terminated = bool(fallen(self.state))
        return self.state.astype(np.float32), -1.0 if terminated else 0.0, terminated, False, {}
