"""Retention: dead letters are dropped when they are too old or too many, oldest first, a few at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from flowcatalyst.control.audit import Actor, AuditAction, AuditLog
from flowcatalyst.control.dead_letters import DROP_BATCH, DeadLetters
from flowcatalyst.control.settings import DeadLetterSettings
from flowcatalyst.core.errors import StorageError
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode, WarningSink

PERIOD_S: Final = 600.0
DAY_S: Final = 86_400.0
RETENTION: Final = Actor("retention")

log = structlog.get_logger("flowcatalyst.retention")


class Retention:
    """Keeps the dead letters within their bounds, and tells what it dropped."""

    def __init__(
        self, letters: DeadLetters, settings: DeadLetterSettings, warnings: WarningSink, audit: AuditLog
    ) -> None:
        self._letters = letters
        self._settings = settings
        self._warnings = warnings
        self._audit = audit

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except StorageError as error:  # whoever has to write a letter now tells it too
                log.warning("retention_failed", action="retention_failed", error=str(error))
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Drop what is beyond the bounds now."""
        days, most = self._settings.max_age_days, self._settings.max_count
        if days:
            await self._drop(f"dead letters older than {days:g} days", lambda: self._letters.drop_older(days * DAY_S))
        if most and await self._drop(f"dead letters beyond {most}", lambda: self._letters.drop_beyond(most)):
            text = (
                f"the oldest dead letters were dropped because there were more than {most}: replay or remove some, "
                "or raise dead_letters.max_count"
            )
            self._warnings.add(WarningCode.DEAD_LETTERS_DROPPED, Severity.WARN, text, "retention")

    async def _drop(self, what: str, drop_some: Callable[[], Awaitable[int]]) -> int:
        """Batch by batch: whoever has to write meanwhile waits for one of them at most."""
        dropped = 0
        try:
            while (some := await drop_some()) > 0:
                dropped += some
                if some < DROP_BATCH:
                    break
        finally:
            if dropped:
                self._audit.record(RETENTION, AuditAction.DEAD_LETTER_DROP, what, count=dropped)
        return dropped
