"""The audit trail: who changed what, and when. Kept in a file, and told in the log.

Nobody waits for it: a change is made first, and one that cannot be recorded is a warning, not a failure. Each kind of
change has its own place, so that a flood of one pushes nothing else out. What comes in floods by its nature, publishes
and refused attempts, is summed up: one event a minute for each caller.
"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import StorageError
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode, WarningSink
from flowcatalyst.storage.migrations import Migrations, numbered_steps
from flowcatalyst.storage.sqlite import SqliteWriter

MIGRATIONS: Final = Migrations(numbered_steps("flowcatalyst.control", "migrations/audit"))
KEPT_PER_ACTION: Final = 1000
SUM_UP_S: Final = 60.0
OWN_WRITES_S: Final = 5.0  # how long a page waits for what was recorded just before
MOST_SUMS: Final = 20  # of one action at a time, each for one caller; the other callers share one
MAX_OBJECT_CHARS: Final = 200
MAX_DETAIL_CHARS: Final = 2000
MAX_PAGE_BYTES: Final = 256 * 1024
OTHERS: Final = "others"

_COLUMNS: Final = "number, at, until, action, who, role, address, forwarded_for, object, detail, count, requests"

log = structlog.get_logger("flowcatalyst.audit")


class AuditAction(StrEnum):
    POOL_CREATE = "pool_create"
    POOL_CHANGE = "pool_change"
    POOL_DELETE = "pool_delete"
    DEAD_LETTER_REPLAY = "dead_letter_replay"
    DEAD_LETTER_DELETE = "dead_letter_delete"
    DEAD_LETTER_DROP = "dead_letter_drop"  # too old or too many: nobody asked for it
    PUBLISH = "publish"
    SEED = "seed"
    CONFIG_RELOAD = "config_reload"  # somebody asked for a sync
    CONFIG_CHANGE = "config_change"  # a sync brought another configuration
    WARNING_ACKNOWLEDGE = "warning_acknowledge"
    WARNING_DELETE = "warning_delete"
    BREAKER_RESET = "breaker_reset"
    JOB_CREATE = "job_create"
    JOB_RETRY = "job_retry"
    JOB_CANCEL = "job_cancel"
    JOB_CHANGE = "job_change"
    MESSAGE_RETRY = "message_retry"
    MESSAGE_SKIP = "message_skip"
    PAUSE = "pause"  # of a pool or an endpoint
    RESUME = "resume"
    GROUP_HOLD = "group_hold"
    GROUP_RELEASE = "group_release"
    EVENT_PUBLISH = "event_publish"
    SUBSCRIPTION_CREATE = "subscription_create"
    SUBSCRIPTION_CHANGE = "subscription_change"
    SUBSCRIPTION_DELETE = "subscription_delete"
    SUBSCRIPTION_PAUSE = "subscription_pause"
    SUBSCRIPTION_RESUME = "subscription_resume"
    SUBSCRIPTION_SECRET = "subscription_secret"  # noqa: S105 - it was rotated
    SUBSCRIPTION_TEST = "subscription_test"
    SUBSCRIPTION_REPLAY = "subscription_replay"
    API_KEY_CREATE = "api_key_create"
    API_KEY_ROTATE = "api_key_rotate"
    API_KEY_REVOKE = "api_key_revoke"
    REFUSED = "refused"  # a change that was not allowed


@dataclass(slots=True, frozen=True)
class Actor:
    """Who does something. Never holds credentials."""

    who: str  # name of the credentials
    role: str | None = None  # None: no credentials were asked for, or none were right
    address: str | None = None  # of the client, or of the proxy it came through
    forwarded_for: str | None = None  # the client's address, as a proxy says, or anybody


class AuditEvent(msgspec.Struct, frozen=True):
    """One change, or a sum of many of the same caller: then `until` is when the latest came."""

    number: int
    at: float
    until: float
    action: str
    who: str
    role: str | None
    address: str | None
    forwarded_for: str | None
    object: str
    detail: str
    count: int | None  # of messages, dead letters, warnings or breakers
    requests: int


@dataclass(slots=True, frozen=True)
class AuditFilter:
    """Which events are meant; None: any."""

    action: AuditAction | None = None
    who: str | None = None
    since: float = 0.0  # wall time
    before: int | None = None  # those with a lower number


_Key = tuple[AuditAction, str | None, str | None, str | None]  # action, who, address, object


@dataclass(slots=True)
class _Sum:
    """What one caller did in this minute."""

    actor: Actor
    action: AuditAction
    object: str
    at: float
    until: float
    count: int = 0
    requests: int = 0
    number: int = 0  # of its row; set by the thread that writes


class AuditLog:
    """Records what was done, and lists it. Bounded in every way that somebody else has a hand in."""

    def __init__(self, path: Path, clock: Clock, warnings: WarningSink) -> None:
        self.writer = SqliteWriter(path, MIGRATIONS)
        self._clock = clock
        self._warnings = warnings
        self._sums: dict[_Key, _Sum] = {}
        self._of_action: Counter[AuditAction] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[Any] | None = None  # the newest write; those before it end first

    async def open(self) -> None:
        await self.writer.open()

    async def close(self) -> None:
        self._end_sums()
        await self.writer.close()

    def record(self, actor: Actor, action: AuditAction, what: str, detail: str = "", count: int | None = None) -> None:
        """Somebody did something. It is durable a moment later."""
        now, what, detail = self._now(), _plain(what, MAX_OBJECT_CHARS), _plain(detail, MAX_DETAIL_CHARS)
        values = (now, now, *_columns_of(actor), what, detail, count, 1)
        self._submit(lambda connection: _insert(connection, action, values))
        self._tell(actor, action, what, detail, count, 1, is_change=True)

    def add_up(self, actor: Actor, action: AuditAction, what: str, count: int = 0) -> None:
        """The same for what may come a thousand times a second: the first is recorded now, the others by the minute."""
        now = self._now()
        key: _Key = (action, actor.who, actor.address, None if action is AuditAction.REFUSED else what)
        if key not in self._sums and self._of_action[action] >= MOST_SUMS:
            actor, key = Actor(OTHERS), (action, None, None, None)
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = _Sum(actor, action, _plain(what, MAX_OBJECT_CHARS), now, now)
            self._of_action[action] += 1
        found.until, found.count, found.requests = now, found.count + count, found.requests + 1
        if found.requests == 1:
            self._write(found)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(SUM_UP_S, self._end_sums)

    async def page(self, limit: int, wanted: AuditFilter) -> list[AuditEvent]:
        """Newest first, as many as fit into a page. To go on, ask for those before the last one, until none comes.

        What was recorded before is among them, unless the disk does not take it in time.
        """
        for one in self._sums.values():
            self._write(one)
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=OWN_WRITES_S)
        return await self.writer.read(lambda connection: _page(connection, limit, wanted))

    def _now(self) -> float:
        """In whole microseconds, as it is shown: who asks for what came since then finds it."""
        return round(self._clock.wall(), 6)

    def _end_sums(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for one in self._sums.values():
            self._write(one)
            count = None if one.action is AuditAction.REFUSED else one.count
            times = {"since": when(one.at), "until": when(one.until)}  # the line itself comes up to a minute later
            self._tell(one.actor, one.action, one.object, "", count, one.requests, is_change=False, **times)
        self._sums.clear()
        self._of_action.clear()

    def _write(self, one: _Sum) -> None:
        refused = one.action is AuditAction.REFUSED
        count, now, requests = None if refused else one.count, one.until, one.requests
        values = (one.at, now, *_columns_of(one.actor), one.object, "", count, requests)

        def job(connection: sqlite3.Connection) -> None:
            query = "UPDATE audit SET until = ?, count = ?, requests = ? WHERE number = ?"
            if not one.number or not connection.execute(query, (now, count, requests, one.number)).rowcount:
                one.number = _insert(connection, one.action, values)

        self._submit(job)

    def _submit(self, job: Callable[[sqlite3.Connection], Any]) -> None:
        try:
            self._writing = self.writer.submit(job)
            self._writing.add_done_callback(self._written)
        except StorageError as error:
            self._warn(error)

    def _written(self, done: "asyncio.Future[Any]") -> None:
        if done is self._writing:
            self._writing = None
        if (error := done.exception()) is not None:
            self._warn(error)

    def _warn(self, error: BaseException) -> None:
        text = f"the audit trail could not be written: {error}"
        self._warnings.add(WarningCode.AUDIT_FAILED, Severity.ERROR, text, "audit")

    def _tell(
        self,
        actor: Actor,
        action: AuditAction,
        what: str,
        detail: str,
        count: int | None,
        requests: int,
        *,
        is_change: bool,
        **times: str,
    ) -> None:
        """A line in the log. Changes come through whatever its level is."""
        (log.warning if is_change or action is AuditAction.REFUSED else log.info)(
            "audit",
            action="audit",
            what=action,
            who=actor.who,
            role=actor.role,
            address=actor.address,
            forwarded_for=actor.forwarded_for,
            object=what,
            detail=detail,
            count=count,
            requests=requests,
            **times,
        )


def when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def _columns_of(actor: Actor) -> tuple[str | None, ...]:
    return actor.who, actor.role, actor.address, actor.forwarded_for


def _plain(text: str, longest: int) -> str:
    """A text that others have a hand in, as one line of bounded length."""
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


def _insert(connection: sqlite3.Connection, action: AuditAction, values: tuple[object, ...]) -> int:
    """Add a row and forget the oldest of the same action. Returns its number."""
    at, until, *rest = values
    row = (at, until, action, *rest)
    columns = _COLUMNS.removeprefix("number, ")
    query = f"INSERT INTO audit ({columns}) VALUES ({', '.join('?' * len(row))})"
    number = connection.execute(query, row).lastrowid
    oldest = "SELECT number FROM audit WHERE action = ? ORDER BY number DESC LIMIT 1 OFFSET ?"
    delete = f"DELETE FROM audit WHERE action = ? AND number <= ({oldest})"
    connection.execute(delete, (action, action, KEPT_PER_ACTION))
    return number or 0


def _page(connection: sqlite3.Connection, limit: int, wanted: AuditFilter) -> list[AuditEvent]:
    query = f"""SELECT {_COLUMNS} FROM audit WHERE (:before IS NULL OR number < :before)
        AND (:action IS NULL OR action = :action) AND (:who IS NULL OR who = :who) AND until >= :since
        ORDER BY number DESC LIMIT :limit"""
    given = {
        "before": wanted.before,
        "action": wanted.action,
        "who": wanted.who,
        "since": wanted.since,
        "limit": limit,
    }
    events: list[AuditEvent] = []
    size = 0
    for row in connection.execute(query, given):
        event = AuditEvent(*row)
        size += len(msgspec.json.encode(event))
        if events and size > MAX_PAGE_BYTES:
            break
        events.append(event)
    return events
