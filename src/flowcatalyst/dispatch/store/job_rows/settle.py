"""What becomes of jobs that a router had in hand, written down together with its attempts."""

import sqlite3
from collections.abc import Collection, Sequence
from math import isinf
from typing import Any, Final

from flowcatalyst.core.message import Attempt, Delivery, Settled
from flowcatalyst.dispatch.job import Status, number_at
from flowcatalyst.dispatch.store.job_rows.columns import LOCK, QUEUE, refresh
from flowcatalyst.queues.embedded import jobs as lanes_and_messages
from flowcatalyst.queues.embedded.lanes import encode

EXCERPT_CHARS: Final = 1000

_LEFT: Final = "SELECT seq FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_COMPLETE: Final = """
    UPDATE jobs SET status = 'COMPLETED', finished_at = :wall, next_attempt_at = NULL, last_error = '',
      attempts = attempts + 1
    WHERE number = :number AND finished_at IS NULL"""
_FAIL: Final = """
    UPDATE jobs SET status = CASE WHEN :counts THEN 'ERROR' ELSE status END, attempts = attempts + 1,
      failures = :failures, last_error = :detail
    WHERE number = :number"""
_WAIT: Final = "UPDATE jobs SET next_attempt_at = ? WHERE number = ?"
_PARK: Final = "UPDATE jobs SET status = 'ERROR', next_attempt_at = NULL WHERE number = ?"
_FAILED_SINCE: Final = "UPDATE messages SET failed_at = ifnull(failed_at, ?) WHERE seq = ?"
_RECORD: Final = """
    INSERT INTO attempts (job, attempt, began_at, duration_s, status, error, counts, detail, excerpt)
    SELECT :number, attempts, :began_at, :duration_s, :status, :error, :counts, :detail, :excerpt
    FROM jobs WHERE number = :number"""


def ack(connection: sqlite3.Connection, deliveries: Sequence[Delivery], now: float, wall: float) -> list[Settled]:
    """Delivered: each job is COMPLETED and its attempt written down. Who no longer holds it changes nothing."""
    receipts = [delivery.receipt for delivery in deliveries]
    settled = lanes_and_messages.ack(connection, QUEUE, receipts, now, LOCK)
    # One that is still there was moved to another lane after its lease had ended: it is delivered from there.
    left = {seq for (seq,) in connection.execute(_LEFT, (encode([receipt.seq for receipt in receipts]),))}
    results = []
    for delivery, result in zip(deliveries, settled, strict=True):
        if delivery.receipt.seq in left:
            results.append(Settled.GONE)
            continue
        results.append(result)
        if result is Settled.OK:
            number = number_of(delivery)
            done = connection.execute(_COMPLETE, {"number": number, "wall": wall})
            if done.rowcount and delivery.attempt is not None:
                connection.execute(_RECORD, _attempt(number, delivery.attempt))
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
    held = [delivery for delivery, result in zip(deliveries, settled, strict=True) if result is Settled.OK]
    for delivery in held:
        number, attempt = number_of(delivery), delivery.attempt
        if attempt is not None:
            connection.execute(_FAIL, {**_attempt(number, attempt), "failures": delivery.failures})
            connection.execute(_RECORD, _attempt(number, attempt))
        failed = attempt is not None and attempt.outcome.counts
        if isinf(delay_s):
            connection.execute(_PARK, (number,))
        elif delay_s > 0 or failed:
            connection.execute(_WAIT, (wall + delay_s, number))
        if failed or isinf(delay_s):
            connection.execute(_FAILED_SINCE, (wall, delivery.receipt.seq))
    if unlock and delay_s <= 0:  # it may be ready at once, and its group may be held
        refresh(connection, _lanes_of(connection, [delivery.receipt.seq for delivery in held]), now)
    return settled


def number_of(delivery: Delivery) -> int:
    return number_at(delivery.receipt.seq)


def _attempt(number: int, attempt: Attempt) -> dict[str, Any]:
    outcome = attempt.outcome
    return {
        "number": number,
        "began_at": attempt.began_at,
        "duration_s": attempt.duration_s,
        "status": outcome.status,
        "error": outcome.error,
        "counts": outcome.counts,
        "detail": outcome.detail,
        "excerpt": outcome.excerpt[:EXCERPT_CHARS],
    }


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
