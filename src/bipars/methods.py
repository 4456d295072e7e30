"""Every method as one row: which learner, what weights the terms get, and who moves them.

An upper level is put together here as optimisers are in optax: an estimator, wrappers around it, a schedule that says
when phi steps, and wrappers around that. Adding a row does not touch the loop.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import jax
import optax

from bipars.errors import UsageError, unknown
from bipars.lower.base import LowerLevel
from bipars.lower.ddpg import DDPG
from bipars.lower.ppo import PPO
from bipars.lower.replay import bytes_per_transition
from bipars.nets.mlp import count_parameters
from bipars.nets.optimiser import adam, with_head_start
from bipars.nets.spaces import BoxActions, HasSpaces
from bipars.nets.weights import FORMS, make_weights
from bipars.settings.base import require
from bipars.settings.config import Config, DDPGConfig, PPOConfig, UpperConfig, WeightConfig
from bipars.shaping.dpba import LearnedPotential
from bipars.shaping.given import GivenPotential, Potential, Second, usual_potential
from bipars.shaping.potential_based import NoPotential, PotentialShaping
from bipars.terms.builtin import TORQUE_LIMIT, TorqueTerm, import_function
from bipars.terms.term import RewardTerm
from bipars.upper.base import Estimator, UpperLevel
from bipars.upper.baseline import Baseline
from bipars.upper.deterministic import (
    DeterministicIncremental,
    DeterministicMapping,
    DeterministicMetaGradient,
    MeasuredUnits,
)
from bipars.upper.em import ExplicitMapping
from bipars.upper.imgl import IncrementalMetaGradient
from bipars.upper.mgl import MetaGradient
from bipars.upper.noise_penalty import NoisePenalty
from bipars.upper.rcpo import Multiplier
from bipars.upper.schedule import ByRound, Deferred, Fixed, Interleaved
from bipars.upper.trust import EarnedTrust
from bipars.upper.unrolled import Unrolled

Form = Literal["state", "state-action", "per-action", "scalar"]
UpperBuilder = Callable[[Config, Any], UpperLevel]
"""From the resolved settings and the lower level."""


def fixed(config: Config, lower: LowerLevel) -> UpperLevel:
    return Fixed(lower)


@dataclass(frozen=True)
class Method:
    summary: str
    upper: UpperBuilder = fixed
    """Who moves phi; by default nobody."""
    learns_weights: bool = False
    """Whether phi learns from the true return, so that there must be a critic of it, and terms."""
    discrete_form: Form = "scalar"
    """What z depends on when actions are discrete ..."""
    continuous_form: Form = "scalar"
    """... and when they are continuous."""
    initial_weight: float | None = None
    """Weight of every term at the start; none takes the configured one."""
    settings: tuple[str, ...] = ()
    """Settings of `upper` that it has a use for."""
    simplex: bool = False
    """Weights of all terms sum to one."""
    shows_weights: bool = False
    """The policy takes z(s) as an input."""
    learning_rate: float | None = None
    """Step size of phi; none takes the preset of the term."""
    takes_cost: bool = False
    """It constrains the cost inside the torque term."""
    learned_potential: Callable[[Config], PotentialShaping] | None = None
    """Shaping by differences of a potential that is learned, on top of the weighted terms ..."""
    potential_takes: Second | None = None
    """... or of one that is given, and what it is given besides the observation."""
    needs_terms: bool = False
    """Meaningless without a reward term; every method that learns weights is."""
    learner: Literal["ppo", "ddpg"] = "ppo"
    """The lower level: a stochastic policy (settings `ppo`) or a deterministic one (`ddpg`)."""
    name: str = ""
    """Of a method that is given as an object."""

    @property
    def deterministic(self) -> bool:
        return self.learner == "ddpg"

    def lower(self, config: Config, spaces: HasSpaces, num_terms: int) -> LowerLevel:
        learns = self.learns_weights and config.weights_from is None
        if self.deterministic:
            return DDPG(
                config.ddpg, spaces, num_terms, learns, self.shows_weights, config.ddpg.weight_jitter, config.threads
            )
        holds = config.weights_from is not None
        relative = config.upper.relative_value_loss
        return PPO(config.ppo, spaces, num_terms, learns, self.shows_weights, relative, holds, config.threads)

    def shaping(self, config: Config, given: Potential | None) -> PotentialShaping:
        """How a potential shapes the reward; `given` is the user's, where the method takes one."""
        if self.learned_potential is not None:
            return self.learned_potential(config)
        if self.potential_takes is None or given is None:
            return NoPotential()
        return GivenPotential(
            config.method, given, self.potential_takes, config.ppo, correct=self.potential_takes == "action"
        )

    def prepare_terms(self, name: str, terms: tuple[RewardTerm, ...]) -> tuple[RewardTerm, ...]:
        """The terms as the method uses them: a constrained method takes the cost inside the term."""
        if not self.takes_cost:
            return terms
        if len(terms) != 1 or not isinstance(terms[0], TorqueTerm):
            given = [term.name for term in terms]
            raise UsageError(f"method '{name}' constrains the torque: give it the one term 'torque', not {given}")
        return (terms[0].as_cost(),)


def weights_adam(config: Config) -> optax.GradientTransformation:
    weights = config.weights
    assert weights.learning_rate is not None
    # IMGL's gradients carry alpha, 1e-4: Adam's usual 1e-8 would not be small beside them.
    rate = with_head_start(weights.learning_rate, weights.head_start)
    return adam(rate, weights.max_grad_norm, eps=1e-16)


def discount(config: Config) -> float:
    """How much of later weighted terms an action is credited with, from step to step."""
    return config.ppo.gamma * (config.ppo.gae_lambda if config.upper.horizon == "gamma-lambda" else 1.0)


FEW_STEPS, FEW_MINIBATCHES = 64, 24
"""Steps of a round, and minibatches in its batch, up to which MGL's phi had better step after theta: it then takes
products of matrices over the whole batch, with one row per step, where it would else fetch rows of m numbers."""


def through_advantages(config: Config, lower: PPO, estimator: Any, memory: float = 0.0) -> UpperLevel:
    """phi learns by how modified advantages move with it. These can have a baseline, and the policy can do without
    them: so terms can be made to earn trust. `memory`: see `NoisePenalty`."""
    ppo, upper = config.ppo, config.upper
    remembers_nothing = isinstance(estimator, MetaGradient)
    if upper.noise_penalty:
        estimator = NoisePenalty(estimator, upper.noise_penalty, memory)
    optimiser, later = weights_adam(config), discount(config)
    if upper.sampling == "round":
        return ByRound(lower, estimator, optimiser, later)
    few = ppo.gradient_steps <= FEW_STEPS and ppo.update_period <= FEW_MINIBATCHES * ppo.batch_size
    follow = bool(upper.follow_weights)
    level: UpperLevel
    if remembers_nothing and few and config.weights.form != "scalar" and not follow:
        level = Deferred(lower, estimator, optimiser, later)
    else:
        level = Interleaved(lower, estimator, optimiser, later, follow)
    if upper.earned_trust:
        level = EarnedTrust(level, ppo.num_envs, later, config.threads)
    return Baseline(level, ppo.num_envs, later) if upper.baseline else level


def mgl(config: Config, lower: PPO) -> UpperLevel:
    return through_advantages(config, lower, MetaGradient(lower.objective))


def imgl(config: Config, lower: PPO) -> UpperLevel:
    memory = config.upper.memory
    rate, second_order = config.ppo.policy_learning_rate, config.upper.second_order
    return through_advantages(
        config, lower, IncrementalMetaGradient(lower.objective, rate, second_order, memory), memory
    )


def unrolled(config: Config, lower: PPO) -> UpperLevel:
    ppo, length = config.ppo, config.upper.unroll
    estimator = Unrolled(lower.objective, ppo.policy_learning_rate, ppo.max_grad_norm, length)
    return through_advantages(config, lower, estimator, memory=1 - 1 / length)


def em(config: Config, lower: PPO) -> UpperLevel:
    estimator = ExplicitMapping(lower.objective)
    if config.upper.sampling == "round":
        return ByRound(lower, estimator, weights_adam(config), discount(config))
    return Interleaved(lower, estimator, weights_adam(config))


def rcpo(config: Config, lower: PPO) -> UpperLevel:
    return Multiplier(lower, TORQUE_LIMIT)


def deterministic(estimator: Callable[[DDPGConfig], Estimator]) -> UpperBuilder:
    def build(config: Config, lower: DDPG) -> UpperLevel:
        restarts = estimator is deterministic_imgl and config.ddpg.second_order == "constant-critic"
        return MeasuredUnits(Interleaved(lower, estimator(config.ddpg), weights_adam(config), restarts=restarts))

    return build


def deterministic_imgl(settings: DDPGConfig) -> Estimator:
    return DeterministicIncremental(settings.policy_learning_rate, settings.second_order, settings.noise_penalty)


DETERMINISTIC_LEARNING_RATE = 1e-4
"""Step size of phi over DDPG, which takes many more steps than PPO: at 5e-4 the weights outrun the policy."""

ROUND_SETTINGS = ("sampling", "relative_value_loss")
ADVANTAGE_SETTINGS = (*ROUND_SETTINGS, "horizon", "baseline", "follow_weights", "noise_penalty", "earned_trust")

METHODS: dict[str, Method] = {
    "ppo": Method("no shaping: the true reward alone", initial_weight=0.0),
    "ns": Method("naive shaping: every term counts fully, everywhere", initial_weight=1.0),
    "em": Method(
        "explicit mapping: the policy takes z(s) as an input",
        em,
        learns_weights=True,
        discrete_form="per-action",
        continuous_form="state",
        settings=ROUND_SETTINGS,
        shows_weights=True,
    ),
    "mgl": Method(
        "meta-gradient learning: through the last policy step",
        mgl,
        learns_weights=True,
        discrete_form="per-action",
        continuous_form="state-action",
        settings=ADVANTAGE_SETTINGS,
    ),
    "imgl": Method(
        "incremental meta-gradient learning: through all policy steps",
        imgl,
        learns_weights=True,
        discrete_form="per-action",
        continuous_form="state-action",
        settings=(*ADVANTAGE_SETTINGS, "second_order", "memory"),
    ),
    "unrolled": Method(
        "unrolled differentiation: through the last K policy steps as they were taken, Adam included",
        unrolled,
        learns_weights=True,
        discrete_form="per-action",
        continuous_form="state-action",
        settings=(*ADVANTAGE_SETTINGS[1:], "unroll"),
    ),
    "single": Method(
        "one weight per term, the same in every state, learned by meta-gradient",
        mgl,
        learns_weights=True,
        settings=ADVANTAGE_SETTINGS,
        learning_rate=1e-2,
    ),
    "simplex": Method(
        "as single, but the weights of the terms are positive and sum to one",
        mgl,
        learns_weights=True,
        settings=ADVANTAGE_SETTINGS,
        learning_rate=1e-2,
        simplex=True,
    ),
    "rcpo": Method(
        "reward constrained policy optimisation: a Lagrange multiplier keeps the mean torque below 0.25",
        rcpo,
        initial_weight=0.0,
        takes_cost=True,
    ),
    "dpba": Method(
        "dynamic potential-based advice: a potential whose differences are the terms, learned from them",
        initial_weight=0.0,
        learned_potential=lambda config: LearnedPotential(config.dpba, config.ppo),
        needs_terms=True,
    ),
    "pbrs": Method(
        "potential-based reward shaping: differences of a potential of the state",
        initial_weight=0.0,
        potential_takes="nothing",
    ),
    "pba": Method(
        "potential-based advice: a potential of state and action, whose pull on the policy is taken out again",
        initial_weight=0.0,
        potential_takes="action",
    ),
    "dynamic-pbrs": Method(
        "dynamic potential-based shaping: a potential that changes while the agent learns",
        initial_weight=0.0,
        potential_takes="step",
    ),
    "ddpg": Method("deterministic policy, no shaping", initial_weight=0.0, learner="ddpg"),
    "ddpg-ns": Method("deterministic policy, naive shaping", initial_weight=1.0, learner="ddpg"),
    "ddpg-em": Method(
        "deterministic policy, explicit mapping",
        deterministic(lambda settings: DeterministicMapping()),
        learns_weights=True,
        continuous_form="state",
        shows_weights=True,
        learning_rate=DETERMINISTIC_LEARNING_RATE,
        learner="ddpg",
    ),
    "ddpg-mgl": Method(
        "deterministic policy, meta-gradient learning",
        deterministic(lambda settings: DeterministicMetaGradient(settings.noise_penalty)),
        learns_weights=True,
        continuous_form="state",
        learning_rate=DETERMINISTIC_LEARNING_RATE,
        learner="ddpg",
    ),
    "ddpg-imgl": Method(
        "deterministic policy, incremental meta-gradient learning",
        deterministic(deterministic_imgl),
        learns_weights=True,
        continuous_form="state",
        learning_rate=DETERMINISTIC_LEARNING_RATE,
        learner="ddpg",
    ),
}

TERM_LEARNING_RATES = {"beneficial": 1e-5}
"""Step size of phi where the paper gives one for the term's experiment; 5e-4 everywhere else."""
DEFAULT_LEARNING_RATE = 5e-4
MOST_STEPS_IN_ONE = 50
"""Sampling mode `round`: by how much its default step of phi is larger, at most."""


def find_method(name: "str | Method") -> Method:
    """A row of the table by its name, or a method of one's own: the object, or import:module.thing."""
    if isinstance(name, Method):
        return name
    if not isinstance(name, str):
        raise UsageError(f"method is {name!r:.80}; expected a name, such as 'mgl', or a bipars.Method")
    if name.startswith(IMPORT):
        return _imported_method(name)
    if name not in METHODS:
        raise unknown("method", name, (*METHODS, "import:MODULE.METHOD"))
    return METHODS[name]


IMPORT = "import:"


def _imported_method(name: str) -> Method:
    try:
        found = import_function(name.removeprefix(IMPORT))
    except ValueError as error:
        raise UsageError(f"method '{name}' cannot be imported: {error}") from error
    if not isinstance(found, Method):
        raise UsageError(f"method '{name}' is {found!r:.80}; expected a bipars.Method")
    return found


def check_upper(name: str, upper: Any) -> UpperLevel:
    """That what a method has built is an upper level."""
    for verb in ("init", "update"):
        if not callable(getattr(upper, verb, None)):
            raise UsageError(
                f"method '{name}' builds {upper!r:.80}, which has no {verb}(); an upper level has "
                "init(weights, learner) and update(state, learner, data, key): see bipars/upper/base.py"
            )
    return upper


def resolve(config: Config, env: HasSpaces) -> Config:
    """The configuration with every `auto` and `none` replaced by what it stands for here."""
    method = find_method(config.method)
    if method.deterministic:
        config = resolve_deterministic(config, env)
    else:
        refuse_idle(f"method '{config.method}' trains PPO", "ddpg", config.ddpg, DDPGConfig(), "those of ppo and upper")
    weights = config.weights
    form = weights.form
    if form == "auto":
        form = method.continuous_form if isinstance(env.actions, BoxActions) else method.discrete_form
    elif form not in FORMS:
        raise unknown("weights.form", form, (*FORMS, "auto"))
    if form == "per-action" and isinstance(env.actions, BoxActions):
        others = "'state' or 'scalar'" if method.shows_weights else "'state-action', 'state' or 'scalar'"
        raise UsageError(
            f"weights.form 'per-action' needs discrete actions; those of '{config.env}' are continuous. Use {others}"
        )
    if method.shows_weights and form == "state-action":
        raise UsageError(
            f"method '{config.method}' shows the policy z(s) before an action is chosen; "
            "weights.form 'state-action' does not have that. Use 'state', 'per-action' or 'scalar'"
        )
    if not config.terms and (method.learns_weights or method.needs_terms):
        raise UsageError(f"method '{config.method}' learns from reward terms; give at least one term")
    follows_every_step = method.learns_weights and not method.deterministic and "sampling" not in method.settings
    if follows_every_step and config.upper.sampling == "round":
        raise UsageError(
            f"method '{config.method}' follows every step of theta; upper.sampling is 'round', expected 'interleaved'"
        )
    if method.learns_weights and config.upper.sampling == "round" and config.num_updates < 2:
        raise UsageError(
            f"total_steps is {config.total_steps}, one update of {config.ppo.update_period}; upper.sampling 'round' "
            "learns from the batch after an update, so it needs two"
        )
    potential = config.potential
    if method.potential_takes is None and potential is not None:
        takers = [name for name, row in METHODS.items() if row.potential_takes is not None]
        raise UsageError(
            f"method '{config.method}' uses no potential; got '{potential}'. Use one of {', '.join(takers)}"
        )
    if method.potential_takes is not None and potential is None:
        potential = usual_potential(config.env, method.potential_takes)
        if potential is None:
            raise UsageError(
                f"method '{config.method}' needs a potential: --potential import:module.function, or "
                "potential=bipars.Potential(...) in Python"
            )
    initial = weights.initial if method.initial_weight is None else method.initial_weight
    rate = method.learning_rate or preset_learning_rate(config.terms)
    if config.upper.sampling == "round":
        # One step of phi per round has to go as far as one after each of theta's, within reason.
        rate *= min(config.ppo.gradient_steps, MOST_STEPS_IN_ONE)
        weights = replace(weights, head_start=0.0)
    rate = weights.learning_rate or rate
    if not method.learns_weights:
        weights = replace(weights, low=None, high=None)  # the weight is the method's own, and bounds would move it
    weights = replace(weights, form=form, learning_rate=rate, initial=initial)
    if method.simplex or weights.simplex:
        learners = "'ddpg-em' or 'ddpg-mgl'" if method.deterministic else "'simplex' or 'mgl'"
        if not method.learns_weights:
            raise UsageError(
                f"weights.simplex is for methods that learn weights; '{config.method}' does not. Use {learners}"
            )
        if len(config.terms) < 2:
            raise UsageError(
                f"weights that sum to one need two terms or more; terms are {list(config.terms)}. "
                f"With one term its weight is always 1: method '{'ddpg-ns' if method.deterministic else 'ns'}'"
            )
        weights = replace(weights, simplex=True, low=None, high=None)
    weights = replace(weights, measured_unit=_measures_unit(config, method, weights))
    low, high = (
        (-math.inf if weights.low is None else weights.low),
        (math.inf if weights.high is None else weights.high),
    )
    require(low <= initial <= high, "weights.initial", initial, f"a number from {low} to {high}")
    if method.takes_cost and form != "scalar":
        raise UsageError(f"method '{config.method}' has one multiplier; weights.form is '{form}', expected 'scalar'")
    if "unroll" in method.settings:
        check_unrolled(config, weights, env)
    upper = config.upper
    if upper.follow_weights is None and not method.deterministic:
        # Past its bound a weight no longer moves, so advantages had better not follow it there.
        upper = replace(upper, follow_weights=weights.low is None and weights.high is None)
    return replace(config, weights=weights, potential=potential, upper=upper)


def _measures_unit(config: Config, method: Method, weights: WeightConfig) -> bool:
    possible = method.deterministic and method.learns_weights and not weights.simplex
    if weights.measured_unit and not possible:
        raise UsageError(
            f"weights.measured_unit: method '{config.method}' measures no unit of its weights; that is for methods "
            "with deterministic policies, such as 'ddpg-mgl', without weights.simplex"
        )
    return possible and weights.measured_unit is not False


MOST_UNROLLED = 4 * 2**30
"""Bytes that the steps kept by `unrolled` may take."""


def check_unrolled(config: Config, weights: WeightConfig, env: HasSpaces) -> None:
    """Refuses more steps than the run has, or than memory holds."""
    length, taken = config.upper.unroll, config.num_updates * config.ppo.gradient_steps
    require(length <= taken, "upper.unroll", length, f"at most {taken}, the policy steps of {config.total_steps} steps")
    made = jax.eval_shape(lambda: make_weights(jax.random.key(0), weights, env, len(config.terms)))
    size = 4 * length * config.ppo.batch_size * (count_parameters(made) + env.observation_size)
    fits = length * MOST_UNROLLED // max(size, 1)
    require(
        size <= MOST_UNROLLED, "upper.unroll", length, f"at most {fits}: the steps kept take {size / 2**30:.0f} GiB"
    )


CHECKPOINT_BYTES = 64 * 2**20
"""What the replay may take of a checkpoint by default."""
MOST_REMEMBERED = 2**31 - 1
"""Transitions that can be counted."""


def refuse_idle(why: str, room: str, given: Any, usual: Any, instead: str) -> None:
    """A setting of the other kind of lower level is a mistake."""
    for field in fields(given):
        value = getattr(given, field.name)
        if value != getattr(usual, field.name):
            raise UsageError(f"{why}; {room}.{field.name} is {value!r} and has no effect. Use {instead}")


def resolve_deterministic(config: Config, env: HasSpaces) -> Config:
    """What only concerns methods with a deterministic policy."""
    name, method = config.method, find_method(config.method)
    if not isinstance(env.actions, BoxActions):
        raise UsageError(
            f"method '{name}' has a deterministic policy and needs continuous actions; environment '{config.env}' has "
            f"{env.actions.n} discrete ones. Use '{name.removeprefix('ddpg').removeprefix('-') or 'ppo'}'"
        )
    for room, given, usual in (("ppo", config.ppo, PPOConfig()), ("upper", config.upper, UpperConfig())):
        refuse_idle(f"method '{name}' trains DDPG", room, given, usual, "those of ddpg")
    if method.learns_weights and config.weights.form not in ("auto", "state", "scalar"):
        raise UsageError(
            f"method '{name}' shows z(s) to a network before an action is chosen; weights.form is "
            f"'{config.weights.form}', expected 'state' or 'scalar'"
        )
    require(
        math.ceil(config.ddpg.warmup_steps / config.ddpg.update_period) <= config.num_updates,
        "ddpg.warmup_steps",
        config.ddpg.warmup_steps,
        f"at most the {config.whole_steps} steps of the run, which would else end before anything is learned",
    )
    capacity = config.ddpg.replay_capacity
    if capacity is None:
        size = bytes_per_transition(env.observation_size, env.actions.size, len(config.terms))
        remembered = min(config.num_updates * config.ddpg.update_period, CHECKPOINT_BYTES // size)
        capacity = max(remembered, config.ddpg.update_period)
    require(capacity <= MOST_REMEMBERED, "ddpg.replay_capacity", capacity, f"at most {MOST_REMEMBERED} transitions")
    return replace(config, ddpg=replace(config.ddpg, replay_capacity=capacity))


def preset_learning_rate(terms: tuple[str, ...]) -> float:
    """The paper's step size of phi for its experiment with this one term, else the faster default."""
    names = {spec.partition(":")[0] for spec in terms}
    return TERM_LEARNING_RATES.get(names.pop(), DEFAULT_LEARNING_RATE) if len(names) == 1 else DEFAULT_LEARNING_RATE
