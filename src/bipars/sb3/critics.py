"""A critic of every reward: of each term, of what weights add by state, and of the true reward.

The network is one more policy of the user's own class, so that it takes whatever observations there are; only its value
head is used, with one output per reward.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.utils import obs_as_tensor
from torch import Tensor, nn

from bipars.terms.call import pick

LEARNING_RATE = 1e-3
"""Of the recipe's critics."""
MINIBATCHES = 8
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

    def values(self, obs: Any) -> np.ndarray:
        """(sample, reward) of observations on one leading axis."""
        seen = as_tensors(obs, self.device)
        count = len(next(iter(seen.values())) if isinstance(seen, dict) else seen)
        with torch.no_grad():
            found = [self(pick(seen, index)) for index in torch.arange(count, device=self.device).split(PIECE)]
        return torch.cat(found).cpu().numpy()

    def fit(
        self, optimizer: torch.optim.Optimizer, obs: Any, targets: np.ndarray, epochs: int, batch: int, norm: float
    ) -> float:
        """Several passes over the batch; the mean squared error."""
        wanted, parameters = torch.as_tensor(targets, device=self.device), list(self.parameters())
        size, losses = max(batch, -(-len(targets) // MINIBATCHES)), []
        for _ in range(epochs):
            for index in torch.randperm(len(targets), device=self.device).split(size):
                loss = nn.functional.mse_loss(self(pick(obs, index)), wanted[index])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, norm)
                optimizer.step()
                losses.append(loss.detach())
        return float(torch.stack(losses).mean())


def as_tensors(obs: Any, device: torch.device) -> Any:
    """Observations on the device, of a dict those of every key."""
    first = next(iter(obs.values())) if isinstance(obs, dict) else obs
    return obs if torch.is_tensor(first) else obs_as_tensor(obs, device)
