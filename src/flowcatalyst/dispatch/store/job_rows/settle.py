"""What becomes of jobs that a router had in hand, written down together with its attempts."""

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from math import isinf
from typing import Any, Final

from flowcatalyst.core.message import Attempt, Delivery, Settled
from flowcatalyst.dispatch.job import Status, number_at
from flowcatalyst.dispatch.store.job_rows import positions
from flowcatalyst.dispatch.store.job_rows.columns import LOCK, QUEUE, refresh
from flowcatalyst.queues.embedded import jobs as lanes_and_messages
from flowcatalyst.queues.embedded.lanes import encode

EXCERPT_CHARS: Final = 1000

_LEFT: Final = "SELECT seq FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_UNFINISHED: Final = """
    SELECT number FROM jobs WHERE number IN (SELECT value FROM json_each(?)) AND finished_at IS NULL"""
_COMPLETE: Final = """
    UPDATE jobs SET status = 'COMPLETED', finished_at = :wall, next_attempt_at = NULL, last_error = '',
      attempts = attempts + 1
    WHERE number IN (SELECT value FROM json_each(:numbers))"""
_FAIL: Final = """
    UPDATE jobs SET status = CASE WHEN ? THEN 'ERROR' ELSE status END, attempts = attempts + 1, failures = ?,
      last_error = ?, position = ifnull(position, ?)
    WHERE number = ?"""
_WAIT: Final = "UPDATE jobs SET next_attempt_at = ? WHERE number = ?"
_PARK: Final = "UPDATE jobs SET status = 'ERROR', next_attempt_at = NULL WHERE number = ?"
_FAILED_SINCE: Final = "UPDATE messages SET failed_at = ifnull(failed_at, ?) WHERE seq = ?"
_RECORD: Final = """
    INSERT INTO attempts (job, attempt, began_at, duration_s, status, error, counts, detail, excerpt)
    SELECT j.number, j.attempts, made.value ->> 1, made.value ->> 2, made.value ->> 3, made.value ->> 4,
      made.value ->> 5, made.value ->> 6, made.value ->> 7
    FROM json_each(?) AS made CROSS JOIN jobs AS j ON j.number = made.value ->> 0"""


def ack(connection: sqlite3.Connection, deliveries: Sequence[Delivery], now: float, wall: float) -> list[Settled]:
    """Delivered: each job is COMPLETED and its attempt written down. Who no longer holds it changes nothing."""
    receipts = [delivery.receipt for delivery in deliveries]
    settled = lanes_and_messages.ack(connection, QUEUE, receipts, now, LOCK)
    # One that is still there was moved to another lane after its lease had ended: it is delivered from there.
    left = {seq for (seq,) in connection.execute(_LEFT, (encode([receipt.seq for receipt in receipts]),))}
    results = [Settled.GONE if one.seq in left else result for one, result in zip(receipts, settled, strict=True)]
    delivered = _settled(deliveries, results)
    unfinished = {number for (number,) in connection.execute(_UNFINISHED, (encode(list(delivered)),))}
    connection.execute(_COMPLETE, {"numbers": encode(list(unfinished)), "wall": wall})
    completed = [delivery for number, delivery in delivered.items() if number in unfinished]
    _record(connection, completed)
    positions.note_delivered(connection, completed, wall)
    return results


def nack(
    connection: sqlite3.Connection,
    deliveries: Sequence[Delivery],
    now: float,
    wall: float,
    delay_s: float,
    *,
    unlock: bool,
) -> list[Settled]:
    """Each goes back to its place, or with `unlock` to a lane of its own, and its attempt is written down, if any."""
    failures = [(delivery.receipt, delivery.failures) for delivery in deliveries]
    settled = lanes_and_messages.nack(connection, QUEUE, failures, now, delay_s, unlock=unlock, delays=LOCK)
    held = _settled(deliveries, settled)
    for number, delivery in held.items():
        attempt = delivery.attempt
        if attempt is not None:
            outcome = attempt.outcome
            begun_at = delivery.position or None  # it keeps that
            connection.execute(_FAIL, (outcome.counts, delivery.failures, outcome.detail, begun_at, number))
        failed = attempt is not None and attempt.outcome.counts
        if isinf(delay_s):
            connection.execute(_PARK, (number,))
        elif delay_s > 0 or failed:
            connection.execute(_WAIT, (wall + delay_s, number))
        if failed or isinf(delay_s):
            connection.execute(_FAILED_SINCE, (wall, delivery.receipt.seq))
    _record(connection, held.values())
    if unlock and delay_s <= 0:  # it may be ready at once, and its group may be held
        refresh(connection, _lanes_of(connection, [delivery.receipt.seq for delivery in held.values()]), now)
    return settled


def _settled(deliveries: Sequence[Delivery], results: Sequence[Settled]) -> dict[int, Delivery]:
    """Those that were, by the numbers of their jobs."""
    settled = zip(deliveries, results, strict=True)
    return {number_at(delivery.receipt.seq): delivery for delivery, result in settled if result is Settled.OK}


def _record(connection: sqlite3.Connection, deliveries: Iterable[Delivery]) -> None:
    """Write the attempts of deliveries down, as those that their jobs have counted last."""
    made = [_row(delivery, delivery.attempt) for delivery in deliveries if delivery.attempt is not None]
    if made:
        connection.execute(_RECORD, (encode(made),))


def _row(delivery: Delivery, attempt: Attempt) -> tuple[Any, ...]:
    outcome = attempt.outcome
    return (
        number_at(delivery.receipt.seq),
        attempt.began_at,
        attempt.duration_s,
        outcome.status,
        outcome.error,
        outcome.counts,
        _text(outcome.detail),
        _text(outcome.excerpt[:EXCERPT_CHARS]),
    )


def _text(text: str) -> str:
    """Without what ends a string in SQLite's JSON."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text


_LANES: Final = "SELECT DISTINCT lane FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_REMOVE: Final = "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_END: Final = """
    UPDATE jobs SET status = :status, finished_at = :wall, next_attempt_at = NULL
    WHERE number IN (SELECT value FROM json_each(:numbers)) AND finished_at IS NULL"""


def end(connection: sqlite3.Connection, places: Collection[int], status: Status, now: float, wall: float) -> int:
    """Jobs at these positions that no router has in hand are finished without a delivery; how many were not before."""
    seqs = encode(list(places))
    lanes = _lanes_of(connection, places)
    removed = connection.execute(_REMOVE, (seqs,)).rowcount
    connection.execute(lanes_and_messages.COUNT, {"queue": QUEUE, "change": -removed})
    refresh(connection, lanes, now)
    numbers = encode([number_at(place) for place in places])
    return connection.execute(_END, {"status": status, "wall": wall, "numbers": numbers}).rowcount


def _lanes_of(connection: sqlite3.Connection, places: Collection[int]) -> set[int]:
    return {lane for (lane,) in connection.execute(_LANES, (encode(list(places)),))}
