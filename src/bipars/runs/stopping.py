"""Ctrl-C, SIGTERM and a closed terminal (SIGHUP) as a question between two rounds."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Stop = Callable[[], bool]


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """Turns these signals into a question the loop asks between rounds; a second Ctrl-C interrupts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals reach the main thread alone
        return
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as `nohup` has it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
