"""A critic of every reward: of each term, of what weights add by state, and of the true reward.

The network is one more policy of the user's own class, so that it takes whatever observations there are; only its value
head is used, with one output per reward.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.utils import obs_as_tensor
from torch import Tensor, nn

LEARNING_RATE = 1e-3
"""Of the recipe's critics."""
MINIBATCHES = 16
"""Of each pass over a batch, at most: values are easier to learn than actions, and steps cost time."""
PIECE = 1024
"""Samples that are shown to a network at once."""


class Critics(nn.Module):
    """Values of several rewards, each in units of its own returns."""

    def __init__(self, make_policy: Callable[[], Any], rewards: int) -> None:
        super().__init__()
        self.net = make_policy()
        self.net.value_net = nn.Linear(self.net.value_net.in_features, rewards)
        nn.init.zeros_(self.net.value_net.weight)
        nn.init.zeros_(self.net.value_net.bias)

    def forward(self, obs: Any) -> Tensor:
        return self.net.predict_values(obs)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def values(self, obs: Any, count: int) -> np.ndarray:
        """(sample, reward) of observations on one leading axis."""
        with torch.no_grad():
            found = [self(as_tensors(obs, index, self.device)) for index in pieces(np.arange(count))]
        return torch.cat(found).cpu().numpy()

    def fit(
        self, optimizer: torch.optim.Optimizer, obs: Any, targets: np.ndarray, epochs: int, batch: int, norm: float
    ) -> float:
        """Several passes over the batch; the mean squared error."""
        wanted = torch.as_tensor(targets, device=self.device)
        size, losses = max(batch, -(-len(targets) // MINIBATCHES)), []
        for _ in range(epochs):
            for index in pieces(torch.randperm(len(targets)).numpy(), size):
                loss = nn.functional.mse_loss(self(as_tensors(obs, index, self.device)), wanted[index])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters(), norm)
                optimizer.step()
                losses.append(loss.detach())
        return float(torch.stack(losses).mean())


def pieces(index: np.ndarray, size: int = PIECE) -> Iterator[np.ndarray]:
    for start in range(0, len(index), size):
        yield index[start : start + size]


def as_tensors(obs: Any, index: np.ndarray, device: torch.device) -> Any:
    """Some of the observations, of a dict those of every key."""
    some = {key: value[index] for key, value in obs.items()} if isinstance(obs, dict) else obs[index]
    return obs_as_tensor(some, device)
