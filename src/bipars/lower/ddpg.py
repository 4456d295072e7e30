"""DDPG on the modified reward (appendix C): a deterministic policy that climbs a critic, with replay.

Plain DDPG; twin critics, delayed policy steps and smoothed targets (TD3) are settings.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.compiling import compiled
from bipars.lower.base import After, Hook, Learned, LowerStep
from bipars.lower.replay import Replay, Transitions, Units
from bipars.nets.deterministic import Critics, DeterministicPolicy, ExploringPolicy, init_deterministic
from bipars.nets.optimiser import adam, ascend
from bipars.nets.policies import HyperPolicy, Policy
from bipars.nets.running import RunningMoments
from bipars.nets.spaces import BoxActions, HasSpaces
from bipars.nets.weights import WeightFunction
from bipars.rollout.batch import Batch
from bipars.settings.resolved import ResolvedDDPG

WEIGHT_NOISE = 0.5
"""Explicit mapping: deviation of the noise on the weights that the policy is shown, in their units, so that it learns
to follow them."""


class DDPGLearner(NamedTuple):
    """theta and the critics, their slowly following copies, their optimisers' state, and the replay."""

    policy: DeterministicPolicy
    policy_optimiser: optax.OptState
    critics: Critics
    critic_optimiser: optax.OptState
    target_policy: DeterministicPolicy
    target_critics: Critics
    replay: Replay
    units: Units
    rounds: Int[Array, ""]
    """Batches seen so far."""

    @property
    def observations(self) -> None:
        """Observations are not normalised."""


class ReplayData(NamedTuple):
    """What a round is learned from: all that is remembered."""

    z: Float[Array, "time env term"]
    unit: Float[Array, " term"]
    """In which the weights move."""
    log: dict[str, Array]


class ValuedStates(NamedTuple):
    """States, and the critic that values actions in them."""

    obs: Float[Array, "sample obs"]
    critic: Any
    """Q of states and actions, or Q~ of states, actions and weights."""


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
class DDPG:
    """A round gathers experience, then learns from all that is remembered."""

    config: ResolvedDDPG
    spaces: HasSpaces
    num_terms: int
    learns_weights: bool = False
    """Whether an upper level asks for a critic of the true reward."""
    shows_weights: bool = False
    """Explicit mapping: the policy takes z(s) as an input."""

    @property
    def policy_adam(self) -> optax.GradientTransformation:
        return adam(self.config.policy_learning_rate, None)

    @property
    def critic_adam(self) -> optax.GradientTransformation:
        return adam(self.config.value_learning_rate, None)

    @property
    def action_size(self) -> int:
        assert isinstance(self.spaces.actions, BoxActions)
        return self.spaces.actions.size

    @property
    def warmup_rounds(self) -> int:
        return math.ceil(self.config.warmup_steps / self.config.update_period)

    def init(self, key: PRNGKeyArray, weights: WeightFunction, observations: RunningMoments | None) -> DDPGLearner:
        config, terms = self.config, self.num_terms
        policy, critics = init_deterministic(
            jax.random.split(key)[1],
            config,
            self.spaces.observation_size,
            self.action_size,
            shown=terms if self.shows_weights else 0,
            num_terms=terms if self.learns_weights else None,
        )
        replay = Replay.empty(config.replay_capacity, self.spaces.observation_size, self.action_size, terms)
        return DDPGLearner(
            policy, self.policy_adam.init(policy), critics, self.critic_adam.init(critics), policy, critics, replay,
            Units.plain(terms), jnp.zeros((), jnp.int32),
        )  # fmt: skip

    def act(self, learner: DDPGLearner, weights: WeightFunction) -> Policy:
        policy = HyperPolicy(learner.policy, weights) if self.shows_weights else learner.policy
        noise = jnp.asarray(self.config.exploration_noise, jnp.float32)
        return ExploringPolicy(policy, noise, jnp.asarray(learner.rounds < self.warmup_rounds))

    behaviour = act

    def empty_minibatch(self, weights: WeightFunction, jacobian: bool) -> None:
        """No estimator of a deterministic policy's asks for it."""

    @compiled
    def prepare(
        self, learner: DDPGLearner, weights: WeightFunction, batch: Batch, progress: Float[Array, ""]
    ) -> tuple[DDPGLearner, ReplayData]:
        """Remembers the batch. Units are measured once, when the warm-up is over: ones that changed later would change
        what every critic has learned."""
        replay = learner.replay.add(batch)
        now = learner.rounds + 1 == max(1, self.warmup_rounds)
        units = jax.tree.map(lambda new, old: jnp.where(now, new, old), Units.measured(replay), learner.units)
        learner = learner._replace(replay=replay, units=units, rounds=learner.rounds + 1)
        return learner, ReplayData(weights(batch.obs, batch.action), units.weights, {})

    @compiled(static="hook")
    def _learn(
        self, learner: DDPGLearner, upper: Any, key: PRNGKeyArray, hook: Hook
    ) -> tuple[DDPGLearner, Any, Any, dict[str, Array]]:
        """All gradient steps of the round, once there is enough to remember."""
        learn = jax.tree_util.Partial(self.steps, hook=hook)

        def wait() -> Any:
            _, _, kept, log = jax.eval_shape(learn, learner, upper, key)
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (kept, log))
            return learner, upper, *zeros

        return jax.lax.cond(learner.rounds >= self.warmup_rounds, lambda: learn(learner, upper, key), wait)

    def learn(self, learner: DDPGLearner, upper: Any, data: ReplayData, key: PRNGKeyArray, hook: Hook) -> Learned:
        return Learned(*self._learn(learner, upper, key, hook=hook))

    def steps(
        self, learner: DDPGLearner, upper: Any, key: PRNGKeyArray, hook: Hook
    ) -> tuple[DDPGLearner, Any, Any, dict[str, Array]]:
        """Lines 7-14 and 18-22, as often as the round asks for."""
        config, replay = self.config, learner.replay
        rounds = config.gradient_steps // config.policy_delay
        draw_key, noise_key = jax.random.split(key)
        places = replay.draw(draw_key, (rounds, config.policy_delay + 1, config.batch_size))
        noises = self.draw_noise(noise_key, places.shape)

        def critic_step(carry: Any, now: Any) -> tuple[Any, dict[str, Array]]:
            learner, weights = carry
            learner, log = self.critic_step(learner, weights, replay.at(now[0]), now[1])
            return (learner, weights), log

        def one_step(carry: Any, now: tuple[Array, Noise]) -> tuple[Any, Any]:
            learner, upper = carry
            first, last = jax.tree.map(lambda x: x[:-1], now), jax.tree.map(lambda x: x[-1], now)
            (learner, _), log = jax.lax.scan(critic_step, (learner, upper.weights), first)
            before, obs, kept = learner.policy, replay.rows.obs[first[0][-1]], None
            learner, uphill = self.policy_step(learner, upper.weights, obs, last[1].shift)  # lines 7-8
            log["policy_gradient_norm"] = optax.tree.norm(uphill)
            if hook.after_step is not None:
                step = LowerStep(before, ValuedStates(obs, learner.critics.modified(learner.units.weights)[0]))
                # Another draw, as PPO's: a sample must not meet itself in the product of two gradients.
                fresh = ValuedStates(replay.rows.obs[last[0]], learner.critics.base[0])
                upper, kept = hook.after_step(upper, step, self.after(learner.policy, fresh))  # lines 9-14, 18-22
            return (learner, upper), (kept, log)

        start = learner._replace(replay=None), upper  # type: ignore[arg-type]
        (learner, upper), (kept, log) = jax.lax.scan(one_step, start, (places, noises))
        return learner._replace(replay=replay), upper, kept, jax.tree.map(jnp.mean, log)

    def after(self, policy: DeterministicPolicy, samples: ValuedStates) -> After:
        """theta', with v by the deterministic policy gradient theorem."""
        if self.shows_weights:
            return After(policy, samples, None)
        v = jax.grad(lambda theta: samples.critic(samples.obs, theta(samples.obs)).mean())(policy)
        return After(policy, samples, v)

    def draw_noise(self, key: PRNGKeyArray, lead: tuple[int, ...]) -> Noise:
        """All random numbers of a round at once: drawing them step by step costs more, to run and to compile."""
        shift_key, smoothing_key = jax.random.split(key)
        return Noise(
            jax.random.normal(shift_key, (*lead, self.num_terms)) if self.shows_weights else None,
            jax.random.normal(smoothing_key, (*lead, self.action_size)) if self.config.target_noise else None,
        )

    def critic_step(
        self, learner: DDPGLearner, weights: WeightFunction, rows: Transitions, noise: Noise
    ) -> tuple[DDPGLearner, dict[str, Array]]:
        """One step of every critic towards its target, and of the target networks towards theirs."""
        config, units = self.config, learner.units
        rows = units.of(rows)
        z = weights(rows.obs, rows.action)
        target = self.targets(learner, weights, rows, z / units.weights, noise)

        def loss(critics: Critics) -> tuple[Float[Array, ""], dict[str, Array]]:
            base = [critic(rows.obs, rows.action) for critic in critics.base]
            if target.true is None or target.terms is None:
                error = squared_error(base, target.modified)
                return error, {"modified_critic_loss": error}
            held = critics._replace(base=jax.lax.stop_gradient(critics.base))  # Q learns from true rewards alone
            modified = [critic(rows.obs, rows.action, z) for critic in held.modified(units.weights)]
            slopes = [critic.slopes(rows.obs, rows.action) for critic in critics.modified(units.weights)]
            log = {
                "modified_critic_loss": squared_error(modified, target.modified),
                "term_critic_loss": squared_error(slopes, target.terms),
                "true_critic_loss": squared_error(base, target.true),
            }
            size = 1 + jnp.mean(jnp.sum((z / units.weights) ** 2, axis=-1))
            return log["modified_critic_loss"] / size + log["term_critic_loss"] + log["true_critic_loss"], log

        slope, log = jax.grad(loss, has_aux=True)(learner.critics)
        step, optimiser = self.critic_adam.update(slope, learner.critic_optimiser, learner.critics)
        critics = optax.apply_updates(learner.critics, step)
        return learner._replace(
            critics=critics,
            critic_optimiser=optimiser,
            target_critics=follow(learner.target_critics, critics, config.target_rate),
            target_policy=follow(learner.target_policy, learner.policy, config.target_rate),
        ), log

    def targets(
        self,
        learner: DDPGLearner,
        weights: WeightFunction,
        rows: Transitions,
        z: Float[Array, "sample term"],
        noise: Noise,
    ) -> Targets:
        """What Q~, the values of the terms and Q should say, all in their units."""
        config = self.config
        action = self.shown(learner.target_policy, weights, rows.next_obs)
        if noise.smoothing is not None:
            action = smoothed(action, noise.smoothing, config.target_noise)
        values = [critic(rows.next_obs, action) for critic in learner.target_critics.base]
        reward = rows.reward + jnp.sum(z * rows.terms, axis=-1)
        if not self.learns_weights:
            return Targets(td_target(reward, values, rows.terminated, config.gamma))
        next_z = weights.at_state(rows.next_obs)
        modified = learner.target_critics.modified(learner.units.weights)
        modified_values = jnp.stack([critic(rows.next_obs, action, next_z) for critic in modified])
        slopes = jnp.stack([critic.slopes(rows.next_obs, action) for critic in modified])
        believed = jnp.argmin(modified_values, axis=0)  # of twins the smaller, with its slopes
        slope = jnp.take_along_axis(slopes, believed[None, :, None], axis=0)[0]
        return Targets(
            td_target(reward, list(modified_values), rows.terminated, config.gamma),
            td_target(rows.terms, [slope], rows.terminated[:, None], config.gamma),
            td_target(rows.reward, values, rows.terminated, config.gamma),
        )

    def shown(
        self,
        policy: DeterministicPolicy,
        weights: WeightFunction,
        obs: Float[Array, "sample obs"],
        shift: Float[Array, "sample term"] | float = 0.0,
    ) -> Float[Array, "sample action"]:
        """What the policy does; explicit mapping shows it the weights, here with noise."""
        if not self.shows_weights:
            return policy(obs)
        return policy(jnp.concatenate([obs, weights.at_state(obs) + shift], axis=-1))

    def policy_step(
        self,
        learner: DDPGLearner,
        weights: WeightFunction,
        obs: Float[Array, "sample obs"],
        noise: Float[Array, "sample term"] | None,
    ) -> tuple[DDPGLearner, DeterministicPolicy]:
        """theta -> theta': one step up Q~ (equation C.4). Also the gradient that moved theta.

        A policy that is shown weights meets others than z_phi(s), too: else it would not learn what they ask of it.
        """
        shift = 0.0 if noise is None else WEIGHT_NOISE * learner.units.weights * noise

        def value(policy: DeterministicPolicy) -> Float[Array, ""]:
            action = self.shown(policy, weights, obs, shift)
            if not self.learns_weights:
                return learner.critics.base[0](obs, action).mean()
            z = weights.at_state(obs) + shift
            return learner.critics.modified(learner.units.weights)[0](obs, action, z).mean()

        gradient = jax.grad(value)(learner.policy)
        policy, optimiser = ascend(learner.policy, learner.policy_optimiser, self.policy_adam, gradient)
        return learner._replace(policy=policy, policy_optimiser=optimiser), gradient


def smoothed(
    action: Float[Array, "sample action"], noise: Float[Array, "sample action"], std: float
) -> Float[Array, "sample action"]:
    """TD3's target action: with noise cut off at 2.5 deviations, so that Q has to be flat in a neighbourhood."""
    return jnp.clip(action + std * jnp.clip(noise, -2.5, 2.5), -1.0, 1.0)


def td_target(
    reward: Float[Array, "sample ..."],
    next_values: list[Float[Array, "sample ..."]],
    terminated: Bool[Array, "sample ..."],
    gamma: float,
) -> Float[Array, "sample ..."]:
    """r + gamma Q(s', mu(s')), of two critics the smaller. Nothing follows a termination."""
    smallest = jnp.min(jnp.stack(next_values), axis=0)
    return jax.lax.stop_gradient(reward + gamma * jnp.where(terminated, 0.0, smallest))


def squared_error(values: list[Float[Array, "sample ..."]], target: Float[Array, "sample ..."]) -> Float[Array, ""]:
    """Mean over samples; of all critics of one reward and of all terms together."""
    return jnp.sum(jnp.mean((jnp.stack(values) - target) ** 2, axis=1))


def follow(target: Any, source: Any, rate: float) -> Any:
    """Polyak averaging: the copy moves a small part of the way."""
    return jax.tree.map(lambda a, b: a + rate * (b - a), target, source)
