"""`flowcatalyst publish` and `flowcatalyst seed` as tests run them."""

import asyncio
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
import uvloop

from flowcatalyst.cli.main import main
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.logs import close_logs
from flowcatalyst.core.message import Delivery, MessagePointer, parse_pointer
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore

TARGET = "http://127.0.0.1:9/hook"


class Command:
    """The command in this process: a real one takes most of its time to start. It stands in `folder`.

    It makes its queue if there is none, while `creates` says so.
    """

    creates = True

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._patch = patch
        self._captured = captured
        patch.chdir(folder)
        self.file = folder / "data" / "queue.db"

    def run(self, *args: object, given: bytes = b"") -> tuple[int, str, str]:
        """Exit code, output, errors."""
        create = ["--create"] if self.creates and "--router" not in args else []
        self._patch.setattr(sys, "argv", ["flowcatalyst", *map(str, args), *create])
        self._patch.setattr(sys, "stdin", SimpleNamespace(buffer=Pipe(given)))
        umask = os.umask(0o022)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            os.umask(umask)
            close_logs()
            structlog.reset_defaults()
        output, errors = self._captured.readouterr()
        return int(ended.value.code or 0), output, errors

    def works(self, *args: object, given: bytes = b"") -> str:
        """What it said, in one line."""
        code, output, errors = self.run(*args, given=given)
        assert (code, errors) == (0, "")
        assert output.count("\n") == 1
        return output

    def fails(self, *args: object, given: bytes = b"", code: int = 1) -> str:
        """The one sentence it said."""
        found, output, errors = self.run(*args, given=given)
        assert (found, output) == (code, ""), errors
        assert errors.startswith("flowcatalyst: ")
        assert errors.count("\n") == 1
        return errors

    def misused(self, *args: object) -> str:
        code, output, errors = self.run(*args)
        assert (code, output) == (2, "")
        assert errors.startswith("Usage: ")
        return errors

    def held(self, queue: str = "default") -> list[Delivery]:
        """What the embedded queue holds."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(in_queue(self.folder, queue))

    def pointers(self, queue: str = "default") -> list[MessagePointer]:
        return [parse_pointer(delivery.body) for delivery in self.held(queue)]


class Pipe(io.BytesIO):
    """What comes in cannot be read a second time."""

    def seekable(self) -> bool:
        return False


async def in_queue(folder: Path, queue: str = "default") -> list[Delivery]:
    opened = EmbeddedQueue(EmbeddedStore(folder / "data" / "queue.db", SystemClock()), queue, max_batch=10_000)
    await opened.open()
    try:
        return await opened.receive(10_000, 0)
    finally:
        await opened.close()
