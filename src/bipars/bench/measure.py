"""What several benchmarks measure, each in a process of its own, so that none warms the caches of another."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from bipars.runtime import keep_freed_memory, process_settings, use_cores


def apart(measure: Callable[..., Any], *arguments: Any, environment: dict[str, str] | None = None) -> Any:
    """What a function of a module returns in a new process; arguments and result travel as JSON."""
    command = [sys.executable, "-m", __name__, measure.__module__, measure.__name__, json.dumps(arguments)]
    given = os.environ | (environment or {}) | process_settings()
    result = subprocess.run(command, env=given, check=True, stdout=subprocess.PIPE)
    return json.loads(result.stdout.splitlines()[-1])


def measure_updates(updates: int, settings: Mapping[str, Any]) -> dict[str, float]:
    """In this process: median seconds of `updates` updates after the first that learns; megabytes at most."""
    use_cores([0])
    keep_freed_memory()
    import resource

    import jax
    import numpy as np

    from bipars.program import build, complete, configure

    began = time.perf_counter()
    config = complete(configure(settings))
    program, seed = build(config), np.uint32(0)
    state = program.init(0)
    jax.config.update("jax_disable_most_optimizations", False)  # HURRY concerns what is not timed
    iterate = program.compiled_iterate.lower(state, seed).compile()  # type: ignore[attr-defined]
    state, signals = iterate(state, seed)
    jax.block_until_ready(signals)
    start = time.perf_counter() - began
    for _ in range(getattr(program.algorithm.lower, "warmup_rounds", 0)):
        state, signals = iterate(state, seed)
    seconds = []
    for _ in range(updates):
        began = time.perf_counter()
        state, signals = iterate(state, seed)
        jax.block_until_ready((state, signals))
        seconds.append(time.perf_counter() - began)
    memory = iterate.memory_analysis()
    arrays = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    return {
        "seconds": float(np.median(seconds)),
        "start_seconds": start,
        "array_megabytes": arrays / 2**20,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "steps": config.lower.update_period,
    }


HURRY = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
"""For the environment of a process: compile quickly rather than well, until it says otherwise. It spoils
the time to start and nothing else."""


def make_peer(env: str, num_envs: int, steps: int, threads: int, net_arch: Any, **settings: Any) -> Any:
    """As the paper's settings have it: 50 gradient steps on every batch of `steps`."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(threads)
    network = {"net_arch": net_arch, "activation_fn": torch.nn.ReLU} | settings.pop("policy_kwargs", {})
    return stable_baselines3.PPO(
        "MlpPolicy",
        make_vec_env(env, n_envs=num_envs, seed=0),
        n_steps=steps // num_envs,
        batch_size=800,  # they must divide the batch: ours have 1024 samples
        n_epochs=2,
        gamma=0.999,
        learning_rate=1e-4,
        policy_kwargs=network,
        device="cpu",
        **settings,
    )


if __name__ == "__main__":
    module, name, given = sys.argv[1:]
    print(json.dumps(getattr(import_module(module), name)(*json.loads(given))))
