"""The weight function z_phi as a small PyTorch network: that of `bipars.nets.weights`, once more."""

import itertools
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor, nn

from bipars.nets.spaces import BoxActions, MultiDiscreteActions, Spaces
from bipars.nets.weights import WeightFunction, make_weights
from bipars.settings.resolved import ResolvedWeights


class Deviation(nn.Module):
    """What is added to one number per term, by state and action; close to 0 at the start (appendix D.1)."""

    def __init__(self, config: ResolvedWeights, spaces: Spaces, num_terms: int) -> None:
        super().__init__()
        self.form, self.num_terms = config.form, num_terms
        actions, inputs, outputs = spaces.actions, spaces.observation_size, num_terms
        self.actions = actions
        if config.form == "scalar":
            self.value = nn.Parameter(torch.zeros(num_terms))
            return
        if config.form == "state-action":
            inputs += actions.width
        if config.form == "per-action":
            outputs *= actions.width
        sizes = (inputs, *config.hidden, outputs)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        for layer in self.layers:
            for parameter in layer.parameters():
                scale = 1e-3 if layer is self.layers[-1] else 0.125
                nn.init.uniform_(parameter, -scale, scale)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """(sample, term) from flat observations and the actions of `policy_action`."""
        if self.form == "scalar":
            return self.value.expand(len(obs), -1)
        x = torch.cat([obs, self.encoded(action, obs.dtype)], dim=-1) if self.form == "state-action" else obs
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        out = self.layers[-1](x)
        if self.form != "per-action":
            return out
        every = out.reshape(len(obs), -1, self.num_terms)
        return every[torch.arange(len(obs), device=obs.device), action.long()]

    @property
    def pairs(self) -> list[list[Tensor]]:
        return [list(layer.parameters()) for layer in self.layers]

    def encoded(self, action: Tensor, dtype: torch.dtype) -> Tensor:
        if isinstance(self.actions, BoxActions):
            return action.clamp(-1.0, 1.0).to(dtype)
        sizes = self.actions.sizes if isinstance(self.actions, MultiDiscreteActions) else (self.actions.n,)
        chosen = action.long().reshape(-1, len(sizes)).unbind(dim=-1)
        return torch.cat([nn.functional.one_hot(c, n) for c, n in zip(chosen, sizes, strict=True)], dim=-1).to(dtype)


class Weights(nn.Module):
    """z(s, a) = one number per term + what a network adds to it, in units of the weight that equals the reward."""

    base: Tensor
    unit: Tensor

    def __init__(self, config: ResolvedWeights, spaces: Spaces, num_terms: int) -> None:
        super().__init__()
        self.config, self.spaces, self.num_terms = config, spaces, num_terms
        self.register_buffer("base", torch.full((num_terms,), float(config.initial)))
        self.register_buffer("unit", torch.ones(num_terms))
        self.deviation = Deviation(config, spaces, num_terms)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        weights = self.base + self.unit * self.deviation(obs, action)
        return torch.clamp(weights, self.config.low, self.config.high) if self.bounded else weights

    @property
    def bounded(self) -> bool:
        return self.config.low is not None or self.config.high is not None

    def as_tree(self) -> WeightFunction:
        """The same weight function as the rest of the library knows it, in NumPy."""
        drawn = jax.eval_shape(lambda: make_weights(jax.random.key(0), self.config, self.spaces, self.num_terms))
        tree: Any = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), drawn)  # units are 1, the rest follows
        network: Any = tree.deviation if self.config.by_evidence else tree
        if self.config.form == "scalar":
            network = replace(network, value=numpy(self.deviation.value))
        else:
            layers = [
                replace(old, weight=numpy(weight).T, bias=numpy(bias))
                for old, (weight, bias) in zip(network.net.layers, self.deviation.pairs, strict=True)
            ]
            network = replace(network, net=replace(network.net, layers=tuple(layers)))
        if not self.config.by_evidence:
            return network
        return replace(tree, base=numpy(self.base), unit=numpy(self.unit), deviation=network)

    def take(self, tree: Any) -> None:
        """The parameters of such a tree become its own."""
        network = tree.deviation if self.config.by_evidence else tree
        pairs = [(self.base, tree.base), (self.unit, tree.unit)] if self.config.by_evidence else []
        if self.config.form == "scalar":
            pairs.append((self.deviation.value, network.value))
        else:
            for (weight, bias), given in zip(self.deviation.pairs, network.net.layers, strict=True):
                pairs += [(weight, given.weight.T), (bias, given.bias)]
        with torch.no_grad():
            for parameter, array in pairs:
                parameter.copy_(torch.as_tensor(np.array(array)))


def numpy(tensor: Tensor) -> np.ndarray:
    """A copy: PyTorch's optimisers write into what they have."""
    return tensor.detach().cpu().numpy().copy()
