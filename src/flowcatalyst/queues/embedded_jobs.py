"""What the embedded queue does to its database: plain functions of a connection, each a part of one transaction.

Publishing, settling, owners and counting are here, taking is in `embedded_take`.
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from flowcatalyst.message import Settled, pool_code_of
from flowcatalyst.queues.contract import Depth, Outgoing
from flowcatalyst.queues.embedded_lanes import Receipt, encode, end_leases, new_numbers, one, refresh_lanes

DEDUPLICATION_S: Final = 300.0


@dataclass(slots=True)
class Accepted:
    """What became of a publish: the seq of each message, and which of them were duplicates."""

    seqs: list[int] = field(default_factory=list)
    duplicates: set[int] = field(default_factory=set)  # positions


_seq_by_id_rows: Final = msgspec.json.Decoder(list[tuple[str, int]])
_epoch_rows: Final = msgspec.json.Decoder(list[tuple[int, int]])
_found_rows: Final = msgspec.json.Decoder(list[tuple[int, int, int, str | None]])
_owner_rows: Final = msgspec.json.Decoder(list[str])


# Publish

# Rows are [seq, group, body, pool]; a row of a lane of its own is marked by its place in the one or the other list.
_INSERT_GROUP_LANES = """
    INSERT INTO lanes (id, queue, name, grp, pool, turn)
    SELECT value ->> 0, :queue, value -> 1, value -> 1, value -> 3, value ->> 0 FROM json_each(:rows) AS r
    WHERE NOT EXISTS (SELECT 1 FROM lanes WHERE queue = :queue AND name = r.value -> 1)"""
_INSERT_GROUPED = """
    INSERT INTO messages (lane, seq, pool, body, published_at)
    SELECT l.id, r.value ->> 0, r.value -> 3, r.value -> 2, :wall
    FROM json_each(:rows) AS r CROSS JOIN lanes AS l ON l.queue = :queue AND l.name = r.value -> 1"""
_INSERT_OWN_LANES = """
    INSERT INTO lanes (id, queue, grp, pool, turn)
    SELECT value ->> 0, :queue, value -> 1, value -> 3, value ->> 0 FROM json_each(:rows)"""
_INSERT_UNGROUPED = """
    INSERT INTO messages (lane, seq, pool, body, published_at)
    SELECT value ->> 0, value ->> 0, value -> 3, value -> 2, :wall FROM json_each(:rows)"""
_COUNT = """
    INSERT INTO queues (name, messages) VALUES (:queue, :change)
    ON CONFLICT (name) DO UPDATE SET messages = messages + :change"""
_FORGET_OLD_IDS = "DELETE FROM deduplication WHERE expires_at <= ?"
_KNOWN_IDS = """
    SELECT json_group_array(json_array(json(d.id), d.seq))
    FROM json_each(:ids) AS asked CROSS JOIN deduplication AS d ON d.queue = :queue AND d.id = asked.value -> 0"""
_REMEMBER_IDS = """
    INSERT INTO deduplication (queue, id, seq, expires_at)
    SELECT :queue, value -> 0, value ->> 1, :expires_at FROM json_each(:ids)"""


Row = tuple[int, str | None, str, str]


def publish(
    connection: sqlite3.Connection, queue: str, messages: Sequence[Outgoing], now: float, wall: float
) -> Accepted:
    """Append messages with rising seqs, but for those whose deduplication id is known."""
    seq_by_id = _find_known_ids(connection, queue, messages, now)
    known_before = len(seq_by_id)
    first = new_numbers(connection, len(messages), now)
    accepted = Accepted()
    rows: list[Row] = []
    for position, message in enumerate(messages):
        seq = first + position
        if message.deduplication_id is not None:
            original = seq_by_id.setdefault(message.deduplication_id, seq)
            if original != seq:
                accepted.seqs.append(original)
                accepted.duplicates.add(position)
                continue
        accepted.seqs.append(seq)
        rows.append((seq, message.group, message.body, pool_code_of(message.body)))
    if rows:
        _insert(connection, queue, rows, wall)
    if len(seq_by_id) > known_before:
        new = [item for item in seq_by_id.items() if item[1] >= first]
        expires_at = now + DEDUPLICATION_S
        connection.execute(_REMEMBER_IDS, {"queue": queue, "ids": encode(new), "expires_at": expires_at})
    return accepted


def _find_known_ids(
    connection: sqlite3.Connection, queue: str, messages: Sequence[Outgoing], now: float
) -> dict[str, int]:
    ids = [(message.deduplication_id,) for message in messages if message.deduplication_id is not None]
    if not ids:
        return {}
    connection.execute(_FORGET_OLD_IDS, (now,))
    return dict(_seq_by_id_rows.decode(one(connection, _KNOWN_IDS, {"ids": encode(ids), "queue": queue})))


def _insert(connection: sqlite3.Connection, queue: str, rows: Sequence[Row], wall: float) -> None:
    if grouped := [row for row in rows if row[1] is not None]:
        firsts = {row[1]: row for row in reversed(grouped)}  # the first row of each group
        lanes = [(seq, group, None, pool) for seq, group, _, pool in firsts.values()]
        connection.execute(_INSERT_GROUP_LANES, {"rows": encode(lanes), "queue": queue})
        connection.execute(_INSERT_GROUPED, {"rows": encode(grouped), "queue": queue, "wall": wall})
    if alone := [row for row in rows if row[1] is None]:
        connection.execute(_INSERT_OWN_LANES, {"rows": encode(alone), "queue": queue})
        connection.execute(_INSERT_UNGROUPED, {"rows": encode(alone), "wall": wall})
    connection.execute(_COUNT, {"queue": queue, "change": len(rows)})


# Settle

_EPOCHS = """
    SELECT json_group_array(json_array(l.id, l.epoch))
    FROM json_each(?) AS asked CROSS JOIN lanes AS l ON l.id = asked.value"""
_FIND = """
    SELECT json_group_array(json_array(m.seq, m.given_back, l.epoch, l.owner))
    FROM json_each(?) AS asked
    CROSS JOIN messages AS m ON m.lane = asked.value ->> 1 AND m.seq = asked.value ->> 0
    CROSS JOIN lanes AS l ON l.id = m.lane"""
_DELETE = """
    DELETE FROM messages WHERE (lane, seq) IN (
      SELECT CAST(asked.key AS INTEGER), seqs.value
      FROM json_each(?) AS asked CROSS JOIN json_each(asked.value) AS seqs)"""
_GIVE_BACK = """
    UPDATE messages SET
      visible_at = :visible_at,
      given_back = (SELECT epoch FROM lanes WHERE id = messages.lane),
      receives = receives + 1,
      failures = asked.value ->> 2
    FROM json_each(:rows) AS asked
    WHERE messages.lane = asked.value ->> 1 AND messages.seq = asked.value ->> 0"""
_ADD_OWN_LANE = """
    INSERT INTO lanes (id, queue, grp, pool, turn, leased_to, due)
    SELECT :new, :queue, l.grp, m.pool, :new, m.seq, :due
    FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id AND m.seq = :seq WHERE l.id = :lane"""
_MOVE = "UPDATE messages SET lane = :new, given_back = 0 WHERE lane = :lane AND seq = :seq"
_EXTEND = "UPDATE lanes SET due = :until WHERE id IN (SELECT value FROM json_each(:lanes))"


class _Found(NamedTuple):
    """A message that still exists, and its lane."""

    seq: int
    given_back: int
    epoch: int
    owner: str | None


def _find(connection: sqlite3.Connection, receipts: Sequence[Receipt]) -> dict[int, _Found]:
    rows = _found_rows.decode(one(connection, _FIND, (encode(receipts),)))
    return {row[0]: _Found(*row) for row in rows}


def ack(connection: sqlite3.Connection, queue: str, receipts: Sequence[Receipt], now: float) -> list[Settled]:
    """Delete messages; those already deleted count as done."""
    seqs_by_lane: dict[int, list[int]] = {}
    for receipt in receipts:
        seqs_by_lane.setdefault(receipt.lane, []).append(receipt.seq)
    epochs = dict(_epoch_rows.decode(one(connection, _EPOCHS, (encode(list(seqs_by_lane)),))))
    stale = [receipt for receipt in receipts if epochs.get(receipt.lane, receipt.epoch) != receipt.epoch]
    for receipt in stale:
        seqs_by_lane[receipt.lane].remove(receipt.seq)
    still_there = _find(connection, stale) if stale else {}
    gone = {receipt for receipt in stale if receipt.seq in still_there}
    deleted = connection.execute(_DELETE, (encode(seqs_by_lane),)).rowcount
    connection.execute(_COUNT, {"queue": queue, "change": -deleted})
    refresh_lanes(connection, seqs_by_lane, now)
    return [Settled.GONE if receipt in gone else Settled.OK for receipt in receipts]


def nack(
    connection: sqlite3.Connection,
    queue: str,
    failures: Sequence[tuple[Receipt, int]],
    now: float,
    delay_s: float,
    *,
    unlock: bool = False,
) -> list[Settled]:
    """Show messages after `delay_s` and remember how often each has failed so far."""
    found = _find(connection, [receipt for receipt, _ in failures])
    held = [(receipt, count) for receipt, count in failures if _is_held(receipt, found)]
    rows = [(receipt.seq, receipt.lane, count) for receipt, count in held]
    visible_at = now + delay_s if delay_s > 0 else None
    connection.execute(_GIVE_BACK, {"rows": encode(rows), "visible_at": visible_at})
    if unlock:  # from now on each holds up nobody but itself
        for new, (receipt, _) in enumerate(held, new_numbers(connection, len(held), now)):
            move = {"queue": queue, "lane": receipt.lane, "seq": receipt.seq, "new": new}
            connection.execute(_ADD_OWN_LANE, {**move, "due": visible_at})
            connection.execute(_MOVE, move)
    refresh_lanes(connection, {receipt.lane for receipt, _ in held}, now)
    return [Settled.OK if _is_held(receipt, found) else Settled.GONE for receipt, _ in failures]


def extend(connection: sqlite3.Connection, receipts: Sequence[Receipt], owner: str, until: float) -> list[Settled]:
    """Keep messages that `owner` still holds hidden until then, and so the rest of their leases."""
    found = _find(connection, receipts)
    mine = {seq: message for seq, message in found.items() if message.owner == owner}
    lanes = {receipt.lane for receipt in receipts if _is_held(receipt, mine)}
    connection.execute(_EXTEND, {"lanes": encode(list(lanes)), "until": until})
    return [Settled.OK if _is_held(receipt, mine) else Settled.GONE for receipt in receipts]


def _is_held(receipt: Receipt, found: Mapping[int, _Found]) -> bool:
    """Whether a receipt is of the newest lease of its lane, and its message was not given back from that."""
    message = found.get(receipt.seq)
    return message is not None and message.epoch == receipt.epoch != message.given_back


# Owners

_OWNED = """
    SELECT json_group_array(id) FROM lanes
    WHERE due IS NOT NULL AND queue = ifnull(:queue, queue) AND owner IN (SELECT value FROM json_each(:owners))"""
_FORGET_OWNERS = "DELETE FROM owners WHERE owner IN (SELECT value FROM json_each(?))"
_OTHER_OWNERS = "SELECT json_group_array(owner) FROM owners WHERE owner <> ?"


def release(connection: sqlite3.Connection, owners: Collection[str], now: float, queue: str | None = None) -> None:
    """End the leases of these owners, in one queue or in all of them."""
    lanes = one(connection, _OWNED, {"owners": encode(list(owners)), "queue": queue})
    if lanes != "[]":
        end_leases(connection, lanes, now)


_STORE = "SELECT id, boot, time, clock_offset FROM store"
_ADD_OWNER = "INSERT INTO owners (owner) VALUES (?) ON CONFLICT DO NOTHING"
_SET_CLOCK = "UPDATE store SET boot = ?, clock_offset = ?"


def register(
    connection: sqlite3.Connection, owner: str, boot: str, monotonic: float, *, others_live: bool
) -> tuple[str, float]:
    """Enter an owner; the id of the store and the offset of its clock.

    The machine's monotonic clock begins anew when it boots. The store's goes on from where it was seen last then.
    Where boots cannot be told apart, somebody who has the file open vouches for the offset.
    """
    connection.execute(_ADD_OWNER, (owner,))
    store_id, known_boot, time, offset = connection.execute(_STORE).fetchone()
    if not (known_boot == boot if boot else others_live) or monotonic + offset < time:
        offset = time - monotonic
        connection.execute(_SET_CLOCK, (boot, offset))
    return store_id, offset


def forget(connection: sqlite3.Connection, owners: Collection[str], now: float) -> None:
    """Release all that these owners hold, and the owners."""
    new_numbers(connection, 0, now)  # should the machine be switched off now, the store's clock goes on from here
    release(connection, owners, now)
    connection.execute(_FORGET_OWNERS, (encode(list(owners)),))


def other_owners(connection: sqlite3.Connection, owner: str) -> list[str]:
    return _owner_rows.decode(one(connection, _OTHER_OWNERS, (owner,)))


# Look

# Only lanes that are locked are looked into.
_DEPTH = """
    SELECT json_array(
      (SELECT messages FROM queues WHERE name = :queue),
      count(l.owner IS NOT NULL AND l.due > :now AND m.given_back <> l.epoch OR NULL),
      count(m.visible_at > :now OR NULL))
    FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id AND m.seq <= l.leased_to
    WHERE l.queue = :queue AND l.due IS NOT NULL"""
_depth_row: Final = msgspec.json.Decoder(tuple[int | None, int, int])


def depth(connection: sqlite3.Connection, queue: str, now: float) -> Depth:
    total, leased, delayed = _depth_row.decode(one(connection, _DEPTH, {"queue": queue, "now": now}))
    return Depth(waiting=(total or 0) - leased - delayed, leased=leased, delayed=delayed)


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection commits."""
    version: int = one(connection, "PRAGMA data_version")
    return version
