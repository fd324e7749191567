"""BlockWriter: writes blocks of log lines in a thread of its own.

Whoever reads standard error may stall, and a disk may hang. A write that waits for them must not stop the router.
"""

import threading
from collections import deque
from typing import BinaryIO, Final

MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
FULL_PIPE_PAUSE_S: Final = 0.02


class BlockWriter:
    """Takes blocks from any thread and writes them in their order. What does not fit is dropped and counted."""

    def __init__(self, file: BinaryIO, most_bytes: int = MAX_WAITING_BYTES) -> None:
        self.dropped = 0  # lines
        # Past the buffer: it has a lock, and a process cannot end while a thread hangs with it.
        self._file = getattr(file, "raw", file)
        self._most_bytes = most_bytes
        self._blocks: deque[tuple[bytes, int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def put(self, block: bytes, lines: int) -> None:
        with self._changed:
            if self._closing or (self._blocks and self._bytes + len(block) > self._most_bytes):
                self.dropped += lines
                return
            self._blocks.append((block, lines))
            self._bytes += len(block)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, limit_s: float) -> None:
        """Until everything is written, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: not self._blocks, limit_s)

    def close(self, limit_s: float) -> None:
        """Write what is left, as far as there is time, and end."""
        self.wait(limit_s)
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._blocks or self._closing)
                if self._closing:
                    return
                block, lines = self._blocks[0]
            written = self._write(block)
            with self._changed:
                self._blocks.popleft()
                self._bytes -= len(block)
                self.dropped += 0 if written else lines
                self._changed.notify_all()

    def _write(self, block: bytes) -> bool:
        """False if it failed: a full disk or a closed terminal must not stop the router."""
        left = memoryview(block)
        try:
            while left:
                count = self._file.write(left)
                if count is None:  # a pipe that somebody made non-blocking is full
                    with self._changed:
                        self._changed.wait_for(lambda: self._closing, FULL_PIPE_PAUSE_S)
                    if self._closing:
                        return False
                left = left[count or 0 :]
        except (OSError, ValueError):
            return False
        return True
