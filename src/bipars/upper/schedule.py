"""When phi steps: after every step of theta, after all of a round's, or once per round. Or never.

All but `Fixed` are upper levels around an estimator, which also say whether phi's minibatch serves theta next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.compiling import compiled, in_halves
from bipars.lower.advantages import UpdateData
from bipars.lower.base import ALONE, After, Hook, LowerStep
from bipars.lower.ppo import PPO, Learner
from bipars.nets.optimiser import ascend
from bipars.nets.policies import Theta
from bipars.nets.weights import WeightFunction
from bipars.objective import Samples
from bipars.upper.base import Estimator, Updated, gradient_log
from bipars.upper.mgl import advantage_jacobian, advantage_pull_back


class WeightState(NamedTuple):
    """phi between two steps."""

    weights: WeightFunction
    optimiser: optax.OptState = ()
    estimator: Any = ()
    """What the estimator remembers of the steps of theta, such as IMGL's d theta/d phi."""


@dataclass(frozen=True, eq=False)
class Fixed:
    """Weights that stay as they are."""

    lower: Any

    def init(self, weights: WeightFunction, learner: Any) -> WeightState:
        return WeightState(weights)

    def update(self, state: WeightState, learner: Any, data: Any, key: PRNGKeyArray) -> Updated:
        learned = self.lower.learn(learner, state, data, key, ALONE)
        return Updated(state, learned.learner, learned.log)


@dataclass(frozen=True, eq=False)
class Interleaved:
    """phi steps after every step of theta, on samples of the same batch."""

    lower: Any
    estimator: Estimator
    optimiser: optax.GradientTransformation
    discount: float = 1.0
    """Of later terms in dA~/dphi."""
    follow_weights: bool = False
    """Within a round, move the modified advantages along with phi."""
    restarts: bool = False
    """The estimator forgets at the start of every round."""

    @cached_property
    def hook(self) -> Hook:
        shares = self.estimator.needs_jacobian and not self.follow_weights
        return Hook(self.after_step, shares_draws=shares, follows=self.follow_weights)

    def init(self, weights: WeightFunction, learner: Any) -> WeightState:
        minibatch = self.lower.empty_minibatch(weights, self.estimator.needs_jacobian)
        return WeightState(
            weights, self.optimiser.init(weights), self.estimator.init(learner.policy, weights, minibatch)
        )

    def update(self, state: WeightState, learner: Any, data: Any, key: PRNGKeyArray) -> Updated:
        if self.estimator.needs_jacobian:
            data = data.with_jacobian(self.jacobian(state.weights, data))
        if self.restarts:
            state = state._replace(estimator=jax.tree.map(jnp.zeros_like, state.estimator))
        learned = self.lower.learn(learner, state, data, key, self.hook)
        return Updated(learned.upper, learned.learner, learned.log | self.log(learned.kept))

    @compiled
    def jacobian(self, weights: WeightFunction, data: UpdateData) -> Float[Array, "sample phi"]:
        return advantage_jacobian(weights, data, self.discount)

    def after_step(self, state: WeightState, step: LowerStep, after: After) -> tuple[WeightState, WeightFunction]:
        gradient, estimator = self.estimator.update(state.estimator, step, after, state.weights)  # lines 9-14, 18-21
        weights, optimiser = ascend(state.weights, state.optimiser, self.optimiser, gradient)  # line 22
        return WeightState(weights, optimiser, estimator), gradient

    @compiled
    def log(self, gradients: WeightFunction) -> dict[str, Array]:
        return gradient_log(gradients)


@dataclass(frozen=True, eq=False)
class Deferred:
    """Like `Interleaved`, but phi takes its steps after theta has taken all of a round's.

    For MGL where theta does not depend on phi within a round. What phi needs of a step is then one number per sample,
    and dA~/dphi, N x m, is never built.
    """

    lower: PPO
    estimator: Any
    """One with `advantage_cotangent`, such as MGL."""
    optimiser: optax.GradientTransformation
    discount: float

    @cached_property
    def hook(self) -> Hook:
        return Hook(self.after_step, shares_draws=True)

    def init(self, weights: WeightFunction, learner: Learner) -> WeightState:
        return WeightState(weights, self.optimiser.init(weights))

    def update(self, state: WeightState, learner: Learner, data: UpdateData, key: PRNGKeyArray) -> Updated:
        learned = self.lower.learn(learner, state, data, key, self.hook)
        steps = len(learned.kept[0])
        gradients = in_halves(
            self.lower.threads > 1, lambda some: self.gradients(state.weights, data, learned.kept, some), steps
        )
        state, log = self.climb(state, gradients)  # line 22
        return Updated(state, learned.learner, learned.log | log)

    def after_step(self, state: WeightState, step: LowerStep, after: After) -> tuple[WeightState, tuple[Array, Any]]:
        return state, (self.estimator.advantage_cotangent(step, after), step.places)  # lines 9-10

    @compiled
    def gradients(
        self, weights: WeightFunction, data: UpdateData, kept: tuple[Array, Array], some: Int[Array, " some"]
    ) -> WeightFunction:
        """Gradients of phi by some of theta's steps (lines 18-21)."""
        cotangent, index = kept
        of_all = jnp.zeros((some.size, data.samples.log_prob.size))
        of_all = of_all.at[jnp.arange(some.size)[:, None], index[some]].add(cotangent[some])
        return advantage_pull_back(weights, data, self.discount, of_all)

    @compiled
    def climb(self, state: WeightState, gradients: Sequence[WeightFunction]) -> tuple[WeightState, dict[str, Array]]:
        """The steps of phi, one for each of theta's."""
        every = jax.tree.map(lambda *x: jnp.concatenate(x), *gradients)

        def one_step(carry: Any, gradient: WeightFunction) -> tuple[Any, None]:
            weights, optimiser = carry
            return ascend(weights, optimiser, self.optimiser, gradient), None

        (weights, optimiser), _ = jax.lax.scan(one_step, (state.weights, state.optimiser), every)
        return WeightState(weights, optimiser), gradient_log(every)


class Pending(NamedTuple):
    """The newest round, which phi has yet to learn from."""

    policy: Theta
    """theta at its start."""
    samples: Samples
    terms: Float[Array, "time env term"]
    done: Bool[Array, "time env"]
    scale: Float[Array, ""]
    seen: Bool[Array, ""]
    """Whether there has been one."""


class RoundState(NamedTuple):
    weights: WeightFunction
    optimiser: optax.OptState
    estimator: Any
    pending: Pending


@dataclass(frozen=True, eq=False)
class ByRound:
    """Algorithm 1 to the letter: phi steps once per round, on what the new policy has experienced.

    The same samples also train theta in the next round, so phi's step for a round is taken once the next batch arrives.
    The round's steps of theta are treated as one, on the whole batch, from its starting point.
    """

    lower: PPO
    estimator: Estimator
    optimiser: optax.GradientTransformation
    discount: float

    def init(self, weights: WeightFunction, learner: Learner) -> RoundState:
        config = self.lower.config
        lead = (config.update_period // config.num_envs, config.num_envs)
        samples = self.lower.empty_samples(config.update_period)
        pending = Pending(
            learner.policy, samples, jnp.zeros((*lead, self.lower.num_terms)), jnp.zeros(lead, bool), jnp.ones(()),
            jnp.zeros((), bool),
        )  # fmt: skip
        estimator = self.estimator.init(learner.policy, weights, samples)
        return RoundState(weights, self.optimiser.init(weights), estimator, pending)

    def update(self, state: RoundState, learner: Learner, data: UpdateData, key: PRNGKeyArray) -> Updated:
        state, log = self.step(state, learner.policy, data.samples)
        learned = self.lower.learn(learner, WeightState(state.weights), data, key, ALONE)
        ever = jnp.ones((), bool)
        pending = Pending(learner.policy, data.samples, data.terms, data.done, data.scale, ever)
        return Updated(state._replace(pending=pending), learned.learner, learned.log | log)

    @compiled
    def step(self, state: RoundState, policy: Theta, fresh: Samples) -> tuple[RoundState, dict[str, Array]]:
        """One step of phi, if there was a round before (lines 9-14, 18-22)."""
        past, samples = state.pending, state.pending.samples
        if self.estimator.needs_jacobian:
            jacobian = advantage_jacobian(state.weights, past, self.discount)  # type: ignore[arg-type]
            samples = samples._replace(advantage_jacobian=jacobian)
        step = LowerStep(past.policy, samples)
        after = self.lower.after(policy, fresh)
        gradient, estimator = self.estimator.update(state.estimator, step, after, state.weights)
        moved = (*ascend(state.weights, state.optimiser, self.optimiser, gradient), estimator)
        chosen = jax.tree.map(lambda new, old: jnp.where(past.seen, new, old), moved, tuple(state[:3]))
        norm = jnp.where(past.seen, optax.tree.norm(gradient), 0.0)
        weights, optimiser, estimator = chosen
        state = RoundState(weights, optimiser, estimator, past)
        return state, {"weight_gradient_norm": norm}
