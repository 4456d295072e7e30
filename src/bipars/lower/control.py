"""A control group: some environments are left to a second policy, which learns from the true reward alone.

Both policies are PPO's, start alike, and learn each from its own environments. What the terms are worth is then
measured within the run, by the true returns of the two groups. The better one leads: it is the agent, it has most of
the environments, and the other one starts again from it.
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

TRIAL = 0.1
"""Share of the run in which the terms cannot lose: they may take time to pay."""
FOLLOWERS = 0.25
"""Share of the environments that the group has which does not lead."""
CLEAR = 3.0
"""Standard errors between the groups' returns that decide."""
MEMORY = 0.95
"""Of earlier episodes, from round to round."""
FEWEST = 5.0
"""Episodes of each group without which nothing is decided."""
UNDECIDED, TREATED, CONTROL = range(3)


class Returns(NamedTuple):
    """True returns of the newest episodes of each group: the treated, the control group."""

    episodes: Float[Array, " group"]
    mean: Float[Array, " group"]
    var: Float[Array, " group"]

    @staticmethod
    def none(mean: Float[Array, ""] | float = 0.0) -> "Returns":
        return Returns(jnp.zeros(2), jnp.full(2, mean, float), jnp.zeros(2))

    def update(self, true_return: Float[Array, "time env"], ended: Bool[Array, "time env group"]) -> "Returns":
        old, new = MEMORY * self.episodes, ended.sum(axis=(0, 1))
        count = old + new
        some = jnp.maximum(count, 1e-6)
        total = jnp.einsum("te,teg->g", true_return, ended)
        squares = jnp.einsum("te,teg->g", true_return**2, ended)
        mean = jnp.where(count > 0, (old * self.mean + total) / some, self.mean)
        var = (old * (self.var + self.mean**2) + squares) / some - mean**2
        return Returns(count, mean, jnp.maximum(var, 0.0))

    @property
    def enough(self) -> Bool[Array, ""]:
        return jnp.min(self.episodes) >= FEWEST

    @property
    def t(self) -> Float[Array, ""]:
        """By how many standard errors the treated are ahead; 0 where there is too little to tell."""
        pooled = jnp.sum(self.episodes * self.var) / jnp.maximum(jnp.sum(self.episodes), 1e-6)
        error = jnp.sqrt(pooled * jnp.sum(1 / jnp.maximum(self.episodes, 1e-6)))
        ahead = self.mean[0] - self.mean[1]
        return jnp.where(self.enough & (ahead != 0), ahead / jnp.maximum(error, 1e-6 * jnp.abs(ahead)), 0.0)


class Groups(NamedTuple):
    treated: Learner
    """Learns from the modified reward."""
    control: Learner
    """Learns from the true reward."""
    leader: Int[Array, ""]
    returns: Returns
    running: Float[Array, " env"]
    """True return so far of the episode in each environment."""
    owner: Int[Array, " env"]
    """The group that has acted in it since it began; -1 where it has changed hands."""

    @property
    def policy(self) -> Any:
        return self.treated.policy

    @property
    def observations(self) -> RunningMoments | None:
        return self.treated.observations


@dataclass(frozen=True, eq=False)
class ControlGroup:
    """PPO twice: an upper level sees the `treated` alone."""

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
        return Groups(
            treated, control, undecided, Returns.none(), jnp.zeros(self.num_envs), self.group_of_each(undecided)
        )

    def num_treated(self, leader: Int[Array, ""]) -> Int[Array, ""]:
        """The first so many environments are the treated's."""
        few = max(1, round(FOLLOWERS * self.num_envs))
        return jnp.asarray([self.num_envs // 2, self.num_envs - few, few], jnp.int32)[leader]

    def group_of_each(self, leader: Int[Array, ""]) -> Int[Array, " env"]:
        return (jnp.arange(self.num_envs) >= self.num_treated(leader)).astype(jnp.int32)

    @compiled
    def act(self, groups: Groups, weights: WeightFunction) -> Policy:
        """The policy of the group that leads or, before that is decided, of the one that is ahead."""
        ahead = jnp.where(groups.returns.t < 0, CONTROL, TREATED)
        leader = jnp.where(groups.leader == UNDECIDED, ahead, groups.leader)
        treated, control = self.treated.act(groups.treated, weights), self.control.act(groups.control, weights)
        return jax.tree.map(lambda a, b: jnp.where(leader == CONTROL, b, a), treated, control)

    @compiled
    def behaviour(self, groups: Groups, weights: WeightFunction) -> Policy:
        treated, control = self.treated.act(groups.treated, weights), self.control.act(groups.control, weights)
        return GroupedPolicy(treated, control, self.num_treated(groups.leader))

    def prepare(
        self, groups: Groups, weights: WeightFunction, batch: Batch, progress: Float[Array, ""]
    ) -> tuple[Groups, UpdateData]:
        """What there is to learn for the treated, with that for the control group."""
        nothing = no_weights(self.control.num_terms)
        first = (self.group_of_each(groups.leader) == 0).astype(float)
        treated, data = self.treated.prepare(groups.treated, weights, batch, progress, first)
        control, control_data = self.control.prepare(groups.control, nothing, batch, progress, 1 - first)
        return groups._replace(treated=treated, control=control), data._replace(control=control_data)

    def learn(self, groups: Groups, upper: Any, data: UpdateData, key: PRNGKeyArray, hook: Hook) -> Learned:
        """The steps of the treated, with the hook, then those of the control group; and which leads from now on."""
        assert data.control is not None
        learned = self.treated.learn(groups.treated, upper, data._replace(control=None), key, hook)
        nothing, control_key = NoUpper(no_weights(self.control.num_terms)), jax.random.fold_in(key, 2**31)
        control = self.control.learn(groups.control, nothing, data.control, control_key, ALONE).learner
        groups = groups._replace(treated=learned.learner, control=control)
        groups, log = self.decide(groups, data.batch, data.progress)
        return learned._replace(learner=groups, log=learned.log | log)

    def empty_minibatch(self, weights: WeightFunction, jacobian: bool) -> Any:
        return self.treated.empty_minibatch(weights, jacobian)

    @compiled
    def decide(self, groups: Groups, batch: Batch, progress: Float[Array, ""]) -> tuple[Groups, dict[str, Array]]:
        groups = self.count_episodes(groups, batch)
        returns, now = groups.returns, progress >= TRIAL
        t, silent = returns.t, jnp.all(returns.var == 0) & (returns.mean[0] == returns.mean[1])
        due = (groups.leader == UNDECIDED) & now & returns.enough & ~silent
        treated_wins = (t > CLEAR) | (due & (t >= 0))
        control_wins = ~treated_wins & now & ((t < -CLEAR) | due)
        decided = treated_wins | control_wins
        leader = jnp.where(treated_wins, TREATED, jnp.where(control_wins, CONTROL, groups.leader))
        # Both go on from the winner: nothing is known of how they will differ.
        level = Returns.none(returns.mean[jnp.where(control_wins, 1, 0)])
        returns = jax.tree.map(lambda old, new: jnp.where(decided, new, old), returns, level)
        owner = jnp.where(decided | (self.group_of_each(leader) != self.group_of_each(groups.leader)), -1, groups.owner)
        groups = groups._replace(
            treated=choose(control_wins, give_policy(groups.control, groups.treated), groups.treated),
            control=choose(treated_wins, give_policy(groups.treated, groups.control), groups.control),
            leader=leader.astype(jnp.int32),
            returns=returns,
            owner=owner,
        )
        log = {"leader": leader, "lead_t": t, "treated_return": returns.mean[0], "control_return": returns.mean[1]}
        return groups, log

    def count_episodes(self, groups: Groups, batch: Batch) -> Groups:
        """Those that one group has acted in from beginning to end."""
        group = self.group_of_each(groups.leader)
        start = jnp.where(batch.restarted, 0.0, groups.running), jnp.where(batch.restarted, group, groups.owner)

        def add(carry: tuple[Array, Array], now: tuple[Array, Array]) -> tuple[Any, Any]:
            (running, owner), (reward, done) = carry, now
            total = running + reward
            return (jnp.where(done, 0.0, total), jnp.where(done, group, owner)), (total, owner)

        (running, owner), (totals, owners) = jax.lax.scan(add, start, (batch.reward, batch.done))
        ended = (batch.done & (owners == group))[..., None] & (group[:, None] == jnp.arange(2))
        return groups._replace(returns=groups.returns.update(totals, ended), running=running, owner=owner)


class NoUpper(NamedTuple):
    """The state of an upper level that does nothing."""

    weights: WeightFunction


def give_policy(giver: Learner, taker: Learner) -> Learner:
    """The taker with the giver's policy and critic of the true reward, which is the last of either's."""
    return taker._replace(
        policy=giver.policy,
        policy_optimiser=giver.policy_optimiser,
        critics=(*taker.critics[:-1], giver.critics[-1]),
        critic_optimisers=(*taker.critic_optimisers[:-1], giver.critic_optimisers[-1]),
        rate=giver.rate,
    )


def choose(condition: Bool[Array, ""], new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
