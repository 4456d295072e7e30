"""Algorithm 1 for deterministic policies (appendix C): the same rounds, with replay in place of advantages."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from bipars.compiling import compiled
from bipars.lower.advantages import Scales
from bipars.lower.ddpg import (
    Critics,
    DeterministicLearner,
    DeterministicPolicy,
    ExploringPolicy,
    Units,
    critic_adam,
    follow,
    init_deterministic,
    policy_adam,
    smoothed,
    squared_error,
    td_target,
)
from bipars.lower.replay import Replay, Transitions
from bipars.nets.policies import Policy
from bipars.nets.running import RunningMoments
from bipars.nets.spaces import BoxActions
from bipars.nets.weights import WeightFunction, make_weights, with_unit
from bipars.rollout.batch import Batch
from bipars.settings.config import DDPGConfig
from bipars.signals import RoundStats, episode_sums, sample_visited, signal_to_noise
from bipars.train import BiLevel, TrainState, ascend
from bipars.upper.base import h_of_round
from bipars.upper.deterministic import DeterministicStep, Judged


class Noise(NamedTuple):
    """Random numbers of one gradient step."""

    shift: Float[Array, "sample term"] | None
    """Of the weights that explicit mapping shows its policy, before it is scaled."""
    smoothing: Float[Array, "sample action"] | None
    """Of target actions, before it is scaled."""


class Targets(NamedTuple):
    modified: Float[Array, " sample"]
    terms: Float[Array, "sample term"] | None = None
    true: Float[Array, " sample"] | None = None
    """Of true rewards; none, as for the terms, where no upper level asks."""


@dataclass(frozen=True, eq=False)
class DeterministicBiLevel(BiLevel):
    """`BiLevel` with DDPG as its lower level. A round gathers experience, then learns from all that is remembered."""

    @property
    def settings(self) -> DDPGConfig:
        return self.config.ddpg

    @compiled
    def init_networks(
        self, key: PRNGKeyArray, weights: WeightFunction | None, observations: RunningMoments | None
    ) -> TrainState:
        config, sampler, settings = self.config, self.sampler, self.settings
        assert isinstance(sampler.actions, BoxActions)
        assert settings.replay_capacity is not None
        weights_key, network_key = jax.random.split(key)
        if weights is None:
            weights = make_weights(weights_key, config.weights, sampler, self.num_terms)
        policy, critics = init_deterministic(
            network_key,
            settings,
            sampler.observation_size,
            sampler.actions.size,
            hints=self.num_terms if self.method.hyper_policy else 0,
            z_inputs=None if self.estimator is None else self.num_terms,
        )
        replay = Replay.empty(settings.replay_capacity, sampler.observation_size, sampler.actions.size, self.num_terms)
        learner = DeterministicLearner(
            policy, policy_adam(settings).init(policy), critics, critic_adam(settings).init(critics), policy, critics,
            replay, Units.plain(self.num_terms),
        )  # fmt: skip
        h = () if self.estimator is None else self.estimator.init(policy, weights, None)
        return self.start(key, learner, weights, h, Scales(None, ()))

    @property
    def warmup_rounds(self) -> int:
        return math.ceil(self.settings.warmup_steps / self.settings.update_period)

    def acting(self, state: TrainState) -> Policy:
        """The policy as the environment meets it."""
        policy = self.hyper(state.learner.policy, state.weights)
        noise = jnp.asarray(self.settings.exploration_noise, jnp.float32)
        return ExploringPolicy(policy, noise, jnp.asarray(state.round < self.warmup_rounds))

    @compiled
    def improve(self, state: TrainState, batch: Batch, key: PRNGKeyArray) -> tuple[TrainState, None, RoundStats]:
        """Remembers the batch; then, once there is enough to remember, all gradient steps of the round."""
        z = state.weights(batch.obs, batch.action)
        state = state._replace(learner=state.learner._replace(replay=state.learner.replay.add(batch)))
        state = self.measure_units(state)

        def wait() -> tuple[TrainState, dict[str, Array]]:
            _, log = jax.eval_shape(self.learn, state, key)
            return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), log)

        enough = state.round + 1 >= self.warmup_rounds
        state, log = jax.lax.cond(enough, lambda: self.learn(state, key), wait)
        episodes, unfinished = episode_sums(jnp.where(batch.restarted, 0.0, state.unfinished), batch, z)
        signals = RoundStats(batch.reward, batch.terms, z, episodes, None, log, sample_visited(batch))
        return state._replace(round=state.round + 1, unfinished=unfinished), None, signals

    def measure_units(self, state: TrainState) -> TrainState:
        """Once, when the warm-up is over: units that changed later would change what every critic has learned."""
        now = state.round + 1 == max(1, self.warmup_rounds)
        found = Units.measured(state.learner.replay)
        units = jax.tree.map(lambda new, old: jnp.where(now, new, old), found, state.learner.units)
        # Weights from elsewhere keep the unit that they were learned with.
        weights = state.weights if self.estimator is None else with_unit(state.weights, units.weights)
        return state._replace(learner=state.learner._replace(units=units), weights=weights)

    def learn(self, state: TrainState, key: PRNGKeyArray) -> tuple[TrainState, dict[str, Array]]:
        """Lines 7-14 and 18-22, as often as the round asks for."""
        settings, replay = self.settings, state.learner.replay
        rounds = settings.gradient_steps // settings.policy_delay
        draw_key, noise_key = jax.random.split(key)
        places = replay.draw(draw_key, (rounds, settings.policy_delay + 1, settings.batch_size))
        noises = self.draw_noise(noise_key, places.shape)

        def critic_step(carry: Any, now: Any) -> tuple[Any, dict[str, Array]]:
            learner, weights = carry
            learner, log = self.critic_step(learner, weights, replay.at(now[0]), now[1])
            return (learner, weights), log

        def steps(carry: Any, now: tuple[Array, Noise]) -> tuple[Any, Any]:
            learner, weights, optimiser, h = carry
            first, last = jax.tree.map(lambda x: x[:-1], now), jax.tree.map(lambda x: x[-1], now)
            (learner, _), log = jax.lax.scan(critic_step, (learner, weights), first)
            before, gradient, obs = learner.policy, None, replay.rows.obs[first[0][-1]]
            learner, uphill = self.policy_step(learner, weights, obs, last[1].shift)  # lines 7-8
            log["policy_gradient_norm"] = optax.tree.norm(uphill)
            if self.estimator is not None:
                step = DeterministicStep(before, Judged(obs, learner.critics.modified(learner.units)[0]))
                # Another draw, as in `BiLevel`: a sample must not meet itself in the product of two gradients.
                fresh = Judged(replay.rows.obs[last[0]], learner.critics.base[0])
                gradient, h = self.estimator.update(h, step, learner.policy, weights, fresh)  # lines 9-14, 18-21
                weights, optimiser = self.upper_step(weights, optimiser, gradient)  # line 22
                log["weight_gradient_norm"] = optax.tree.norm(gradient)
            return (learner, weights, optimiser, h), (log, gradient)

        learner = state.learner._replace(replay=None)
        start = (learner, state.weights, state.weights_optimiser, h_of_round(self.estimator, state.h))
        (learner, weights, optimiser, h), (log, gradients) = jax.lax.scan(steps, start, (places, noises))
        log = jax.tree.map(jnp.mean, log)
        if gradients is not None:
            log["weight_gradient_snr"] = signal_to_noise(gradients)
        learner = learner._replace(replay=replay)
        return state._replace(learner=learner, weights=weights, weights_optimiser=optimiser, h=h), log

    def draw_noise(self, key: PRNGKeyArray, lead: tuple[int, ...]) -> Noise:
        """All random numbers of a round at once: drawing them step by step costs more, to run and to compile."""
        shift_key, smoothing_key = jax.random.split(key)
        assert isinstance(self.sampler.actions, BoxActions)
        action_size = self.sampler.actions.size
        return Noise(
            jax.random.normal(shift_key, (*lead, self.num_terms)) if self.method.hyper_policy else None,
            jax.random.normal(smoothing_key, (*lead, action_size)) if self.settings.target_noise else None,
        )

    def critic_step(
        self, learner: DeterministicLearner, weights: WeightFunction, rows: Transitions, noise: Noise
    ) -> tuple[DeterministicLearner, dict[str, Array]]:
        """One step of every critic towards its target, and of the target networks towards theirs."""
        settings, units = self.settings, learner.units
        rows = units.of(rows)
        z = weights(rows.obs, rows.action)
        target = self.targets(learner, weights, rows, z / units.weights, noise)

        def loss(critics: Critics) -> tuple[Float[Array, ""], dict[str, Array]]:
            base = [critic(rows.obs, rows.action) for critic in critics.base]
            if target.true is None or target.terms is None:
                error = squared_error(base, target.modified)
                return error, {"modified_critic_loss": error}
            held = critics._replace(base=jax.lax.stop_gradient(critics.base))  # Q learns from true rewards alone
            modified = [critic(rows.obs, rows.action, z) for critic in held.modified(units)]
            slopes = [critic.slopes(rows.obs, rows.action) for critic in critics.modified(units)]
            log = {
                "modified_critic_loss": squared_error(modified, target.modified),
                "term_critic_loss": squared_error(slopes, target.terms),
                "true_critic_loss": squared_error(base, target.true),
            }
            size = 1 + jnp.mean(jnp.sum((z / units.weights) ** 2, axis=-1))
            return log["modified_critic_loss"] / size + log["term_critic_loss"] + log["true_critic_loss"], log

        slope, log = jax.grad(loss, has_aux=True)(learner.critics)
        step, optimiser = critic_adam(settings).update(slope, learner.critic_optimiser, learner.critics)
        critics = optax.apply_updates(learner.critics, step)
        return learner._replace(
            critics=critics,
            critic_optimiser=optimiser,
            target_critics=follow(learner.target_critics, critics, settings.target_rate),
            target_policy=follow(learner.target_policy, learner.policy, settings.target_rate),
        ), log

    def targets(
        self,
        learner: DeterministicLearner,
        weights: WeightFunction,
        rows: Transitions,
        z: Float[Array, "sample term"],
        noise: Noise,
    ) -> Targets:
        """What Q~, the values of the terms and Q should say, all in their units."""
        settings = self.settings
        action = self.shown(learner.target_policy, weights, rows.next_obs)
        if noise.smoothing is not None:
            action = smoothed(action, noise.smoothing, settings.target_noise)
        values = [critic(rows.next_obs, action) for critic in learner.target_critics.base]
        reward = rows.reward + jnp.sum(z * rows.terms, axis=-1)
        if self.estimator is None:
            return Targets(td_target(reward, values, rows.terminated, settings.gamma))
        next_z = weights.hint(rows.next_obs)  # type: ignore[attr-defined]
        modified = learner.target_critics.modified(learner.units)
        modified_values = jnp.stack([critic(rows.next_obs, action, next_z) for critic in modified])
        slopes = jnp.stack([critic.slopes(rows.next_obs, action) for critic in modified])
        believed = jnp.argmin(modified_values, axis=0)  # of twins the smaller, with its slopes
        slope = jnp.take_along_axis(slopes, believed[None, :, None], axis=0)[0]
        return Targets(
            td_target(reward, list(modified_values), rows.terminated, settings.gamma),
            td_target(rows.terms, [slope], rows.terminated[:, None], settings.gamma),
            td_target(rows.reward, values, rows.terminated, settings.gamma),
        )

    def shown(
        self,
        policy: DeterministicPolicy,
        weights: WeightFunction,
        obs: Float[Array, "sample obs"],
        shift: Float[Array, "sample term"] | float = 0.0,
    ) -> Float[Array, "sample action"]:
        """What the policy does; explicit mapping shows it the weights, here with noise."""
        if not self.method.hyper_policy:
            return policy(obs)
        return policy(jnp.concatenate([obs, weights.hint(obs) + shift], axis=-1))  # type: ignore[attr-defined]

    def policy_step(
        self,
        learner: DeterministicLearner,
        weights: WeightFunction,
        obs: Float[Array, "sample obs"],
        noise: Float[Array, "sample term"] | None,
    ) -> tuple[DeterministicLearner, DeterministicPolicy]:
        """theta -> theta': one step up Q~ (equation C.4). Also the gradient that moved theta.

        A policy that is shown weights meets others than z_phi(s), too: else it would not learn what they ask of it.
        """
        shift = 0.0 if noise is None else self.settings.weight_jitter * learner.units.weights * noise

        def value(policy: DeterministicPolicy) -> Float[Array, ""]:
            action = self.shown(policy, weights, obs, shift)
            if self.estimator is None:
                return learner.critics.base[0](obs, action).mean()
            z = weights.hint(obs) + shift  # type: ignore[attr-defined]
            return learner.critics.modified(learner.units)[0](obs, action, z).mean()

        gradient = jax.grad(value)(learner.policy)
        policy, optimiser = ascend(learner.policy, learner.policy_optimiser, policy_adam(self.settings), gradient)
        return learner._replace(policy=policy, policy_optimiser=optimiser), gradient
