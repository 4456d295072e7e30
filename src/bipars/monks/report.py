"""What the players of monks and gruel learned, as a table beside the exact solution."""

import numpy as np

from bipars.monks.config import MonksConfig
from bipars.monks.learn import Round
from bipars.monks.rules import Game
from bipars.monks.solve import most_monks, solve

LAST = 20
"""Rounds at the end that are averaged."""


def describe(game: Game, config: MonksConfig, rounds: Round) -> str:
    """Markdown: per step, whom the system names and what the monk whose turn it is gets."""
    assigners, parts = (np.asarray(x, float)[-LAST:].mean(axis=0) for x in (rounds.assigners, rounds.bowls))
    bowls, returns = parts * game.gruel, np.asarray(rounds.system_return, float) * game.gruel
    lines = ["| step | the system names | monk gets | fair |", "| --- | --- | --- | --- |"]
    for step, named in enumerate(assigners):
        often = [f"monk {i + 1} ({named[i]:.0%})" for i in np.argsort(-named) if named[i] >= 0.05]
        lines.append(f"| {step + 1} | {', '.join(often)} | {bowls[step]:.3g} | {game.fair:.3g} |")
    last = returns[-LAST:]
    over = "in the only round" if len(returns) == 1 else f"in the last {len(last)} rounds"
    lines.append(f"\nsystem's return: {returns[0]:.3g} at first, {last.mean():.3g} {over}")
    if game.num_monks <= most_monks(config.portions):
        plan = solve(game, config.portions)
        shares = ", ".join(f"{bowl:.3g}" for bowl in plan.bowls)
        first = " or ".join(f"monk {monk + 1}" for monk in plan.assigners)
        lines.append(f"solved exactly:  {plan.value:.3g}; {first} is named first, and the bowls are {shares}")
    else:
        most = most_monks(config.portions)
        lines.append(f"not solved exactly: with {config.portions} portions that takes too long beyond --monks {most}")
    return "\n".join(lines)
