"""A process that executes runs one after the other: `python -m bipars.runs.worker --cores 1 RUN [RUN ...]`."""

import argparse
import logging
import os
import sys
import threading
import time
from contextlib import suppress

from bipars.runs.stopping import Stop, stop_requests
from bipars.runtime import keep_freed_memory, own_cores

DONE, FAILED, NO_SPACE, STOPPED = 0, 3, 74, 75
"""How it ends; a crash of Python itself has status 1, and an environment may end it with any of these."""
GRACE_SECONDS = 8.0
"""What a round gets to end, once the process was asked to leave; after that its last checkpoint must do."""


def say(answer: int | None, status: int) -> int:
    """Tells the runner why runs are left undone: a status means nothing to it unless it is said here, too."""
    if answer is not None:
        with suppress(BrokenPipeError):  # it was killed
            os.write(answer, bytes([status]))
    return status


def leave_in_time(stop: Stop, abandoned: Stop, answer: int | None) -> None:
    """Ends the process a little after it was asked to, whatever it is doing: a kill loses nothing either.

    One that was abandoned leaves at once, as if it had been killed with whoever started it: a checkpoint that is not
    due would make an environment that cannot be saved begin new episodes.
    """

    def watch() -> None:
        while not stop():
            if abandoned():
                os._exit(STOPPED)
            time.sleep(0.2)
        time.sleep(GRACE_SECONDS)
        os._exit(say(answer, STOPPED))

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=int, required=True, help="how many to use")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="leave when this process is gone")
    parser.add_argument("--agreed", action="append", default=[], help="code that the runs may name")
    parser.add_argument("--answer", type=int, help="an open pipe, to say why runs are left undone")
    parser.add_argument("runs", nargs="+")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    logging.basicConfig(format="%(message)s")
    with stop_requests() as stop, own_cores(options.cores):
        leave_in_time(stop, lambda: os.getppid() != options.parent, options.answer)
        return work(options, stop)


def work(options: argparse.Namespace, stop: Stop) -> int:
    from bipars.errors import no_space
    from bipars.runs.directory import RunDirectory
    from bipars.runs.execute import execute
    from bipars.settings.importing import agree

    agree(options.agreed)
    status = DONE
    for path in options.runs:
        if stop():
            return say(options.answer, STOPPED)
        try:
            finished = execute(RunDirectory(path), stop)
        except Exception as error:
            if no_space(error):
                print(f"{path}: {error}", file=sys.stderr)
                return say(options.answer, NO_SPACE)
            if not RunDirectory(path).error_file.exists():  # what stands there the command reads and says
                print(f"{path}: {error}", file=sys.stderr)
            status = FAILED
        else:
            if not finished:
                return say(options.answer, STOPPED)
    return status


if __name__ == "__main__":
    sys.exit(main())
