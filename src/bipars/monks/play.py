"""Learned players in the PettingZoo environment."""

import jax
import numpy as np

from bipars.monks.environment import SYSTEM, MonksAndGruel
from bipars.monks.learn import Players
from bipars.nets.mlp import to_numpy


def play_games(env: MonksAndGruel, players: Players, games: int, seed: int) -> dict[str, float]:
    """The mean return of every agent."""
    rng, acting = np.random.default_rng(seed), to_numpy(players)
    totals = dict.fromkeys(env.possible_agents, 0.0)
    for _ in range(games):
        env.reset()
        for agent in env.agent_iter():
            observation, reward, termination, _, _ = env.last()
            totals[agent] += reward / games
            env.step(None if termination else _choose(env, acting, agent, observation, rng))
    return totals


def _choose(
    env: MonksAndGruel, players: Players, agent: str, observation: np.ndarray, rng: np.random.Generator
) -> object:
    step, left = len(env.bowls), observation[-1:]
    if agent == SYSTEM:
        policy = jax.tree.map(lambda x: x[step], players.system)
    else:
        policy = jax.tree.map(lambda x: x[env.monks.index(agent), step], players.monks)
    choices = policy.net.layers[-1].bias.size
    chosen = int(policy.sample(left, rng.gumbel(size=choices).astype(np.float32)))
    return chosen if agent == SYSTEM else np.array([chosen / (choices - 1)], np.float32)
