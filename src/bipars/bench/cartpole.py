"""`bipars bench cartpole`: steps per second of every method, and of Stable-Baselines3's PPO on the same work.

Each measurement is a process of its own on one core, so that none warms the caches of another.
"""

import tempfile
import time
from importlib.util import find_spec
from typing import Any

from bipars.bench.measure import apart, make_peer, measure_updates
from bipars.runtime import use_cores

METHODS: dict[str, dict[str, Any]] = {
    "ppo": {"method": "ppo"},
    "pbrs": {"method": "pbrs"},
    "dpba": {"method": "dpba"},
    "em": {"method": "em"},
    "mgl": {"method": "mgl"},
    "single": {"method": "single"},
    "imgl none": {"method": "imgl", "upper": {"second_order": "none"}},
    "imgl opg": {"method": "imgl", "upper": {"second_order": "opg"}},
    "imgl exact": {"method": "imgl", "upper": {"second_order": "exact"}},
    "unrolled": {"method": "unrolled"},
}
BOUNDS = {"em": 1.5, "mgl": 1.7, "imgl opg": 4.0}
"""Times of PPO's time that we hold ourselves to."""
PEER_STEPS = 60_000


def measure_peer() -> float:
    """Steps per second of Stable-Baselines3's PPO: same networks, batch, number of gradient steps and environments."""
    use_cores([0])
    model = make_peer("bipars/CartPole-v0", 20, 20_000, 1, {"pi": [8, 8], "vf": [32, 32]}, clip_range=0.5)
    model.learn(20_000)
    began = time.perf_counter()
    model.learn(PEER_STEPS, reset_num_timesteps=False)
    return PEER_STEPS / (time.perf_counter() - began)


def run_bench(updates: int = 30) -> int:
    """Prints the table; the peer's row only where it is installed."""
    print(f"cart-pole, discrete, one core each, {updates} updates of 20,000 steps after the first\n")
    columns = ("steps/s", "time / ppo", "bound", "1st start", "2nd start", "memory")
    print("method".ljust(12), *(name.rjust(10) for name in columns))
    base = None
    for label, method in METHODS.items():
        settings = {"env": "cartpole", "preset": "paper", "terms": ["harmful"], **method}
        with tempfile.TemporaryDirectory() as cache:
            where = {"BIPARS_CACHE": cache}
            first, second = (apart(measure_updates, updates, settings, environment=where) for _ in range(2))
        speed = first["steps"] / min(first["seconds"], second["seconds"])
        base = base or speed
        figures = (
            f"{speed:,.0f}",
            f"{base / speed:.2f}",
            f"{BOUNDS[label]:.1f}" if label in BOUNDS else "",
            f"{first['start_seconds']:.1f} s",
            f"{second['start_seconds']:.1f} s",
            f"{first['megabytes']:.0f} MB",
        )
        print(label.ljust(12), *(figure.rjust(10) for figure in figures), flush=True)
    assert base is not None
    if find_spec("stable_baselines3") is None:
        print("\nStable-Baselines3 is not installed; compare with it after: pip install 'bipars[bench]'")
        return 0
    peer = apart(measure_peer)
    print(
        f"\nStable-Baselines3 PPO, 20 environments: {peer:,.0f} steps/s. Ours: {base / peer:.1f} times that (bound 25)"
    )
    return 0
