"""What signals mean to a router."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Final

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
