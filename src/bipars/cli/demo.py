"""`bipars demo`: what three reward terms do under three methods."""

from pathlib import Path

from bipars.report.build import write_report
from bipars.report.curves import plot_curves
from bipars.report.text import show_results
from bipars.results.panels import collect
from bipars.runs.root import check_root
from bipars.suite.finish import DONE, finish, local_engine, runner_of
from bipars.suite.manifest import is_suite, record
from bipars.suite.plan import load_suite

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
        runs = record(out, suite, ["demo"]).runs(out)
        status = finish(runs, out, local_engine(workers), f"bipars demo --out {out}")
    if status != DONE:
        return status
    picture = out / "curves.png"
    by_label = {
        label: [run.directory for run in runs if run.config.method == method] for method, label in LABELS.items()
    }
    plot_curves(by_label, "cart-pole with three terms", picture)
    show_results(runs, out)
    print(f"\nCurves: {picture}")
    print(f"Report: {write_report(collect(out))}")
    return 0
