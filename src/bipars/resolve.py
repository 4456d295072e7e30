"""Resolves a configuration: fills in every default and refuses settings that do not fit together."""

import math
from dataclasses import fields, replace
from typing import Any

import jax

from bipars.errors import UsageError, unknown
from bipars.lower.replay import bytes_per_transition
from bipars.methods import METHODS, Method, check_upper, find_method, fixed
from bipars.nets.mlp import count_parameters
from bipars.nets.spaces import BoxActions, DiscreteActions, HasSpaces
from bipars.nets.weights import make_weights
from bipars.settings.base import require
from bipars.settings.config import Config, DDPGConfig, DDPGUpperConfig, PPOConfig, UpperConfig, WeightConfig
from bipars.settings.resolved import Form, ResolvedConfig, ResolvedDDPG, ResolvedUpper, ResolvedWeights
from bipars.shaping.given import usual_potential

TERM_LEARNING_RATES = {"beneficial": 1e-5}
"""Step size of phi where the paper gives one for the term's experiment; 5e-4 everywhere else."""
DEFAULT_LEARNING_RATE = 5e-4
DEVIATION_LEARNING_RATE = 3e-5
"""Of where weights deviate from what the evidence says: by the end of a run, phi has taken some 50,000 steps."""
MOST_STEPS_IN_ONE = 50
"""Sampling mode `round`: by how much its default step of phi is larger, at most."""


CHECKPOINT_BYTES = 64 * 2**20
"""What the replay may take of a checkpoint by default."""
MOST_REMEMBERED = 2**31 - 1
"""Transitions that can be counted."""
MOST_UNROLLED = 4 * 2**30
"""Bytes that the steps kept by `unrolled` may take."""


def resolve(config: Config, env: HasSpaces, method: Method | None = None) -> ResolvedConfig:
    """The configuration with every default replaced by what it stands for here.

    `method` is the object, where the configuration can only name it.
    """
    method = method or find_method(config.method)
    config = replace(as_asked(config), learner=method.learner)
    refuse_other_learners_settings(config, method)
    if method.deterministic:
        check_deterministic(config, method, env)
    if not config.terms and (method.learns_weights or method.needs_terms):
        raise UsageError(f"method '{config.method}' learns from reward terms; give at least one term")
    check_sampling(config, method)
    # What the method has no use for is as if nobody had asked for it.
    for name in method.settings:
        if not hasattr(config.upper, name):
            raise unknown(f"setting of method '{config.method}'", name, [part.name for part in fields(UpperConfig)])
    upper = UpperConfig(**{name: getattr(config.upper, name) for name in method.settings})
    if upper.sampling == "round":  # the paper's Algorithm 1 to the letter
        upper = replace(upper, control_group=False, follow_weights=False)
    if method.simplex or config.weights.simplex:
        upper = replace(upper, control_group=False)
    weights = resolve_weights(config, method, env, upper.control_group)
    follow = upper.follow_weights
    if follow is None:
        # Past its bound a weight no longer moves, so advantages had better not follow it there.
        follow = weights.low is None and weights.high is None
    values = {part.name: getattr(config, part.name) for part in fields(config)}
    resolved = ResolvedConfig(
        **values
        | {
            "weights": weights,
            "upper": ResolvedUpper(**vars(upper) | {"follow_weights": follow and "follow_weights" in method.settings}),
            "ddpg": resolve_ddpg(config, method, env),
            "potential": resolve_potential(config, method),
            "learns_weights": method.learns_weights,
        }
    )
    if "unroll" in method.settings:
        check_unrolled(resolved, env)
    if method.upper is not fixed:
        lower = method.lower(resolved, env, len(config.terms))
        check_upper(config.method, method.upper(resolved, lower))
    return resolved


def as_asked(config: Config) -> Config:
    """A configuration that was resolved before, as somebody would have asked for it."""
    if not isinstance(config, ResolvedConfig):
        return config
    deterministic = config.learner == "ddpg"
    parts: dict[str, Any] = {
        "weights": _narrow(WeightConfig, config.weights),
        "upper": UpperConfig() if deterministic else _narrow(UpperConfig, config.upper),
        "ddpg": _narrow(DDPGConfig, config.ddpg) if deterministic else DDPGConfig(),
    }
    return replace(_narrow(Config, config), **parts)


def _narrow(kind: type, settings: Any) -> Any:
    return kind(**{part.name: getattr(settings, part.name) for part in fields(kind)})


def refuse_other_learners_settings(config: Config, method: Method) -> None:
    """A setting of the other kind of lower level is a mistake."""
    rooms: dict[str, Any] = {"ddpg": DDPGConfig(), "ddpg_upper": DDPGUpperConfig()}
    instead = "those of ppo and upper"
    if method.deterministic:
        rooms, instead = {"ppo": PPOConfig(), "upper": UpperConfig()}, "those of ddpg and ddpg_upper"
    for room, usual in rooms.items():
        for part in fields(usual):
            value = getattr(getattr(config, room), part.name)
            if value != getattr(usual, part.name):
                raise UsageError(
                    f"method '{config.method}' trains {method.learner.upper()}; {room}.{part.name} is {value!r} and "
                    f"has no effect. Use {instead}",
                    [f"{room}.{part.name}"],
                )


def check_deterministic(config: Config, method: Method, env: HasSpaces) -> None:
    name = config.method
    if not isinstance(env.actions, BoxActions):
        raise UsageError(
            f"method '{name}' has a deterministic policy and needs continuous actions; environment '{config.env}' has "
            f"{env.actions}. Use a method with a stochastic policy, such as 'mgl' or 'ppo'"
        )
    if method.learns_weights and config.weights.form not in ("auto", "state", "scalar"):
        raise UsageError(
            f"method '{name}' shows z(s) to a network before an action is chosen; weights.form is "
            f"'{config.weights.form}', expected 'state' or 'scalar'",
            ["weights.form"],
        )
    require(
        math.ceil(config.ddpg.warmup_steps / config.ddpg.update_period) <= config.num_updates,
        "ddpg.warmup_steps",
        config.ddpg.warmup_steps,
        f"at most the {config.whole_steps} steps of the run, otherwise the run would end before anything is learned",
    )


def check_sampling(config: Config, method: Method) -> None:
    """Sampling by round: one step of phi per round, on the next policy's samples."""
    if config.upper.sampling != "round" or not method.learns_weights or method.deterministic:
        return
    if "sampling" not in method.settings:
        raise UsageError(
            f"method '{config.method}' follows every step of theta; upper.sampling is 'round', expected 'interleaved'",
            ["upper.sampling"],
        )
    if config.num_updates < 2:
        raise UsageError(
            f"config.steps is {config.steps}, one update of {config.ppo.update_period}; upper.sampling 'round' "
            "learns from the batch after an update, so it needs two",
            ["config.steps", "upper.sampling"],
        )


def resolve_form(config: Config, method: Method, env: HasSpaces) -> Form:
    """What z depends on."""
    form, discrete = config.weights.form, isinstance(env.actions, DiscreteActions)
    if form == "auto":
        return method.discrete_form if discrete else method.continuous_form
    if form == "per-action" and not discrete:
        others = "'state' or 'scalar'" if method.shows_weights else "'state-action', 'state' or 'scalar'"
        raise UsageError(
            f"weights.form 'per-action' needs one discrete action; those of '{config.env}' are {env.actions}. "
            f"Use {others}",
            ["weights.form"],
        )
    if method.shows_weights and form == "state-action":
        raise UsageError(
            f"method '{config.method}' shows the policy z(s) before an action is chosen; "
            "weights.form 'state-action' does not have that. Use 'state', 'per-action' or 'scalar'",
            ["weights.form"],
        )
    if method.takes_cost and form != "scalar":
        raise UsageError(
            f"method '{config.method}' has one multiplier; weights.form is '{form}', expected 'scalar'",
            ["weights.form"],
        )
    return form


def resolve_weights(config: Config, method: Method, env: HasSpaces, by_evidence: bool) -> ResolvedWeights:
    weights, form = config.weights, resolve_form(config, method, env)
    rate = DEVIATION_LEARNING_RATE if by_evidence else method.learning_rate or preset_learning_rate(config.terms)
    if config.upper.sampling == "round":
        # One step of phi per round has to go as far as one after each of theta's, within reason.
        rate *= min(config.ppo.gradient_steps, MOST_STEPS_IN_ONE)
    simplex = method.simplex or weights.simplex
    if simplex:
        check_simplex(config, method)
    if simplex or not method.learns_weights:
        weights = replace(weights, low=None, high=None)  # they would move weights that are the method's own
    initial = weights.initial if method.initial_weight is None else method.initial_weight
    low, high = -math.inf if weights.low is None else weights.low, math.inf if weights.high is None else weights.high
    require(low <= initial <= high, "weights.initial", initial, f"a number from {low} to {high}")
    return ResolvedWeights(
        **vars(weights)
        | {
            "form": form,
            "learning_rate": weights.learning_rate or rate,
            "initial": initial,
            "simplex": simplex,
            "by_evidence": by_evidence,
            "in_units": method.deterministic and method.learns_weights and not simplex,
        }
    )


def check_simplex(config: Config, method: Method) -> None:
    learners = "'ddpg-em' or 'ddpg-mgl'" if method.deterministic else "'simplex' or 'mgl'"
    if not method.learns_weights:
        raise UsageError(
            f"weights.simplex is for methods that learn weights; '{config.method}' does not. Use {learners}",
            ["weights.simplex"],
        )
    if len(config.terms) < 2:
        raise UsageError(
            f"weights that sum to one need two terms or more; terms are {list(config.terms)}. "
            f"With one term its weight is always 1: method '{'ddpg-ns' if method.deterministic else 'ns'}'"
        )


def resolve_potential(config: Config, method: Method) -> str | None:
    potential = config.potential
    if method.potential_takes is None:
        if potential is not None:
            takers = [name for name, row in METHODS.items() if row.potential_takes is not None]
            raise UsageError(
                f"method '{config.method}' uses no potential; got '{potential}'. Use one of {', '.join(takers)}"
            )
        return None
    potential = potential or usual_potential(config.env, method.potential_takes)
    if potential is None:
        raise UsageError(
            f"method '{config.method}' needs a potential: --potential import:module.function, or "
            "potential=bipars.Potential(...) in Python"
        )
    return potential


def resolve_ddpg(config: Config, method: Method, env: HasSpaces) -> ResolvedDDPG:
    if not method.deterministic:
        return ResolvedDDPG()
    assert isinstance(env.actions, BoxActions)
    capacity = config.ddpg.replay_capacity
    if capacity is None:
        size = bytes_per_transition(env.observation_size, env.actions.size, len(config.terms))
        remembered = min(config.num_updates * config.ddpg.update_period, CHECKPOINT_BYTES // size)
        capacity = max(remembered, config.ddpg.update_period)
    require(capacity <= MOST_REMEMBERED, "ddpg.replay_capacity", capacity, f"at most {MOST_REMEMBERED} transitions")
    return ResolvedDDPG(**vars(config.ddpg) | {"replay_capacity": capacity})


def check_unrolled(config: ResolvedConfig, env: HasSpaces) -> None:
    """Refuses more steps than the run has, or than memory holds."""
    length, taken = config.upper.unroll, config.num_updates * config.ppo.gradient_steps
    require(length <= taken, "upper.unroll", length, f"at most {taken}, the policy steps of {config.steps} steps")
    made = jax.eval_shape(lambda: make_weights(jax.random.key(0), config.weights, env, len(config.terms)))
    size = 4 * length * config.ppo.batch_size * (count_parameters(made) + env.observation_size)
    fits = length * MOST_UNROLLED // max(size, 1)
    require(
        size <= MOST_UNROLLED, "upper.unroll", length, f"at most {fits}: the steps kept take {size / 2**30:.0f} GiB"
    )


def preset_learning_rate(terms: tuple[str, ...]) -> float:
    """The paper's step size of phi for its experiment with this one term, else the faster default."""
    names = {spec.partition(":")[0] for spec in terms}
    return TERM_LEARNING_RATES.get(names.pop(), DEFAULT_LEARNING_RATE) if len(names) == 1 else DEFAULT_LEARNING_RATE
