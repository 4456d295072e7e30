"""`bipars demo`: what three reward terms do under three methods."""

import sys
from pathlib import Path

from bipars.report.build import write_report
from bipars.report.curves import plot_curves
from bipars.report.text import show_results
from bipars.results.panels import collect
from bipars.runs.root import check_root
from bipars.suite.finish import runner_of
from bipars.suite.local import run_locally
from bipars.suite.manifest import is_suite, record
from bipars.suite.plan import load_suite
from bipars.suite.progress import standing_bar

LABELS = {"ppo": "no shaping", "ns": "naive shaping", "mgl": "learned weights"}


def run_demo(out: Path, workers: int) -> int:
    """Trains, prints a verdict, writes curves.png and report.html. Started again, it goes on where it was."""
    print("cart-pole pays -1 when the pole falls. Somebody added three terms: `upright` pays for a small angle,")
    print("`harmful` takes 0.1 for every push that rights the pole, and `noise` is drawn at random.")
    print("Which should count? Training without them, with them, and with weights that are learned ...")
    suite = load_suite("demo")
    if not is_suite(out):
        check_root(out)
    with runner_of(out):
        planned = record(out, suite, ["demo"]).runs(out)
        with standing_bar("demo") as show:
            if not run_locally(planned, workers, show):
                print(f"stopped; go on with: bipars demo --out {out}")
                return 130
    runs = [run.directory for run in planned]
    missing = [run for run in runs if not run.finished]
    if missing:
        for run in missing:
            print(f"FAILED {run.path}: {run.error if run.error_file.exists() else 'its process died'}", file=sys.stderr)
        print(
            f"{len(missing)} of {len(runs)} runs failed; try them again with: bipars demo --out {out}", file=sys.stderr
        )
        return 1
    picture = out / "curves.png"
    by_label = {label: [run for run in runs if run.config.method == method] for method, label in LABELS.items()}
    plot_curves(by_label, "cart-pole with three terms", picture)
    show_results(planned, out)
    print(f"\nCurves: {picture}")
    print(f"Report: {write_report(collect(out))}")
    return 0
