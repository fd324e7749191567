"""Events as PostgreSQL keeps them: accepting them with their jobs, and lists that walk one index."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.dispatch.event import Event
from flowcatalyst.dispatch.job import Job
from flowcatalyst.dispatch.store.platform_contract import (
    EventAccepted,
    EventFilter,
    EventKept,
    EventPage,
    UnknownEventError,
)
from flowcatalyst.dispatch.store.postgres_columns import arguments, job_columns, once, spread, stored, stored_or_none
from flowcatalyst.dispatch.store.postgres_search import (
    CLOCKS_AGREE_TO_S,
    LOOKED_AT_FOR_A_PAGE,
    LOOKED_AT_ONCE,
    NEWEST,
    Query,
    where_of,
)
from flowcatalyst.storage.postgres import Connection

_ACCEPT: Final = f"""
    SELECT repeated, firsts, jobs_made FROM accept_events(
      {", ".join(f"${number}" for number in range(1, 12))}, {spread(12, "integer", 13)}, {arguments(13)})"""
_NO_DATA: Final = msgspec.Raw(b"null")  # stands for data that are kept beside the document, or for none
_event: Final = msgspec.json.Decoder(Event)


async def accept(
    connection: Connection, queue: int, wall: float, events: Sequence[tuple[Event, Sequence[Job]]]
) -> list[EventAccepted]:
    """One statement, and another if some were known."""
    jobs = [job for _, its_jobs in events for job in its_jobs]
    of_events = [place for place, (_, its_jobs) in enumerate(events, 1) for _ in its_jobs]
    columns = _columns([event for event, _ in events])
    told = (*columns, once(of_events), *await job_columns(jobs))
    repeated, firsts, made = await connection.fetchrow(_ACCEPT, queue, wall, *told)
    accepted = [EventAccepted(EventKept(event, count, wall)) for (event, _), count in zip(events, made, strict=True)]
    if repeated:
        rows = await connection.fetch(f"{_SELECT} WHERE e.id = ANY ($1)", firsts)
        found = {row["id"]: _kept(row) for row in rows}
        for place, first in zip(repeated, firsts, strict=True):
            if first not in found:
                raise QueueUnavailableError("an event that was sent before was forgotten just now: try again")
            accepted[place - 1] = EventAccepted(found[first], repeated=True)
    return accepted


def _columns(events: Sequence[Event]) -> tuple[list[Any] | None, ...]:
    keys = [stored_or_none(event.deduplication_id) for event in events]
    return (
        [stored(event.id) for event in events],
        [stored(event.type) for event in events],
        [stored(event.source) for event in events],
        [stored_or_none(event.subject) for event in events],
        [stored_or_none(event.message_group) for event in events],
        [stored_or_none(event.correlation_id) for event in events],
        keys if any(key is not None for key in keys) else None,
        [msgspec.json.encode(msgspec.structs.replace(event, data=_NO_DATA)) for event in events],
        [bytes(event.data) if event.data else None for event in events],
    )


_SELECT: Final = "SELECT e.number, e.id, e.jobs, e.created_at, e.document, e.data FROM events AS e"


def _kept(row: Sequence[Any]) -> EventKept:
    _, _, jobs, created_at, document, data = row
    event = msgspec.structs.replace(_event.decode(document), data=msgspec.Raw(data or b""))
    return EventKept(event, jobs, created_at)


async def find(connection: Connection, event_id: str) -> EventKept:
    row = await connection.fetchrow(f"{_SELECT} WHERE e.id = $1", stored(event_id))
    if row is None:
        raise UnknownEventError(f"there is no event {event_id}")
    return _kept(row)


async def page(
    connection: Connection, which: EventFilter, limit: int, cursor: int | None, *, newest_first: bool
) -> EventPage:
    """Up to `limit` events from a cursor on. There may be fewer although there are more, after many looks in vain."""
    low, high = await _bounds(connection, which)
    numbers: list[int] = []
    looks = LOOKED_AT_FOR_A_PAGE
    while looks > 0:
        if cursor is not None:
            low, high = (low, min(high, cursor)) if newest_first else (max(low, cursor + 1), high)
        most = max(min(limit - len(numbers) + 1, LOOKED_AT_ONCE), 100)
        query = Query()
        statement = _statement(query, which, low, high, most, limit - len(numbers) + 1, newest_first=newest_first)
        seen, cursor, found = await connection.fetchrow(statement, *query.parameters)
        numbers += found
        if len(numbers) > limit:
            numbers, cursor = numbers[:limit], numbers[limit - 1]
            break
        if seen < most:
            cursor = None
            break
        looks -= seen
    rows = await connection.fetch(f"{_SELECT} WHERE e.number = ANY ($1)", numbers)
    kept = {row["number"]: _kept(row) for row in rows}
    return EventPage([kept[number] for number in numbers if number in kept], cursor)


def _statement(
    query: Query, which: EventFilter, low: int, high: int, most: int, limit: int, *, newest_first: bool
) -> str:
    """How many events were looked at along the index, the last of them, and those that match."""
    direction, last = ("DESC", "min") if newest_first else ("ASC", "max")
    candidates = _candidates(query, which, query.add(low), query.add(high), query.add(most), direction)
    for column, value in (
        ("type", which.type),
        ("source", which.source),
        ("subject", which.subject),
        ("grp", which.group),
        ("correlation_id", which.correlation_id),
        ("deduplication_id", which.deduplication_id),
    ):
        if value is not None:
            query.want(f"e.{column} = {{}}", stored(value))
    if which.created_from is not None:
        query.want("e.created_at >= {}", which.created_from)
    if which.created_before is not None:
        query.want("e.created_at < {}", which.created_before)
    return f"""
        WITH c AS MATERIALIZED ({candidates})
        SELECT (SELECT count(*) FROM c), (SELECT {last}(c.number) FROM c), ARRAY(
          SELECT e.number FROM c
            CROSS JOIN LATERAL (SELECT k.* FROM events AS k WHERE k.number = c.number OFFSET 0) AS e
          {where_of(query)} ORDER BY c.number {direction} LIMIT {query.add(limit)})"""


def _candidates(query: Query, which: EventFilter, low: str, high: str, most: str, direction: str) -> str:
    """Events among which all of the filter are, by the index that leads past the fewest others."""
    if which.deduplication_id is not None:
        key = query.add(stored(which.deduplication_id))
        return f"""
            SELECT e.number FROM event_keys AS k JOIN events AS e ON e.id = k.id
            WHERE k.key = {key} AND e.number >= {low} AND e.number < {high} LIMIT {most}"""
    for column, value in (
        ("correlation_id", which.correlation_id),
        ("subject", which.subject),
        ("grp", which.group),
        ("type", which.type),
    ):
        if value is not None:
            at = query.add(stored(value))
            return f"""
                SELECT number FROM events WHERE {column} IS NOT NULL AND ({column}, number) < ({at}, {high})
                AND ({column}, number) >= ({at}, {low})
                ORDER BY {column} {direction}, number {direction} LIMIT {most}"""
    return f"""
        SELECT number FROM events WHERE number >= {low} AND number < {high} ORDER BY number {direction} LIMIT {most}"""


async def _bounds(connection: Connection, which: EventFilter) -> tuple[int, int]:
    """Between which numbers all events are that came in the time of a filter."""
    low, high = 0, NEWEST
    if which.created_from is not None:
        first = await connection.fetchval(_FIRST_FROM, which.created_from - CLOCKS_AGREE_TO_S)
        low = high if first is None else first
    if which.created_before is not None:
        first = await connection.fetchval(_FIRST_FROM, which.created_before + CLOCKS_AGREE_TO_S)
        high = high if first is None else first
    return low, high


_FIRST_FROM: Final = "SELECT number FROM events WHERE created_at >= $1 ORDER BY created_at LIMIT 1"


async def drop(connection: Connection, queue: int, before: float, limit: int) -> int:
    dropped: int = await connection.fetchval("SELECT drop_events($1, $2)", before, limit)
    return dropped
