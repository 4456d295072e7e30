"""What whole updates of one configuration cost: time, memory, and time to start."""

import time
from collections.abc import Mapping
from typing import Any

from bipars.runtime import keep_freed_memory, use_cores


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
    jax.config.update("jax_disable_most_optimizations", False)  # `hurry` concerns what is not timed
    iterate = program.compiled_iterate.lower(state, seed).compile()  # type: ignore[attr-defined]
    state, signals = iterate(state, seed)
    jax.block_until_ready(signals)
    start = time.perf_counter() - began
    for _ in range(getattr(program.algorithm, "warmup_rounds", 0)):
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
