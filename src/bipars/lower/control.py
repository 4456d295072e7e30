"""A control group: at first, half of the environments are left to a policy that learns from the true reward alone.

Both are trained by PPO from the same initial parameters, each on its own environments. What the terms are worth is then
measured within the run, by the true returns of the two groups. Once that is known, the better policy goes on with all
environments. If the terms have won, it keeps using them; if they have lost, it goes without them until there is
evidence for them.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.compiling import compiled
from bipars.lower.advantages import UpdateData
from bipars.lower.base import ALONE, Hook, Learned
from bipars.lower.ppo import PPO, Learner
from bipars.nets.policies import GroupedPolicy, Policy
from bipars.nets.running import RunningMoments
from bipars.nets.weights import WeightFunction, no_weights
from bipars.objective import Objective
from bipars.rollout.batch import Batch

MAY_LOSE = 0.1
"""Share of the run, from when the true reward first varied, after which the terms may lose ..."""
DECISION = 0.2
"""... after which there is a decision, if there were episodes ..."""
LATEST = 0.5
"""... and after which there is one in any case."""
CLEAR = 4.0
"""Standard errors between returns that decide early: they are tested in every round, and many are skewed."""
AHEAD = 1.0
"""Standard errors by which the terms must lead at the decision, if nothing has been learned yet; else a tie will do."""
MEMORY = 0.95
"""Of earlier episodes, from round to round."""
FEWEST = 5.0
"""Episodes of each group without which returns are not compared."""
ROUNDING = 1e-5
"""Relative error of a return."""
UNDECIDED, TREATED, CONTROL = range(3)


class Returns(NamedTuple):
    """True returns of the newest episodes of several groups."""

    episodes: Float[Array, " group"]
    """How many there are of them, old ones fading."""
    mean: Float[Array, " group"]
    var: Float[Array, " group"]
    ever: Float[Array, " group"]
    """All episodes so far."""

    @staticmethod
    def none(groups: int) -> "Returns":
        return Returns(*jnp.zeros((4, groups)))

    def update(self, true_return: Float[Array, "time env"], ended: Bool[Array, "time env group"]) -> "Returns":
        """By Chan's rule: the mean square less the square of the mean would lose a small spread around 1000."""
        old, new = MEMORY * self.episodes, ended.sum(axis=(0, 1))
        count, some = jnp.maximum(old + new, 1e-6), jnp.maximum(new, 1)
        fresh = jnp.einsum("te,teg->g", true_return, ended) / some
        from_fresh = jnp.einsum("teg,teg->g", (true_return[..., None] - fresh) ** 2, ended)
        delta = jnp.where(new > 0, fresh - self.mean, 0.0)
        mean = self.mean + delta * new / count
        var = (old * self.var + from_fresh + delta**2 * old * new / count) / count
        return Returns(old + new, mean, var, self.ever + new)

    def above(self, other: "Returns") -> Float[Array, " group"]:
        """By how many standard errors these are higher than the others; 0 where there is too little to tell.

        The larger of two errors: with the variance of both together, since one that has not varied yet may, and with
        that of each by itself, since few episodes may vary more than many.
        """
        ours, theirs = jnp.maximum(self.episodes, 1e-6), jnp.maximum(other.episodes, 1e-6)
        pooled = (ours * self.var + theirs * other.var) / (ours + theirs)
        fewest = jnp.minimum(self.ever, other.ever)
        apart = self.var / ours + other.var / theirs
        error = jnp.sqrt(jnp.maximum(pooled * (1 / ours + 1 / theirs), apart))
        rounding = ROUNDING * jnp.maximum(jnp.abs(self.mean), jnp.abs(other.mean))
        ahead = self.mean - other.mean
        differ = (fewest >= FEWEST) & (jnp.abs(ahead) > rounding)
        return jnp.where(differ, ahead / jnp.where(differ, jnp.maximum(error, rounding), 1.0), 0.0)

    def of(self, group: int) -> "Returns":
        return jax.tree.map(lambda x: x[group], self)


class Groups(NamedTuple):
    treated: Learner
    """Learns from the modified reward; from the decision on the only one that learns."""
    control: Learner
    """Learns from the true reward."""
    leader: Int[Array, ""]
    """The group that has won, once that is decided."""
    returns: Returns
    """Of the treated and of the control group."""
    first: Returns
    """Of the first episodes of the run."""
    running: Float[Array, " env"]
    """True return so far of the episode in each environment."""
    silent: Float[Array, ""]
    """Share of the run before the true reward first varied."""

    @property
    def lead(self) -> Float[Array, ""]:
        """By how many standard errors the treated are ahead."""
        return self.returns.of(0).above(self.returns.of(1))

    @property
    def policy(self) -> Any:
        return self.treated.policy

    @property
    def observations(self) -> RunningMoments | None:
        return self.treated.observations


@dataclass(frozen=True, eq=False)
class ControlGroup:
    """PPO twice: an estimator sees the `treated` alone."""

    treated: PPO
    control: PPO

    @property
    def num_envs(self) -> int:
        return self.treated.config.num_envs

    @property
    def objective(self) -> Objective:
        return self.treated.objective

    @property
    def threads(self) -> int:
        return self.treated.threads

    def init(self, key: PRNGKeyArray, weights: WeightFunction, observations: RunningMoments | None) -> Groups:
        treated = self.treated.init(key, weights, observations)
        control = self.control.init(key, weights, observations)._replace(policy=treated.policy)
        undecided = jnp.asarray(UNDECIDED, jnp.int32)
        returns, first = Returns.none(2), Returns.none(1)
        return Groups(treated, control, undecided, returns, first, jnp.zeros(self.num_envs), jnp.zeros(()))

    def num_treated(self, groups: Groups) -> Int[Array, ""]:
        """How many environments, from the first on, are the treated's."""
        return jnp.where(groups.leader == UNDECIDED, self.num_envs // 2, self.num_envs).astype(jnp.int32)

    def is_treated(self, groups: Groups) -> Bool[Array, " env"]:
        return jnp.arange(self.num_envs) < self.num_treated(groups)

    @compiled
    def act(self, groups: Groups, weights: WeightFunction) -> Policy:
        """The policy of the treated or, before the decision, of the group that is ahead."""
        behind = (groups.leader == UNDECIDED) & (groups.lead < 0)
        treated, control = self.treated.act(groups.treated, weights), self.control.act(groups.control, weights)
        return choose(behind, control, treated)

    @compiled
    def behaviour(self, groups: Groups, weights: WeightFunction) -> Policy:
        treated, control = self.treated.act(groups.treated, weights), self.control.act(groups.control, weights)
        others = choose(groups.leader == UNDECIDED, control, treated)
        return GroupedPolicy(treated, others, self.num_envs // 2)

    def prepare(
        self, groups: Groups, weights: WeightFunction, batch: Batch, progress: Float[Array, ""]
    ) -> tuple[Groups, UpdateData]:
        """What there is to learn for the treated."""
        own = self.is_treated(groups).astype(float)
        treated, data = self.treated.prepare(groups.treated, weights, batch, progress, own)
        return groups._replace(treated=treated), data

    def learn(self, groups: Groups, upper: Any, data: UpdateData, key: PRNGKeyArray, hook: Hook) -> Learned:
        """The steps of the treated, with the hook, those of the control group, and the decision between them."""
        assert data.by_term is not None
        control_key = jax.random.fold_in(key, 2**31)
        learned = self.treated.learn(groups.treated, upper, data, key, hook)
        control = self.learn_control(groups, data.batch, data.progress, control_key)
        groups = groups._replace(treated=learned.learner, control=control)
        silent = data.by_term.silent & control.scales.never_varied[-1]
        groups, log = self.decide(groups, data.batch, data.progress, silent)
        return learned._replace(learner=groups, log=learned.log | log)

    @compiled
    def learn_control(self, groups: Groups, batch: Batch, progress: Float[Array, ""], key: PRNGKeyArray) -> Learner:
        nothing = no_weights(self.control.num_terms)

        def learn() -> Learner:
            own = 1.0 - self.is_treated(groups)
            learner, data = self.control.prepare(groups.control, nothing, batch, progress, own)
            return self.control.learn(learner, NoUpper(nothing), data, key, ALONE).learner

        return jax.lax.cond(groups.leader == UNDECIDED, learn, lambda: groups.control)

    def empty_minibatch(self, weights: WeightFunction, jacobian: bool) -> Any:
        return self.treated.empty_minibatch(weights, jacobian)

    @compiled
    def decide(
        self, groups: Groups, batch: Batch, progress: Float[Array, ""], silent: Bool[Array, ""]
    ) -> tuple[Groups, dict[str, Array]]:
        """Chooses the leader, if none has been chosen and there is enough to tell.

        `silent`: the true reward has never varied.
        """
        groups = self.count_episodes(groups, batch)
        groups = groups._replace(silent=jnp.where(silent, progress, groups.silent))
        t, undecided, heard = groups.lead, groups.leader == UNDECIDED, progress - groups.silent
        learned = jnp.max(groups.returns.above(groups.first)) > CLEAR
        over = ((heard >= DECISION) & jnp.all(groups.returns.ever >= FEWEST)) | (heard >= LATEST)
        enough = jnp.where(over, jnp.where(learned, 0.0, AHEAD), CLEAR)
        treated_wins = undecided & (t >= enough)
        control_wins = undecided & ~treated_wins & (over | ((heard >= MAY_LOSE) & (t < -CLEAR)))
        leader = jnp.where(treated_wins, TREATED, jnp.where(control_wins, CONTROL, groups.leader)).astype(jnp.int32)
        treated = choose(control_wins, give_policy(groups.control, groups.treated), groups.treated)
        mean = groups.returns.mean
        log = {"leader": leader, "lead_t": t, "treated_return": mean[0], "control_return": mean[1]}
        return groups._replace(leader=leader, treated=treated), log

    def count_episodes(self, groups: Groups, batch: Batch) -> Groups:
        def add(running: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            total = running + now[0]
            return jnp.where(now[1], 0.0, total), total

        start = jnp.where(batch.restarted, 0.0, groups.running)
        running, totals = jax.lax.scan(add, start, (batch.reward, batch.done))
        treated = self.is_treated(groups)
        ended = batch.done[..., None] & jnp.stack([treated, ~treated], axis=-1)
        early = groups.first.episodes[0] < 2 * FEWEST
        return groups._replace(
            returns=choose(groups.leader == UNDECIDED, groups.returns.update(totals, ended), groups.returns),
            first=choose(early, groups.first.update(totals, batch.done[..., None]), groups.first),
            running=running,
        )


class NoUpper(NamedTuple):
    """The state of an upper level that does nothing."""

    weights: WeightFunction


def give_policy(giver: Learner, taker: Learner) -> Learner:
    """The taker with the giver's policy, step size, and critic of the true reward, which is the last of each tuple."""
    low = taker.scales.low.at[-1].min(giver.scales.low[-1])
    high = taker.scales.high.at[-1].max(giver.scales.high[-1])
    return taker._replace(
        scales=taker.scales._replace(low=low, high=high),
        policy=giver.policy,
        policy_optimiser=giver.policy_optimiser,
        critics=(*taker.critics[:-1], giver.critics[-1]),
        critic_optimisers=(*taker.critic_optimisers[:-1], giver.critic_optimisers[-1]),
        rate=giver.rate,
    )


def choose(condition: Bool[Array, ""], new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
