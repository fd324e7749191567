"""From an older file of embedded queues to a newer one, in place: one function for each step, in one transaction."""

import sqlite3
from typing import Final

import msgspec

from flowcatalyst.message import pool_code_of
from flowcatalyst.queues.embedded_lanes import encode
from flowcatalyst.sqlite_writer import run_script

LONGEST_DELAY_S: Final = 12 * 3600.0  # what a wall clock that was wrong may have hidden for longer is shown by then

_MAKE_WAY = """
DROP INDEX lanes_by_name;
DROP INDEX ready_lanes;
DROP INDEX locked_lanes;
DROP INDEX deduplication_by_expiry;
ALTER TABLE store RENAME TO store_1;
ALTER TABLE lanes RENAME TO lanes_1;
ALTER TABLE messages RENAME TO messages_1;
ALTER TABLE deduplication RENAME TO deduplication_1;
"""
_COPY = """
UPDATE store SET (id, last_number, time) = (
  SELECT id, max(last_seq, (SELECT ifnull(max(id), 0) FROM lanes_1)), :wall FROM store_1);
INSERT INTO messages (lane, seq, published_at, given_back, visible_at, receives, failures, pool, body)
  SELECT lane, seq, published_at, given_back, min(visible_at, :latest), receives, failures, pool_in(body), body
  FROM messages_1;
INSERT INTO lanes (id, queue, name, grp, pool, turn, epoch, leased_to, owner, due)
  SELECT id, queue, name, grp, (SELECT pool FROM messages WHERE lane = lanes_1.id ORDER BY seq LIMIT 1), head,
    epoch, leased_to, owner, min(due, :latest)
  FROM lanes_1;
INSERT INTO queues (name, messages)
  SELECT queue, count(*) FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id GROUP BY queue;
INSERT INTO deduplication (queue, id, seq, expires_at)
  SELECT queue, id, seq, min(expires_at, :wall + 300) FROM deduplication_1;
DROP TABLE store_1;
DROP TABLE lanes_1;
DROP TABLE messages_1;
DROP TABLE deduplication_1;
"""


def migrate_from_1(connection: sqlite3.Connection, schema: str, wall: float) -> None:
    """Messages and lanes know their pool, lanes their turn. Times were wall times: the store's clock begins there."""
    run_script(connection, _MAKE_WAY)
    run_script(connection, schema)
    connection.create_function("pool_in", 1, lambda body: encode(pool_code_of(msgspec.json.decode(body))))
    run_script(connection, _COPY, {"wall": wall, "latest": wall + LONGEST_DELAY_S})
