"""The trained policy by itself, in NumPy."""

from typing import Any

import numpy as np
from gymnasium import Space

from bipars.envs import spaces
from bipars.errors import UsageError
from bipars.nets.mlp import to_numpy
from bipars.nets.policies import Policy
from bipars.nets.spaces import BoxActions


class ActingPolicy:
    """Maps the environment's own observations, one or a batch, to its own actions."""

    def __init__(self, policy: Policy, observation_space: Space[Any], action_space: Space[Any], seed: int) -> None:
        import jax

        self._policy, self._rng = to_numpy(policy), np.random.default_rng(seed)
        self._noise = jax.eval_shape(lambda: policy.draw_noise(jax.random.key(0), ())).shape
        self._discrete = not isinstance(spaces.action_space(action_space), BoxActions)
        self.observation_space, self.action_space = observation_space, action_space

    def predict(
        self, observation: Any, state: None = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, None]:
        """The action, and None where other libraries return a recurrent state."""
        many = spaces.batched(self.observation_space, observation)
        obs = spaces.flatten(self.observation_space, observation, lead=int(many))
        if not np.isfinite(obs).all():
            raise UsageError(
                f"the observation is {observation!r:.80}; a policy expects finite numbers, of single precision"
            )
        if deterministic:
            action: Any = self._policy.mode(obs)
        else:
            shape = (*obs.shape[:-1], *self._noise)
            draw = self._rng.gumbel if self._discrete else self._rng.standard_normal
            action = self._policy.sample(obs, np.asarray(draw(size=shape), np.float32))  # type: ignore[arg-type]
        clipped = np.asarray(action) if self._discrete else np.clip(action, -1.0, 1.0)
        return np.asarray(spaces.native_action(self.action_space, clipped)), None
