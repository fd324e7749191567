"""Events: kept with their jobs, once, and found again.

Their lists walk one index, as those of jobs do, between the first and the last number of a span of time.
"""

import sqlite3
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from flowcatalyst.dispatch.event import Event
from flowcatalyst.dispatch.job import Job
from flowcatalyst.dispatch.store.job_rows import enter, walk
from flowcatalyst.dispatch.store.platform_contract import (
    EventAccepted,
    EventFilter,
    EventKept,
    EventPage,
    UnknownEventError,
)
from flowcatalyst.queues.embedded import lanes
from flowcatalyst.queues.embedded.lanes import encode

OUT_OF_TIME: Final = 1_000  # events around the ends of a span whose times may differ from their order

Row = tuple[Any, ...]

_SELECTED: Final = "e.number, e.document, e.data, e.jobs, e.created_at"
_BY_ID: Final = f"SELECT {_SELECTED} FROM events AS e WHERE e.id = ?"
_KNOWN: Final = f"""
    SELECT {_SELECTED} FROM json_each(?) AS asked
    CROSS JOIN events AS e ON e.deduplication_id = asked.value AND e.deduplication_id IS NOT NULL"""
_INSERT: Final = """
    INSERT INTO events (number, id, type, source, subject, grp, correlation_id, deduplication_id, jobs, created_at,
      document, data)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_document: Final = msgspec.json.Decoder(Event)
_NO_DATA: Final = msgspec.Raw(b"null")


def accept(
    connection: sqlite3.Connection, events: Sequence[tuple[Event, Sequence[Job]]], now: float, wall: float
) -> list[EventAccepted]:
    """Keep events whose deduplication id is new, each with those of its jobs whose subscriptions are still there."""
    ids = [event.deduplication_id for event, _ in events if event.deduplication_id is not None]
    first = _known(connection, ids) if ids else {}
    wanted, _ = enter.codes_of(connection, (job for _, jobs in events for job in jobs))
    accepted: list[EventAccepted] = []
    rows: list[Row] = []
    made: list[Job] = []
    for number, (event, jobs) in enumerate(events, lanes.new_numbers(connection, len(events), now)):
        key = event.deduplication_id
        if key is not None and key in first:
            accepted.append(EventAccepted(first[key], repeated=True))
            continue
        still = [job for job in jobs if job.subscription is None or job.subscription in wanted]
        kept = EventKept(event, len(still), wall)
        rows.append(_row(number, kept))
        made += still
        accepted.append(EventAccepted(kept))
        if key is not None:
            first[key] = kept
    connection.executemany(_INSERT, rows)
    if made:
        enter.create(connection, made, now, wall)
    return accepted


def _known(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, EventKept]:
    found = [_kept(row) for row in connection.execute(_KNOWN, (encode(ids),))]
    return {kept.event.deduplication_id: kept for kept in found if kept.event.deduplication_id is not None}


def _row(number: int, kept: EventKept) -> Row:
    event = kept.event
    told = (event.id, event.type, event.source, event.subject, event.message_group, event.correlation_id)
    document = msgspec.json.encode(msgspec.structs.replace(event, data=_NO_DATA))
    return (number, *told, event.deduplication_id, kept.jobs, kept.created_at, document, bytes(event.data))


def _kept(row: Row) -> EventKept:
    _, document, data, jobs, created_at = row
    return EventKept(msgspec.structs.replace(_document.decode(document), data=msgspec.Raw(data)), jobs, created_at)


def event(connection: sqlite3.Connection, event_id: str, now: float) -> EventKept:
    row = connection.execute(_BY_ID, (event_id,)).fetchone()
    if row is None:
        raise UnknownEventError(f"there is no event {event_id}")
    return _kept(row)


# Lists

_FIRST: Final = """
    SELECT min(number) FROM (
      SELECT number FROM events INDEXED BY events_by_time
      WHERE created_at >= :created_from AND created_at < :created_before ORDER BY created_at LIMIT :around)"""
_LAST: Final = """
    SELECT max(number) FROM (
      SELECT number FROM events INDEXED BY events_by_time
      WHERE created_at >= :created_from AND created_at < :created_before ORDER BY created_at DESC LIMIT :around)"""
_DROP: Final = """
    DELETE FROM events WHERE number IN (
      SELECT number FROM events INDEXED BY events_by_time WHERE created_at < ? ORDER BY created_at LIMIT ?)"""

# What of an event has an index, in the order in which they are tried: the rarest first.
_INDEXES: Final = {
    "deduplication_id": "events_by_deduplication",
    "correlation_id": "events_by_correlation",
    "subject": "events_by_subject",
    "grp": "events_by_group",
    "type": "events_by_type",
}


def page(
    connection: sqlite3.Connection,
    which: EventFilter,
    limit: int,
    cursor: int | None,
    now: float,
    *,
    oldest_first: bool = False,
) -> EventPage:
    """By number, one way or the other, from behind the cursor on."""
    equal: dict[str, Any] = {
        "type": which.type,
        "source": which.source,
        "subject": which.subject,
        "grp": which.group,
        "correlation_id": which.correlation_id,
        "deduplication_id": which.deduplication_id,
    }
    parameters = {name: value for name, value in equal.items() if value is not None}
    conditions = [f"e.{name} = :{name}" for name in parameters]
    low, high = 0, sys.maxsize
    if which.created_from is not None or which.created_before is not None:
        span = {
            "created_from": 0.0 if which.created_from is None else which.created_from,
            "created_before": sys.float_info.max if which.created_before is None else which.created_before,
        }
        ends = [lanes.one(connection, end, {**span, "around": OUT_OF_TIME}) for end in (_FIRST, _LAST)]
        if ends[0] is None:
            return EventPage([], None)
        low, high = ends
        conditions.append("e.created_at >= :created_from AND e.created_at < :created_before")
        parameters |= span
    if cursor is not None:
        low, high = (max(low, cursor + 1), high) if oldest_first else (low, min(high, cursor - 1))
    walked = _numbers(parameters, oldest_first=oldest_first)
    parameters |= {"low": low, "high": high, "scan": walk.SCANNED_AT_ONCE, "limit": limit + 1}
    where = " AND ".join(conditions) or "1"
    rows = connection.execute(
        f"""SELECT {_SELECTED} FROM ({walked} LIMIT :scan) AS walked
        CROSS JOIN events AS e ON e.number = walked.number WHERE {where} LIMIT :limit""",
        parameters,
    ).fetchall()
    if len(rows) > limit:
        return EventPage([_kept(row) for row in rows[:limit]], rows[limit - 1][0])
    end = connection.execute(f"SELECT number FROM ({walked} LIMIT 1 OFFSET :scan - 1)", parameters).fetchone()
    return EventPage([_kept(row) for row in rows], None if end is None else end[0])


def _numbers(given: Mapping[str, Any], *, oldest_first: bool) -> str:
    """The query that walks over the fewest events, as far as one can tell without looking."""
    order = "ASC" if oldest_first else "DESC"
    span = "number BETWEEN :low AND :high"
    for name, index in _INDEXES.items():
        if name in given:
            walked = f"events INDEXED BY {index} WHERE {name} = :{name} AND {span}"
            break
    else:
        walked = f"events WHERE {span}"
    return f"SELECT number FROM {walked} ORDER BY number {order}"


def drop(connection: sqlite3.Connection, before: float, limit: int) -> int:
    """Forget the oldest; how many."""
    return connection.execute(_DROP, (before, limit)).rowcount
