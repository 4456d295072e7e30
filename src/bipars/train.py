"""Algorithm 1 of the paper: bi-level optimisation of parameterised reward shaping. Line numbers are the paper's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bipars.compiling import at_once, compiled, in_halves
from bipars.lower.advantages import (
    Scales,
    UpdateData,
    compute_advantages,
    credit_of,
    draw_minibatches,
    gradients_of,
    with_baseline,
)
from bipars.lower.ppo import (
    Learner,
    Samples,
    adam,
    critic_loss,
    init_learner,
    no_samples,
    scored,
    surrogate,
    surrogate_gradients,
)
from bipars.methods import Method
from bipars.nets.mlp import count_parameters, ravel
from bipars.nets.policies import HyperPolicy, NormalisedPolicy, Policy, make_policy
from bipars.nets.running import ReturnScale, RunningMoments
from bipars.nets.weights import WeightFunction, make_weights
from bipars.rollout.batch import Batch, Evaluation, Sampler
from bipars.settings.config import Config
from bipars.shaping.potential_based import PotentialShaping, ShapingContext
from bipars.signals import RoundStats, episode_sums, gradient_log, sample_visited
from bipars.upper.base import Deferring, Estimator, LowerStep, Theta, h_of_round
from bipars.upper.baseline import Clock
from bipars.upper.rcpo import Multiplier
from bipars.upper.trust import MOST, SHARE, as_trusted, judge, pieces_of, pulls, trust


class TrainState(NamedTuple):
    """All that a run is between two rounds; a checkpoint holds exactly this."""

    round: Int[Array, ""]
    env: Any
    """The environments, as their sampler keeps them."""
    batch: Batch | None
    """Sampling mode `round`: what the newest policy has already experienced."""
    learner: Any
    """theta and the critics, as the lower level keeps them."""
    weights: WeightFunction
    weights_optimiser: optax.OptState
    h: Any
    """d theta / d phi, as the estimator keeps it."""
    potential: Any
    """A potential that learns, as its shaping keeps it."""
    scales: Scales
    unfinished: Float[Array, "env sum"]
    """Sums of the episodes that are still running."""
    evidence: Float[Array, ""] | None
    """That the weighted terms are worth the policy's trust, where they must earn it."""
    clock: Clock | None
    """The time of the running episodes, where the terms to come have a baseline."""
    evaluation: Evaluation | None
    """The newest one, where not every round is evaluated."""


@dataclass(frozen=True, eq=False)
class BiLevel:
    """Algorithm 1 for one configuration; no state of its own.

    Where the environments are written in JAX, `init` and `iterate` are compiled as a whole. Where they are stepped from
    Python, the same lines run in Python, and the parts marked `compiled` are compiled each by itself.
    """

    config: Config
    sampler: Sampler
    num_terms: int
    method: Method
    estimator: Estimator | None
    """None leaves the weights as they are."""
    multiplier: Multiplier | None = None
    """RCPO's rule for its one weight."""
    potential: PotentialShaping | None = None
    """Shaping by differences of a potential."""

    def init(
        self, seed: Int[Array, ""], weights: WeightFunction | None = None, observations: RunningMoments | None = None
    ) -> TrainState:
        """Lines 1-3. `weights` (and the statistics they were learned with) replace the fresh weight function."""
        env_key, network_key, run_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2**31), 3)
        state = self.init_networks(network_key, weights, observations)._replace(env=self.sampler.reset(env_key))
        if self.samples_by_round:
            env, batch = self.sampler.run(self.acting(state), state.env, run_key)
            state = state._replace(env=env, batch=batch)
        return state

    def iterate(self, state: TrainState, seed: Int[Array, ""]) -> tuple[TrainState, RoundStats]:
        """One round, lines 4-23."""
        run_key, draw_key, evaluation_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), state.round), 3)
        env, batch = state.env, state.batch
        if batch is None:
            env, batch = self.sampler.run(self.acting(state), env, run_key)  # lines 5-6
        if self.potential is not None:
            context = ShapingContext(self.sampler, self.acting(state), state.scales.observations, state.round)
            potential, advice = self.potential.shape(state.potential, batch, context, jax.random.fold_in(run_key, 1))
            state, batch = state._replace(potential=potential), batch._replace(advice=advice)
        learned, lesson, signals = self.improve(state._replace(env=None, batch=None), batch, draw_key)  # 7-14, 18-22

        following = None
        if self.samples_by_round:
            env, following = self.sampler.run(self.acting(learned), env, run_key)  # lines 15-16
            learned, norm = self.weigh_round(learned, following, state.learner.policy, lesson)
            signals.log["weight_gradient_norm"] = norm
        learned, evaluation = self.evaluate_when_due(learned, evaluation_key)
        return learned._replace(env=env, batch=following), signals._replace(evaluation=evaluation)

    # The steps of the algorithm, in the order of their use.

    @compiled
    def init_networks(
        self, key: PRNGKeyArray, weights: WeightFunction | None, observations: RunningMoments | None
    ) -> TrainState:
        config, sampler = self.config, self.sampler
        keys = jax.random.split(key, 3)
        if weights is None:
            weights = make_weights(keys[0], config.weights, sampler, self.num_terms)
        hints = weights.hint(jnp.zeros(sampler.observation_size)).size if self.method.hyper_policy else 0  # type: ignore[attr-defined]
        policy = make_policy(keys[1], config.ppo, sampler, extra_inputs=hints)
        critics = 1 + (self.estimator is not None)
        if observations is None and config.ppo.normalise_observations:
            observations = RunningMoments.fresh((sampler.observation_size,))
        returns = tuple(ReturnScale.fresh(config.ppo.num_envs) for _ in range(critics))
        h = () if self.estimator is None else self.estimator.init(policy, weights, self._no_samples(weights))
        return self.start(
            key,
            init_learner(keys[2], config.ppo, sampler.observation_size, policy, critics),
            weights,
            h,
            Scales(observations, returns if config.ppo.normalise_returns else ()),
        )

    def start(self, key: PRNGKeyArray, learner: Any, weights: WeightFunction, h: Any, scales: Scales) -> TrainState:
        """Nothing has happened yet."""
        sums = 2 + 2 * self.num_terms + (self.potential is not None)
        return TrainState(
            round=jnp.zeros((), jnp.int32),
            env=None,
            batch=None,
            learner=learner,
            weights=weights,
            weights_optimiser=self.weights_adam.init(weights),
            h=h,
            potential=() if self.potential is None else self.potential.init(jax.random.fold_in(key, 1), self.sampler),
            scales=scales,
            unfinished=jnp.zeros((self.config.lower.num_envs, sums)),
            evidence=jnp.full((), MOST, float) if self.earns_trust else None,
            clock=Clock.started(self.config.lower.num_envs) if self.has_baseline else None,
            evaluation=None if self.config.evaluation_every == 1 else self._no_evaluation(),
        )

    @property
    def samples_by_round(self) -> bool:
        return self.estimator is not None and self.config.upper.sampling == "round"

    @property
    def deferring(self) -> Deferring | None:
        """The estimator, where phi steps when theta has taken all steps of a round."""
        return self.estimator if isinstance(self.estimator, Deferring) and self.estimator.defers else None

    @property
    def shares_draws(self) -> bool:
        """Whether phi learns from what theta learns from next: both need the same of it, at the same policy.

        Not where theta's steps depend on phi's: it must not step on what phi has just seen.
        """
        depends = self.method.hyper_policy or self.config.upper.follow_weights
        return self.estimator is not None and not self.samples_by_round and not depends

    @property
    def earns_trust(self) -> bool:
        return self.estimator is not None and self.method.through_advantages and self.config.upper.earned_trust

    @property
    def has_baseline(self) -> bool:
        return self.estimator is not None and self.method.through_advantages and self.config.upper.baseline

    @property
    def weights_adam(self) -> optax.GradientTransformation:
        config = self.config.weights
        assert config.learning_rate is not None
        rate = with_head_start(config.learning_rate, config.head_start) if config.head_start else config.learning_rate
        # IMGL's gradients carry alpha, 1e-4: Adam's usual 1e-8 would not be small beside them.
        return adam(rate, config.max_grad_norm, eps=1e-16)

    def acting(self, state: TrainState) -> Policy:
        """The policy as the environment meets it."""
        policy = self.hyper(state.learner.policy, state.weights)
        moments = state.scales.observations
        return policy if moments is None else NormalisedPolicy(policy, moments.scale)

    def hyper(self, policy: Policy, weights: WeightFunction) -> Policy:
        """The policy as it learns: explicit mapping shows it the weights."""
        return HyperPolicy(policy, weights) if self.method.hyper_policy else policy

    def improve(self, state: TrainState, batch: Batch, key: PRNGKeyArray) -> tuple[TrainState, UpdateData, RoundStats]:
        """All gradient steps of one round on its batch: those of theta and phi and, by themselves, the critics'."""
        two = self.config.threads > 1
        seen, lesson, signals = self.prepare(state, batch, key)
        if self.estimator is not None and self.estimator.needs_credit:
            lesson = lesson.with_credit(self.credit(state.weights, lesson))
        if self.earns_trust:
            pulls = in_halves(two, lambda parts: self.pulls(state.learner.policy, lesson, parts), self.parts)
            seen["evidence"], trusted, judged = self.judge(state.evidence, batch, pulls)
            lesson, signals = lesson.judged(trusted), signals._replace(log=signals.log | judged)
        (learned, gains, log), (critics, critic_log) = at_once(
            two,
            lambda: self.improve_policy(state, lesson),  # lines 7-14, 18-22
            lambda: self.improve_critics(state.learner, lesson),
        )
        if gains is not None:
            gradients = in_halves(two, lambda some: self.credited(state.weights, lesson, gains, some), len(gains))
            weighed, upper_log = self.improve_weights(state.weights, state.weights_optimiser, gradients)  # line 22
            learned, log = learned | weighed, log | upper_log
        learned["learner"] = learned["learner"]._replace(**critics)
        state = state._replace(round=state.round + 1, **seen, **learned)
        log = dict(sorted((signals.log | log | critic_log).items()))
        return state, lesson, signals._replace(log=log)

    # Each part returns what it changed, by name: what a compiled part passes through, it copies.

    @compiled
    def prepare(
        self, state: TrainState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[dict[str, Any], UpdateData, RoundStats]:
        """What there is to learn from a batch, and what there is to tell of it."""
        samples, z, scales, scale = self.compute_advantages(state, batch, batch.terms)
        unfinished = jnp.where(batch.restarted, 0.0, state.unfinished)
        episodes, unfinished = episode_sums(unfinished, batch, z)
        shaping = batch.advice and batch.advice.shaping
        log = {} if batch.advice is None else dict(batch.advice.log)
        signals = RoundStats(batch.reward, batch.terms, z, episodes, None, log, sample_visited(batch), shaping)
        draws = draw_minibatches(key, self.config.ppo, samples.log_prob.size, self.shares_draws)
        lesson = UpdateData(samples, *draws, batch.terms, batch.done, scale)
        seen = {"scales": scales, "unfinished": unfinished}
        if state.clock is not None:
            seen["clock"], to_go = state.clock.advance(batch.terminated, batch.done, batch.restarted)
            lesson = with_baseline(self.config, state.learner.critics[0], lesson, to_go)
        return seen, lesson, signals

    def compute_advantages(self, state: TrainState, batch: Batch, terms: Array | None) -> Any:
        return compute_advantages(
            self.config, state.learner, state.weights, state.scales, batch, terms, to_judge=self.earns_trust
        )

    @compiled
    def credit(self, weights: WeightFunction, lesson: UpdateData) -> Float[Array, "sample phi"]:
        return credit_of(self.config, weights, lesson)

    @property
    def parts(self) -> int:
        """Into how many parts a batch is split where terms are judged by it."""
        ppo = self.config.ppo
        return ppo.num_envs * pieces_of(ppo.update_period // ppo.num_envs, ppo.num_envs)

    @compiled
    def pulls(self, policy: Theta, lesson: UpdateData, parts: Int[Array, " part"]) -> tuple[Array, Array]:
        return pulls(policy, lesson.samples, self.config.ppo.num_envs, parts)

    @compiled
    def judge(
        self, evidence: Float[Array, ""], batch: Batch, pulls: Sequence[tuple[Array, Array]]
    ) -> tuple[Float[Array, ""], Float[Array, ""], dict[str, Array]]:
        """What a new batch says of the weighted terms: the evidence so far, the trust it earns them, and the log."""
        after, log = judge(evidence, *(jnp.concatenate(x) for x in zip(*pulls, strict=True)))
        # Where nothing was earned and nothing ended, the true advantages are the critic's errors and nothing else.
        silent = (jnp.ptp(batch.reward) == 0) & ~jnp.any(batch.terminated)
        evidence = jnp.where(silent, evidence, after)
        return evidence, trust(evidence), log | {"trust": trust(evidence)}

    @compiled
    def improve_policy(
        self, state: TrainState, lesson: UpdateData
    ) -> tuple[dict[str, Any], Float[Array, "step batch"] | None, dict[str, Array]]:
        """The steps of theta and, where phi learns with each of them, of phi; else what phi will learn from."""
        samples = lesson.samples._replace(value_targets=())

        def shown(policy: Theta, index: Int[Array, " batch"]) -> Samples:
            """A minibatch, with its scores where both levels learn from it."""
            minibatch = samples._replace(credit=None).at(index)
            return minibatch._replace(scores=scored(policy, minibatch)[1]) if self.shares_draws else minibatch

        def steps(carry: Any, index: tuple[Int[Array, " batch"], Int[Array, " batch"]]) -> tuple[Any, Any]:
            learner, weights, optimiser, h, scores = carry
            minibatch = self.follow_weights(samples.at(index[0])._replace(scores=scores), state.weights, weights)
            learner, step, log = self.lower_step(learner, weights, minibatch, lesson.trusted)  # lines 7-8
            gradient = gains = None
            if self.estimator is not None and not self.samples_by_round:
                fresh = shown(learner.policy, index[1])
                scores = fresh.scores
                if self.deferring is not None:
                    gains = self.deferring.gains(step, learner.policy, fresh)  # lines 9-10
                else:
                    gradient, h = self.estimator.update(h, step, learner.policy, weights, fresh)  # lines 9-14, 18-21
                    weights, optimiser = self.upper_step(weights, optimiser, gradient)  # line 22
            return (learner, weights, optimiser, h, scores), (log, gradient, gains)

        learner = state.learner._replace(critics=(), critic_optimisers=())
        first = shown(learner.policy, lesson.draws[0]).scores
        start = (learner, state.weights, state.weights_optimiser, h_of_round(self.estimator, state.h), first)
        (learner, weights, optimiser, h, _), (log, gradients, gains) = jax.lax.scan(
            steps, start, (lesson.draws, lesson.upper_draws)
        )
        log = jax.tree.map(jnp.mean, log) | gradient_log(gradients)
        if self.multiplier is not None:
            weights = self.multiplier.update(weights, lesson.terms, state.round)
        return {"learner": learner, "weights": weights, "weights_optimiser": optimiser, "h": h}, gains, log

    @compiled
    def credited(
        self, weights: WeightFunction, lesson: UpdateData, gains: Float[Array, "step batch"], some: Int[Array, " some"]
    ) -> WeightFunction:
        """Gradients of phi by some of theta's steps, given what was gained there by the samples they were taken on."""
        of_all = jnp.zeros((some.size, lesson.samples.log_prob.size))
        of_all = of_all.at[jnp.arange(some.size)[:, None], lesson.draws[some]].add(gains[some])
        return self.gradients(weights, lesson, of_all)  # lines 18-21

    @compiled
    def improve_weights(
        self, weights: WeightFunction, optimiser: optax.OptState, gradients: Sequence[WeightFunction]
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """The steps of phi, one for each of theta's, after all of these."""
        every = jax.tree.map(lambda *x: jnp.concatenate(x), *gradients)

        def steps(carry: Any, gradient: WeightFunction) -> tuple[Any, None]:
            weights, optimiser = carry
            return self.upper_step(weights, optimiser, gradient), None

        (weights, optimiser), _ = jax.lax.scan(steps, (weights, optimiser), every)
        return {"weights": weights, "weights_optimiser": optimiser}, gradient_log(every)

    def gradients(
        self, weights: WeightFunction, lesson: UpdateData, gains: Float[Array, "step sample"]
    ) -> WeightFunction:
        """Of the true return, one for each row of `gains`, as phi sees steps: as if the terms were trusted."""
        return gradients_of(self.config, weights, lesson, SHARE * gains if self.earns_trust else gains)

    @compiled
    def improve_critics(self, learner: Learner, lesson: UpdateData) -> tuple[dict[str, Any], dict[str, Array]]:
        """The critics' steps, on the minibatches of theta's."""
        config, samples = self.config.ppo, lesson.samples
        relative = (config.relative_value_loss, self.config.upper.relative_value_loss)
        value_adam = adam(config.value_learning_rate, config.max_grad_norm)

        def steps(carry: Any, index: Int[Array, " batch"]) -> tuple[Any, dict[str, Array]]:
            critics, optimisers, log = [], [], {}
            obs = samples.obs[index]
            for i, (critic, optimiser) in enumerate(zip(*carry, strict=True)):
                target = samples.value_targets[i][index]
                loss, slope = jax.value_and_grad(critic_loss)(critic, obs, target, relative[i])
                move, optimiser = value_adam.update(slope, optimiser, critic)
                critics.append(optax.apply_updates(critic, move))
                optimisers.append(optimiser)
                log[f"{('modified', 'true')[i]}_critic_loss"] = loss
            return (tuple(critics), tuple(optimisers)), log

        start = (learner.critics, learner.critic_optimisers)
        (critics, optimisers), log = jax.lax.scan(steps, start, lesson.draws)
        return {"critics": critics, "critic_optimisers": optimisers}, jax.tree.map(jnp.mean, log)

    @compiled
    def weigh_round(
        self, state: TrainState, following: Batch, before: Theta, lesson: UpdateData
    ) -> tuple[TrainState, Float[Array, ""]]:
        """Sampling mode `round`: one step of phi on what the new policy has experienced."""
        assert self.estimator is not None
        step = LowerStep(before, self.believed(lesson.samples))
        fresh, *_ = self.compute_advantages(state, following, None)
        policy, h = state.learner.policy, state.h
        if self.deferring is not None:
            gains = self.deferring.gains(step, policy, fresh)  # lines 9-10
            gradient = jax.tree.map(lambda x: x[0], self.gradients(state.weights, lesson, gains[None]))  # lines 18-21
        else:
            gradient, h = self.estimator.update(h, step, policy, state.weights, fresh)  # lines 9-14, 18-21
        weights, optimiser = self.upper_step(state.weights, state.weights_optimiser, gradient)  # line 22
        return state._replace(weights=weights, weights_optimiser=optimiser, h=h), optax.tree.norm(gradient)

    def believed(self, samples: Samples) -> Samples:
        """The samples as phi sees a step on them: whatever trust there is, it asks what full trust would come to."""
        return as_trusted(samples, 1.0) if self.earns_trust else samples

    def follow_weights(self, samples: Samples, before: WeightFunction, now: WeightFunction) -> Samples:
        """Modified advantages under the weights as they are now, to first order: phi moves after every step of theta.

        Left as they were when the round began, they would hide from phi what it did, and it would overshoot.
        """
        if samples.credit is None or self.samples_by_round or not self.config.upper.follow_weights:
            return samples
        moved = samples.credit @ (ravel(now) - ravel(before))
        return samples._replace(modified_advantage=samples.modified_advantage + moved)

    def lower_step(
        self, learner: Learner, weights: WeightFunction, samples: Samples, trusted: Float[Array, ""] | None
    ) -> tuple[Learner, LowerStep, dict[str, Array]]:
        """theta -> theta' on the modified reward, as far as the terms are trusted. Also the step as phi sees it."""
        config, believed = self.config.ppo, self.believed(samples)

        def modified_return(policy: Theta) -> Float[Array, ""]:
            return surrogate(self.hyper(policy, weights), samples, samples.modified_advantage, config.clip)

        if trusted is None and samples.scores is None:
            uphill = gradient = jax.grad(modified_return)(learner.policy)
        else:
            advantages = as_trusted(samples, trusted).modified_advantage, believed.modified_advantage
            full = True if trusted is None else trusted == 1.0
            uphill, gradient = surrogate_gradients(learner.policy, samples, advantages, config.clip, equal=full)
        policy_adam = adam(config.policy_learning_rate, config.max_grad_norm)
        policy, policy_optimiser = ascend(learner.policy, learner.policy_optimiser, policy_adam, uphill)
        step = LowerStep(learner.policy, believed, policy_optimiser, gradient, uphill)
        log = {"policy_gradient_norm": optax.tree.norm(uphill)}
        return learner._replace(policy=policy, policy_optimiser=policy_optimiser), step, log

    def upper_step(
        self, weights: WeightFunction, optimiser: optax.OptState, gradient: WeightFunction
    ) -> tuple[WeightFunction, optax.OptState]:
        return ascend(weights, optimiser, self.weights_adam, gradient)

    def evaluate_when_due(self, state: TrainState, key: PRNGKeyArray) -> tuple[TrainState, Evaluation]:
        """The newest evaluation, which is of this very policy in every `evaluation_every`-th round."""
        every = self.config.evaluation_every
        if every == 1:
            return state, self.sampler.evaluate(self.acting(state), key)
        due = (state.round % every == 0) | (state.round == self.config.num_updates - self.samples_by_round)
        assert state.evaluation is not None
        if self.sampler.compiled:
            evaluation = jax.lax.cond(
                due, lambda: self.sampler.evaluate(self.acting(state), key), lambda: state.evaluation
            )
        else:
            evaluation = self.sampler.evaluate(self.acting(state), key) if due else state.evaluation
        return state._replace(evaluation=evaluation), evaluation

    def _no_samples(self, weights: WeightFunction) -> Samples:
        """A minibatch of nothing, in the shapes of those to come."""
        credit = count_parameters(weights) if self.estimator is not None and self.estimator.needs_credit else None
        return no_samples(self.config.ppo.batch_size, self.sampler, credit)

    def _no_evaluation(self) -> Evaluation:
        # With their types given: weak ones would become strong, and what takes them be compiled anew.
        nothing = jnp.full(self.config.evaluation_episodes, jnp.nan, float)
        length = jnp.zeros(self.config.evaluation_episodes, jnp.int32)
        return Evaluation(nothing, length, jnp.full((), jnp.nan, float))


def with_head_start(rate: float, times: float) -> optax.Schedule:
    """A step size of `1 + times` its usual size at first; what it has too much halves every 40 steps."""
    return lambda step: rate * (1 + times * 0.5 ** (step / 40))


def ascend(parameters: Any, state: optax.OptState, optimiser: optax.GradientTransformation, gradient: Any) -> Any:
    """One step up the gradient (optimisers step down)."""
    step, state = optimiser.update(jax.tree.map(jnp.negative, gradient), state, parameters)
    return optax.apply_updates(parameters, step), state
