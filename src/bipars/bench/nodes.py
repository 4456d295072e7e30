"""Nodes of a Ray cluster killed while they work on a suite."""

import io
import random
import warnings
from contextlib import redirect_stderr
from pathlib import Path

from bipars.bench.faults import Tally
from bipars.bench.kills import SUITE, doubles, outcome
from bipars.suite.local import run_locally
from bipars.suite.manifest import record
from bipars.suite.plan import load_suite
from bipars.suite.ray import run_on_ray
from bipars.suite.work import PlannedRun, Standing


def lose_nodes(count: int, scratch: Path) -> Tally:
    """So many, in as many runs of a small suite as that takes; each is replaced by a new one."""
    tally, rng = Tally("killed: Ray nodes"), random.Random(0)
    file = scratch / "small.toml"
    file.write_text(SUITE)

    def plan(root: Path) -> list[PlannedRun]:
        return record(root, load_suite(str(file)), ["small"]).runs(root)

    calm = scratch / "calm"
    if not run_locally(plan(calm), 2, lambda standing: None):
        tally.failures.append("Ray nodes: the undisturbed suite was stopped")
        return tally
    expected, attempt = outcome(calm), 0
    while tally.done < count and not tally.failures:
        attempt += 1
        root = scratch / f"wild-{attempt}"
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # Ray says much of a node that is lost
            warnings.simplefilter("ignore")  # its own, and JAX's about its forks
            _disturb(plan(root), count, tally, rng)
        if outcome(root) != expected:
            tally.failures.append(f"Ray nodes: suite {attempt} differs from the undisturbed one")
        tally.failures += [f"Ray nodes: {problem}" for problem in doubles(root)]
    return tally


def _disturb(runs: list[PlannedRun], count: int, tally: Tally, rng: random.Random) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    due = rng.randrange(1_000, 60_000)

    def kill(standing: Standing) -> None:
        nonlocal node, due
        if tally.done < count and standing.steps >= due and standing.done < standing.total:
            cluster.remove_node(node, allow_graceful=False)
            node = cluster.add_node(num_cpus=1)
            tally.count("killed and replaced")
            due = standing.steps + rng.randrange(50_000, 200_000)

    try:
        run_on_ray(runs, None, cluster.address, kill)
    finally:
        cluster.shutdown()
