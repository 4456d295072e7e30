"""A grid of runs on Ray, and its table in Python: a few minutes on two cores.

    pip install 'bipars[ray,tables]'
    python examples/suite_on_ray.py

What to run stands in suite_on_ray.toml. Without an address, Ray starts a cluster on this machine; on one of yours, add
`--address`. Stopped, the suite goes on with `bipars resume runs/on-ray`.
"""

import sys
from pathlib import Path

import polars

import bipars
from bipars.cli import main as command

SUITE = Path(__file__).with_suffix(".toml")


def main(steps=300_000, seeds="0-2", out="runs/on-ray"):
    scale = str(steps / 300_000)
    code = command(
        ["suite", "run", str(SUITE), "--engine", "ray", "--seeds", seeds, "--scale", scale, "--out", str(out)]
    )
    if code:
        sys.exit(code)
    table = bipars.load_results(out)  # one row per run and evaluation
    last = table.filter(polars.col("step") == table["step"].max())
    print(last.group_by("cell").agg(polars.col("evaluation_return").mean().round(0)).sort("cell"))


if __name__ == "__main__":
    main()
