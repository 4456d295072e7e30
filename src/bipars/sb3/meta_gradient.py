"""Meta-gradient learning in PyTorch, on any `ActorCriticPolicy`: the formulas of `bipars.upper.mgl`, once more.

    d theta'/d phi = alpha * sum_i grad l_i (x) (d^2 L_i / dl_i dA~_i) dA~_i/dphi         l_i: log ratio, L: objective

is never built: multiplying from the left by v = grad J(theta') first leaves one number per sample, the cotangent of its
advantage. These are added up over time within each episode, and meet the gradient of the weight function once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import Tensor, nn

ASKED = ("evaluate_actions", "get_distribution", "extract_features")
"""What a policy of somebody's own may do in another way."""
Theta = Mapping[str, Tensor]
"""Parameters of the policy by name."""


class Samples(NamedTuple):
    """Some of the transitions of a round, as the policy takes them."""

    obs: Any
    action: Tensor
    log_prob: Tensor
    """Under the policy that acted."""
    modified_advantage: Tensor
    true_advantage: Tensor


class LogProbability(nn.Module):
    """log pi(a|s), as a module that can be called with other parameters than its own."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Any, action: Tensor) -> Tensor:
        if all(getattr(type(self.policy), name) is getattr(ActorCriticPolicy, name) for name in ASKED):
            return self.policy.get_distribution(obs).log_prob(action)  # the same, without values
        return self.policy.evaluate_actions(obs, action)[1]

    def theta(self) -> dict[str, Tensor]:
        """The parameters as they are now, to be kept."""
        return {name: value.detach().clone().requires_grad_() for name, value in self.named_parameters()}

    def at(self, theta: Theta, samples: Samples) -> Tensor:
        return torch.func.functional_call(self, dict(theta), (samples.obs, samples.action))


def clipped_objective(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """min(rho A, clip(rho, 1 - c, 1 + c) A) of every sample."""
    ratio = torch.exp(log_ratio)
    return torch.minimum(ratio * advantage, torch.clamp(ratio, 1 - clip, 1 + clip) * advantage)


def mixed_derivatives(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """d^2 L / dl dA of every sample: how its gradient, by the log ratio, grows with its advantage."""
    log_ratio, advantage = (x.detach().requires_grad_() for x in (log_ratio, advantage))
    (slope,) = torch.autograd.grad(clipped_objective(log_ratio, advantage, clip).sum(), log_ratio, create_graph=True)
    return torch.autograd.grad(slope.sum(), advantage)[0]


def true_gradient(
    log_prob: LogProbability, theta: Theta, pieces: Iterable[Samples], clip: float, total: int
) -> list[Tensor]:
    """v: the gradient of the true surrogate over `total` samples, which come in pieces."""
    found = [torch.zeros_like(value) for value in theta.values()]
    for samples in pieces:
        log_ratio = log_prob.at(theta, samples) - samples.log_prob
        surrogate = clipped_objective(log_ratio, samples.true_advantage, clip).sum() / total
        gradients = torch.autograd.grad(surrogate, list(theta.values()), allow_unused=True)
        found = [sum_ if g is None else sum_ + g for sum_, g in zip(found, gradients, strict=True)]
    return found


def advantage_cotangent(
    log_prob: LogProbability, theta: Theta, pieces: Iterable[Samples], v: Sequence[Tensor], clip: float, total: int
) -> Tensor:
    """v^T d theta'/d A~_i of every sample, per unit of the learning rate, of one step from theta."""
    found = []
    for samples in pieces:
        value = log_prob.at(theta, samples)
        mixed = mixed_derivatives(value - samples.log_prob, samples.modified_advantage, clip)
        found.append(mixed * along(value, list(theta.values()), v) / total)
    return torch.cat(found)


def along(values: Tensor, parameters: Sequence[Tensor], v: Sequence[Tensor]) -> Tensor:
    """v . d values_i/d theta of every sample: forward differentiation, as reverse differentiation taken twice."""
    cotangent = torch.zeros_like(values, requires_grad=True)
    gradients = torch.autograd.grad(values, parameters, cotangent, create_graph=True, allow_unused=True)
    products = [(g * d).sum() for g, d in zip(gradients, v, strict=True) if g is not None]
    return torch.autograd.grad(torch.stack(products).sum(), cotangent)[0]


def discounted_prefix_sums(values: Tensor, done: Tensor, discount: float) -> Tensor:
    """y_t = x_t + discount * y_{t-1} on the axes (time, env), started anew after an episode ended at t - 1.

    In log2(time) steps: after each, a sum reaches back twice as far.
    """
    factor = torch.zeros_like(values)
    factor[1:] = discount * (~done[:-1]).to(values.dtype)
    reach = 1
    while reach < len(values):
        values = torch.cat([values[:reach], values[reach:] + factor[reach:] * values[:-reach]])
        factor = torch.cat([factor[:reach], factor[reach:] * factor[:-reach]])
        reach *= 2
    return values


def weights_gradient(
    weights: Callable[[Tensor, Tensor], Tensor],
    parameters: Sequence[Tensor],
    obs: Tensor,
    action: Tensor,
    terms: Tensor,
    done: Tensor,
    cotangent: Tensor,
    discount: float,
) -> list[Tensor]:
    """sum_i c_i dA~_i/dphi. `terms` (time, env, term) are in the advantages' unit, the cotangent is (time, env).

    A term counts in the advantage of its own step and of all earlier ones of its episode.
    """
    sums = discounted_prefix_sums(cotangent, done, discount).reshape(-1, 1)
    weighted = weights(obs.flatten(0, 1), action.flatten(0, 1)) * terms.flatten(0, 1)
    return list(torch.autograd.grad((sums * weighted).sum(), list(parameters)))
