"""What of an agent are Python objects, which no file can hold: taken as people give them, recorded, asked for again."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bipars.errors import UsageError
from bipars.methods import METHODS, Method, find_method
from bipars.program import Objects
from bipars.rollout.make import Env, environment_name
from bipars.runs.directory import RunDirectory
from bipars.settings.importing import IMPORT, named_code
from bipars.settings.resolved import ResolvedConfig
from bipars.shaping.given import Potential
from bipars.terms.builtin import make_term, task_term
from bipars.terms.term import RewardTerm, TermFunction

Terms = Sequence[RewardTerm | str] | RewardTerm | str


AUTO = "auto"
"""In place of terms: those that the environment itself reports."""


def as_terms(terms: Any, env: Any = None) -> tuple[RewardTerm | str, ...]:
    """None is no term; one alone need not stand in a list; "auto" asks the environment for its own."""
    if terms is None:
        return ()
    if isinstance(terms, str) and terms == AUTO:
        return own_terms(env)
    given = tuple(terms) if isinstance(terms, Iterable) and not isinstance(terms, str) else (terms,)
    for term in given:
        if not isinstance(term, (RewardTerm, str)):
            name = getattr(term, "__name__", "name")
            hint = f"; give the function a name: RewardTerm({name!r}, {name})" if callable(term) else ""
            raise UsageError(f"terms holds {term!r}; expected RewardTerm objects and names of built-in terms{hint}")
    return given


def own_terms(env: Any) -> tuple[RewardTerm, ...]:
    """The reward terms among the metrics of an environment written in JAX, such as metrics["reward/alive"]."""
    keys = getattr(env, "term_keys", None)
    if keys is None:
        raise UsageError(
            f"terms is 'auto', which asks an environment of bipars.envs.from_brax or from_gymnax for its own; env is "
            f"{env!r:.80}. Name them: terms=[bipars.RewardTerm.from_info('reward_ctrl'), ...]"
        )
    if not keys:
        raise UsageError(
            f"terms is 'auto', but environment '{environment_name(env)}' reports none: no metric or key of info begins "
            "with 'reward/' or 'reward_'. Name them: terms=[bipars.RewardTerm('upright', function), ...]"
        )
    return tuple(RewardTerm.from_info(key, key.removeprefix("reward/")) for key in keys)


def potential_name(potential: Any) -> str:
    if not isinstance(potential, Potential):
        name = getattr(potential, "__name__", "name")
        hint = f"; give the function a name: Potential({name!r}, {name})" if callable(potential) else ""
        raise UsageError(f"potential is {potential!r}; expected a Potential or the name of a built-in one{hint}")
    return potential.name


def method_name(method: Any) -> str:
    """What files call a method that is given as an object."""
    name = find_method(method).name
    if not name or name in METHODS or name.startswith(IMPORT):
        raise UsageError(f"the method given has the name {name!r}; give it one of its own: Method(..., name='mine')")
    return name


def take_objects(
    env: str | Env,
    name: str,
    terms: Sequence[RewardTerm | str],
    true_reward: str | TermFunction,
    potential: Potential | str | None,
    method: Method | None,
) -> tuple[Objects, dict[str, Any]]:
    """For the program; and for the file, what of them are Python objects, which loading asks for again."""
    objects = Objects(
        None if isinstance(env, str) else env,
        tuple(make_term(task_term(term, name)) if isinstance(term, str) else term for term in terms),
        None if isinstance(true_reward, str) else true_reward,
        potential if isinstance(potential, Potential) else None,
        method,
    )
    return objects, {
        "env": not isinstance(env, str),
        "terms": [term.name for term in terms if isinstance(term, RewardTerm)],
        "true_reward": not isinstance(true_reward, str),
        "potential": isinstance(potential, Potential),
        "method": method is not None,
    }


def objects_again(
    run: RunDirectory,
    env: str | Env | None,
    terms: Terms | None,
    true_reward: str | TermFunction | None,
    potential: Potential | None,
    method: Method | None,
) -> tuple[Objects, dict[str, Any]]:
    """The same for a run or saved agent that is loaded: what it was made with must be there again."""
    path, config, recorded = run.path, run.config, run.objects or {}
    by_code = ":" in config.env and not isinstance(env, str)  # an object in the place of what a module registers
    if env is not None and environment_name(env) != config.env and not by_code:
        raise UsageError(f"{path} was trained on '{config.env}', not on '{environment_name(env)}'")
    if recorded.get("env") and (env is None or isinstance(env, str)):
        raise UsageError(f"{path} was trained in an environment of your own, '{config.env}'; pass it: env=...")
    terms = config.terms if terms is None else as_terms(terms, env)
    _check_own_terms(path, config, recorded.get("terms", []), terms)
    reward = true_reward if true_reward is not None else config.true_reward
    kind = reward if isinstance(reward, str) else "function"
    if kind != config.true_reward or reward == "function":
        raise UsageError(f"{path} was trained with the true reward '{config.true_reward}'; pass it: true_reward=...")
    if recorded.get("potential") and (potential is None or potential_name(potential) != config.potential):
        raise UsageError(f"{path} was trained with a potential of your own, '{config.potential}'; pass it again")
    if recorded.get("method") and (method is None or method_name(method) != config.method):
        raise UsageError(f"{path} was trained with a method of your own, '{config.method}'; pass it again: method=...")
    imported = config.method.startswith(IMPORT)
    if method is not None and not recorded.get("method") and not imported:
        raise UsageError(f"{path} was trained with the method '{config.method}', which needs no object: leave it out")
    objects, own = take_objects(env or config.env, config.env, terms, reward, potential, method)
    return objects, own | {"method": own["method"] and not imported}


def names_without(
    config: ResolvedConfig, env: Any, terms: Terms | None, potential: Potential | None, method: Method | None
) -> list[str]:
    """The code that a configuration names and that no object takes the place of."""
    given = {term.name.removeprefix(IMPORT) for term in as_terms(terms) if isinstance(term, RewardTerm)}
    given |= {config.env} if env is not None and not isinstance(env, str) else set()
    given |= {potential.name.removeprefix(IMPORT)} if isinstance(potential, Potential) else set()
    given |= {config.method.removeprefix(IMPORT)} if method is not None else set()
    return [name for name in named_code(config) if name not in given]


def _check_own_terms(
    path: Path, config: ResolvedConfig, expected: list[str], terms: Sequence[RewardTerm | str]
) -> None:
    """Terms that were Python objects must be that again; built-in ones must not have become it."""
    given = [term.name for term in terms if isinstance(term, RewardTerm)]
    if any(name not in given for name in expected):
        raise UsageError(f"{path} was trained with terms of your own, {expected}; pass them again: terms=[...]")
    replaced = [name for name in given if name in config.terms and name not in expected and not name.startswith(IMPORT)]
    if replaced:
        raise UsageError(f"{path} was trained with the built-in terms {replaced}; pass their names, not functions")
