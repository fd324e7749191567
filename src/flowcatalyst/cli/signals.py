"""What signals mean to a router, and to a command that has to clean up."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from flowcatalyst.core.errors import FlowCatalystError

EXIT_SECOND_SIGNAL: Final = 130
SAME_WITHIN_S: Final = 1.0


class Signals:
    """The first SIGINT or SIGTERM asks for a stop, or ends a start under way; another one ends at once.

    What comes within a second is the same wish told twice: `timeout` sends its signal to a process and to its group.
    SIGHUP asks for the configuration. Only on a terminal it asks for a stop: there it says that the terminal is gone.
    """

    def __init__(self, on_hangup: Callable[[], None]) -> None:
        self.stop = asyncio.Event()
        self._asked_at = 0.0
        self._starting = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_stop)
        on_terminal = any(os.isatty(descriptor) for descriptor in range(3))
        loop.add_signal_handler(signal.SIGHUP, self._on_stop if on_terminal else on_hangup)

    def has_started(self) -> None:
        self._starting = None

    def _on_stop(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.stop.is_set():
            if now - self._asked_at < SAME_WITHIN_S:
                return
            print("Stopped at once. What was in hand comes back at the next start.", flush=True)
            os._exit(EXIT_SECOND_SIGNAL)
        self._asked_at = now
        self.stop.set()
        if self._starting is not None:
            self._starting.cancel()


class EndedError(FlowCatalystError):
    """Somebody ended a command by a signal."""


@contextmanager
def signals_as_errors() -> Iterator[None]:
    """Whoever ends it, also a terminal that is closed, ends it with an `EndedError`: what was begun can be undone."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise EndedError(f"ended by {signal.Signals(number).name}")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {one: signal.signal(one, end) for one in ends if signal.getsignal(one) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
