"""Algorithm 1 of the paper: bi-level optimisation of parameterised reward shaping. Line numbers are the paper's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bipars.compiling import compiled
from bipars.lower.base import LowerLevel
from bipars.nets.policies import Policy
from bipars.nets.running import RunningMoments
from bipars.nets.weights import WeightFunction
from bipars.rollout.batch import Batch, Evaluation, Sampler
from bipars.rollout.stats import RoundStats, Sums, Visited, episode_sums, no_sums, sample_visited
from bipars.shaping.potential_based import PotentialShaping, ShapingContext
from bipars.upper.base import UpperLevel


class TrainState(NamedTuple):
    """The complete state of a run between two rounds; a checkpoint holds exactly this."""

    round: Int[Array, ""]
    env: Any
    """The environments, as their sampler keeps them."""
    learner: Any
    """theta and the critics, as the lower level keeps them."""
    upper: Any
    """phi, as the upper level keeps it."""
    potential: Any
    """Of a potential that learns."""
    sums: Sums
    """Of the episodes that are still running."""
    evaluation: Evaluation
    """The latest one."""

    @property
    def weights(self) -> WeightFunction:
        return self.upper.weights

    @property
    def observations(self) -> RunningMoments | None:
        """Statistics that normalise observations; None where they are not normalised."""
        return self.learner.observations


@dataclass(frozen=True, eq=False)
class BiLevel:
    """Algorithm 1 for one configuration; no state of its own.

    Where the environments are written in JAX, `init` and `iterate` are compiled as a whole. Where they are stepped from
    Python, the same lines run in Python, and the parts marked `compiled` are compiled each by itself.
    """

    sampler: Sampler
    lower: LowerLevel
    upper: UpperLevel
    potential: PotentialShaping
    make_weights: Callable[[PRNGKeyArray], WeightFunction]
    num_terms: int
    rounds: int
    """In the whole run."""
    evaluation_every: int = 1

    def init(
        self, seed: Int[Array, ""], weights: WeightFunction | None = None, observations: RunningMoments | None = None
    ) -> TrainState:
        """Lines 1-3. `weights` (and the statistics they were learned with) replace the fresh weight function."""
        env_key, network_key, _ = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2**31), 3)
        return self.init_networks(network_key, weights, observations)._replace(env=self.sampler.reset(env_key))

    def iterate(
        self, state: TrainState, seed: Int[Array, ""], end: Int[Array, ""] | None = None
    ) -> tuple[TrainState, RoundStats]:
        """One round (lines 4-23). Training ends after `end` rounds, `rounds` by default."""
        last = jnp.asarray(self.rounds if end is None else end)
        run_key, draw_key, evaluation_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), state.round), 3)
        behaviour = self.lower.behaviour(state.learner, state.weights)
        env, batch = self.sampler.run(behaviour, state.env, run_key)  # lines 5-6, 15-16
        context = ShapingContext(self.sampler, behaviour, state.observations, state.round)
        potential, shaping = self.potential.shape(state.potential, batch, context, jax.random.fold_in(run_key, 2**31))
        batch = batch._replace(potential=shaping)
        learner, data = self.lower.prepare(state.learner, state.weights, batch, state.round / last)
        totals, sums, visited = self.observe(state.sums, batch, data.z)
        upper, learner, log = self.upper.update(state.upper, learner, data, draw_key)  # lines 7-14, 18-22

        round = state.round + 1
        due = self.evaluation_every == 1 or (round % self.evaluation_every == 0) | (round == last)
        acting = self.lower.act(learner, upper.weights)
        evaluation = self.sampler.evaluate_if(due, acting, evaluation_key, state.evaluation)
        log = dict(sorted((log | data.log | ({} if shaping is None else shaping.log)).items()))
        added = None if shaping is None else shaping.reward
        stats = RoundStats(batch.reward, batch.terms, data.z, batch.done, totals, visited, log, evaluation, added)
        return TrainState(round, env, learner, upper, potential, sums, evaluation), stats

    def acting(self, state: TrainState) -> Policy:
        """The policy as the environment meets it."""
        return self.lower.act(state.learner, state.weights)

    @compiled
    def init_networks(
        self, key: PRNGKeyArray, weights: WeightFunction | None, observations: RunningMoments | None
    ) -> TrainState:
        if weights is None:
            weights = self.make_weights(jax.random.split(key, 3)[0])
        learner = self.lower.init(key, weights, observations)
        return TrainState(
            round=jnp.zeros((), jnp.int32),
            env=None,
            learner=learner,
            upper=self.upper.init(weights, learner),
            potential=self.potential.init(jax.random.fold_in(key, 2**31), self.sampler),
            sums=no_sums(self.sampler.num_envs, self.num_terms, self.potential.shapes),
            evaluation=Evaluation.none(self.sampler.episodes),
        )

    @compiled
    def observe(self, running: Sums, batch: Batch, z: Float[Array, "time env term"]) -> tuple[Sums, Sums, Visited]:
        """Sums over the episodes that ended, those of the ones still running, and a sample of visited states."""
        return *episode_sums(running, batch, z), sample_visited(batch)
