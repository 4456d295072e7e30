"""The lower level's one protocol, and what it tells the upper level about every step.

PPO and DDPG are siblings behind it. A round is `prepare`, then `learn`: the upper level calls `learn` and says, by a
`Hook`, what it does itself after every step of theta.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from jaxtyping import Array, Float, Int, PRNGKeyArray

from bipars.nets.policies import Policy
from bipars.nets.running import RunningMoments
from bipars.nets.weights import WeightFunction
from bipars.rollout.batch import Batch


class LowerStep(NamedTuple):
    """The step theta -> theta' that was just taken: where it started and what it was taken on."""

    policy: Any
    """theta."""
    samples: Any
    """The minibatch."""
    optimiser: Any = None
    """Adam's state after the step."""
    times: Float[Array, ""] | None = None
    """How long it was, in units of the step size that is set, where that is adapted."""
    places: Int[Array, " batch"] | None = None
    """Which samples of the round they are."""


class After(NamedTuple):
    """theta', and what other samples of the round say of the true return there."""

    policy: Any
    """theta'."""
    samples: Any
    gradient: Any
    """v: the gradient of the true return at theta'. None where the policy is shown the weights."""


class UpperState(Protocol):
    """The upper level between two steps; pytrees of its own, with the weight function among them."""

    @property
    def weights(self) -> WeightFunction: ...


@dataclass(frozen=True)
class Hook:
    """What the upper level does within the lower level's loop."""

    after_step: Callable[[Any, LowerStep, After], tuple[Any, Any]] | None = None
    """Called after every step of theta: the upper level's new state, and what to keep of it. None: phi stands still."""
    shares_draws: bool = False
    """phi's minibatch is reused as theta's next one, so that its per-sample gradients are computed once. Only valid
    where theta's steps do not depend on phi within the round."""
    follows: bool = False
    """Within a round the modified advantages move along with phi, to first order."""


ALONE = Hook()
"""Theta's steps, and nothing else."""


class Learned(NamedTuple):
    """The result of one round of the lower level."""

    learner: Any
    upper: Any
    kept: Any
    """What the hook kept, stacked over the steps."""
    log: dict[str, Array]


class LowerLevel(Protocol):
    """A learner of the modified reward. Its state is a pytree that the caller keeps."""

    def init(self, key: PRNGKeyArray, weights: WeightFunction, observations: RunningMoments | None) -> Any:
        """theta and the critics at the start; `observations` are statistics that the weights were learned with."""
        ...

    def act(self, learner: Any, weights: WeightFunction) -> Policy:
        """The policy as the environment meets it."""
        ...

    def behaviour(self, learner: Any, weights: WeightFunction) -> Policy:
        """What acts in the environments of training; `act` is what people take away."""
        ...

    def prepare(
        self, learner: Any, weights: WeightFunction, batch: Batch, progress: Float[Array, ""]
    ) -> tuple[Any, Any]:
        """The learner that has seen a batch, and what there is to learn from it. `progress`: how much of the run is
        over, from 0 to 1.

        The latter has at least `z`, the weights of its transitions, and `log`, numbers to report.
        """
        ...

    def learn(self, learner: Any, upper: Any, data: Any, key: PRNGKeyArray, hook: Hook) -> Learned:
        """All gradient steps of one round (lines 7-14 and 18-22 of Algorithm 1)."""
        ...

    def empty_minibatch(self, weights: WeightFunction, jacobian: bool) -> Any:
        """Zeros in the shapes of a minibatch, for estimators that remember some."""
        ...
