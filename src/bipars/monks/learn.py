"""M + 1 independent PPO learners that play monks and gruel against each other, each for its own reward.

A learner has one small policy per step of the game, which sees what part of the gruel is left. All games of a round are
played side by side, and all policies are stacked on leading axes: the whole training is one compiled function. It is
about parts of the gruel, so that any amount of it is learned alike.
"""

import functools
from dataclasses import dataclass
from math import isqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.compiling import compiled
from bipars.errors import UsageError
from bipars.monks.config import MonksConfig
from bipars.monks.rules import MONKS, Game
from bipars.nets.mlp import glorot, make_mlp, uniform
from bipars.nets.optimiser import adam, ascend
from bipars.nets.policies import CategoricalPolicy
from bipars.objective import ClippedObjective, Samples, surrogate

LARGEST_MEMORY = 4 * 2**30
"""Bytes that learning may take."""
BYTES = 12
"""Per policy, game and unit of its network: what is computed, its slope, and room for one more."""


class Players(NamedTuple):
    """Policies, stacked: the system's by step, the monks' by monk and step."""

    system: CategoricalPolicy
    monks: CategoricalPolicy


class Play(NamedTuple):
    """Games side by side, by step; amounts are parts of the gruel."""

    left: Float[Array, "step game"]
    """Before the step."""
    assigner: Int[Array, "step game"]
    portion: Int[Array, "step game"]
    """What the assigner chose."""
    amount: Float[Array, "step game"]


class Round(NamedTuple):
    """What a round of play came to, means over its games, in parts of the gruel."""

    system_return: Float[Array, ""]
    bowls: Float[Array, " monk"]
    assigners: Float[Array, "step monk"]
    """How often each monk was named at each step."""


@dataclass(frozen=True)
class Monastery:
    game: Game
    config: MonksConfig

    def __post_init__(self) -> None:
        """Every monk has a policy for every step, and all of them look at all games."""
        config, monks = self.config, self.game.num_monks
        each = BYTES * config.games * (sum(config.hidden) + config.portions)
        if each * monks**2 > LARGEST_MEMORY:
            most = isqrt(LARGEST_MEMORY // each)
            raise UsageError(
                f"{MONKS} is {monks}; with {config.games} games and {config.portions} portions "
                f"{most} can be learned at most, in {LARGEST_MEMORY / 2**30:.0f} GiB of memory: "
                "take fewer, or lower --learn.games, --learn.portions or --learn.hidden"
            )

    def init(self, key: PRNGKeyArray) -> Players:
        monks = self.game.num_monks

        def policy(outputs: int, key: PRNGKeyArray) -> CategoricalPolicy:
            sizes = (1, *self.config.hidden, outputs)
            return CategoricalPolicy(make_mlp(key, sizes, "tanh", glorot, uniform(1e-3)))

        system_key, monk_key = jax.random.split(key)
        system = jax.vmap(functools.partial(policy, monks))(jax.random.split(system_key, monks))
        each = functools.partial(policy, self.config.portions)
        return Players(system, jax.vmap(jax.vmap(each))(jax.random.split(monk_key, (monks, monks))))

    def play(self, players: Players, key: PRNGKeyArray) -> Play:
        game, config = self.game.unit, self.config
        shares = jnp.linspace(0.0, 1.0, config.portions)
        left, steps = jnp.ones(config.games), []
        for step, step_key in enumerate(jax.random.split(key, game.num_monks)):
            system_key, monk_key = jax.random.split(step_key)
            obs = left[:, None]
            system = jax.tree.map(lambda x: x[step], players.system)  # noqa: B023
            assigner = system.sample(obs, system.draw_noise(system_key, (config.games,)))
            monks = jax.tree.map(lambda x: x[:, step], players.monks)  # noqa: B023
            noise = jax.random.gumbel(monk_key, (config.games, config.portions))
            choices = jax.vmap(lambda monk: monk.sample(obs, noise))(monks)  # noqa: B023
            portion = choices[assigner, jnp.arange(config.games)]
            amount = game.amount(left, shares[portion])
            steps.append(Play(left, assigner, portion, amount))
            left = left - amount
        return jax.tree.map(lambda *x: jnp.stack(x), *steps)

    def returns(self, play: Play) -> tuple[Float[Array, "step game"], Float[Array, "monk step game"]]:
        """What the system, and every monk, gets from each step on."""
        game = self.game.unit
        later = jnp.cumsum(game.system_reward(play.amount)[::-1], axis=0)[::-1]
        rewards = jnp.stack([game.monk_rewards(step, play.amount[step]) for step in range(game.num_monks)])
        own = jnp.cumsum(rewards[::-1], axis=0)[::-1]
        return later, jnp.moveaxis(own, -1, 0)

    def improve(self, policy: CategoricalPolicy, optimiser: Any, samples: Samples, acted: Bool[Array, " game"]) -> Any:
        """PPO steps of one policy on the games in which it acted."""
        count = jnp.maximum(acted.sum(), 1)
        gain = samples.modified_advantage
        mean = jnp.sum(gain * acted) / count
        deviation = jnp.sqrt(jnp.sum(acted * (gain - mean) ** 2) / count)
        advantage = jnp.where(acted, (gain - mean) / (deviation + 1e-8), 0.0)
        samples = samples._replace(log_prob=policy.log_prob(samples.obs, samples.action))

        def objective(policy: CategoricalPolicy) -> Float[Array, ""]:
            log_probs = jax.nn.log_softmax(policy.net(samples.obs))
            entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
            bonus = self.config.entropy * jnp.mean(entropy * acted)
            return surrogate(policy, samples, advantage, ClippedObjective(self.config.clip)) + bonus

        def step(state: Any, _: None) -> tuple[Any, None]:
            policy, optimiser = state
            return ascend(policy, optimiser, self.adam, jax.grad(objective)(policy)), None

        return jax.lax.scan(step, (policy, optimiser), length=self.config.gradient_steps)[0]

    @property
    def adam(self) -> optax.GradientTransformation:
        return adam(self.config.learning_rate, None)

    def round(self, state: tuple[Players, Any], key: PRNGKeyArray) -> tuple[tuple[Players, Any], Round]:
        """Everybody plays, then everybody learns."""
        players, (system_optimiser, monk_optimiser) = state
        play = self.play(players, key)
        later, own = self.returns(play)
        obs = play.left[..., None]
        everyone = jnp.ones(play.amount.shape, bool)
        system, system_optimiser = jax.vmap(self.improve)(
            players.system, system_optimiser, Samples(obs, play.assigner, later, later), everyone
        )
        acted = play.assigner == jnp.arange(self.game.num_monks)[:, None, None]
        shown, portion = (jnp.broadcast_to(x, (self.game.num_monks, *x.shape)) for x in (obs, play.portion))
        monks, monk_optimiser = jax.vmap(jax.vmap(self.improve))(
            players.monks, monk_optimiser, Samples(shown, portion, own, own), acted
        )
        result = Round(later[0].mean(), play.amount.mean(axis=1), acted.mean(axis=2).T)
        return (Players(system, monks), (system_optimiser, monk_optimiser)), result

    @compiled
    def learn(self, seed: Int[Array, ""]) -> tuple[Players, Round]:
        """The players after all rounds, and what every round came to."""
        init_key, play_key = jax.random.split(jax.random.key(seed))
        players = self.init(init_key)
        optimisers = jax.vmap(self.adam.init)(players.system), jax.vmap(jax.vmap(self.adam.init))(players.monks)
        (players, _), rounds = jax.lax.scan(
            self.round, (players, optimisers), jax.random.split(play_key, self.config.rounds)
        )
        return players, rounds
