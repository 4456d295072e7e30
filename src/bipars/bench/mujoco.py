"""`bipars bench mujoco`: what training costs beside stepping the environments, and both beside our peers.

Each measurement is a process of its own, one after the other. Rates are steps per second without evaluation.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from bipars.bench.measure import apart, make_peer
from bipars.errors import UsageError
from bipars.runtime import keep_freed_memory, use_cores

TASKS = ("Hopper-v5", "HalfCheetah-v5", "Humanoid-v5")
STEPS = 20_000
"""Of an update, all environments together."""
NUM_ENVS = 20
"""As in the presets."""
REPEATS = 3
TURNS = 2
"""Of PPO, MGL and the peer, one process after the other: in one process, MGL's memory would slow PPO down."""


def _actions(env: Any, num_envs: int, steps: int = STEPS) -> np.ndarray:
    """As the untrained policy draws them."""
    rng = np.random.default_rng(0)
    low, high = env.action_space.low, env.action_space.high
    shape = (steps // num_envs, num_envs, low.size)
    return np.clip(rng.normal(0, 0.6, shape) * high, low, high).astype(np.float32)


def measure_fast(task: str, num_envs: int, threads: int, steps: int = STEPS) -> float:
    """Our batches of environments, nothing else, step by step as Gymnasium's."""
    use_cores(range(threads))
    from bipars.envs.mujoco import MujocoEnvironment

    env = MujocoEnvironment(task, num_envs, threads)
    env.reset(0)
    return _rate(env.step, _actions(env, num_envs, steps))


def measure_gymnasium(task: str, num_envs: int, steps: int = STEPS) -> float:
    _hush()
    import gymnasium

    env = gymnasium.make_vec(task, num_envs, vectorization_mode="sync")
    env.action_space = env.single_action_space
    env.reset(seed=0)
    return _rate(env.step, _actions(env, num_envs, steps))


def _hush() -> None:
    """MuJoCo has a remark on one of Gymnasium's models, once per environment, and logs it to the working directory."""
    import_module("mujoco").set_mju_user_warning(lambda message: None)


def _rate(step: Callable[[np.ndarray], Any], actions: np.ndarray) -> float:
    best = 0.0
    for _ in range(REPEATS):
        began = time.perf_counter()
        for action in actions:
            step(action)
        best = max(best, actions.shape[0] * actions.shape[1] / (time.perf_counter() - began))
    return best


def _nothing_to_say(observation_size: int, action_size: int) -> Any:
    """A network that leaves actions to their noise."""
    from bipars.nets.network import Network

    nothing = np.zeros(observation_size, np.float32), np.zeros(action_size, np.float32)
    ones = np.ones(observation_size, np.float32), np.ones(action_size, np.float32)
    weight = np.zeros((observation_size, action_size), np.float32)
    return Network(nothing[0], ones[0], np.float32(np.inf), (weight,), (nothing[1],), True, ones[1])


class _Noting:
    """A sampler that remembers what it did last."""

    def __init__(self, sampler: Any) -> None:
        self._world = sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def run(self, policy: Any, state: Any, key: Any) -> Any:
        self.began = state
        end, self.batch = self._world.run(policy, state, key)
        return end, self.batch


def measure_training(task: str, num_envs: int, threads: int, method: str, updates: int) -> tuple[float, float]:
    """Whole updates: acting, stepping and learning. Also the environments alone, in turns with them.

    It is the same first update every time, and the environments alone repeat its very steps: how long MuJoCo takes
    depends on where bodies are and what they do. In turns, since a busy machine is faster in one minute than in the
    next, and a share of two rates must not depend on that.
    """
    use_cores(range(threads))
    keep_freed_memory()
    import jax
    import jax.numpy as jnp

    from bipars.envs.mujoco import MujocoEnvironment
    from bipars.program import build, complete, configure

    settings = {
        "env": task,
        "preset": "paper",
        "threads": threads,
        "method": method,
        "terms": ["torque"],
        "evaluation_every": 1_000_000,
        "ppo": {"num_envs": num_envs},
    }
    config = configure(settings)
    assert config.ppo.update_period == STEPS
    algorithm = build(complete(config)).algorithm
    sampler: Any = _Noting(algorithm.sampler)
    algorithm = replace(algorithm, sampler=sampler)
    start = algorithm.init(jnp.uint32(0))
    algorithm.iterate(start, jnp.uint32(0), jnp.int32(algorithm.rounds))
    env = MujocoEnvironment(task, num_envs, threads)
    actions = np.asarray(sampler.batch.action)
    given = [(_nothing_to_say(env.observation_size, env.action_size), range(num_envs))]
    seconds, alone = [], []
    for _ in range(updates):
        began = time.perf_counter()
        state, signals = algorithm.iterate(start, jnp.uint32(0), jnp.int32(algorithm.rounds))
        jax.block_until_ready((state.learner, signals))
        between = time.perf_counter()
        env.restore(sampler.began.snapshot)
        env.run(given, actions)
        seconds.append(between - began)
        alone.append(time.perf_counter() - between)
        assert np.array_equal(env.snapshot()["state"], state.env.snapshot["state"]), "not the same steps"
    return STEPS / min(seconds), STEPS / min(alone)


def measure_peer(task: str, num_envs: int, threads: int, updates: int) -> float:
    """Stable-Baselines3's PPO, the first update, too: same environments, networks, noise, batch and number of steps."""
    use_cores(range(threads))
    _hush()
    seconds = []
    for _ in range(updates):
        model = make_peer(
            task, num_envs, STEPS, threads, [64, 64, 64], clip_range=0.2, max_grad_norm=1.0,
            policy_kwargs={"log_std_init": float(np.log(0.6))},
        )  # fmt: skip
        began = time.perf_counter()
        model.learn(STEPS)
        seconds.append(time.perf_counter() - began)
    return STEPS / min(seconds)


def run_bench(updates: int = 4, envs: int = NUM_ENVS) -> int:
    """Prints the table; the peer's column only where it is installed."""
    if envs < 1 or STEPS % envs:
        raise UsageError(f"--envs is {envs}; it must divide the {STEPS:,} steps of an update: try 20, 40 or 100")
    if find_spec("mujoco") is None:
        raise UsageError("bench mujoco needs MuJoCo: pip install 'bipars[mujoco]'")
    peer_installed = find_spec("stable_baselines3") is not None
    times = f"the best of {TURNS * updates} times"
    print(f"{envs} environments; training: the first update of {STEPS:,} steps, {times}\n")
    for task in TASKS:
        print(task)
        alone = {threads: apart(measure_fast, task, envs, threads) for threads in (1, 2)}
        sync = apart(measure_gymnasium, task, envs)
        _row("environments alone, one core", alone[1])
        _row("environments alone, two threads", alone[2])
        _row("Gymnasium's SyncVectorEnv", sync, f"ours {alone[2] / sync:.2f} times that (bound 1.5)")
        for threads, where in ((1, "one core"), (2, "two threads")):
            jobs: dict[str, tuple[Any, ...]] = {
                method: (measure_training, task, envs, threads, method, updates) for method in ("ppo", "mgl")
            }
            if peer_installed:
                jobs["peer"] = (measure_peer, task, envs, threads, updates)
            turns = [{name: apart(*job) for name, job in jobs.items()} for _ in range(TURNS)]
            best = {name: np.max([turn[name] for turn in turns], axis=0) for name in jobs}
            ppo, beside = best["ppo"]
            mgl, _ = best["mgl"]
            _row(f"training, ppo, {where}", ppo, f"{ppo / beside:.0%} of the environments alone (bound 80 %)")
            _row(f"training, mgl, {where}", mgl, f"{ppo / mgl:.2f} times ppo's time (bound 1.3)")
            if peer_installed:
                peer = best["peer"]
                _row(f"Stable-Baselines3's PPO, {where}", peer, f"ours {ppo / peer:.2f} times that (bound 2)")
    if not peer_installed:
        print("\nStable-Baselines3 is not installed; compare with it after: pip install 'bipars[bench]'")
    return 0


def _row(name: str, rate: float, remark: str = "") -> None:
    print(f"  {name:38}{rate:9,.0f} steps/s   {remark}".rstrip(), flush=True)
