"""Algorithm 1 of the paper: bi-level optimisation of parameterised reward shaping. Line numbers are the paper's."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bipars.config import Config
from bipars.envs.base import BoxActions, Environment
from bipars.evaluate import Evaluation, evaluate
from bipars.lower.advantages import gae, normaliser
from bipars.lower.policies import HyperPolicy, Policy, make_policy
from bipars.lower.ppo import Learner, Samples, adam, critic_loss, init_learner, surrogate
from bipars.methods import Method
from bipars.networks import MLP
from bipars.rollout import Batch, EnvState, reset, rollout
from bipars.shaping.terms import RewardTerm, Transition
from bipars.shaping.weights import WeightFunction, make_weights
from bipars.signals import Signals, episode_sums
from bipars.upper.base import Estimator, LowerStep, Theta
from bipars.upper.credit import advantage_credit


class TrainState(NamedTuple):
    """All that a run is between two rounds; a checkpoint holds exactly this."""

    round: Int[Array, ""]
    env: EnvState
    batch: Batch | None
    """Sampling mode `round`: what the newest policy has already experienced."""
    learner: Learner
    weights: WeightFunction
    weights_optimiser: optax.OptState
    h: Any
    """d theta / d phi, as the estimator keeps it."""
    term_params: tuple[Any, ...]
    unfinished: Float[Array, "env sum"]
    """Sums of the episodes that are still running."""


@dataclass(frozen=True)
class BiLevel:
    """Algorithm 1 for one configuration; pure functions, no state of its own."""

    config: Config
    env: Environment
    terms: tuple[RewardTerm, ...]
    method: Method
    estimator: Estimator | None
    """None leaves the weights as they are."""

    def init(self, seed: Int[Array, ""], weights: WeightFunction | None = None) -> TrainState:
        """Lines 1-3. `weights` replaces the fresh weight function, for example by one learned before."""
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2**31), 6)
        config, env = self.config, self.env
        if weights is None:
            weights = make_weights(keys[0], config.weights, env, len(self.terms))
        hints = weights.hint(jnp.zeros(env.observation_size)).size if self.method.hyper_policy else 0  # type: ignore[attr-defined]
        policy = make_policy(keys[1], config.ppo, env, extra_inputs=hints)
        learner = init_learner(keys[2], config.ppo, env.observation_size, policy, 1 + (self.estimator is not None))
        env_state, batch = reset(env, keys[3], config.ppo.num_envs), None
        if self.samples_by_round:
            env_state, batch = self.run_policy(self.acting(policy, weights), env_state, keys[5])
        term_keys = jax.random.split(keys[4], len(self.terms)) if self.terms else ()
        return TrainState(
            round=jnp.zeros((), jnp.int32),
            env=env_state,
            batch=batch,
            learner=learner,
            weights=weights,
            weights_optimiser=self.weights_adam.init(weights),
            h=() if self.estimator is None else self.estimator.init(policy, weights),
            term_params=tuple(term.init(key, env) for term, key in zip(self.terms, term_keys, strict=True)),
            unfinished=jnp.zeros((config.ppo.num_envs, 2 + 2 * len(self.terms))),
        )

    def iterate(self, state: TrainState, seed: Int[Array, ""]) -> tuple[TrainState, Signals]:
        """One round, lines 4-23."""
        key = jax.random.fold_in(jax.random.key(seed), state.round)
        run_key, term_key, draw_key, evaluation_key = jax.random.split(key, 4)
        learner, weights, optimiser, h, env_state = (
            state.learner, state.weights, state.weights_optimiser, state.h, state.env
        )  # fmt: skip

        if state.batch is None:  # lines 5-6
            env_state, batch = self.run_policy(self.acting(learner.policy, weights), env_state, run_key)
        else:
            batch = state.batch
        terms = self.evaluate_terms(state.term_params, batch, term_key)
        samples, z = self.learn_from(batch, terms, learner, weights)

        def draw(samples: Samples, index: Int[Array, " batch"]) -> Samples:
            return jax.tree.map(lambda x: x[index], samples)

        def steps(carry: Any, index: Int[Array, "2 batch"]) -> tuple[Any, Any]:
            learner, weights, optimiser, h = carry
            minibatch, before = draw(samples, index[0]), learner.policy
            learner, log = self.lower_step(learner, weights, minibatch)  # lines 7-8
            if self.estimator is not None and not self.samples_by_round:
                # Another draw: a sample that stood in both factors of v^T h would meet itself, which is a bias.
                fresh = draw(samples._replace(credit=None), index[1])
                step = LowerStep(before, minibatch)
                gradient, h = self.estimator.update(h, step, learner.policy, weights, fresh)  # lines 9-14, 18-21
                weights, optimiser = self.upper_step(weights, optimiser, gradient)  # line 22
                log["weight_gradient_norm"] = optax.tree.norm(gradient)
            return (learner, weights, optimiser, h), log

        shape = (self.config.ppo.gradient_steps, 2, self.config.ppo.batch_size)
        index = jax.random.randint(draw_key, shape, 0, samples.log_prob.size)
        (learner, weights, optimiser, h), log = jax.lax.scan(steps, (learner, weights, optimiser, h), index)

        following = None
        if self.samples_by_round:
            assert self.estimator is not None
            env_state, following = self.run_policy(self.acting(learner.policy, weights), env_state, run_key)  # 15-16
            fresh, _ = self.learn_from(following, None, learner, weights)
            step = LowerStep(state.learner.policy, samples)
            gradient, h = self.estimator.update(h, step, learner.policy, weights, fresh)  # lines 9-14, 18-21
            weights, optimiser = self.upper_step(weights, optimiser, gradient)  # line 22
            log["weight_gradient_norm"] = optax.tree.norm(gradient)

        evaluation = self.evaluate(learner.policy, weights, evaluation_key)
        episodes, unfinished = episode_sums(state.unfinished, batch, terms, z)
        signals = Signals(batch.reward, terms, z, episodes, evaluation, jax.tree.map(jnp.mean, log))
        state = TrainState(
            state.round + 1, env_state, following, learner, weights, optimiser, h, state.term_params, unfinished
        )
        return state, signals

    # The steps of the algorithm, in the order of their use.

    @property
    def samples_by_round(self) -> bool:
        return self.estimator is not None and self.config.upper.sampling == "round"

    @property
    def weights_adam(self) -> optax.GradientTransformation:
        assert self.config.weights.learning_rate is not None
        return adam(self.config.weights.learning_rate, self.config.weights.max_grad_norm)

    def acting(self, policy: Theta, weights: WeightFunction) -> Policy:
        """The policy as the environment meets it."""
        return HyperPolicy(policy, weights) if self.method.hyper_policy else policy

    def run_policy(self, policy: Policy, state: EnvState, key: PRNGKeyArray) -> tuple[EnvState, Batch]:
        return rollout(self.env, policy, state, key, self.config.ppo.update_period // self.config.ppo.num_envs)

    def evaluate_terms(self, params: tuple[Any, ...], batch: Batch, key: PRNGKeyArray) -> Float[Array, "time env term"]:
        """f of every transition."""
        if not self.terms:
            return jnp.zeros((*batch.reward.shape, 0))
        acted = jnp.clip(batch.action, -1.0, 1.0) if isinstance(self.env.actions, BoxActions) else batch.action
        step = Transition(batch.obs, acted, batch.next_obs)
        keys = jax.random.split(key, len(self.terms))
        return jnp.stack([t.evaluate(p, step, k) for t, p, k in zip(self.terms, params, keys, strict=True)], axis=-1)

    def learn_from(
        self, batch: Batch, terms: Float[Array, "time env term"] | None, learner: Learner, weights: WeightFunction
    ) -> tuple[Samples, Float[Array, "time env term"]]:
        """Advantages of both rewards, and how the modified one moves with phi; also z of every transition.

        Without `terms`, only the true reward's side is filled in: that is all the upper level asks for.
        """
        config = self.config.ppo

        def advantages(reward: Array, critic: MLP) -> tuple[Array, Array, Array]:
            value, next_value = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
            advantage, target = gae(
                reward, value, next_value, batch.terminated, batch.done, config.gamma, config.gae_lambda
            )
            mean, std = normaliser(advantage)
            return (advantage - mean) / std, target, std

        modified_advantage, z = jnp.zeros_like(batch.reward), jnp.zeros((*batch.reward.shape, 0))
        true_advantage = credit = None
        targets = []
        if terms is not None:
            z = weights(batch.obs, batch.action)
            modified_reward = batch.reward + jnp.sum(z * terms, axis=-1)
            modified_advantage, target, scale = advantages(modified_reward, learner.critics[0])
            targets.append(target)
            if self.estimator is not None and self.estimator.needs_credit:
                discount = config.gamma * (config.gae_lambda if self.config.upper.horizon == "gamma-lambda" else 1.0)
                credit = advantage_credit(weights, batch.obs, batch.action, terms, batch.done, discount, scale)
        if self.estimator is not None:
            true_advantage, target, _ = advantages(batch.reward, learner.critics[1])
            targets.append(target)
        samples = Samples(
            batch.obs, batch.action, batch.log_prob, modified_advantage, true_advantage, tuple(targets), credit
        )
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples), z

    def lower_step(
        self, learner: Learner, weights: WeightFunction, samples: Samples
    ) -> tuple[Learner, dict[str, Array]]:
        """theta -> theta' on the modified reward, and one step of each critic."""
        config = self.config.ppo

        def modified_return(policy: Theta) -> Float[Array, ""]:
            return surrogate(self.acting(policy, weights), samples, samples.modified_advantage, config.clip)

        gradient = jax.grad(modified_return)(learner.policy)
        policy_adam = adam(config.policy_learning_rate, config.max_grad_norm)
        policy, policy_optimiser = ascend(learner.policy, learner.policy_optimiser, policy_adam, gradient)
        log = {"policy_gradient_norm": optax.tree.norm(gradient)}

        value_adam = adam(config.value_learning_rate, config.max_grad_norm)
        critics, optimisers = list(learner.critics), list(learner.critic_optimisers)
        relative = (config.relative_value_loss, self.config.upper.relative_value_loss)
        for i, target in enumerate(samples.value_targets):
            loss, slope = jax.value_and_grad(critic_loss)(critics[i], samples.obs, target, relative[i])
            step, optimisers[i] = value_adam.update(slope, optimisers[i], critics[i])
            critics[i] = optax.apply_updates(critics[i], step)
            log[f"{('modified', 'true')[i]}_critic_loss"] = loss
        return Learner(policy, policy_optimiser, tuple(critics), tuple(optimisers)), log

    def upper_step(
        self, weights: WeightFunction, optimiser: optax.OptState, gradient: WeightFunction
    ) -> tuple[WeightFunction, optax.OptState]:
        return ascend(weights, optimiser, self.weights_adam, gradient)

    def evaluate(self, policy: Theta, weights: WeightFunction, key: PRNGKeyArray) -> Evaluation:
        return evaluate(self.env, self.acting(policy, weights), key, self.config.evaluation_episodes)


def ascend(parameters: Any, state: optax.OptState, optimiser: optax.GradientTransformation, gradient: Any) -> Any:
    """One step up the gradient (optimisers step down)."""
    step, state = optimiser.update(jax.tree.map(jnp.negative, gradient), state, parameters)
    return optax.apply_updates(parameters, step), state
