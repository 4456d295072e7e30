"""`bipars bench learner`: PPO of the recipe beside Stable-Baselines3's, with the same settings, in whole trainings.

Both have one core and a process of their own for every training; the time is that of training alone, compilation
included. The true return is that of greedy episodes at the end. A finished training is a line of trainings.jsonl: the
benchmark may be killed, and goes on where it was.
"""

import csv
import json
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bipars.bench.measure import apart
from bipars.errors import UsageError
from bipars.metrics import with_tables
from bipars.runs.files import read_json, write_atomically, write_json
from bipars.runs.versions import versions
from bipars.runtime import keep_freed_memory, use_cores

TASKS = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "Hopper-v5", "HalfCheetah-v5")
SIDES = ("bipars", "stable_baselines3")
SEEDS = 3
EPISODES = 20
"""Greedy ones, by which a policy is judged."""
FASTER = 4.0
"""Times Stable-Baselines3's speed that we hold ourselves to."""


def train_ours(task: str, seed: int, steps: int) -> dict[str, float]:
    use_cores([0])
    keep_freed_memory()
    import bipars

    began = time.perf_counter()
    agent = bipars.BiPaRS(task, method="ppo", seed=seed, evaluation_every=steps).learn(steps)
    return {"seconds": time.perf_counter() - began, "return": agent.evaluate(EPISODES)[0]}


def train_peer(task: str, seed: int, steps: int) -> dict[str, float]:
    use_cores([0])
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    from bipars.lower.ppo import FINAL
    from bipars.settings.recipe import recipe

    torch.set_num_threads(1)
    began = time.perf_counter()
    ours = recipe("ppo").ppo
    env = VecNormalize(make_vec_env(task, ours.num_envs, seed=seed), gamma=ours.gamma)
    space = env.action_space
    actions = space.shape[0] if isinstance(space, gymnasium.spaces.Box) else 1
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=ours.update_period // ours.num_envs,
        batch_size=ours.batch_size,
        n_epochs=ours.gradient_steps * ours.batch_size // ours.update_period,
        learning_rate=lambda left: ours.policy_learning_rate * min(left / FINAL, 1.0),
        gamma=ours.gamma,
        gae_lambda=ours.gae_lambda,
        clip_range=ours.clip,
        max_grad_norm=ours.max_grad_norm or float("inf"),
        policy_kwargs={
            "net_arch": list(ours.policy_hidden),
            "activation_fn": torch.nn.Tanh,
            "log_std_init": -0.5 * float(np.log(actions)),
        },
        seed=seed,
        device="cpu",
    ).learn(steps)
    seconds = time.perf_counter() - began
    env.training = env.norm_reward = False
    return {"seconds": seconds, "return": float(np.mean(evaluate_policy(model, env, EPISODES)[0]))}


TRAIN = {"bipars": train_ours, "stable_baselines3": train_peer}


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| task | steps | true return | Stable-Baselines3 | steps/s | Stable-Baselines3 | times as fast |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task in dict.fromkeys(row["task"] for row in rows):
        sides = [[row for row in rows if (row["task"], row["side"]) == (task, side)] for side in SIDES]
        returns = [", ".join(f"{row['return']:,.0f}" for row in side) for side in sides]
        ours, peers = (sum(row["steps"] for row in side) / sum(row["seconds"] for row in side) for side in sides)
        cells = (task, f"{rows[0]['steps']:,}", *returns, f"{ours:,.0f}", f"{peers:,.0f}", f"{ours / peers:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def run_bench(out: Path = Path("runs/learner"), parts: Sequence[str] = TASKS, steps: int = 100_000) -> int:
    if find_spec("stable_baselines3") is None:
        raise UsageError("bench learner compares with Stable-Baselines3: pip install 'bipars[bench]'")
    out.mkdir(parents=True, exist_ok=True)
    file = out / "trainings.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(row["task"], row["side"], row["seed"], row["steps"]) for row in rows}
    for task, seed, side in ((task, seed, side) for task in parts for seed in range(SEEDS) for side in SIDES):
        if (task, side, seed, steps) in done:
            continue
        row = {"task": task, "side": side, "seed": seed, "steps": steps, **apart(TRAIN[side], task, seed, steps)}
        rows.append(row)
        write_atomically(file, "".join(json.dumps(row) + "\n" for row in rows).encode())
        print(f"{task}, seed {seed}, {side}: {row['return']:.1f} in {row['seconds']:.0f} s", flush=True)
    rows = [row for row in rows if row["task"] in parts and row["steps"] == steps]
    command = f"bipars bench learner --parts {' '.join(parts)} --steps {steps}"
    write_json(out / "learner.json", {"command": command, "versions": versions(), "rows": rows})
    print(f"\n{table(rows)}\n\nbound: {FASTER:.0f} times. written: {out / 'learner.json'}")
    return 0


def documented(results: Path) -> list[str]:
    """What the documentation says of recorded measurements: of the suite `learner`, and of this benchmark."""
    ends: dict[tuple[str, str], list[float]] = {}
    with open(results / "results.csv", newline="") as file:
        for row in csv.DictReader(file):
            ends.setdefault((row["env"], row["steps"]), []).append(float(row["end"]))
    lines = ["| task | steps | mean | every seed |", "| --- | --- | --- | --- |"]
    for (task, steps), found in ends.items():
        every = ", ".join(f"{end:,.0f}" for end in found)
        lines.append(f"| {task} | {int(steps):,} | {np.mean(found):,.0f} | {every} |")
    peers = read_json(results / "learner.json")[0]
    lines += ["", "`bipars suite run learner`: mean of the last five evaluations.", "", table(peers["rows"]), ""]
    return [
        *(f"{line}\n" for line in ["", *lines]),
        f"`{peers['command']}`: {EPISODES} greedy episodes at the end.\n\n",
    ]


if __name__ == "__main__":
    page, results = map(Path, sys.argv[1:])
    page.write_text(with_tables(page.read_text(), documented(results)))
