"""The upper level over Stable-Baselines3's PPO: from a rollout to modified advantages, and phi along with theta.

As `bipars.upper.evidence` and `bipars.upper.mgl`, without a control group side by side: one number per term follows the
evidence, and a network that says where weights deviate from it takes a step of meta-gradient learning after every pass
of theta over the batch. A pass is taken for one step on the whole batch; half of the samples say how theta' depends on
phi, the other half what the true return makes of it.
"""

import copy
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array, Float
from torch import Tensor

from bipars.envs import spaces
from bipars.lower.advantages import (
    ANY,
    Scales,
    TermAdvantages,
    advantages_by_values,
    counted,
    critics_rewards,
    term_advantages,
)
from bipars.lower.control import CONTROL, TREATED
from bipars.methods import discount
from bipars.nets.mlp import to_numpy
from bipars.nets.running import ReturnScale, RunningMoments
from bipars.nets.spaces import Spaces
from bipars.nets.weights import WeightFunction
from bipars.rollout.batch import Batch
from bipars.sb3.critics import LEARNING_RATE, PIECE, Critics
from bipars.sb3.meta_gradient import LogProbability, Samples, advantage_cotangent, true_gradient, weights_gradient
from bipars.sb3.rollout import Rollout
from bipars.sb3.weights import Weights, numpy
from bipars.settings.resolved import ResolvedConfig
from bipars.terms.call import pick
from bipars.terms.steps import StepSpaces
from bipars.upper.evidence import PARTS, Evidence, Found, best_weights, evidence_log, with_means
from bipars.wrappers.term_logger import stack


class Knowledge(NamedTuple):
    """All that is learned of the terms, without what belongs to PyTorch's optimisers; a checkpoint holds this."""

    weights: WeightFunction
    evidence: Evidence
    observations: RunningMoments | None
    returns: RunningMoments
    terms: RunningMoments
    low: Float[Array, " reward"]
    high: Float[Array, " reward"]
    heard: np.ndarray
    """Whether the true gradient was ever told from noise."""
    leader: np.ndarray
    """Who acts: the policy that uses the terms, or the one that goes without until there is evidence for them."""


class Advantages(NamedTuple):
    modified: Float[Array, "time env"]
    modified_target: Float[Array, "time env"]
    true: Float[Array, " sample"]
    targets: Float[Array, "sample reward"]
    by_term: TermAdvantages
    scales: Scales
    true_explained_variance: Float[Array, ""]


class Round(NamedTuple):
    """What the gradient steps of one round are taken on. Samples have time and environment on one axis."""

    obs: Any
    """As the policy sees them."""
    actions: Tensor
    log_prob: Tensor
    modified: Tensor
    true: Tensor
    targets: np.ndarray
    """Of the critics."""
    weight_obs: Tensor
    """(time, env, obs): as the weight function sees them."""
    weight_action: Tensor
    terms: Tensor
    """(time, env, term), in units of the modified advantages."""
    done: Tensor

    def samples(self, index: Tensor) -> Iterator[Samples]:
        for part in index.split(PIECE):
            yield Samples(
                pick(self.obs, part), *(x[part] for x in (self.actions, self.log_prob, self.modified, self.true))
            )


class UpperLevel:
    """phi, what is known of the terms, and the critics that both need."""

    def __init__(self, config: ResolvedConfig, single: StepSpaces, critics: Critics, device: torch.device) -> None:
        self.config, self.spaces, self.critics = config, single, critics.to(device)
        self.num_terms, envs, rewards = len(config.terms), config.ppo.num_envs, len(config.terms) + 3
        self.weights = Weights(config.weights, Spaces(self.observation_size, single.actions), self.num_terms).to(device)
        self.critics_optimizer = torch.optim.Adam(self.critics.parameters(), LEARNING_RATE, eps=1e-5, fused=True)
        self.weights_optimizer = torch.optim.Adam(
            self.weights.deviation.parameters(), config.weights.learning_rate, eps=1e-16, fused=True
        )
        self.evidence = Evidence.none(self.num_terms)
        self.moments = None if config.weights.form == "scalar" else RunningMoments.fresh((self.observation_size,))
        least = jnp.full(rewards, ANY, jnp.float32)
        moments = RunningMoments.fresh((self.num_terms,))
        self.scales = Scales(None, ReturnScale.fresh(envs, rewards), least, -least, moments)
        self.known = True
        """Whether the true gradient is told from noise, so that phi has something to climb ..."""
        self.heard = np.zeros((), bool)
        """... and whether it ever was."""
        self.leader = np.asarray(TREATED, np.int32)
        self._acting = TREATED
        self._waiting: tuple[Any, Any] | None = None
        self.gradient_norms: list[float] = []
        self._theta: dict[str, Tensor] = {}

    @property
    def observation_size(self) -> int:
        return spaces.observation_size(self.spaces.observation_space)

    @property
    def device(self) -> torch.device:
        return self.critics.device

    @property
    def by_evidence(self) -> bool:
        return self.config.weights.by_evidence

    @property
    def climbs(self) -> bool:
        if self.by_evidence:
            return self.known and self.config.weights.form != "scalar"
        return self.config.learns_weights

    # From a rollout to advantages

    def flat(self, rollout: Rollout) -> tuple[np.ndarray, np.ndarray]:
        """Observations and actions as the weight function takes them; nothing of images that it does not look at."""
        time, envs = rollout.done.shape
        action = spaces.policy_action(self.spaces.action_space, rollout.action)
        if self.moments is None and self.observation_size > MOST_INPUTS:
            return np.zeros((time, envs, 0), np.float32), action
        return spaces.flatten(self.spaces.observation_space, stack(rollout.obs), lead=2), action

    def weigh(self, flat: np.ndarray, action: np.ndarray) -> tuple[Tensor, Tensor, np.ndarray]:
        """What the weight function is given, and z: (time, env, term)."""
        seen = flat if self.moments is None else np.asarray(to_numpy(self.moments).normalise(flat))  # type: ignore[arg-type]
        obs, chosen = torch.as_tensor(seen, device=self.device), torch.as_tensor(action, device=self.device)
        with torch.no_grad():
            z = self.weights(obs.flatten(0, 1), chosen.flatten(0, 1))
        return obs, chosen, z.reshape(*flat.shape[:2], -1).cpu().numpy()

    def advantages(self, rollout: Rollout, obs: Any, last_obs: Any, z: np.ndarray, restarted: bool) -> Advantages:
        """`obs` and `last_obs` as the policy sees them, the former with time and environment on one axis."""
        shape = rollout.done.shape
        value = self.critics.values(obs).reshape(*shape, -1)
        following = np.concatenate([value[1:], self.critics.values(last_obs)[None]])
        for time, env, final in rollout.truncations:
            single = {key: x[None] for key, x in final.items()} if isinstance(final, dict) else np.asarray(final)[None]
            following[time, env] = self.critics.values(single)[0]
        base = self.weights.base.cpu().numpy()
        deviation = np.sum((z - base) * rollout.terms, axis=-1, keepdims=True)
        batch = bare_batch(rollout, restarted)
        found = compute_advantages(self.config.ppo, value, following, self.scales, batch, deviation, base)
        self.scales = found.scales
        return found

    def update_moments(self, flat: np.ndarray) -> None:
        if self.moments is not None:
            self.moments = update_moments(self.moments, flat.reshape(-1, flat.shape[-1]))

    # One number per term, by evidence

    def hear(self, log_prob: LogProbability, round: Round, by_term: TermAdvantages, progress: float) -> dict[str, Any]:
        """What the round's gradients say of each term; from the next round on, the weights that follow.

        A term may hide the true reward altogether. While that was never seen, a policy that uses the terms and one that
        does not take turns; whoever sees it first goes on. `progress` is the share of the run that is over.
        """
        if self.by_evidence and bool(by_term.silent):
            self.leader = np.asarray(CONTROL if int(progress / TURN) % 2 else TREATED, np.int32)
        gradients = part_gradients(log_prob, round, by_term)
        held = numpy(self.weights.base / self.weights.unit)
        self.evidence, found = add_evidence(
            self.evidence, gradients, by_term, self.config.weights.initial, self.leader, held, self.heard
        )
        self.known = bool(found.known)
        self.heard = np.asarray(self.heard | self.known)
        if self.by_evidence:
            self._next = found
        log = {name: np.asarray(t) for name, t in evidence_log(self.evidence).items()}
        return log | {"evidence_added": np.any(np.asarray(gradients)[:, 0] != 0).astype(float)}

    _next: Found | None = None

    def finish(self, policy: Any) -> None:
        """The weights of the next round, and who acts in it."""
        if self.leader != self._acting:
            acted, self._acting = parameters_of(policy), int(self.leader)
            if self._waiting is not None:
                policy.load_state_dict(self._waiting[0])
                policy.optimizer.load_state_dict(self._waiting[1])
            self._waiting = acted
        if self._next is not None:
            with torch.no_grad():
                self.weights.base.copy_(torch.as_tensor(np.array(self._next.weights)))
                self.weights.unit.copy_(torch.as_tensor(np.array(self._next.unit)))
            self._next = None

    # Where weights deviate from it, by meta-gradient

    def begin(self, policy: Any, log_prob: LogProbability) -> None:
        """Theta, before it takes the steps of a round."""
        if self._waiting is None:
            self._waiting = parameters_of(policy)
        self._theta = log_prob.theta() if self.climbs else {}
        self.gradient_norms = []

    def step(self, log_prob: LogProbability, round: Round, clip: float) -> None:
        """One step of phi, after a pass of theta over the batch."""
        if not self.climbs:
            return
        theta = log_prob.theta()
        order = torch.randperm(len(round.log_prob), device=self.device)
        half = len(order) // 2
        heard, taken = order[:half], order[half:]
        v = true_gradient(log_prob, theta, round.samples(heard), clip, len(heard))
        some = advantage_cotangent(log_prob, self._theta, round.samples(taken), v, clip, len(taken))
        cotangent = torch.zeros_like(round.log_prob)
        cotangent[taken] = some
        parameters = list(self.weights.deviation.parameters())
        gradients = weights_gradient(
            self.weights.deviation,
            parameters,
            round.weight_obs,
            round.weight_action,
            round.terms,
            round.done,
            cotangent.reshape(round.done.shape),
            discount(self.config),
        )
        self._ascend(parameters, gradients)
        self._theta = theta

    def _ascend(self, parameters: list[Any], gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = -gradient
        limit = self.config.weights.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(parameters, float("inf") if limit is None else limit)
        self.gradient_norms.append(float(norm))
        self.weights_optimizer.step()

    # Checkpoints

    @property
    def knowledge(self) -> Knowledge:
        _, returns, low, high, terms = self.scales
        assert returns is not None
        assert terms is not None
        weights = self.weights.as_tree()
        return Knowledge(
            weights, self.evidence, self.moments, returns.moments, terms, low, high, self.heard, self.leader
        )

    def take(self, knowledge: Knowledge) -> None:
        assert self.scales.returns is not None
        self.weights.take(knowledge.weights)
        self.evidence, self.moments = jax.tree.map(jnp.asarray, (knowledge.evidence, knowledge.observations))
        returns = self.scales.returns._replace(moments=jax.tree.map(jnp.asarray, knowledge.returns))
        others = jax.tree.map(jnp.asarray, (knowledge.low, knowledge.high, knowledge.terms))
        self.scales = Scales(None, returns, *others)
        self.heard, self.leader = np.asarray(knowledge.heard), np.asarray(knowledge.leader)
        self._acting = int(self.leader)


TURN = 0.1
"""Share of the run for which a policy acts before it is the other's turn."""
MOST_INPUTS = 2048
"""Numbers of an observation beyond which weights are the same everywhere, unless another form is asked for."""


def parameters_of(policy: Any) -> tuple[Any, Any]:
    """A copy of all that training changes of a policy of Stable-Baselines3."""
    return copy.deepcopy((policy.state_dict(), policy.optimizer.state_dict()))


def bare_batch(rollout: Rollout, restarted: bool) -> Batch:
    """As much of a batch as rewards are computed from."""
    nothing: Any = None
    fields: Any = (rollout.reward, rollout.terminated, rollout.done, rollout.terms, np.asarray(restarted))
    return Batch(nothing, nothing, nothing, nothing, *fields)


update_moments = jax.jit(RunningMoments.update)


@functools.partial(jax.jit, static_argnums=0)
def compute_advantages(
    ppo: Any,
    value: Float[Array, "time env reward"],
    next_value: Float[Array, "time env reward"],
    scales: Scales,
    batch: Batch,
    deviation: Float[Array, "time env 1"],
    base: Float[Array, " term"],
) -> Advantages:
    """Of the true reward, of every term and of all together: advantages add up as rewards do."""
    rewards, scales = critics_rewards(scales, batch, deviation)
    advantage, target, unit, newer = advantages_by_values(ppo, value, next_value, scales, batch, rewards)
    counts = counted(base, scales) * unit
    each = advantage.reshape(-1, advantage.shape[-1])
    by_term = term_advantages(each, jnp.std(each[:, -1]), unit, newer, batch)
    unexplained = jnp.var(each[:, -1]) / (jnp.var(target[..., -1]) + 1e-8)
    targets = target.reshape(-1, target.shape[-1])
    return Advantages(advantage @ counts, target @ counts, each[:, -1], targets, by_term, newer, 1 - unexplained)


@jax.jit
def add_evidence(
    evidence: Evidence,
    gradients: Float[Array, "part reward theta"],
    by_term: TermAdvantages,
    initial: float,
    leader: np.ndarray,
    held: Float[Array, " term"],
    heard: np.ndarray,
) -> tuple[Evidence, Found]:
    """The evidence after one more batch, and the weights that follow from it."""
    gradients, beyond = with_means(gradients, by_term.offset)
    evidence = evidence.add(gradients, jnp.ones(len(gradients)), beyond)
    return evidence, best_weights(evidence, by_term, initial, jnp.asarray(leader), held, jnp.asarray(heard))


def part_gradients(log_prob: LogProbability, round: Round, by_term: TermAdvantages) -> np.ndarray:
    """(part, reward, ...): policy gradients of the true reward, every term and the length, of each part of the batch.

    The last axis is as short as it may be: what counts of them are their inner products, and R of QR has the same.
    """
    columns = by_term.true[:, None], by_term.terms, by_term.length[:, None]
    signals = np.concatenate([np.asarray(column) for column in columns], axis=1)
    wanted = torch.as_tensor(signals, device=round.log_prob.device)
    theta = [parameter for parameter in log_prob.parameters() if parameter.requires_grad]
    found = []
    for index in map(torch.as_tensor, split_in_parts(*round.done.shape)):
        total: Any = 0.0
        for samples, part in zip(round.samples(index), index.split(PIECE), strict=True):
            value, each = log_prob(samples.obs, samples.action), wanted[part].T / len(index)
            gradients = torch.autograd.grad(value, theta, each, is_grads_batched=True, allow_unused=True)
            total = total + torch.cat([g.flatten(1) for g in gradients if g is not None], dim=1)
        found.append(total)
    flat = torch.cat(found).T
    short = torch.linalg.qr(flat, mode="r").R.T
    return short.reshape(len(found), signals.shape[1], -1).cpu().numpy()


def split_in_parts(time: int, envs: int) -> list[np.ndarray]:
    """Stretches of time in some of the environments, as samples of the batch; a rest is left out."""
    groups = np.array_split(np.arange(envs), min(envs, PARTS))
    count = min(time, -(-PARTS // len(groups)))
    length = time // count
    stretches = [np.arange(i * length, (i + 1) * length) for i in range(count)]
    return [(stretch[:, None] * envs + group[None]).reshape(-1) for group in groups for stretch in stretches]


def normalised(advantage: Float[Array, "..."]) -> tuple[np.ndarray, float]:
    """Zero-mean and unit-variance, flat; and what it was divided by."""
    flat = np.asarray(advantage, np.float32).reshape(-1)
    std = float(flat.std()) + 1e-8
    return (flat - flat.mean()) / std, std
