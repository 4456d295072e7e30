"""Every setting of a run, one dataclass per room. `program.complete` leaves nothing to defaults of another day."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from bipars.settings.base import (
    Settings,
    check_types,
    merge,
    require,
    require_hidden,
    require_multiple,
    require_not_negative,
    require_positive,
    require_share,
)


@dataclass(frozen=True)
class PPOConfig(Settings):
    """The lower level: policy optimisation on the modified reward. Defaults follow the preset."""

    policy_hidden: tuple[int, ...] = (8, 8)
    """Hidden layers of the policy network."""
    value_hidden: tuple[int, ...] = (32, 32)
    """Hidden layers of both critics."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation of policy and critics."""
    target_kl: float | None = None
    """Adapt the policy's step size so that an update moves it by about this KL divergence; inf leaves it as it is."""
    initial: Literal["glorot", "orthogonal"] = "glorot"
    """Weights of the networks at the start; orthogonal ones make the first policy's mean nearly 0 (factor 0.01)."""
    initial_std: float | None = 0.6
    """Standard deviation of a Gaussian policy at the start; none: 1 / sqrt(number of actions)."""
    num_envs: int = 20
    """Environments stepped side by side."""
    update_period: int = 20_000
    """Environment steps collected before each update."""
    gradient_steps: int = 50
    """Minibatch gradient steps per update (the paper's "epochs")."""
    batch_size: int = 1024
    """Samples per gradient step, drawn with replacement: more than update_period see some of them several times."""
    clip: float = 0.5
    """How far the probability ratio may leave 1."""
    gamma: float = 0.999
    """Discount rate."""
    gae_lambda: float = 0.95
    """Bias-variance trade-off of the generalised advantage estimator."""
    policy_learning_rate: float = 1e-4
    """Adam's step size for the policy."""
    value_learning_rate: float = 2e-4
    """Adam's step size for the critics."""
    adam_epsilon: float = 1e-8
    """What Adam adds to the root of its second moment: gradients of the policy far below it make short steps."""
    max_grad_norm: float | None = None
    """Clip policy and critic gradients to this norm; inf clips nothing."""
    normalise_observations: bool = False
    """Show policy, critics and weight function observations in units of their running mean and deviation."""
    normalise_returns: bool = False
    """Divide rewards by the running deviation of their discounted sum before the critics see them."""

    def check(self) -> None:
        check_types(self, "ppo.")
        self._infinite_means_none("max_grad_norm", "target_kl")
        require_hidden("ppo", self, "policy_hidden", "value_hidden")
        require_positive(
            "ppo", self, "num_envs", "gradient_steps", "batch_size", "clip",
            "policy_learning_rate", "value_learning_rate", "update_period", "adam_epsilon",
            "target_kl", "initial_std", "max_grad_norm",
        )  # fmt: skip
        require_share("ppo", self, "gamma", "gae_lambda")
        require_multiple("ppo", self, "update_period", "num_envs")


WeightsAs = Literal["function", "scalars"]


@dataclass(frozen=True)
class WeightConfig(Settings):
    """The weight function z_phi."""

    form: Literal["auto", "state", "state-action", "per-action", "scalar"] = "auto"
    """What z depends on; auto follows the method and the action space."""
    hidden: tuple[int, ...] = (16, 8)
    """Hidden layers of the weight network (tanh)."""
    initial: float = 1.0
    """Weight of every term at the start."""
    low: float | None = None
    """Smallest weight allowed; inf leaves the range free."""
    high: float | None = None
    """Largest weight allowed; inf leaves the range free."""
    simplex: bool = False
    """Weights of all terms are positive and sum to one (softmax); initial, low and high then have no meaning."""
    learning_rate: float | None = None
    """Adam's step size for phi; none takes the preset of the method and term."""
    max_grad_norm: float | None = None
    """Clip the gradient of phi to this norm; inf clips nothing."""

    def check(self) -> None:
        check_types(self, "weights.")
        self._infinite_means_none("low", infinity=-math.inf)
        self._infinite_means_none("high", "max_grad_norm")
        require_hidden("weights", self, "hidden")
        require(math.isfinite(self.initial), "weights.initial", self.initial, "a finite number")
        for name in ("low", "high"):
            bound = getattr(self, name)
            require(bound is None or math.isfinite(bound), f"weights.{name}", bound, "a finite number or none")
        if self.low is not None and self.high is not None:
            expected = f"less than weights.high ({self.high})"
            require(self.low < self.high, "weights.low", self.low, expected, "weights.high")
        require_positive("weights", self, "learning_rate", "max_grad_norm")


@dataclass(frozen=True)
class UpperConfig(Settings):
    """The upper level: how the gradient of the true return with respect to phi is estimated."""

    sampling: Literal["interleaved", "round"] = "interleaved"
    """interleaved: one step of phi after every step of theta; round: one per update, on the next policy's samples."""
    second_order: Literal["exact", "opg", "none"] = "opg"
    """IMGL's Hessian term: exact, outer product of gradients, or dropped."""
    unroll: int = 5
    """Method `unrolled`: how many of the newest steps of theta are differentiated."""
    horizon: Literal["gamma", "gamma-lambda"] = "gamma"
    """Discount of later terms in the derivative of the modified advantage."""
    follow_weights: bool | None = None
    """Within a round, move the modified advantages along with phi; none: unless its weights are bounded."""
    control_group: bool = False
    """Weigh terms by evidence, beside a policy that learns from the true reward alone; the better of the two leads."""

    def check(self) -> None:
        check_types(self, "upper.")
        require_positive("upper", self, "unroll")


@dataclass(frozen=True)
class DPBAConfig(Settings):
    """Method `dpba`: the potential that is learned from the reward terms."""

    hidden: tuple[int, ...] = (16, 8)
    """Hidden layers of the potential's network (tanh)."""
    learning_rate: float = 5e-4
    """Adam's step size for the potential."""
    max_grad_norm: float | None = None
    """Clip the potential's gradient to this norm; inf clips nothing."""
    correct: bool = False
    """Add Phi(s, a) to the advantage again, so that the terms change the policy's way but not its goal."""

    def check(self) -> None:
        check_types(self, "dpba.")
        self._infinite_means_none("max_grad_norm")
        require_hidden("dpba", self, "hidden")
        require_positive("dpba", self, "learning_rate", "max_grad_norm")


@dataclass(frozen=True)
class DDPGConfig(Settings):
    """The lower level of the deterministic methods: DDPG, with the three additions of TD3 as settings."""

    policy_hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the policy network."""
    value_hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of every critic."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation of policy and critics."""
    num_envs: int = 10
    """Environments stepped side by side."""
    update_period: int = 1_000
    """Environment steps collected before each update."""
    gradient_steps: int = 100
    """Gradient steps of the critics per update."""
    batch_size: int = 128
    """Transitions per gradient step, drawn from the replay."""
    warmup_steps: int = 2_000
    """Environment steps with uniformly random actions before anything is learned."""
    exploration_noise: float = 0.2
    """Standard deviation of the noise on actions while experience is gathered."""
    replay_capacity: int | None = None
    """Transitions remembered; none remembers all, as far as a checkpoint stays below 64 MB."""
    gamma: float = 0.99
    """Discount rate."""
    policy_learning_rate: float = 3e-4
    """Adam's step size for the policy."""
    value_learning_rate: float = 1e-3
    """Adam's step size for the critics."""
    target_rate: float = 0.005
    """How far the target networks follow at each step."""
    twin_critics: bool = False
    """TD3: two critics of each reward, the smaller one believed."""
    policy_delay: int = 1
    """TD3: steps of the critics per step of the policy and of the weights."""
    target_noise: float = 0.0
    """TD3: standard deviation of the noise on target actions, cut off at 2.5 times that."""

    def check(self) -> None:
        check_types(self, "ddpg.")
        require_hidden("ddpg", self, "policy_hidden", "value_hidden")
        require_positive(
            "ddpg", self, "num_envs", "update_period", "gradient_steps", "batch_size", "policy_learning_rate",
            "value_learning_rate", "policy_delay",
        )  # fmt: skip
        require_not_negative("ddpg", self, "warmup_steps", "exploration_noise", "target_noise")
        require_share("ddpg", self, "gamma")
        require(0 < self.target_rate <= 1, "ddpg.target_rate", self.target_rate, "a number in (0, 1]")
        require_multiple("ddpg", self, "update_period", "num_envs")
        require_multiple("ddpg", self, "gradient_steps", "policy_delay")
        if self.replay_capacity is not None:
            expected = f"at least ddpg.update_period ({self.update_period}), or none"
            fits = self.replay_capacity >= self.update_period
            require(fits, "ddpg.replay_capacity", self.replay_capacity, expected, "ddpg.update_period")


@dataclass(frozen=True)
class DDPGUpperConfig(Settings):
    """The upper level of the deterministic methods."""

    size_penalty: float = 4.0
    """kappa: weights tend to what a term's gradient explains of the true one, over kappa; 0: the paper's formula."""
    second_order: Literal["exact", "constant-critic", "none"] = "none"
    """ddpg-imgl: all of the recursion, Q~ taken as constant in phi, or the second-order term dropped."""

    def check(self) -> None:
        check_types(self, "ddpg_upper.")
        require_not_negative("ddpg_upper", self, "size_penalty")


@dataclass(frozen=True)
class Config(Settings):
    """One run: an environment, its reward terms, a method and a seed."""

    env: str = "cartpole"
    """Environment: a name that is registered, or any Gymnasium id."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """Settings of the environment itself, such as force."""
    vector: Literal["auto", "sync", "async"] = "auto"
    """auto: the fastest way there is; sync: Gymnasium in this process; async: Gymnasium, one process each."""
    env_timeout: float | None = None
    """Longest time in seconds for a step or reset of an environment that Gymnasium steps; none: no limit."""
    terms: tuple[str, ...] = ()
    """Reward terms, by name."""
    true_reward: str = "env"
    """The true reward: env, env-minus-terms, info:KEY, import:MODULE.FUNCTION, or function (given in Python)."""
    potential: str | None = None
    """The potential of a method that takes one, by name; none takes the environment's usual one."""
    preset: str = "default"
    """What the other settings start from. default: the same for every environment; paper: the paper's settings for its
    tasks."""
    method: str = "mgl"
    """How the terms are used; a row of the methods table."""
    seed: int = 0
    """Seed of everything random in the run."""
    steps: int = 1_200_000
    """Environment steps to train for, rounded up to whole updates."""
    evaluation_episodes: int = 20
    """Greedy episodes per evaluation."""
    evaluation_every: int = 1
    """Updates between evaluations."""
    checkpoint_every: int = 10
    """Updates between checkpoints."""
    tensorboard: bool = False
    """Write TensorBoard scalars into the run's directory."""
    threads: int = 1
    """Cores that the run uses: MuJoCo steps its environments on all of them; PPO's critics learn at the same time as
    the policy."""
    weights_from: str | None = None
    """Run directory whose learned weights are loaded and kept frozen."""
    weights_as: WeightsAs = "function"
    """What to reuse. function: the weights by state and action; scalars: their mean at the end, one number per term."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    weights: WeightConfig = field(default_factory=WeightConfig)
    upper: UpperConfig = field(default_factory=UpperConfig)
    dpba: DPBAConfig = field(default_factory=DPBAConfig)
    ddpg: DDPGConfig = field(default_factory=DDPGConfig)
    ddpg_upper: DDPGUpperConfig = field(default_factory=DDPGUpperConfig)
    learner: Literal["ppo", "ddpg"] = "ppo"
    """Which of them is the lower level; the method decides."""

    def check(self) -> None:
        check_types(self, "")
        require_positive(
            "config", self, "steps", "evaluation_episodes", "evaluation_every", "checkpoint_every", "threads",
            "env_timeout",
        )  # fmt: skip
        if self.weights_as == "scalars":
            require(self.weights_from is not None, "weights_from", None, "the run whose scalars are taken")
        require(0 <= self.seed < 2**32, "seed", self.seed, "a whole number in [0, 2^32)")

    @property
    def lower(self) -> PPOConfig | DDPGConfig:
        """Settings of the learner that the method trains."""
        return self.ddpg if self.learner == "ddpg" else self.ppo

    @property
    def num_updates(self) -> int:
        return math.ceil(self.steps / self.lower.update_period)

    @property
    def whole_steps(self) -> int:
        """Environment steps that the run really takes."""
        return self.num_updates * self.lower.update_period

    @property
    def whole_updates(self) -> str:
        """Why the two may differ, in words."""
        return f"training goes by whole updates of {self.lower.update_period:,} steps ({self.learner}.update_period)"

    def to_dict(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def flat(self) -> dict[str, Any]:
        """Every setting under one name, such as ppo.clip."""
        found: dict[str, Any] = {}
        for name, value in self.to_dict().items():
            nested = isinstance(value, dict) and name != "env_options"
            found |= {f"{name}.{key}": inner for key, inner in value.items()} if nested else {name: value}
        return found

    def program_text(self) -> str:
        """Everything that decides which program is compiled; runs with the same text share one."""
        shared = dataclasses.replace(self, seed=0, weights_from=self.weights_from and "another run")
        return json.dumps(shared.to_dict(), sort_keys=True)

    @staticmethod
    def from_dict(data: dict[str, Any], base: "Config | None" = None) -> "Config":
        """From parsed JSON or TOML; what is not given is as in `base`, such as the preset of an environment."""
        return merge(base or Config(), data, "config")
