"""What the numbers of an observation are called, where that is known."""

from bipars.envs.registry import find_family


def input_names(env: str, observations: int, actions: int) -> list[str]:
    """Observations first, then the parts of a continuous action."""
    known = find_family(env).observations
    names = list(known) if len(known) == observations else [f"obs[{i}]" for i in range(observations)]
    return names + (["action"] if actions == 1 else [f"action[{i}]" for i in range(actions)])
