"""PPO on the modified reward (equations 3 and 6 of the paper)."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bipars.compiling import at_once, compiled
from bipars.lower.advantages import Scales, UpdateData, compute_advantages
from bipars.lower.base import After, Hook, Learned, LowerStep
from bipars.nets.mlp import MLP, count_parameters, make_mlp, ravel
from bipars.nets.optimiser import adam, ascend
from bipars.nets.policies import HyperPolicy, NormalisedPolicy, Policy, Theta, make_policy
from bipars.nets.running import ReturnScale, RunningMoments
from bipars.nets.spaces import BoxActions, HasSpaces
from bipars.nets.weights import WeightFunction
from bipars.objective import (
    ClippedObjective,
    Objective,
    Samples,
    log_ratios,
    surrogate,
    surrogate_gradients,
)
from bipars.rollout.batch import Batch
from bipars.settings.config import PPOConfig

LOGGED_SAMPLES = 1024
"""Samples of a round by which the policy's move and its entropy are measured."""


class Learner(NamedTuple):
    """theta and the value functions, each with its optimiser's state."""

    policy: Theta
    policy_optimiser: optax.OptState
    critics: tuple[MLP, ...]
    """V~ of the modified reward and, where the upper level learns, V of the true one."""
    critic_optimisers: tuple[optax.OptState, ...]
    scales: Scales

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
    relative_true_loss: bool = True
    """Divide the error of the true critic by its target's variance."""
    holds_statistics: bool = False
    """The statistics of observations came with the weights, and stay."""
    threads: int = 1

    @property
    def objective(self) -> Objective:
        return ClippedObjective(self.config.clip)

    @property
    def policy_adam(self) -> optax.GradientTransformation:
        return adam(self.config.policy_learning_rate, self.config.max_grad_norm)

    @property
    def value_adam(self) -> optax.GradientTransformation:
        return adam(self.config.value_learning_rate, self.config.max_grad_norm)

    def init(self, key: PRNGKeyArray, weights: WeightFunction, observations: RunningMoments | None) -> Learner:
        config, size = self.config, self.spaces.observation_size
        _, policy_key, value_key = jax.random.split(key, 3)
        shown = weights.at_state(jnp.zeros(size)).size if self.shows_weights else 0
        policy = make_policy(policy_key, config, self.spaces, extra_inputs=shown)
        sizes = (size, *config.value_hidden, 1)
        keys = jax.random.split(value_key, 1 + self.learns_weights)
        critics = tuple(make_mlp(k, sizes, config.activation) for k in keys)
        if observations is None and config.normalise_observations:
            observations = RunningMoments.fresh((size,))
        returns = tuple(ReturnScale.fresh(config.num_envs) for _ in critics) if config.normalise_returns else ()
        optimisers = tuple(self.value_adam.init(critic) for critic in critics)
        return Learner(policy, self.policy_adam.init(policy), critics, optimisers, Scales(observations, returns))

    def act(self, learner: Learner, weights: WeightFunction) -> Policy:
        """The policy as the environment meets it."""
        policy, moments = self.hyper(learner.policy, weights), learner.scales.observations
        return policy if moments is None else NormalisedPolicy(policy, moments.scale)

    def hyper(self, policy: Theta, weights: WeightFunction) -> Policy:
        """The policy as it learns: explicit mapping shows it the weights."""
        return HyperPolicy(policy, weights) if self.shows_weights else policy

    def empty_samples(self, size: int, jacobian: int | None = None) -> Samples:
        """Zeros in the shapes of `size` samples, with dA~/dphi of so many columns."""
        actions, zeros = self.spaces.actions, jnp.zeros(size)
        action = jnp.zeros((size, actions.size)) if isinstance(actions, BoxActions) else jnp.zeros(size, jnp.int32)
        obs = jnp.zeros((size, self.spaces.observation_size))
        return Samples(obs, action, zeros, zeros, zeros, None if jacobian is None else jnp.zeros((size, jacobian)))

    def empty_minibatch(self, weights: WeightFunction, jacobian: bool) -> Samples:
        return self.empty_samples(self.config.batch_size, count_parameters(weights) if jacobian else None)

    def prepare(self, learner: Learner, weights: WeightFunction, batch: Batch) -> tuple[Learner, UpdateData]:
        data, scales = self._prepare(learner.critics, weights, learner.scales, batch)
        # A compiled program copies what it passes through, so the batch stays outside.
        return learner._replace(scales=scales), data._replace(batch=batch)

    @compiled
    def _prepare(
        self, critics: tuple[MLP, ...], weights: WeightFunction, scales: Scales, batch: Batch
    ) -> tuple[UpdateData, Scales]:
        return compute_advantages(self.config, critics, weights, scales, batch, self.holds_statistics)

    def learn(self, learner: Learner, upper: Any, data: UpdateData, key: PRNGKeyArray, hook: Hook) -> Learned:
        """The steps of theta, each with what the hook does after it; and, by themselves, the critics'."""
        own = learner._replace(critics=(), critic_optimisers=(), scales=Scales(None, ()))
        values, samples = (learner.critics, learner.critic_optimisers), data.samples
        (own, upper, kept, log), (critics, optimisers, value_log) = at_once(
            self.threads > 1,
            lambda: self._policy_steps(own, upper, samples, data.trust, key, hook=hook),
            lambda: self._value_steps(values, samples.obs, data.value_targets, key, hook=hook),
        )
        learner = own._replace(critics=critics, critic_optimisers=optimisers, scales=learner.scales)
        return Learned(learner, upper, kept, log | value_log)

    @compiled(static="hook")
    def _policy_steps(
        self, learner: Learner, upper: Any, samples: Samples, trust: Array | None, key: PRNGKeyArray, hook: Hook
    ) -> tuple[Learner, Any, Any, dict[str, Array]]:
        draws, before = self.draw(key, len(samples.log_prob), hook), upper.weights

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
            learner, step, log = self.step(learner, upper.weights, minibatch, trust)  # lines 7-8
            kept = None
            if hook.after_step is not None:
                others = fresh(learner.policy, index[1])
                known, after = others.log_prob_gradients, self.after(learner.policy, others)
                upper, kept = hook.after_step(upper, step._replace(places=index[0]), after)  # lines 9-14, 18-22
            return (learner, upper, known), (kept, log)

        start = (learner, upper, fresh(learner.policy, draws[0][0]).log_prob_gradients)
        (learner, upper, _), (kept, log) = jax.lax.scan(one_step, start, draws)
        log = jax.tree.map(jnp.mean, log) | self.policy_log(self.hyper(learner.policy, upper.weights), samples)
        return learner, upper, kept, log

    def policy_log(self, policy: Policy, samples: Samples) -> dict[str, Array]:
        """How far the round has moved the policy, and how much it still explores."""
        every = -(-len(samples.obs) // LOGGED_SAMPLES)
        obs, action, log_prob = (x[::every] for x in samples[:3])
        log_ratio = policy.log_prob(obs, action) - log_prob
        ratio = jnp.exp(log_ratio)
        return {
            "approx_kl": jnp.mean(ratio - 1 - log_ratio),
            "clip_fraction": jnp.mean(jnp.abs(ratio - 1) > self.config.clip),
            **policy.spread(obs),
        }

    def draw(self, key: PRNGKeyArray, total: int, hook: Hook) -> tuple[Int[Array, "step batch"], ...]:
        """Of `total` samples, minibatches for theta and, after each of its steps, for phi.

        phi's is another one, otherwise a sample would meet itself in both factors of v^T d theta'/d phi.
        """
        steps, batch = self.config.gradient_steps, self.config.batch_size
        if hook.shares_draws:
            chain = jax.random.randint(key, (steps + 1, batch), 0, total)
            return chain[:-1], chain[1:]
        pairs = jax.random.randint(key, (steps, 2, batch), 0, total)
        return pairs[:, 0], pairs[:, 1]

    def step(
        self, learner: Learner, weights: WeightFunction, samples: Samples, trust: Float[Array, ""] | None
    ) -> tuple[Learner, LowerStep, dict[str, Array]]:
        """theta -> theta' on the modified reward, as far as the terms are trusted. Also the step as phi sees it."""

        if trust is None and samples.log_prob_gradients is None:
            uphill = gradient = self.modified_gradient(learner.policy, weights, samples)
        else:
            climbed = samples.modified_advantage
            if trust is not None:
                assert samples.true_advantage is not None
                climbed = trust * climbed + (1 - trust) * samples.true_advantage
            advantages = climbed, samples.modified_advantage
            full = True if trust is None else trust == 1.0
            uphill, gradient = surrogate_gradients(learner.policy, samples, advantages, self.objective, equal=full)
        policy, optimiser = ascend(learner.policy, learner.policy_optimiser, self.policy_adam, uphill)
        step = LowerStep(learner.policy, samples, gradient, optimiser)
        log = {"policy_gradient_norm": optax.tree.norm(uphill)}
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
        v = surrogate_gradients(policy, samples, [samples.true_advantage], self.objective)[0]
        return After(policy, samples, v)

    @compiled(static="hook")
    def _value_steps(
        self, start: Any, obs: Float[Array, "sample obs"], targets: tuple[Array, ...], key: PRNGKeyArray, hook: Hook
    ) -> tuple[tuple[MLP, ...], tuple[optax.OptState, ...], dict[str, Array]]:
        """The critics' steps, on the minibatches of theta's."""
        relative = (self.config.relative_value_loss, self.relative_true_loss)

        def one_step(carry: Any, index: Int[Array, " batch"]) -> tuple[Any, dict[str, Array]]:
            critics, optimisers, log = [], [], {}
            seen = obs[index]
            for i, (critic, optimiser) in enumerate(zip(*carry, strict=True)):
                loss, slope = jax.value_and_grad(critic_loss)(critic, seen, targets[i][index], relative[i])
                move, optimiser = self.value_adam.update(slope, optimiser, critic)
                critics.append(optax.apply_updates(critic, move))
                optimisers.append(optimiser)
                log[f"{('modified', 'true')[i]}_critic_loss"] = loss
            return (tuple(critics), tuple(optimisers)), log

        (critics, optimisers), log = jax.lax.scan(one_step, start, self.draw(key, len(obs), hook)[0])
        return critics, optimisers, jax.tree.map(jnp.mean, log)


def follow(samples: Samples, before: WeightFunction, now: WeightFunction) -> Samples:
    """Modified advantages under the weights as they are now, to first order: phi moves after every step of theta.

    Left as they were when the round began, they would hide from phi what it did, and it would overshoot.
    """
    assert samples.advantage_jacobian is not None
    moved = samples.advantage_jacobian @ (ravel(now) - ravel(before))
    return samples._replace(modified_advantage=samples.modified_advantage + moved)


def critic_loss(
    critic: MLP, obs: Float[Array, "sample obs"], target: Float[Array, " sample"], relative: bool
) -> Float[Array, ""]:
    """Squared error, or the fraction of the target's variance that it leaves unexplained (`relative`).

    Returns of a sparse reward shrink by orders of magnitude as the policy improves, and with them the gradients that
    Adam remembers; the relative loss keeps its size, so the critic keeps learning.
    """
    error = jnp.mean((critic(obs)[..., 0] - target) ** 2)
    return error / (jnp.var(target) + 1e-8) if relative else error
