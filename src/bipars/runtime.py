"""What a process sets up before its first compiled call: its cores, a compilation cache, memory that is kept."""

import ctypes
import fcntl
import functools
import os
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path


def cache_directory() -> Path:
    """Where compiled programs are kept between starts; `BIPARS_CACHE` moves it."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "bipars"
    return Path(os.environ.get("BIPARS_CACHE", default))


def state_directory() -> Path:
    """Where is remembered which files may name code; `BIPARS_STATE` moves it."""
    default = Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state")) / "bipars"
    return Path(os.environ.get("BIPARS_STATE", default))


def enable_compilation_cache() -> None:
    """A second start of the same training loads its program instead of compiling it."""
    import jax

    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@functools.cache
def allowed_cores() -> tuple[int, ...]:
    """As they were before this process was pinned here; none where there is no system call for it."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def use_cores(numbers: Collection[int]) -> None:
    """Pins this process. XLA then has a thread per core: one is faster for small networks, and the same every time.

    Must run before the first computation. The numbers count the cores that this process may use.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = allowed_cores()
    os.sched_setaffinity(0, {allowed[number % len(allowed)] for number in numbers})


@contextmanager
def own_cores(count: int) -> Iterator[None]:
    """Pins this process, while it works, to cores that no other process of bipars has taken in this way.

    Two suites at once, or Ray's processes, so do not meet on one core. Where all are taken, some are shared.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = allowed_cores()
    with ExitStack() as locks:
        free = (core for core in allowed if _take_core(core, locks))
        own = list(islice(free, count))
        others = [core for core in allowed if core not in own]
        shared = {others[(os.getpid() + i) % len(others)] for i in range(count - len(own))} if others else set()
        _pin_threads({*own, *shared})
        try:
            yield
        finally:
            _pin_threads(set(allowed))


def _pin_threads(cores: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def _take_core(core: int, locks: ExitStack) -> bool:
    with ExitStack() as opened, suppress(OSError):
        path = Path(tempfile.gettempdir()) / f"bipars-{os.getuid()}-core-{core}.lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)  # a name that others may guess
        fcntl.flock(opened.enter_context(open(handle, "r+b")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        locks.enter_context(opened.pop_all())
        return True
    return False


def process_settings() -> dict[str, str]:
    """For the environment of a process to be started, where nobody has set them otherwise.

    Large buffers then fault in 2 MiB at a time, not 4 KiB. And NumPy, in which policies act, multiplies in one thread:
    a second one would wait for its share on a core that MuJoCo steps on.
    """
    usual = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "OPENBLAS_NUM_THREADS": "1"}
    return {name: os.environ.get(name, value) for name, value in usual.items()}


def keep_freed_memory() -> None:
    """Tells glibc not to hand large buffers back to the kernel: every update would fault them in again.

    Together with the huge pages of `process_settings` this halves the time of methods that keep a gradient per sample.
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
