"""Groups: what is known of them, and holding them."""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from flowcatalyst.dispatch.job import number_at
from flowcatalyst.dispatch.store.contract import CursorError, GroupPage, GroupState
from flowcatalyst.dispatch.store.job_rows.columns import QUEUE, jobs_of, refresh
from flowcatalyst.queues.embedded.lanes import encode

_SELECT: Final = f"""
    SELECT g.name, g.jobs, g.blocked_since, g.held_since, g.held_by, g.stopped_since, (
      SELECT m.seq FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id
      WHERE l.queue = '{QUEUE}' AND l.name = g.name ORDER BY m.seq LIMIT 1)
    FROM groups AS g"""
_ONE: Final = f"{_SELECT} WHERE g.name = ?"
_STOPPED: Final = f"""
    {_SELECT} INDEXED BY stopped_groups
    WHERE g.stopped_since IS NOT NULL AND (g.stopped_since, g.name) > (:since, :name)
    ORDER BY g.stopped_since, g.name LIMIT :limit"""
_GOING: Final = f"""
    {_SELECT} INDEXED BY going_groups WHERE g.stopped_since IS NULL AND g.name > :name ORDER BY g.name LIMIT :limit"""

_cursor: Final = msgspec.json.Decoder(tuple[float | None, str])  # of the last group that was listed
_name: Final = msgspec.json.Decoder(str)


def groups(connection: sqlite3.Connection, limit: int, cursor: str | None, now: float, *, blocked: bool) -> GroupPage:
    since, name = _begin(cursor)
    rows: list[Any] = []
    if since is not None:
        rows = connection.execute(_STOPPED, {"since": since, "name": name, "limit": limit + 1}).fetchall()
        name = ""
    if not blocked and len(rows) <= limit:
        rows += connection.execute(_GOING, {"name": name, "limit": limit + 1 - len(rows)})
    items = _states(connection, rows[:limit], now)
    return GroupPage(items, encode((rows[limit - 1][5], rows[limit - 1][0])) if len(rows) > limit else None)


def _begin(cursor: str | None) -> tuple[float | None, str]:
    if cursor is None:
        return -1.0, ""
    try:
        return _cursor.decode(cursor)
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise CursorError("the cursor is not one of a list of groups") from None


def group(connection: sqlite3.Connection, name: str, now: float) -> GroupState:
    states = _states(connection, connection.execute(_ONE, (encode(name),)).fetchall(), now)
    return states[0] if states else GroupState(name, 0, None)


def _states(connection: sqlite3.Connection, rows: Sequence[Any], now: float) -> list[GroupState]:
    heads = jobs_of(connection, [number_at(row[6]) for row in rows if row[6] is not None], now)
    return [
        GroupState(
            _name.decode(name),
            jobs,
            None if head is None else heads[number_at(head)],
            blocked_since,
            held_since,
            held_by,
        )
        for name, jobs, blocked_since, held_since, held_by, _, head in rows
    ]


_HOLD: Final = """
    INSERT INTO groups (name, held_since, held_by) VALUES (:name, :wall, :actor)
    ON CONFLICT DO UPDATE SET held_since = excluded.held_since, held_by = excluded.held_by WHERE held_since IS NULL"""
_RELEASE: Final = "UPDATE groups SET held_since = NULL, held_by = '' WHERE name = ?"
_FORGET: Final = "DELETE FROM groups WHERE name = ? AND jobs = 0"
_LANES: Final = """
    SELECT id FROM lanes WHERE queue = :queue AND name = :name
    UNION ALL SELECT id FROM lanes WHERE name IS NULL AND grp <> 'null' AND grp = :name"""


def hold(connection: sqlite3.Connection, name: str, actor: str, now: float, wall: float) -> GroupState:
    """Who holds a group that is held already changes nothing."""
    connection.execute(_HOLD, {"name": encode(name), "wall": wall, "actor": actor})
    refresh(connection, lanes_of(connection, name), now)
    return group(connection, name, now)


def release(connection: sqlite3.Connection, name: str, now: float, wall: float) -> GroupState:
    connection.execute(_RELEASE, (encode(name),))
    connection.execute(_FORGET, (encode(name),))
    refresh(connection, lanes_of(connection, name), now)
    return group(connection, name, now)


def lanes_of(connection: sqlite3.Connection, name: str) -> set[int]:
    """Also the lanes of jobs that left the group when they failed."""
    return {lane for (lane,) in connection.execute(_LANES, {"queue": QUEUE, "name": encode(name)})}
