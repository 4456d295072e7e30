"""Every method as one row: which learner, what weights the terms get, and who moves them.

An upper level is put together here as optimisers are in optax: an estimator, a schedule that says when phi steps, and
wrappers around the schedule. Adding a row does not touch the loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import optax

from bipars.errors import UsageError, unknown
from bipars.lower.base import LowerLevel
from bipars.lower.control import ControlGroup
from bipars.lower.ddpg import DDPG
from bipars.lower.ppo import PPO
from bipars.nets.optimiser import adam
from bipars.nets.spaces import HasSpaces
from bipars.settings.config import Config
from bipars.settings.importing import IMPORT
from bipars.settings.resolved import Form, ResolvedConfig
from bipars.shaping.dpba import LearnedPotential
from bipars.shaping.given import GivenPotential, Potential, Second
from bipars.shaping.potential_based import NoPotential, PotentialShaping
from bipars.terms.builtin import TORQUE_LIMIT, TorqueTerm, import_function
from bipars.terms.term import RewardTerm
from bipars.upper.base import Estimator, UpperLevel
from bipars.upper.deterministic import (
    DeterministicIncremental,
    DeterministicMapping,
    DeterministicMetaGradient,
    MeasuredUnits,
)
from bipars.upper.em import ExplicitMapping
from bipars.upper.evidence import WeightsByEvidence
from bipars.upper.hepo import ImprovementMultiplier, PolicyPair
from bipars.upper.imgl import IncrementalMetaGradient
from bipars.upper.mgl import MetaGradient
from bipars.upper.rcpo import Multiplier
from bipars.upper.schedule import ByRound, Deferred, Fixed, Interleaved
from bipars.upper.unrolled import Unrolled

UpperBuilder = Callable[[ResolvedConfig, Any], UpperLevel]
"""From the resolved settings and the lower level."""
LowerBuilder = Callable[[ResolvedConfig, HasSpaces, int], LowerLevel]
"""From the resolved settings, the spaces and the number of terms."""


def fixed(config: ResolvedConfig, lower: LowerLevel) -> UpperLevel:
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
    own_lower: LowerBuilder | None = None
    """A lower level of the method's own, put together from these."""
    usual: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings that the method starts from, whatever the preset says, by part."""
    name: str = ""
    """Of a method that is given as an object."""

    @property
    def deterministic(self) -> bool:
        return self.learner == "ddpg"

    def lower(self, config: ResolvedConfig, spaces: HasSpaces, num_terms: int) -> LowerLevel:
        if self.own_lower is not None:
            return self.own_lower(config, spaces, num_terms)
        learns = self.learns_weights and config.weights_from is None
        if self.deterministic:
            return DDPG(config.ddpg, spaces, num_terms, learns, self.shows_weights)
        if learns and config.upper.control_group:
            check_two_act(config, ", or upper.control_group False")
            control = PPO(config.ppo, spaces, num_terms, threads=config.threads)
            treated = replace(control, learns_weights=True, per_term=True)
            return ControlGroup(treated, replace(control, threads=1))
        return PPO(
            config.ppo,
            spaces,
            num_terms,
            learns,
            self.shows_weights,
            holds_statistics=config.weights_from is not None,
            threads=config.threads,
        )

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


def weights_adam(config: ResolvedConfig) -> optax.GradientTransformation:
    weights = config.weights
    # IMGL's gradients carry alpha, 1e-4: Adam's usual 1e-8 would not be small beside them.
    return adam(weights.learning_rate, weights.max_grad_norm, eps=1e-16)


def discount(config: ResolvedConfig) -> float:
    """Of later weighted terms in the derivative of an action's advantage, from step to step."""
    return config.ppo.gamma * (config.ppo.gae_lambda if config.upper.horizon == "gamma-lambda" else 1.0)


FEW_STEPS, FEW_MINIBATCHES = 64, 24
"""Steps of a round, and minibatches in its batch, up to which MGL's phi had better step after theta: it then takes
products of matrices over the whole batch, with one row per step, instead of fetching rows of m numbers."""


def through_advantages(config: ResolvedConfig, lower: Any, estimator: Any) -> UpperLevel:
    """phi learns by how modified advantages move with it.

    Beside a control group that is for where weights deviate from one number per term, which follows the evidence.
    """
    if not isinstance(lower, ControlGroup):
        return by_estimator(config, lower, estimator)
    everywhere = config.weights.form == "scalar"
    deviation = Fixed(lower) if everywhere else by_estimator(config, lower, estimator)
    return WeightsByEvidence(deviation, config.weights.initial)


def by_estimator(config: ResolvedConfig, lower: Any, estimator: Any) -> UpperLevel:
    """Steps of phi along the estimator's gradients."""
    ppo, upper = config.ppo, config.upper
    optimiser, later = weights_adam(config), discount(config)
    if upper.sampling == "round":
        return ByRound(lower, estimator, optimiser, later)
    few = ppo.gradient_steps <= FEW_STEPS and ppo.update_period <= FEW_MINIBATCHES * ppo.batch_size
    follow = upper.follow_weights
    if hasattr(estimator, "advantage_cotangent") and few and config.weights.form != "scalar" and not follow:
        return Deferred(lower, estimator, optimiser, later)
    return Interleaved(lower, estimator, optimiser, later, follow)


def mgl(config: ResolvedConfig, lower: Any) -> UpperLevel:
    return through_advantages(config, lower, MetaGradient(lower.objective))


def imgl(config: ResolvedConfig, lower: Any) -> UpperLevel:
    rate, second_order = config.ppo.policy_learning_rate, config.upper.second_order
    return through_advantages(config, lower, IncrementalMetaGradient(lower.objective, rate, second_order))


def unrolled(config: ResolvedConfig, lower: Any) -> UpperLevel:
    ppo, length = config.ppo, config.upper.unroll
    estimator = Unrolled(lower.objective, ppo.policy_learning_rate, ppo.max_grad_norm, length, ppo.adam_epsilon)
    return through_advantages(config, lower, estimator)


def em(config: ResolvedConfig, lower: PPO) -> UpperLevel:
    estimator = ExplicitMapping(lower.objective)
    if config.upper.sampling == "round":
        return ByRound(lower, estimator, weights_adam(config), discount(config))
    return Interleaved(lower, estimator, weights_adam(config))


def rcpo(config: ResolvedConfig, lower: PPO) -> UpperLevel:
    return Multiplier(lower, TORQUE_LIMIT)


def check_two_act(config: ResolvedConfig, remedy: str = "") -> None:
    if config.ppo.num_envs < 2:
        raise UsageError(
            f"ppo.num_envs is {config.ppo.num_envs}; method '{config.method}' has two policies that act side by side, "
            f"and needs at least 2{remedy}",
            ["ppo.num_envs"],
        )


def policy_pair(config: ResolvedConfig, spaces: HasSpaces, num_terms: int) -> PolicyPair:
    check_two_act(config)
    return PolicyPair(PPO(config.ppo, spaces, num_terms, learns_weights=True, threads=config.threads))


def hepo(config: ResolvedConfig, lower: PolicyPair) -> UpperLevel:
    return ImprovementMultiplier(lower)  # type: ignore[return-value]


def in_measured_units(config: ResolvedConfig, lower: DDPG, estimator: Estimator, restarts: bool = False) -> UpperLevel:
    return MeasuredUnits(Interleaved(lower, estimator, weights_adam(config), restarts=restarts))


def ddpg_em(config: ResolvedConfig, lower: DDPG) -> UpperLevel:
    return in_measured_units(config, lower, DeterministicMapping())


def ddpg_mgl(config: ResolvedConfig, lower: DDPG) -> UpperLevel:
    return in_measured_units(config, lower, DeterministicMetaGradient(config.ddpg_upper.size_penalty))


def ddpg_imgl(config: ResolvedConfig, lower: DDPG) -> UpperLevel:
    form, penalty = config.ddpg_upper.second_order, config.ddpg_upper.size_penalty
    estimator = DeterministicIncremental(config.ddpg.policy_learning_rate, form, penalty)
    return in_measured_units(config, lower, estimator, restarts=form == "constant-critic")


DETERMINISTIC_LEARNING_RATE = 1e-4
"""Step size of phi over DDPG, which takes many more steps than PPO: at 5e-4 the weights outrun the policy."""

ROUND_SETTINGS = ("sampling",)
ADVANTAGE_SETTINGS = (*ROUND_SETTINGS, "horizon", "follow_weights", "control_group")

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
        settings=(*ADVANTAGE_SETTINGS, "second_order"),
    ),
    "unrolled": Method(
        "unrolled differentiation: through the last K policy steps as they were taken, Adam included",
        unrolled,
        learns_weights=True,
        discrete_form="per-action",
        continuous_form="state-action",
        settings=(*(name for name in ADVANTAGE_SETTINGS if name != "sampling"), "unroll"),
    ),
    "single": Method(
        "one weight per term, the same in every state",
        mgl,
        learns_weights=True,
        settings=ADVANTAGE_SETTINGS,
        learning_rate=1e-2,
    ),
    "simplex": Method(
        "like single, but the weights of the terms are positive and sum to one",
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
    "hepo": Method(
        "heuristic enhanced policy optimisation: true return plus terms, kept at or above the true return of a policy "
        "trained on the terms alone",
        hepo,
        initial_weight=1.0,
        needs_terms=True,
        own_lower=policy_pair,
    ),
    "dpba": Method(
        "dynamic potential-based advice: a learned potential whose differences approximate the terms",
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
        "potential-based advice: a potential of state and action, whose effect on the policy is taken out again",
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
        ddpg_em,
        learns_weights=True,
        continuous_form="state",
        shows_weights=True,
        learning_rate=DETERMINISTIC_LEARNING_RATE,
        learner="ddpg",
    ),
    "ddpg-mgl": Method(
        "deterministic policy, meta-gradient learning",
        ddpg_mgl,
        learns_weights=True,
        continuous_form="state",
        learning_rate=DETERMINISTIC_LEARNING_RATE,
        learner="ddpg",
    ),
    "ddpg-imgl": Method(
        "deterministic policy, incremental meta-gradient learning",
        ddpg_imgl,
        learns_weights=True,
        continuous_form="state",
        learning_rate=DETERMINISTIC_LEARNING_RATE,
        learner="ddpg",
        usual={"ddpg_upper": {"size_penalty": 0.0}},
    ),
}


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
