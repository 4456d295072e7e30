"""`bipars bench jax`: MGL on CartPole-v1 of Gymnax, compiled whole, beside Gymnasium's, which Python steps.

Settings are the same on both sides: many environments and few gradient steps, as where environments are what costs.
Each side is a process of its own, one after the other. Rates are environment steps per second of whole updates once
compiled, without evaluation.
"""

import os
import time
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bipars.bench.child import run_child, serve
from bipars.errors import UsageError

TASK = "CartPole-v1"
PPO = {"num_envs": 256, "update_period": 32_768, "gradient_steps": 16, "batch_size": 1_024}
NEVER = 1_000_000
"""Updates between evaluations."""
FASTER = 10


def upright(obs: Any, action: Any, next_obs: Any, info: Any) -> Any:
    return 1.0 - abs(next_obs[..., 2]) / 0.21


def measure(side: str, updates: str) -> dict[str, float]:
    """In this process."""
    import bipars

    env: Any = TASK
    if side == "gymnax":
        env = bipars.envs.from_gymnax(*import_module("gymnax").make(TASK))
    terms = [bipars.RewardTerm("upright", upright, vectorised=True)]
    period = PPO["update_period"]
    agent = bipars.BiPaRS(env, terms=terms, ppo=PPO, evaluation_every=NEVER).learn(2 * period)
    began, cpu = time.perf_counter(), time.process_time()
    agent.learn(int(updates) * period)
    steps = int(updates) * period
    return {"rate": steps / (time.perf_counter() - began), "cpu": steps / (time.process_time() - cpu)}


def run_bench(updates: int) -> int:
    if find_spec("gymnax") is None:
        raise UsageError("bench jax needs Gymnax, which wants gymnasium < 1.4: pip install gymnax")
    compiled, stepped = (run_child("bipars.bench.jax", [side, str(updates)], os.environ) for side in ("gymnax", "gym"))
    print(f"MGL on {TASK}, {PPO['num_envs']} environments, {updates} updates of {PPO['update_period']:,} steps\n")
    for name, found in (("Gymnax's, compiled whole", compiled), ("Gymnasium's, stepped from Python", stepped)):
        print(f"  {name:34}{found['rate']:9,.0f} steps/s   {found['cpu']:9,.0f} per second of CPU time")
    times, of_cpu = compiled["rate"] / stepped["rate"], compiled["cpu"] / stepped["cpu"]
    print(f"\n{times:.1f} times as fast (bound {FASTER}); {of_cpu:.1f} times by CPU time")
    return 0


if __name__ == "__main__":
    serve(measure)
