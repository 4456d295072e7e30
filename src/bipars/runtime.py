"""What a process sets up before its first compiled call: one core, a compilation cache, memory that is kept."""

import ctypes
import os
import sys
from pathlib import Path


def cache_directory() -> Path:
    """Where compiled programs are kept between starts; `BIPARS_CACHE` moves it."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "bipars"
    return Path(os.environ.get("BIPARS_CACHE", default))


def enable_compilation_cache() -> None:
    """A second start of the same training loads its program instead of compiling it."""
    import jax

    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def use_one_core(core: int | None = None) -> None:
    """Pins this process. XLA then has one thread: faster for small networks, and the same result every time.

    Must run before the first computation. Without a number, one of the cores this process may use is taken.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[(os.getpid() if core is None else core) % len(allowed)]})


HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""For the environment of a process to be started: large buffers then fault in 2 MiB at a time, not 4 KiB."""


def keep_freed_memory() -> None:
    """Tells glibc not to hand large buffers back to the kernel: every update would fault them in again.

    Together with `HUGE_PAGES` this halves the time of methods that keep a gradient per sample.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library
    trim_threshold, top_pad, mmap_max, arena_max = -1, -2, -4, -8
    mallopt(arena_max, 1)
    mallopt(mmap_max, 0)
    mallopt(top_pad, 256 * 2**20)
    mallopt(trim_threshold, 2**31 - 1)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
