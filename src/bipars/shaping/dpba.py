"""Dynamic potential-based advice (Harutyunyan et al., 2015): any reward terms, turned into a potential that is learned.

Phi(s, a) is the value of -f under the policy that acts, by on-policy temporal differences. Once it is right,
gamma Phi(s', a') - Phi(s, a) is f in the mean.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bipars.compiling import compiled
from bipars.nets.mlp import make_mlp
from bipars.nets.optimiser import adam
from bipars.nets.policies import Policy
from bipars.nets.running import RunningMoments
from bipars.nets.spaces import DiscreteActions, HasSpaces
from bipars.nets.weights import PerActionWeights, Range, StateActionWeights, WeightFunction
from bipars.objective import gae
from bipars.rollout.batch import Batch, PotentialReward, Sampler
from bipars.settings.config import DPBAConfig, PPOConfig
from bipars.shaping.potential_based import ShapingContext, next_actions, potential_difference


class PotentialState(NamedTuple):
    net: WeightFunction
    """(s, a) to one number."""
    optimiser: optax.OptState


@dataclass(frozen=True)
class LearnedPotential:
    shapes: ClassVar[bool] = True
    config: DPBAConfig
    ppo: PPOConfig

    def init(self, key: PRNGKeyArray, sampler: Sampler) -> PotentialState:
        net = make_potential(key, self.config.hidden, sampler)
        return PotentialState(net, self.adam.init(net))

    @property
    def adam(self) -> optax.GradientTransformation:
        return adam(self.config.learning_rate, self.config.max_grad_norm)

    def shape(
        self, state: PotentialState, batch: Batch, context: ShapingContext, key: PRNGKeyArray
    ) -> tuple[PotentialState, PotentialReward]:
        return self._shape(state, batch, context.policy, context.observations, key)

    @compiled
    def _shape(
        self, state: PotentialState, batch: Batch, policy: Policy, moments: RunningMoments | None, key: PRNGKeyArray
    ) -> tuple[PotentialState, PotentialReward]:
        action_key, draw_key = jax.random.split(key)
        obs, next_obs = batch.obs, batch.next_obs
        if moments is not None:
            obs, next_obs = moments.normalise(obs), moments.normalise(next_obs)
        next_action = next_actions(policy, batch, action_key)

        def ends(net: WeightFunction) -> tuple[Float[Array, "time env"], Float[Array, "time env"]]:
            return net(obs, batch.action)[..., 0], net(next_obs, next_action)[..., 0]

        gamma, ended = self.ppo.gamma, (batch.terminated, batch.done)
        _, target = gae(-batch.terms.sum(axis=-1), *ends(state.net), *ended, gamma, self.ppo.gae_lambda)
        samples = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (obs, batch.action, target))
        state, losses = self.learn(state, samples, draw_key)
        now, following = ends(state.net)
        shaping = potential_difference(now, following, batch.terminated, gamma)
        log = {"potential": now.mean(), "potential_loss": losses.mean()}
        return state, PotentialReward(shaping, now if self.config.correct else None, log)

    def learn(
        self, state: PotentialState, samples: tuple[Array, Array, Array], key: PRNGKeyArray
    ) -> tuple[PotentialState, Float[Array, " step"]]:
        """As many minibatch steps towards the lambda-returns as the critics take."""

        def step(state: PotentialState, index: Int[Array, " batch"]) -> tuple[PotentialState, Float[Array, ""]]:
            obs, action, target = jax.tree.map(lambda x: x[index], samples)

            def loss(net: WeightFunction) -> Float[Array, ""]:
                return jnp.mean((net(obs, action)[..., 0] - target) ** 2)

            error, slope = jax.value_and_grad(loss)(state.net)
            change, optimiser = self.adam.update(slope, state.optimiser, state.net)
            return PotentialState(optax.apply_updates(state.net, change), optimiser), error

        index = jax.random.randint(key, (self.ppo.gradient_steps, self.ppo.batch_size), 0, samples[2].size)
        return jax.lax.scan(step, state, index)


def make_potential(key: PRNGKeyArray, hidden: tuple[int, ...], env: HasSpaces) -> WeightFunction:
    """A network of (s, a): one output per discrete action, or the action as an input."""
    actions, size, free = env.actions, env.observation_size, Range(0.0, None, None)
    if isinstance(actions, DiscreteActions):
        return PerActionWeights(make_mlp(key, (size, *hidden, actions.n), "tanh"), free, actions.n)
    return StateActionWeights(make_mlp(key, (size + actions.width, *hidden, 1), "tanh"), free, actions)
