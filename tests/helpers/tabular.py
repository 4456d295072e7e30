"""A small tabular MDP whose returns are known exactly."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from bipars.nets.mlp import MLP, Linear, module
from bipars.nets.policies import CategoricalPolicy

HORIZON, STATES, ACTIONS = 3, 2, 2
NEXT = np.array([[0, 1], [1, 0]])  # action 1 changes the state
TRUE = np.array([[0.0, 1.0], [2.0, -1.0]])
TERM = np.array([[0.5, -1.0], [0.3, 0.7]])


def table_policy():
    """Softmax over a table of time, state and action: a network without hidden layers sees which row it is in."""
    return CategoricalPolicy(MLP((Linear(jnp.zeros((HORIZON * STATES, ACTIONS)), jnp.zeros(ACTIONS)),), "relu"))


def seen(time, state):
    return jax.nn.one_hot(time * STATES + state, HORIZON * STATES)


@module
class TableWeights:
    table: jax.Array

    def __call__(self, obs, action):
        return self.table[jnp.argmax(obs, axis=-1) % STATES, action][..., None]


def exact_return(policy, reward):
    """Expected undiscounted return by dynamic programming."""
    value = jnp.zeros(STATES)
    for time in reversed(range(HORIZON)):
        probability = jax.nn.softmax(policy.net(seen(time, jnp.arange(STATES))))
        value = jnp.sum(probability * (reward + value[NEXT]), axis=-1)
    return value.mean()


def every_episode():
    """obs (time, state), action, true reward, term: time x episode."""
    episodes = []
    for start, actions in itertools.product(range(STATES), itertools.product(range(ACTIONS), repeat=HORIZON)):
        state, rows = start, []
        for time, action in enumerate(actions):
            rows.append(((time, state), action, TRUE[state, action], TERM[state, action]))
            state = NEXT[state, action]
        episodes.append(rows)
    columns = [np.array([[row[i] for row in rows] for rows in episodes]) for i in range(4)]
    return [jnp.asarray(np.swapaxes(column, 0, 1)) for column in columns]
