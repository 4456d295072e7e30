"""`bipars bench mujoco`: what training costs beside stepping the environments, and both beside our peers.

Each measurement is a process of its own, one after the other. Rates are steps per second without evaluation.
"""

import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from bipars.bench.child import run_child, serve
from bipars.errors import UsageError
from bipars.runtime import keep_freed_memory, use_one_core

TASKS = ("Hopper-v5", "HalfCheetah-v5", "Humanoid-v5")
NUM_ENVS = 20
REPEATS = 3


def _actions(env: Any, count: int) -> np.ndarray:
    """As the untrained policy draws them."""
    rng = np.random.default_rng(0)
    low, high = env.action_space.low, env.action_space.high
    return np.clip(rng.normal(0, 0.6, (count, NUM_ENVS, low.size)) * high, low, high).astype(np.float32)


def measure_fast(task: str, steps: int, threads: int) -> float:
    """Our batches of environments, nothing else."""
    if threads == 1:
        use_one_core(0)
    from bipars.envs.mujoco import MujocoEnvironment

    env = MujocoEnvironment(task, NUM_ENVS, threads)
    return _rate(env, lambda action: env.step(action), lambda: env.reset(0), steps)


def measure_gymnasium(task: str, steps: int) -> float:
    """Gymnasium's SyncVectorEnv."""
    import gymnasium

    env = gymnasium.make_vec(task, NUM_ENVS, vectorization_mode="sync")
    env.action_space = env.single_action_space
    return _rate(env, lambda action: env.step(action), lambda: env.reset(seed=0), steps)


def _rate(env: Any, step: Any, reset: Any, steps: int) -> float:
    reset()
    rounds = max(1, steps // NUM_ENVS)
    actions = _actions(env, rounds)
    best = 0.0
    for _ in range(REPEATS):
        began = time.perf_counter()
        for action in actions:
            step(action)
        best = max(best, rounds * NUM_ENVS / (time.perf_counter() - began))
    return best


def measure_training(task: str, method: str, updates: int, threads: int) -> tuple[float, float]:
    """Whole updates of 20,000 steps: acting, stepping and learning. Also the environments alone, in turns with them.

    A busy machine is faster in one minute than in the next, and a share of two rates must not depend on that.
    """
    if threads == 1:
        use_one_core(0)
    keep_freed_memory()
    import jax

    from bipars.config import Config
    from bipars.envs.mujoco import MujocoEnvironment
    from bipars.program import build, complete

    settings = {
        "env": task,
        "env_options": {"threads": threads},
        "method": method,
        "terms": ["torque"],
        "evaluation_every": 1_000_000,
    }
    config = Config.from_dict(settings)
    program = build(complete(config))
    state, _ = program.iterate(program.init(0), 0)
    env = MujocoEnvironment(task, NUM_ENVS, threads)
    env.reset(0)
    steps = config.ppo.update_period
    actions, seconds, alone = _actions(env, steps // NUM_ENVS), [], []
    for _ in range(updates):
        began = time.perf_counter()
        state, signals = program.iterate(state, 0)
        jax.block_until_ready((state.learner, signals))
        between = time.perf_counter()
        for action in actions:
            env.step(action)
        seconds.append(between - began)
        alone.append(time.perf_counter() - between)
    return steps / float(np.min(seconds)), steps / float(np.min(alone))


def measure_peer(task: str, steps: int, threads: int) -> float:
    """Stable-Baselines3's PPO: same environments, networks, batch and number of gradient steps."""
    if threads == 1:
        use_one_core(0)
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(threads)
    model = stable_baselines3.PPO(
        "MlpPolicy",
        make_vec_env(task, n_envs=NUM_ENVS),
        n_steps=1000,
        batch_size=800,
        n_epochs=2,  # 50 gradient steps as ours, of 800 samples (which divide the batch) instead of 1024
        gamma=0.999,
        clip_range=0.2,
        learning_rate=1e-4,
        max_grad_norm=1.0,
        policy_kwargs={"net_arch": [64, 64, 64], "activation_fn": torch.nn.ReLU},
        device="cpu",
    )
    began = time.perf_counter()
    model.learn(steps)
    return steps / (time.perf_counter() - began)


def run_bench(updates: int) -> int:
    """Prints the table; the peer's column only where it is installed."""
    if find_spec("mujoco") is None:
        raise UsageError("bench mujoco needs MuJoCo: pip install 'bipars[mujoco]'")
    steps, peer_installed = 20_000, find_spec("stable_baselines3") is not None
    print(f"{NUM_ENVS} environments; training: best of {updates} updates of 20,000 steps after the first\n")
    for task in TASKS:
        print(task)
        alone = {threads: _child("fast", task, steps, threads) for threads in (1, 2)}
        sync = _child("gymnasium", task, steps)
        _row("environments alone, one core", alone[1])
        _row("environments alone, two threads", alone[2])
        _row("Gymnasium's SyncVectorEnv", sync, f"ours {alone[2] / sync:.2f} times that (bound 1.5)")
        for threads, where in ((1, "one core"), (2, "two threads")):
            ppo, beside = _training(task, "ppo", updates, threads)
            share = f"{ppo / beside:.0%} of the environments alone" + " (bound 80 %)" * (threads == 1)
            _row(f"training, ppo, {where}", ppo, share)
            if threads == 1:
                mgl, _ = _training(task, "mgl", updates, threads)
                _row(f"training, mgl, {where}", mgl, f"{ppo / mgl:.2f} times ppo's time (bound 1.3)")
            if peer_installed:
                peer = _child("peer", task, steps, threads)
                _row(f"Stable-Baselines3's PPO, {where}", peer, f"ours {ppo / peer:.2f} times that (bound 2)")
    if not peer_installed:
        print("\nStable-Baselines3 is not installed; compare with it after: pip install 'bipars[bench]'")
    return 0


def _row(name: str, rate: float, remark: str = "") -> None:
    print(f"  {name:38}{rate:9,.0f} steps/s   {remark}".rstrip(), flush=True)


def _child(*arguments: Any) -> Any:
    return run_child("bipars.bench.mujoco", [str(argument) for argument in arguments], dict(os.environ))["rate"]


def _training(task: str, method: str, updates: int, threads: int) -> tuple[float, float]:
    training, alone = _child("training", task, method, updates, threads)
    return training, alone


MEASUREMENTS: dict[str, Callable[..., Any]] = {
    "fast": lambda task, steps, threads: measure_fast(task, int(steps), int(threads)),
    "gymnasium": lambda task, steps: measure_gymnasium(task, int(steps)),
    "training": lambda task, method, updates, threads: measure_training(task, method, int(updates), int(threads)),
    "peer": lambda task, steps, threads: measure_peer(task, int(steps), int(threads)),
}

if __name__ == "__main__":
    serve(lambda name, *arguments: {"rate": MEASUREMENTS[name](*arguments)})
