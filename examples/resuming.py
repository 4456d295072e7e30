"""A run on disk, stopped in the middle and resumed: nothing is lost. About half a minute.

    python examples/resuming.py

The same works after kill -9 or a power cut: the run goes on from its last checkpoint.
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIPARS = [sys.executable, "-m", "bipars.cli"]


def rows(out):
    """One for each update that was trained so far."""
    metrics = Path(out, "seed-0000", "metrics.jsonl")
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def main(steps=400_000):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        train = ["train", "--env", "cartpole", "--term", "harmful", "--steps", str(steps), "--out", str(out)]
        running = subprocess.Popen([*BIPARS, *train], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while running.poll() is None and rows(out) < 2:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)  # what Ctrl-C sends
        print(f"stopped after {rows(out)} updates; the command exits with {running.wait()} (130: interrupted)")

        status = subprocess.run([*BIPARS, "report", str(out), "--text"], capture_output=True, text=True).stdout
        print(status.strip().splitlines()[-1])

        subprocess.run([*BIPARS, "resume", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        print(f"finished after {rows(out)} updates")
        verified = subprocess.run([*BIPARS, "verify", str(out)], capture_output=True, text=True).stdout
        print(verified.strip().replace(folder, ""))


if __name__ == "__main__":
    main()
