"""Notices that other processes work on the file of our embedded queues, each with limits of its own."""

from collections.abc import Callable
from typing import Final

import structlog

from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningBook, WarningCode, WarningFilter
from flowcatalyst.queues.embedded.store import EmbeddedStore

PERIOD_S: Final = 30.0

SOURCE: Final = "queue file"

log = structlog.get_logger("flowcatalyst.storage")


class SharedFile:
    """Tells once while others have the file open in two looks in a row: a command has it for a moment only, and those
    that share a standby lock are meant to share the file."""

    def __init__(self, store: EmbeddedStore, warnings: WarningBook, is_meant: Callable[[], bool]) -> None:
        self.text = ""  # what is to be told now; empty: nothing
        self._store = store
        self._warnings = warnings
        self._is_meant = is_meant
        self._seen = 0  # at the latest look

    async def look(self) -> None:
        before, self._seen = self._seen, 0 if self._is_meant() else self._store.others_alive
        others = min(before, self._seen)
        if not others and self.text:
            self.text = ""
            self._warnings.acknowledge_all(WarningFilter(code=WarningCode.QUEUE_SETUP, source=SOURCE))
        elif others and not self.text:
            who = "another process has" if others == 1 else f"{others} other processes have"
            self.text = f"{who} the queue file {self._store.path} open: each has its own limits of pools, rates and "
            self.text += "circuit breakers; stop the others, or give each a data folder of its own"
            log.warning("queue_file_shared", action="queue_file_shared", file=str(self._store.path), others=others)
            self._warnings.add(WarningCode.QUEUE_SETUP, Severity.WARN, self.text, SOURCE)
