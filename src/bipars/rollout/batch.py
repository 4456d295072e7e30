"""What the training loop asks of the place where transitions come from, whoever steps it."""

from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from gymnasium import Space
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bipars.nets.policies import Policy
from bipars.nets.spaces import ActionSpace


class PotentialReward(NamedTuple):
    """What potential-based shaping adds to a batch."""

    reward: Float[Array, "time env"]
    """F of every transition."""
    correction: Float[Array, "time env"] | None
    """Phi(s, a), where it is to be added to the advantage again: the policy is then the one of the true reward."""
    log: dict[str, Array]
    """Numbers to report of it."""


class Batch(NamedTuple):
    """The transitions of one update. `next_obs` is the state reached, also where the episode ended there."""

    obs: Float[Array, "time env obs"]
    action: Array
    log_prob: Float[Array, "time env"]
    next_obs: Float[Array, "time env obs"]
    reward: Float[Array, "time env"]
    """The true reward."""
    terminated: Bool[Array, "time env"]
    done: Bool[Array, "time env"]
    terms: Float[Array, "time env term"]
    """f of every transition."""
    restarted: Bool[Array, ""]
    """All episodes began with this batch; what they were before it was given up."""
    potential: PotentialReward | None = None


def modified_reward(batch: Batch, weights: Float[Array, "time env term"]) -> Float[Array, "time env"]:
    """r~ (equation 1): the true reward, plus every term times its weight, plus the shaping of a potential."""
    reward = batch.reward + jnp.sum(weights * batch.terms, axis=-1)
    return reward if batch.potential is None else reward + batch.potential.reward


class Evaluation(NamedTuple):
    """How good the policy is at the true reward, acting greedily."""

    true_return: Float[Array, " episode"]
    length: Int[Array, " episode"]
    action_size: Float[Array, ""]
    """Mean absolute action over all steps and dimensions, as the environment takes it (0 for discrete actions)."""

    @staticmethod
    def none(episodes: int) -> "Evaluation":
        """Before the first one."""
        # With their types given: weak ones would become strong, and what takes them be compiled anew.
        nothing = jnp.full(episodes, jnp.nan, float)
        return Evaluation(nothing, jnp.zeros(episodes, jnp.int32), jnp.full((), jnp.nan, float))


class Sampler(Protocol):
    """Environments side by side, their true reward and their reward terms."""

    @property
    def observation_size(self) -> int: ...
    @property
    def actions(self) -> ActionSpace: ...
    @property
    def observation_space(self) -> Space[Any]:
        """As Gymnasium describes it."""
        ...

    @property
    def action_space(self) -> Space[Any]: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def episodes(self) -> int:
        """Of an evaluation."""
        ...

    @property
    def compiled(self) -> bool:
        """Whether `reset`, `run` and `evaluate` can be traced by JAX."""
        ...

    def reset(self, key: PRNGKeyArray) -> Any:
        """The state of all environments at the start, with whatever the terms draw once per run."""
        ...

    def run(self, policy: Policy, state: Any, key: PRNGKeyArray) -> tuple[Any, Batch]:
        """As many steps as one update needs (lines 5-6 of Algorithm 1)."""
        ...

    def evaluate(self, policy: Policy, key: PRNGKeyArray) -> Evaluation: ...
    def evaluate_if(
        self, due: Bool[Array, ""] | bool, policy: Policy, key: PRNGKeyArray, newest: Evaluation
    ) -> Evaluation:
        """An evaluation of the policy where it is due, else the newest one."""
        ...
