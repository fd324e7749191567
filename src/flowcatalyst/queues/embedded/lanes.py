"""The lanes of an embedded store: what locks them, what makes them ready, and in which turn.

Every step of a statement gives up Python's interpreter lock and has to win it back from a busy event loop, so the
statements work on whole sets: arrays go in as JSON, and results come out as one row of JSON.
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec


class Receipt(NamedTuple):
    """Proof of one delivery. It goes stale when its lane is leased again."""

    seq: int
    lane: int
    epoch: int


def encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


decode_text = msgspec.json.Decoder(str).decode


def one(connection: sqlite3.Connection, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
    return connection.execute(query, parameters).fetchone()[0]


_NUMBERS = "UPDATE store SET last_number = last_number + ?, time = max(time, ?) RETURNING last_number"


def new_numbers(connection: sqlite3.Connection, count: int, now: float) -> int:
    """The first of so many numbers that nobody had before."""
    last: int = one(connection, _NUMBERS, (count, now))
    return last - count + 1


class Delays(StrEnum):
    """What of a lane's messages that were given back with a delay locks it, in SQL: until when, of the lane `l`.

    A file with more tables may have another such expression.
    """

    # As in SQS, but for a message that was put in front: it did not fail, so what waits behind it does not hold it up.
    ALL = """(
      SELECT iif(seq < 0, visible_at, (SELECT max(visible_at) FROM messages WHERE lane = l.id AND seq <= l.leased_to))
      FROM messages WHERE lane = l.id ORDER BY seq LIMIT 1)"""
    FIRST = "(SELECT visible_at FROM messages WHERE lane = l.id ORDER BY seq LIMIT 1)"  # one before it may go


# Taken off before lanes change and put on again afterwards.
_COUNT_HIDDEN = """
    UPDATE queues SET leased = queues.leased + :sign * hidden.leased, delayed = queues.delayed + :sign * hidden.delayed
    FROM (
      SELECT ifnull(sum(l.leased), 0) AS leased, ifnull(sum(l.delayed), 0) AS delayed
      FROM json_each(:lanes) AS asked CROSS JOIN lanes AS l ON l.id = asked.value) AS hidden
    WHERE name = :queue"""


def count_hidden(connection: sqlite3.Connection, queue: str, lanes: str, sign: int) -> None:
    """To be called with -1 before lanes (ids in JSON) change, and with 1 afterwards."""
    connection.execute(_COUNT_HIDDEN, {"queue": queue, "lanes": lanes, "sign": sign})


_NEXT_DUE = "SELECT min(due) FROM lanes WHERE queue = ? AND due IS NOT NULL"
_DUE_LANES = "SELECT json_group_array(id) FROM (SELECT id FROM lanes WHERE queue = ? AND due <= ? ORDER BY due)"


def unlock_what_is_due(
    connection: sqlite3.Connection, queue: str, now: float, delays: str = Delays.ALL
) -> float | None:
    """Make lanes ready, in the order in which they were due; when the next one is."""
    next_due: float | None = one(connection, _NEXT_DUE, (queue,))
    if next_due is not None and next_due <= now:
        end_leases(connection, queue, one(connection, _DUE_LANES, (queue, now)), now, delays)
        next_due = one(connection, _NEXT_DUE, (queue,))
    return next_due


_COUNT_UNSETTLED = """
    UPDATE messages SET receives = receives + 1 FROM json_each(?) AS asked CROSS JOIN lanes AS l ON l.id = asked.value
    WHERE l.owner IS NOT NULL AND messages.lane = l.id AND messages.seq <= l.leased_to
    AND messages.given_back <> l.epoch"""
_UNLOCK_OR_DELAY = """
    UPDATE lanes SET owner = NULL, turn = :first + place, due = iif(delayed_until > :now, delayed_until, NULL),
      leased = 0, delayed = iif(delayed_until > :now, given_back, 0),
      pool = (SELECT pool FROM messages WHERE lane = lanes.id ORDER BY seq LIMIT 1)
    FROM (
      SELECT l.id AS lane_id, asked.key AS place, {delays} AS delayed_until,
        (SELECT count(visible_at) FROM messages WHERE lane = l.id AND seq <= l.leased_to AND given_back = l.epoch)
          AS given_back
      FROM json_each(:lanes) AS asked CROSS JOIN lanes AS l ON l.id = asked.value)
    WHERE lanes.id = lane_id"""


def end_leases(connection: sqlite3.Connection, queue: str, lanes: str, now: float, delays: str = Delays.ALL) -> None:
    """The leases and delays of these lanes of a queue (ids in JSON) are over; they get turns in the order of the array.

    What was given back for longer still locks its lane.
    """
    first = new_numbers(connection, lanes.count(",") + 1, now)
    connection.execute(_COUNT_UNSETTLED, (lanes,))
    count_hidden(connection, queue, lanes, -1)
    connection.execute(_UNLOCK_OR_DELAY.format(delays=delays), {"lanes": lanes, "now": now, "first": first})
    count_hidden(connection, queue, lanes, 1)


_DROP_EMPTY_LANES = """
    DELETE FROM lanes WHERE id IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM messages WHERE lane = lanes.id)"""
# A lane stays as locked as it is while a message of its lease is unsettled. After that only delays lock it.
_REFRESH_LANES = """
    UPDATE lanes SET
      pool = (SELECT pool FROM messages WHERE lane = lanes.id ORDER BY seq LIMIT 1),
      turn = CASE WHEN due IS NULL THEN turn ELSE :first + place END,
      due = CASE WHEN unsettled THEN due ELSE delayed_until END,
      owner = CASE WHEN unsettled THEN owner END,
      leased = unsettled,
      delayed = CASE WHEN unsettled OR delayed_until IS NOT NULL THEN given_back ELSE 0 END
    FROM (
      SELECT l.id AS lane_id, asked.key AS place,
        CASE WHEN l.owner IS NULL THEN 0 ELSE (
          SELECT count(*) FROM messages WHERE lane = l.id AND seq <= l.leased_to AND given_back <> l.epoch)
        END AS unsettled,
        (SELECT count(visible_at) FROM messages WHERE lane = l.id AND seq <= l.leased_to AND given_back = l.epoch)
          AS given_back,
        {delays} AS delayed_until
      FROM json_each(:lanes) AS asked CROSS JOIN lanes AS l ON l.id = asked.value)
    WHERE lanes.id = lane_id"""


def refresh_lanes(
    connection: sqlite3.Connection, queue: str, lanes: Collection[int], now: float, delays: str = Delays.ALL
) -> None:
    """Work out pool and lock of lanes from the messages they hold. One that is ready by that gets a new turn."""
    ids = encode(list(lanes))
    count_hidden(connection, queue, ids, -1)
    if connection.execute(_DROP_EMPTY_LANES, (ids,)).rowcount < len(lanes):
        first = new_numbers(connection, len(lanes), now)
        connection.execute(_REFRESH_LANES.format(delays=delays), {"lanes": ids, "first": first})
        count_hidden(connection, queue, ids, 1)
