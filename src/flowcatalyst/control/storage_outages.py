"""Storage: tells when a file of the router cannot be written, as its disk is full or broken, and when it can again."""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import StorageError
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningBook, WarningCode
from flowcatalyst.storage.sqlite import SqliteWriter

PERIOD_S: Final = 1.0
QUIET_S: Final = 10.0  # without a write that failed, after which it is tried whether the file can be written
LEAST_FREE_BYTES: Final = 1 << 20  # of the disk: with less the next write may fail again

log = structlog.get_logger("flowcatalyst.storage")


class StorageOutages:
    """Looks at the files every second. A disk with hardly any space takes some writes and refuses others: all of that
    is one outage."""

    def __init__(self, files: Callable[[], Mapping[SqliteWriter, str]], clock: Clock, warnings: WarningBook) -> None:
        """`files`: those that are open, each with what it means that it cannot be written."""
        self.failing: dict[str, str] = {}  # by path: what is wrong, what to do, and what it means
        self._files = files
        self._clock = clock
        self._warnings = warnings
        self._seen: dict[SqliteWriter, int] = {}  # how many writes had failed at the latest look
        self._failed_at: dict[str, float] = {}  # monotonic; by path

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.look()

    async def look(self) -> None:
        files = self._files()
        self._seen = {file: self._seen.get(file, 0) for file in files}
        for file, meaning in files.items():
            path, now = str(file.path), self._clock.monotonic()
            if file.failures > self._seen[file]:
                self._seen[file] = file.failures
                self._failed_at[path] = now
                if path not in self.failing:
                    text = f"{file.failure}; until then {meaning}"
                    self.failing[path] = text
                    log.error("storage_failed", action="storage_failed", file=path, text=text)
                    self._warnings.add(WarningCode.STORAGE_FAILED, Severity.CRITICAL, text, path)
            elif path in self.failing and now - self._failed_at[path] >= QUIET_S and await _can_be_written(file):
                del self.failing[path]
                log.warning("storage_recovered", action="storage_recovered", file=path)
                self._warnings.end(WarningCode.STORAGE_FAILED, f"{path} can be written again", path)


async def _can_be_written(file: SqliteWriter) -> bool:
    try:
        disk = os.statvfs(file.path.parent)
        if disk.f_bavail * disk.f_frsize < LEAST_FREE_BYTES:
            return False
        await file.touch()
    except (OSError, StorageError):
        return False
    return True
