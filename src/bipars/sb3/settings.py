"""What a `ShapedPPO` was asked for, and what that comes to: the configuration that every run of the library has."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from stable_baselines3.common.policies import ActorCriticPolicy

from bipars.errors import UsageError, unknown
from bipars.methods import METHODS, Method
from bipars.resolve import resolve_weights as resolve_anywhere
from bipars.sb3.upper import MOST_INPUTS
from bipars.settings.base import merge
from bipars.settings.config import Config, PPOConfig, WeightConfig
from bipars.settings.recipe import recipe
from bipars.settings.resolved import ResolvedConfig, ResolvedUpper, ResolvedWeights
from bipars.terms.steps import StepSpaces

SUPPORTED = ("mgl", "single", "ns", "ppo")
"""Rows of the methods table."""
LEARNING_RATES = {"mgl": 2e-3, "single": 2e-2}
"""Of phi, which steps once for every pass of theta over the batch."""
DEVIATION_LEARNING_RATE = 3e-4
"""The same where one number per term follows the evidence, and phi says where weights deviate from it."""


@dataclass(frozen=True)
class Asked:
    """Settings of the upper level, as a file can hold them."""

    method: str = "mgl"
    true_reward: str = "env"
    by_evidence: bool = True
    horizon: Literal["gamma", "gamma-lambda"] = "gamma-lambda"
    weights: Mapping[str, Any] = None  # type: ignore[assignment]
    env: str = ""
    terms: tuple[str, ...] = ()

    def check(self) -> None:
        if self.method not in SUPPORTED:
            elsewhere = ". bipars.BiPaRS has it" if self.method in METHODS else ""
            raise UsageError(
                f"method is '{self.method}'; bipars.sb3.ShapedPPO knows {', '.join(SUPPORTED)}{elsewhere}", ["method"]
            )
        if self.horizon not in ("gamma", "gamma-lambda"):
            raise unknown("horizon", self.horizon, ("gamma", "gamma-lambda"))
        if self.weights.get("simplex"):
            raise UsageError("weights.simplex is not supported by bipars.sb3.ShapedPPO; bipars.BiPaRS has it")
        merge(WeightConfig(), dict(self.weights), "weights")


def resolve(asked: Asked, model: Any, single: StepSpaces) -> ResolvedConfig:
    """The configuration of a model of Stable-Baselines3, with nothing left open."""
    method = METHODS[asked.method]
    recipes = recipe("ppo")
    return ResolvedConfig(
        env=asked.env,
        terms=asked.terms,
        true_reward=asked.true_reward,
        method=asked.method,
        seed=(model.seed or 0) % 2**32,
        steps=recipes.steps,
        evaluation_episodes=1,
        ppo=resolve_ppo(model),
        weights=resolve_weights(asked, method, single),
        upper=ResolvedUpper(horizon=asked.horizon, control_group=False, follow_weights=False),
        learns_weights=method.learns_weights,
    )


def resolve_weights(asked: Asked, method: Method, single: StepSpaces) -> ResolvedWeights:
    """As everywhere, but for phi's step size; and of images, weights are one number per term."""
    weights: WeightConfig = merge(WeightConfig(), dict(asked.weights), "weights")
    by_evidence = asked.by_evidence and method.learns_weights
    usual = DEVIATION_LEARNING_RATE if by_evidence else LEARNING_RATES.get(asked.method, LEARNING_RATES["mgl"])
    weights = replace(weights, learning_rate=weights.learning_rate or usual)
    if weights.form == "auto" and single.observation_size > MOST_INPUTS:
        weights = replace(weights, form="scalar")
    config = Config(env=asked.env, terms=asked.terms, method=asked.method, weights=weights)
    return resolve_anywhere(config, method, single, by_evidence)


def resolve_ppo(model: Any) -> PPOConfig:
    """What of Stable-Baselines3's settings ours have a name for; schedules as they begin."""
    period = model.n_steps * model.n_envs
    extractor = getattr(model.policy, "mlp_extractor", None)
    rate = float(model.lr_schedule(1.0))
    return PPOConfig(
        policy_hidden=hidden(getattr(extractor, "policy_net", None)),
        value_hidden=hidden(getattr(extractor, "value_net", None)),
        activation="relu" if getattr(model.policy, "activation_fn", None) is torch.nn.ReLU else "tanh",
        target_kl=model.target_kl,
        initial="orthogonal",
        initial_std=1.0,
        num_envs=model.n_envs,
        update_period=period,
        gradient_steps=model.n_epochs * -(-period // model.batch_size),
        batch_size=model.batch_size,
        clip=float(model.clip_range(1.0)),
        gamma=model.gamma,
        gae_lambda=model.gae_lambda,
        policy_learning_rate=rate,
        value_learning_rate=rate,
        max_grad_norm=model.max_grad_norm,
        normalise_observations=False,
        normalise_returns=True,
    )


def hidden(network: Any) -> tuple[int, ...]:
    """Sizes of the layers of a network of Stable-Baselines3."""
    layers = network if isinstance(network, torch.nn.Sequential) else ()
    return tuple(layer.out_features for layer in layers if isinstance(layer, torch.nn.Linear))


def check_policy(policy: Any) -> None:
    """Refuses what cannot say how probable an action is."""
    if isinstance(policy, str):
        return  # Stable-Baselines3 knows its own names
    evaluate = getattr(policy, "evaluate_actions", None)
    name = getattr(policy, "__name__", repr(policy))
    instead = "Use an ActorCriticPolicy of Stable-Baselines3, such as 'MlpPolicy', or a subclass of it"
    if evaluate is None:
        raise UsageError(f"policy {name} has no evaluate_actions, by which weights are learned. {instead}")
    takes = list(inspect.signature(evaluate).parameters)
    if not issubclass(policy, ActorCriticPolicy) or len(takes) != 3:
        raise UsageError(
            f"policy {name} takes {takes[1:]} in evaluate_actions; expected observations, actions. {instead}"
        )
