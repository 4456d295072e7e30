"""An agent as far as it is trained: it acts, weighs its terms, goes to disk and back, and gives its weights away."""

import logging
import os
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from bipars.errors import CheckpointError, UsageError
from bipars.export import LearnedWeightFunction, shape
from bipars.methods import Method
from bipars.program import Objects, Program
from bipars.rollout.acting import ActingPolicy
from bipars.rollout.host_sampler import HostSampler
from bipars.rollout.make import Env
from bipars.runs.checkpoint import replace_checkpoint, settings_digest
from bipars.runs.directory import RunDirectory
from bipars.runs.execute import load_state
from bipars.runs.files import sha256
from bipars.runs.objects import Terms, as_terms, names_without, objects_again
from bipars.runs.progress import describe
from bipars.runs.record import write_record
from bipars.runs.snapshots import read_snapshots
from bipars.settings.importing import agree, agree_typed, named_code, require_agreed
from bipars.settings.resolved import ResolvedConfig
from bipars.shaping.given import Potential
from bipars.terms.term import TermFunction
from bipars.terms.true_reward import TrueReward
from bipars.train import TrainState

logger = logging.getLogger("bipars")


class TrainedAgent:
    """What `bipars.BiPaRS` is once it has learned."""

    def __init__(
        self,
        config: ResolvedConfig,
        objects: Objects,
        recorded: dict[str, Any],
        program: Program,
        state: TrainState,
        rounds: int,
    ) -> None:
        """`recorded` says which of the `objects` a file cannot hold."""
        self.metrics: list[dict[str, Any]] = []
        """One row per update, those before the agent was saved and loaded among them."""
        self._snapshots: dict[int, bytes] = {}
        self.config, self._objects, self._program, self._state, self._rounds = config, objects, program, state, rounds
        self._recorded = recorded
        self.terms = program.terms
        self._acting: tuple[TrainState, ActingPolicy] | None = None

    def __repr__(self) -> str:
        config, row = self.config, self.metrics[-1] if self.metrics else {}
        about = (
            f"{config.env!r}, terms={[term.name for term in self.terms]}, method={config.method!r}, seed={config.seed}"
        )
        now = describe(row) if row else "not trained yet"
        return f"{type(self).__name__}({about}): {self.num_timesteps:,} steps, {now}"

    @property
    def num_timesteps(self) -> int:
        return self._program.steps_after(self._rounds)

    @property
    def policy(self) -> ActingPolicy:
        """The policy as it is now, by itself: `agent.policy.predict(observations)`."""
        if self._acting is None or self._acting[0] is not self._state:
            sampler = self._program.algorithm.sampler
            policy = self._program.algorithm.acting(self._state)
            acting = ActingPolicy(policy, sampler.observation_space, sampler.action_space, self.config.seed)
            self._acting = self._state, acting
        return self._acting[1]

    def predict(
        self,
        observation: Any,
        state: None = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, None]:
        """The action for one observation or a batch; `state` and `episode_start` are what other libraries pass."""
        return self.policy.predict(observation, state, episode_start, deterministic)

    def weights(self, observation: Any, action: Any) -> np.ndarray:
        """z(s, a): one column per reward term."""
        return self.weight_function()(observation, action)

    def weight_function(self) -> LearnedWeightFunction:
        """The weights as they are now, frozen, as a plain callable that can be saved to one small file."""
        sampler, state = self._program.algorithm.sampler, self._state
        return LearnedWeightFunction(
            state.weights,
            state.observations,
            self.config.weights,
            self._program.term_names,
            sampler.observation_space,
            sampler.action_space,
        )

    def shaped_env(self, env: Any) -> Any:
        """`env` with the true reward plus every term times its learned weight, for any other library.

        A Gymnasium environment, a Gymnasium vector environment, or a `VecEnv` of Stable-Baselines3.
        """
        if self._program.algorithm.potential.shapes:
            raise UsageError(f"method '{self.config.method}' shapes by a potential; it has no weights to export")
        reward = TrueReward(self.config.true_reward, self._objects.true_reward)
        return shape(env, self.weight_function(), self.terms, reward, self._state.env.term_params)

    def close(self) -> None:
        """Ends the environments; only those with processes of their own (`vector="async"`) need it."""
        sampler = self._program.algorithm.sampler
        if isinstance(sampler, HostSampler):
            sampler.close()

    def evaluate(self, seed: int = 0) -> tuple[float, float]:
        """Mean true return and mean length of greedy episodes."""
        whole = whole_number(seed)
        if whole is None or not 0 <= whole < 2**32:
            raise UsageError(f"seed is {seed!r}; expected a whole number in [0, 2^32)")
        algorithm = self._program.algorithm
        result = algorithm.sampler.evaluate(algorithm.acting(self._state), jax.random.key(np.uint32(whole)))
        return float(np.mean(result.true_return)), float(np.mean(result.length))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes a directory from which `load` restores everything, optimisers included.

        An earlier save of the same agent there is replaced, and stays valid until the new one is complete.
        """
        run = RunDirectory.create(path, self.config, "agent", self._recorded)
        with run.owned():
            metrics = write_record(run, self.metrics, self._snapshots)
            mark = len(metrics), sha256(metrics)
            replace_checkpoint(run.checkpoints, self._rounds, self._state, mark, settings_digest(self.config))
        return run.path

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        env: str | Env | None = None,
        terms: Terms | None = None,
        true_reward: str | TermFunction | None = None,
        potential: Potential | None = None,
        method: Method | None = None,
        allow_imports: bool = False,
    ) -> Self:
        """An agent saved by `save`, or the newest checkpoint of a training run.

        Functions are not stored: pass environments, terms, true rewards, potentials and methods of your own again.
        Code that its file names, such as import:my_terms.upright, is imported only if the file was written by you on
        this machine, with `allow_imports`, or where you pass the name again; or pass the object in its place.
        """
        run = RunDirectory(path)
        terms = None if terms is None else as_terms(terms, env)
        agree_typed(env, true_reward, *as_terms(terms))
        agree(named_code(run.config) if allow_imports else ())
        require_agreed(names_without(run.config, env, terms, potential, method))
        objects, recorded = objects_again(run, env, terms, true_reward, potential, method)
        agent = cls.__new__(cls)
        TrainedAgent.__init__(agent, run.config, objects, recorded, *load_state(path, objects))
        agent.metrics = [row for row in _intact_metrics(run) if row["round"] <= agent._rounds]
        agent._snapshots = {round: content for round, content in read_snapshots(run).items() if round <= agent._rounds}
        return agent


def _intact_metrics(run: RunDirectory) -> list[dict[str, Any]]:
    """Those of a saved agent may be newer than it, where a later save was interrupted; it is whole without them."""
    try:
        return run.metrics
    except CheckpointError as error:
        if run.kind != "agent":
            raise
        logger.warning("%s; the agent is loaded without its metrics", error)
        return []


def whole_number(value: Any) -> int | None:
    """1e5 is a whole number too; None where it is none."""
    try:
        return int(value) if int(value) == value else None
    except (TypeError, ValueError, OverflowError):
        return None
