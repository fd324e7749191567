"""Notifier: tells a webhook of new warnings."""

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from flowcatalyst.control.settings import NotificationSettings
from flowcatalyst.control.slack import slack_message
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import ConfigurationError, DeliveryError, TargetRefusedError, plain
from flowcatalyst.core.message import Severity
from flowcatalyst.core.targets import Target, parse_target
from flowcatalyst.core.warnings import (
    ENDED_BY,
    MAX_OF_A_KIND,
    Kind,
    Warning,  # noqa: A004
    WarningCode,
    WarningFilter,
    WarningLog,
)
from flowcatalyst.http.contract import HttpClient

POST_LIMIT_S: Final = 10.0
RETRY_PAUSES_S: Final = (1.0, 5.0, 15.0)
MAX_WAITING: Final = 1000
_HEADERS: Final = (("Content-Type", "application/json"),)

log = structlog.get_logger("flowcatalyst.notify")
_LEVELS: Final = {Severity.WARN: "warning", Severity.ERROR: "error", Severity.CRITICAL: "error"}


class NotifiedWarning(msgspec.Struct, rename="camel"):
    """A warning as the webhook gets it."""

    id: int
    code: WarningCode
    severity: Severity
    message: str
    source: str
    count: int
    first_at: datetime
    last_at: datetime


class Notification(msgspec.Struct, rename="camel"):
    """The body of a POST. A receiver may get a warning twice if an answer was lost: (router, id) names it."""

    router: str
    sent_at: datetime
    warnings: list[NotifiedWarning]


def webhook_of(settings: NotificationSettings) -> Target:
    """Who is told. Raises `ConfigurationError` if it cannot be called."""
    try:
        return parse_target(settings.webhook_url or "")
    except TargetRefusedError as error:
        raise ConfigurationError(f"notifications.webhook_url cannot be used: {error}") from None


def log_warning(warning: Warning) -> None:
    """One line for each that is news: the list of warnings goes with the process."""
    write = getattr(log, _LEVELS[warning.severity])
    about = {"code": warning.code, "severity": warning.severity, "source": warning.source, "text": warning.message}
    write("warning_raised", action="warning_raised", **about)


class Notifier:
    """Collects new warnings from the moment it is made; while `run` runs it posts them, a whole batch at a time.

    A batch that fails is tried again a few times and then dropped, with a warning that is never sent itself.
    """

    def __init__(
        self, settings: NotificationSettings, client: HttpClient, clock: Clock, warnings: WarningLog, identity: str
    ) -> None:
        self._target = webhook_of(settings)
        self._batch_s, self._for_slack = settings.batch_s, settings.format == "slack"
        severities = list(Severity)  # mildest first
        self._wanted = frozenset(severities[severities.index(Severity(settings.min_severity)) :])
        self._client = client
        self._clock = clock
        self._warnings = warnings
        self._identity = identity
        self._waiting: dict[int, Warning] = {}
        self._of_kind: Counter[Kind] = Counter()  # how many of those that wait
        self._batch: dict[int, Warning] = {}  # on its way; kept if `run` is cancelled meanwhile
        self._something_waits = asyncio.Event()
        self._is_urgent = asyncio.Event()
        warnings.on_new = self._collect

    async def run(self) -> None:
        """Send what comes, until cancelled."""
        while True:
            if not self._batch:
                await self._something_waits.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._batch_s):
                        await self._is_urgent.wait()
            self._close_batch()
            failure = await self._post(POST_LIMIT_S)
            for pause_s in RETRY_PAUSES_S:
                if failure is None:
                    break
                await asyncio.sleep(pause_s)
                failure = await self._post(POST_LIMIT_S)
            if failure is not None:
                self._give_up(failure)
            self._batch = {}

    async def flush(self, limit_s: float) -> None:
        """One last attempt, no longer than this. To be called when `run` has ended."""
        self._close_batch()
        if self._batch and (failure := await self._post(limit_s)) is not None:
            self._give_up(failure)
        self._batch = {}

    def _collect(self, warning: Warning) -> None:
        if warning.code is WarningCode.NOTIFICATION_FAILED or not self._is_wanted(warning):
            return
        critical = warning.severity is Severity.CRITICAL
        if warning.id not in self._waiting and (rival := self._rival_of(warning)) is not None:
            if not critical:
                return
            del self._waiting[rival.id]
            self._of_kind[rival.kind] -= 1
        if warning.id not in self._waiting:
            self._of_kind[warning.kind] += 1
        self._waiting[warning.id] = warning
        self._something_waits.set()
        if critical:
            self._is_urgent.set()

    def _is_wanted(self, warning: Warning) -> bool:
        """Severe enough, or the end of something that was."""
        if warning.severity in self._wanted:
            return True
        if (ended := ENDED_BY.get(warning.code)) is None:
            return False
        begun = self._warnings.recent(WarningFilter(code=ended, source=warning.source))
        return any(one.severity in self._wanted for one in begun)

    def _rival_of(self, warning: Warning) -> Warning | None:
        """The one that waits for longest among those that leave no room for this one; says so if there is one."""
        if self._of_kind[warning.kind] >= MAX_OF_A_KIND:
            what = f"{MAX_OF_A_KIND} of {warning.code} from {warning.source}"
            rival = next(one for one in self._waiting.values() if one.kind == warning.kind)
        elif len(self._waiting) >= MAX_WAITING:
            what, rival = f"{MAX_WAITING}", next(iter(self._waiting.values()))
        else:
            return None
        text = f"warnings were dropped: more than {what} wait to be sent"
        self._warnings.add(WarningCode.NOTIFICATION_FAILED, Severity.ERROR, text, "notifier")
        return rival

    def _close_batch(self) -> None:
        """What waits now is sent together; what comes from now on belongs to the next batch."""
        self._batch |= self._waiting
        self._waiting = {}
        self._of_kind.clear()
        self._something_waits.clear()
        self._is_urgent.clear()

    async def _post(self, limit_s: float) -> str | None:
        """Send the batch once. Returns what went wrong."""
        try:
            body = self._body()
            async with asyncio.timeout(limit_s):
                response = await self._client.post(self._target, _HEADERS, body)
        except TimeoutError:
            return f"no answer within {limit_s:g} s"
        except DeliveryError as error:
            return str(error)
        except Exception as error:  # a notifier that died would tell nobody of anything
            log.error("notification_broken", action="notification_broken", exc_info=error)
            return plain(error)
        return None if 200 <= response.status < 300 else f"it answered {response.status}"

    def _body(self) -> bytes:
        batch = list(self._batch.values())
        if self._for_slack:
            return slack_message(self._identity, batch)
        return msgspec.json.encode(
            Notification(self._identity, _date(self._clock.wall()), [_told(one) for one in batch])
        )

    def _give_up(self, failure: str) -> None:
        # The path of the URL is not repeated: it may be a secret. Nor is the number: it would hide that it repeats.
        text = f"warnings could not be sent to {self._target.authority}: {failure}"
        log.warning("notification_failed", action="notification_failed", lost=len(self._batch), reason=text)
        self._warnings.add(WarningCode.NOTIFICATION_FAILED, Severity.ERROR, text, "notifier")


def _told(warning: Warning) -> NotifiedWarning:
    return NotifiedWarning(
        id=warning.id,
        code=warning.code,
        severity=warning.severity,
        message=warning.message,
        source=warning.source,
        count=warning.count,
        first_at=_date(warning.first_at),
        last_at=_date(warning.last_at),
    )


def _date(wall: float) -> datetime:
    return datetime.fromtimestamp(wall, UTC)
