"""Nodes of a Ray cluster killed while they work on a suite."""

import io
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from bipars.bench.faults import Tally, Try
from bipars.bench.kills import SUITE, differences, outcome
from bipars.errors import BiparsError
from bipars.suite.local import run_locally
from bipars.suite.manifest import record
from bipars.suite.plan import load_suite
from bipars.suite.ray import run_on_ray
from bipars.suite.work import PlannedRun, Standing


@contextmanager
def losing(scratch: Path) -> Iterator[Try]:
    """A small suite on a cluster of two nodes, of which one is killed and replaced again and again."""
    file = scratch / "small.toml"
    file.write_text(SUITE)

    def plan(root: Path) -> list[PlannedRun]:
        return record(root, load_suite(str(file)), ["small"]).runs(root)

    calm = scratch / "calm"
    if not run_locally(plan(calm), 2, lambda standing: None):
        raise BiparsError("the undisturbed suite was stopped")
    expected = outcome(calm)

    def lose(tally: Tally, most: int, rng: random.Random) -> None:
        root = scratch / f"wild-{tally.done}"
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # Ray says much of a node that is lost
            warnings.simplefilter("ignore")  # its own, and JAX's about its forks
            _disturb(plan(root), most, tally, rng)
        tally.failures += [f"node {tally.done}: {problem}" for problem in differences(root, expected)]

    yield lose


def _disturb(runs: list[PlannedRun], most: int, tally: Tally, rng: random.Random) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    due = rng.randrange(1_000, 60_000)

    def kill(standing: Standing) -> None:
        nonlocal node, due
        if tally.done < most and standing.steps >= due and standing.done < standing.total:
            cluster.remove_node(node, allow_graceful=False)
            node = cluster.add_node(num_cpus=1)
            tally.count("killed and replaced")
            due = standing.steps + rng.randrange(20_000, 100_000)

    try:
        run_on_ray(runs, None, cluster.address, kill)
    finally:
        cluster.shutdown()
