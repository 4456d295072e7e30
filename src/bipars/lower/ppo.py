"""PPO on the modified reward (equations 3 and 6 of the paper)."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bipars.compiling import at_once, compiled
from bipars.lower.advantages import ANY, Scales, UpdateData, compute_advantages, compute_term_advantages
from bipars.lower.base import After, Hook, Learned, LowerStep
from bipars.nets.mlp import MLP, count_parameters, make_mlp, orthogonal, ravel
from bipars.nets.optimiser import adam, ascend
from bipars.nets.policies import HyperPolicy, NormalisedPolicy, Policy, Theta, make_policy
from bipars.nets.running import ReturnScale, RunningMoments
from bipars.nets.spaces import HasSpaces
from bipars.nets.weights import WeightFunction
from bipars.objective import (
    ClippedObjective,
    Objective,
    Samples,
    log_ratios,
    surrogate,
    surrogate_gradient,
)
from bipars.rollout.batch import Batch
from bipars.settings.config import PPOConfig

LOGGED_SAMPLES = 1024
"""Samples of a round on which the policy's move and its entropy are measured."""

TRUE = 1
"""The critic of the true reward, where there are two, is the second."""
RATES = 0.01, 1.0
"""Range of the step size that `target_kl` adapts, in units of the one that is set."""
FARTHEST = 5.0
"""A round that moves the policy by more than this many times `target_kl` is undone."""
FINAL = 0.5
"""Final part of the run over which steps shrink to 0, with `target_kl`."""


class Learner(NamedTuple):
    """theta and the value functions, each with its optimiser's state."""

    policy: Theta
    policy_optimiser: optax.OptState
    critics: tuple[MLP, ...]
    """V~ of the modified reward (or of every term) and, where the upper level learns, V of the true one."""
    critic_optimisers: tuple[optax.OptState, ...]
    scales: Scales
    rate: Float[Array, ""]
    """Step size of theta, in units of the one that is set."""

    @property
    def observations(self) -> RunningMoments | None:
        return self.scales.observations


@dataclass(frozen=True, eq=False)
class PPO:
    """Clipped policy gradients, with critics that learn beside the policy."""

    config: PPOConfig
    spaces: HasSpaces
    num_terms: int = 0
    learns_weights: bool = False
    """Whether an upper level asks for true advantages, and so for a critic of the true reward."""
    shows_weights: bool = False
    """Explicit mapping: the policy takes z(s) as an input."""
    holds_statistics: bool = False
    """The statistics of observations came with the weights, and stay."""
    threads: int = 1

    per_term: bool = False
    """A critic of every term stands in for that of the modified reward."""

    @property
    def objective(self) -> Objective:
        return ClippedObjective(self.config.clip)

    @property
    def policy_adam(self) -> optax.GradientTransformation:
        return adam(self.config.policy_learning_rate, self.config.max_grad_norm, self.config.adam_epsilon)

    @property
    def value_adam(self) -> optax.GradientTransformation:
        return adam(self.config.value_learning_rate, self.config.max_grad_norm)

    def init(self, key: PRNGKeyArray, weights: WeightFunction, observations: RunningMoments | None) -> Learner:
        config, size = self.config, self.spaces.observation_size
        _, policy_key, value_key = jax.random.split(key, 3)
        shown = weights.at_state(jnp.zeros(size)).size if self.shows_weights else 0
        policy = make_policy(policy_key, config, self.spaces, extra_inputs=shown)
        outputs = (self.num_terms + 2, 1) if self.per_term else (1, 1)[: 1 + self.learns_weights]
        first = {"glorot": (), "orthogonal": (orthogonal(2**0.5), orthogonal(1.0))}[config.initial]
        critics = tuple(
            make_mlp(k, (size, *config.value_hidden, count), config.activation, *first)
            for k, count in zip(jax.random.split(value_key, len(outputs)), outputs, strict=True)
        )
        if observations is None and config.normalise_observations:
            observations = RunningMoments.fresh((size,))
        returns = ReturnScale.fresh(config.num_envs, sum(outputs)) if config.normalise_returns else None
        least = jnp.full(sum(outputs), ANY, float)  # with its type given: see `make_policy`
        optimisers = tuple(self.value_adam.init(critic) for critic in critics)
        terms = RunningMoments.fresh((self.num_terms,)) if self.per_term else None
        scales = Scales(observations, returns, least, -least, terms)
        return Learner(policy, self.policy_adam.init(policy), critics, optimisers, scales, jnp.ones(()))

    def act(self, learner: Learner, weights: WeightFunction) -> Policy:
        """The policy as the environment meets it."""
        policy, moments = self.hyper(learner.policy, weights), learner.scales.observations
        return policy if moments is None else NormalisedPolicy(policy, moments.scale)

    behaviour = act

    def hyper(self, policy: Theta, weights: WeightFunction) -> Policy:
        """The policy as it learns: explicit mapping shows it the weights."""
        return HyperPolicy(policy, weights) if self.shows_weights else policy

    def empty_samples(self, size: int, jacobian: int | None = None) -> Samples:
        """Zeros in the shapes of `size` samples, with dA~/dphi of so many columns."""
        actions, zeros = self.spaces.actions, jnp.zeros(size)
        action = jnp.zeros((size, *actions.shape), actions.dtype)
        obs = jnp.zeros((size, self.spaces.observation_size))
        return Samples(obs, action, zeros, zeros, zeros, None if jacobian is None else jnp.zeros((size, jacobian)))

    def empty_minibatch(self, weights: WeightFunction, jacobian: bool) -> Samples:
        return self.empty_samples(self.config.batch_size, count_parameters(weights) if jacobian else None)

    def prepare(
        self,
        learner: Learner,
        weights: WeightFunction,
        batch: Batch,
        progress: Float[Array, ""],
        own: Float[Array, " env"] | None = None,
    ) -> tuple[Learner, UpdateData]:
        """`own` says in which environments the learner has acted itself, where it has not in all."""
        data, scales = self._prepare(learner.critics, weights, learner.scales, batch, own)
        # A compiled program copies what it passes through, so the batch stays outside.
        return learner._replace(scales=scales), data._replace(batch=batch, progress=progress)

    @compiled
    def _prepare(
        self,
        critics: tuple[MLP, ...],
        weights: WeightFunction,
        scales: Scales,
        batch: Batch,
        own: Float[Array, " env"] | None,
    ) -> tuple[UpdateData, Scales]:
        compute = compute_term_advantages if self.per_term else compute_advantages
        return compute(self.config, critics, weights, scales, batch, self.holds_statistics, own)

    def learn(self, learner: Learner, upper: Any, data: UpdateData, key: PRNGKeyArray, hook: Hook) -> Learned:
        """All policy steps, with the hook after each; and the critics' steps, which do not depend on them."""
        own = learner._replace(critics=(), critic_optimisers=(), scales=None)  # type: ignore[arg-type]
        values, samples = (learner.critics, learner.critic_optimisers), data.samples
        rate = data.rate if self.config.target_kl is None else data.rate * settle(data.progress)
        (own, upper, kept, log), (critics, optimisers, value_log) = at_once(
            self.threads > 1,
            lambda: self._policy_steps(own, upper, samples, data.own, rate, key, hook=hook),
            lambda: self._value_steps(values, samples.obs, data.value_targets, data.own, key, hook=hook),
        )
        learner = own._replace(critics=critics, critic_optimisers=optimisers, scales=learner.scales)
        return Learned(learner, upper, kept, log | value_log)

    @compiled(static="hook")
    def _policy_steps(
        self,
        learner: Learner,
        upper: Any,
        samples: Samples,
        own: Float[Array, " sample"] | None,
        rate: Float[Array, ""],
        key: PRNGKeyArray,
        hook: Hook,
    ) -> tuple[Learner, Any, Any, dict[str, Array]]:
        draws, before = self.draw(key, len(samples.log_prob), own, hook), upper.weights

        def fresh(policy: Theta, index: Int[Array, " batch"]) -> Samples:
            """A minibatch, with its gradients where both levels learn from it."""
            minibatch = samples._replace(advantage_jacobian=None).at(index)
            known = log_ratios(policy, minibatch)[1] if hook.shares_draws else None
            return minibatch._replace(log_prob_gradients=known)

        def one_step(carry: Any, index: tuple[Array, ...]) -> tuple[Any, Any]:
            learner, upper, known = carry
            minibatch = samples.at(index[0])._replace(log_prob_gradients=known)
            if hook.follows:
                minibatch = follow(minibatch, before, upper.weights)
            learner, step, log = self.step(learner, upper.weights, minibatch, rate)  # lines 7-8
            kept = None
            if hook.after_step is not None:
                others = fresh(learner.policy, index[1])
                known, after = others.log_prob_gradients, self.after(learner.policy, others)
                upper, kept = hook.after_step(upper, step._replace(places=index[0]), after)  # lines 9-14, 18-22
            return (learner, upper, known), (kept, log)

        start = (learner, upper, fresh(learner.policy, draws[0][0]).log_prob_gradients)
        (moved, upper, _), (kept, log) = jax.lax.scan(one_step, start, draws)
        log = jax.tree.map(jnp.mean, log) | self.policy_log(self.hyper(moved.policy, upper.weights), samples, own)
        if self.config.target_kl is not None:
            moved = stay_close(learner.policy, moved, log["approx_kl"], self.config.target_kl)
            log["policy_learning_rate"] = rate * moved.rate * self.config.policy_learning_rate
        return moved, upper, kept, log

    def policy_log(self, policy: Any, samples: Samples, own: Float[Array, " sample"] | None) -> dict[str, Array]:
        """How far the round has moved the policy, and how much it still explores."""
        places = spread(len(samples.obs), LOGGED_SAMPLES)
        obs, action, log_prob = (x[places] for x in samples[:3])
        log_ratio = policy.log_prob(obs, action) - log_prob
        counted = jnp.ones_like(log_ratio) if own is None else own[places]
        log_ratio = jnp.where(counted > 0, log_ratio, 0.0)
        ratio = jnp.exp(log_ratio)
        return {
            "approx_kl": jnp.average(ratio - 1 - log_ratio, weights=counted),
            "clip_fraction": jnp.average(jnp.abs(ratio - 1) > self.config.clip, weights=counted),
            **policy.spread(obs),
        }

    def draw(
        self, key: PRNGKeyArray, total: int, own: Float[Array, " sample"] | None, hook: Hook
    ) -> tuple[Int[Array, "step batch"], ...]:
        """Of `total` samples, minibatches for theta and, after each of its steps, for phi.

        phi gets another minibatch than theta: a sample would otherwise appear in both factors of v^T d theta'/d phi.
        Where only some samples are the learner's own, all are drawn from those.
        """
        steps, batch = self.config.gradient_steps, self.config.batch_size
        shape = (steps + 1, batch) if hook.shares_draws else (steps, 2, batch)
        drawn = jax.random.randint(key, shape, 0, total if own is None else jnp.sum(own > 0))
        if own is not None:
            drawn = jnp.nonzero(own > 0, size=total, fill_value=0)[0][drawn]
        return (drawn[:-1], drawn[1:]) if hook.shares_draws else (drawn[:, 0], drawn[:, 1])

    def step(
        self, learner: Learner, weights: WeightFunction, samples: Samples, rate: Float[Array, ""] | float = 1.0
    ) -> tuple[Learner, LowerStep, dict[str, Array]]:
        """theta -> theta' on the modified reward. Also the step as phi sees it."""
        if samples.log_prob_gradients is None:
            gradient = self.modified_gradient(learner.policy, weights, samples)
        else:
            gradient = surrogate_gradient(learner.policy, samples, samples.modified_advantage, self.objective)
        policy, optimiser = ascend(
            learner.policy, learner.policy_optimiser, self.policy_adam, gradient, times=rate * learner.rate
        )
        step = LowerStep(learner.policy, samples, optimiser, rate * learner.rate)
        log = {"policy_gradient_norm": optax.tree.norm(gradient)}
        return learner._replace(policy=policy, policy_optimiser=optimiser), step, log

    def modified_gradient(self, policy: Theta, weights: WeightFunction, samples: Samples) -> Theta:
        """g~: of the modified return."""

        def modified_return(policy: Theta) -> Float[Array, ""]:
            return surrogate(self.hyper(policy, weights), samples, samples.modified_advantage, self.objective)

        return jax.grad(modified_return)(policy)

    def after(self, policy: Theta, samples: Samples) -> After:
        """theta', with v by the policy gradient theorem."""
        if self.shows_weights:
            return After(policy, samples, None)
        assert samples.true_advantage is not None
        return After(policy, samples, surrogate_gradient(policy, samples, samples.true_advantage, self.objective))

    @compiled(static="hook")
    def _value_steps(
        self,
        start: Any,
        obs: Float[Array, "sample obs"],
        targets: tuple[Array, ...],
        own: Float[Array, " sample"] | None,
        key: PRNGKeyArray,
        hook: Hook,
    ) -> tuple[tuple[MLP, ...], tuple[optax.OptState, ...], dict[str, Array]]:
        """The critics' steps, on theta's minibatches."""

        def one_step(carry: Any, index: Int[Array, " batch"]) -> tuple[Any, dict[str, Array]]:
            critics, optimisers, log = [], [], {}
            seen = obs[index]
            for i, (critic, optimiser) in enumerate(zip(*carry, strict=True)):
                relative = i == TRUE and not self.config.normalise_returns
                loss, slope = jax.value_and_grad(critic_loss)(critic, seen, targets[i][index], relative)
                move, optimiser = self.value_adam.update(slope, optimiser, critic)
                critics.append(optax.apply_updates(critic, move))
                optimisers.append(optimiser)
                log[f"{('modified', 'true')[i]}_critic_loss"] = loss
            return (tuple(critics), tuple(optimisers)), log

        (critics, optimisers), log = jax.lax.scan(one_step, start, self.draw(key, len(obs), own, hook)[0])
        return critics, optimisers, jax.tree.map(jnp.mean, log)


def spread(total: int, number: int) -> np.ndarray:
    """At most `number` places of a batch, always the same. Every k-th would be of a few environments alone."""
    return np.sort(np.random.default_rng(0).permutation(total)[:number])


def settle(progress: Float[Array, ""]) -> Float[Array, ""]:
    """The length of steps: with full ones to the end, a policy wanders about its best, and may end far from it."""
    return jnp.minimum((1 - progress) / FINAL, 1.0)


def stay_close(old: Theta, moved: Learner, kl: Float[Array, ""], target: float) -> Learner:
    """The learner with its next step size and, if the round has moved its policy much too far, with its old policy.

    That happens after rounds with nothing to learn: Adam has forgotten how large gradients are, and takes large steps
    along the first one that comes.
    """
    near = kl <= FARTHEST * target  # not where it is no number
    policy = jax.tree.map(lambda a, b: jnp.where(near, b, a), old, moved.policy)
    return moved._replace(policy=policy, rate=adapt_rate(moved.rate, kl, target))


def adapt_rate(rate: Float[Array, ""], kl: Float[Array, ""], target: float) -> Float[Array, ""]:
    """Smaller steps where an update has moved the policy too far, larger ones where it has hardly moved it.

    A policy that has not moved at all had nothing to learn from.
    """
    factor = jnp.where(kl > 2 * target, 1 / 1.5, jnp.where((kl < target / 2) & (kl > 0), 1.5, 1.0))
    return jnp.clip(rate * factor, *RATES)


def follow(samples: Samples, before: WeightFunction, now: WeightFunction) -> Samples:
    """Modified advantages under the weights as they are now, to first order: phi moves after every step of theta.

    Left as they were when the round began, they would hide from phi what it did, and it would overshoot.
    """
    assert samples.advantage_jacobian is not None
    moved = samples.advantage_jacobian @ (ravel(now) - ravel(before))
    return samples._replace(modified_advantage=samples.modified_advantage + moved)


def critic_loss(
    critic: MLP,
    obs: Float[Array, "sample obs"],
    target: Float[Array, "sample reward"],
    relative: bool,
) -> Float[Array, ""]:
    """Squared error, or the fraction of the target's variance that it leaves unexplained (`relative`).

    Returns of a sparse reward shrink by orders of magnitude as the policy improves, and with them the gradients that
    Adam remembers; the relative loss keeps its size, so the critic keeps learning. Normalised returns keep their size
    without it, and where few minibatches contain a reward, the relative loss would be huge in all others.
    """
    error = jnp.mean((critic(obs) - target) ** 2)
    return error / (jnp.var(target) + 1e-8) if relative else error
