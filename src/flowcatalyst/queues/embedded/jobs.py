"""What the embedded queue does to its database: plain functions of a connection, each a part of one transaction.

Publishing, settling, owners and counting are here, taking is in `take`.
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from flowcatalyst.core.message import Settled, pool_code_of
from flowcatalyst.queues.contract import Depth, Outgoing
from flowcatalyst.queues.embedded.lanes import (
    Delays,
    Receipt,
    encode,
    end_leases,
    new_numbers,
    one,
    refresh_lanes,
    unlock_what_is_due,
)

DEDUPLICATION_S: Final = 300.0


@dataclass(slots=True)
class Accepted:
    """What became of a publish: the seq of each message, and which of them were duplicates."""

    seqs: list[int] = field(default_factory=list)
    duplicates: set[int] = field(default_factory=set)  # positions


_seq_by_id_rows: Final = msgspec.json.Decoder(list[tuple[str, int]])
_lease_rows: Final = msgspec.json.Decoder(list[tuple[int, int, int]])
_found_rows: Final = msgspec.json.Decoder(list[tuple[int, int, int, int, str | None]])
_names: Final = msgspec.json.Decoder(list[str])


# Publish

# A row of a lane of its own is marked by its place in the one or the other list. What comes into a lease that goes on
# is no part of it, as if it had been given back from there.
_INSERT_GROUP_LANES = """
    INSERT INTO lanes (id, queue, name, grp, pool, turn)
    SELECT value ->> 4, :queue, value -> 1, value -> 1, value -> 3, value ->> 4 FROM json_each(:rows) AS r
    WHERE NOT EXISTS (SELECT 1 FROM lanes WHERE queue = :queue AND name = r.value -> 1)"""
_INSERT_GROUPED = """
    INSERT INTO messages (lane, seq, pool, body, published_at, given_back)
    SELECT l.id, r.value ->> 0, r.value -> 3, r.value -> 2, :wall, iif(r.value ->> 0 <= l.leased_to, l.epoch, 0)
    FROM json_each(:rows) AS r CROSS JOIN lanes AS l ON l.queue = :queue AND l.name = r.value -> 1"""
_INSERT_OWN_LANES = """
    INSERT INTO lanes (id, queue, grp, pool, turn)
    SELECT value ->> 4, :queue, value -> 1, value -> 3, value ->> 4 FROM json_each(:rows)"""
_INSERT_UNGROUPED = """
    INSERT INTO messages (lane, seq, pool, body, published_at)
    SELECT value ->> 4, value ->> 0, value -> 3, value -> 2, :wall FROM json_each(:rows)"""
COUNT = """
    INSERT INTO queues (name, messages) VALUES (:queue, :change)
    ON CONFLICT (name) DO UPDATE SET messages = messages + :change"""
_FORGET_OLD_IDS = "DELETE FROM deduplication WHERE expires_at <= ?"
_KNOWN_IDS = """
    SELECT json_group_array(json_array(json(d.id), d.seq))
    FROM json_each(:ids) AS asked CROSS JOIN deduplication AS d ON d.queue = :queue AND d.id = asked.value -> 0"""
_REMEMBER_IDS = """
    INSERT INTO deduplication (queue, id, seq, expires_at)
    SELECT :queue, value -> 0, value ->> 1, :expires_at FROM json_each(:ids)"""


class Row(NamedTuple):
    """A message on its way into a lane."""

    seq: int  # where it stands in its lane
    group: str | None
    body: str
    pool: str
    number: int  # new: the turn of its lane, if that is new too


def publish(
    connection: sqlite3.Connection,
    queue: str,
    messages: Sequence[Outgoing],
    now: float,
    wall: float,
    pool: str | None = None,
) -> Accepted:
    """Append messages with rising seqs, but for those whose deduplication id is known.

    They are for `pool`, or for those that they name.
    """
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
        code = pool_code_of(message.body) if pool is None else pool
        rows.append(Row(seq, message.group, message.body, code, seq))
    if rows:
        insert(connection, queue, rows, wall)
    if len(seq_by_id) > known_before:
        _remember(connection, queue, [item for item in seq_by_id.items() if item[1] >= first], now)
    return accepted


_LANE_OF_GROUP = "SELECT id, owner FROM lanes WHERE queue = ? AND name = ?"


def publish_in_front(
    connection: sqlite3.Connection,
    queue: str,
    message: Outgoing,
    now: float,
    wall: float,
    pool: str | None = None,
) -> Accepted | None:
    """Put a message before all that its group holds; None if somebody has messages of the group leased.

    Its seq is below zero and lower than any before, so none is used twice. A lane that waits for what was given back
    is ready for it at once.
    """
    if message.group is None:
        return publish(connection, queue, [message], now, wall, pool)
    if known := _find_known_ids(connection, queue, [message], now):
        return Accepted(list(known.values()), {0})
    unlock_what_is_due(connection, queue, now)
    place = queue, encode(message.group)
    if (found := connection.execute(_LANE_OF_GROUP, place).fetchone()) is not None and found[1] is not None:
        return None
    number = new_numbers(connection, 1, now)
    code = pool_code_of(message.body) if pool is None else pool
    insert(connection, queue, [Row(-number, message.group, message.body, code, number)], wall)
    lane, _ = connection.execute(_LANE_OF_GROUP, place).fetchone()
    refresh_lanes(connection, queue, [lane], now)
    if message.deduplication_id is not None:
        _remember(connection, queue, [(message.deduplication_id, -number)], now)
    return Accepted([-number])


def _remember(connection: sqlite3.Connection, queue: str, ids: Sequence[tuple[str, int]], now: float) -> None:
    values = {"queue": queue, "ids": encode(ids), "expires_at": now + DEDUPLICATION_S}
    connection.execute(_REMEMBER_IDS, values)


def _find_known_ids(
    connection: sqlite3.Connection, queue: str, messages: Sequence[Outgoing], now: float
) -> dict[str, int]:
    ids = [(message.deduplication_id,) for message in messages if message.deduplication_id is not None]
    if not ids:
        return {}
    connection.execute(_FORGET_OLD_IDS, (now,))
    return dict(_seq_by_id_rows.decode(one(connection, _KNOWN_IDS, {"ids": encode(ids), "queue": queue})))


def insert(connection: sqlite3.Connection, queue: str, rows: Sequence[Row], wall: float) -> None:
    """Put messages into their lanes, each in its place; one that names no group gets a lane of its own."""
    if grouped := [row for row in rows if row.group is not None]:
        firsts = {row.group: row for row in sorted(grouped, reverse=True)}  # the first row of each group
        lanes = [row._replace(body="") for row in firsts.values()]
        connection.execute(_INSERT_GROUP_LANES, {"rows": encode(lanes), "queue": queue})
        connection.execute(_INSERT_GROUPED, {"rows": encode(grouped), "queue": queue, "wall": wall})
    if alone := [row for row in rows if row.group is None]:
        connection.execute(_INSERT_OWN_LANES, {"rows": encode(alone), "queue": queue})
        connection.execute(_INSERT_UNGROUPED, {"rows": encode(alone), "wall": wall})
    connection.execute(COUNT, {"queue": queue, "change": len(rows)})


# Settle

_LEASES = """
    SELECT json_group_array(json_array(l.id, l.epoch, l.leased))
    FROM json_each(?) AS asked CROSS JOIN lanes AS l ON l.id = asked.value"""
_FIND = """
    SELECT json_group_array(json_array(m.seq, m.lane, m.given_back, l.epoch, l.owner))
    FROM json_each(?) AS asked
    CROSS JOIN messages AS m ON m.lane = asked.value ->> 1 AND m.seq = asked.value ->> 0
    CROSS JOIN lanes AS l ON l.id = m.lane"""
_DELETE = """
    DELETE FROM messages WHERE (lane, seq) IN (
      SELECT CAST(asked.key AS INTEGER), seqs.value
      FROM json_each(?) AS asked CROSS JOIN json_each(asked.value) AS seqs)"""
_DELETE_NEVER_NACKED = f"{_DELETE} AND given_back = 0"
_SHRINK_LEASES = """
    UPDATE lanes SET leased = asked.value ->> 1 FROM json_each(?) AS asked WHERE lanes.id = asked.value ->> 0"""
_COUNT_ACKED = "UPDATE queues SET messages = messages - ?, leased = leased - ? WHERE name = ?"
_REQUEUE = """
    UPDATE messages SET
      visible_at = :visible_at,
      given_back = (SELECT epoch FROM lanes WHERE id = messages.lane),
      receives = receives + 1,
      failures = asked.value ->> 2
    FROM json_each(:rows) AS asked
    WHERE messages.lane = asked.value ->> 1 AND messages.seq = asked.value ->> 0"""
_ADD_OWN_LANE = """
    INSERT INTO lanes (id, queue, grp, pool, turn, leased_to, due, delayed)
    SELECT :new, :queue, l.grp, m.pool, :new, m.seq, :due, :due IS NOT NULL
    FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id AND m.seq = :seq WHERE l.id = :lane"""
_MOVE = "UPDATE messages SET lane = :new, given_back = 0 WHERE lane = :lane AND seq = :seq"
_COUNT_DELAYED = "UPDATE queues SET delayed = delayed + ? WHERE name = ?"
_EXTEND = "UPDATE lanes SET due = :until WHERE id IN (SELECT value FROM json_each(:lanes))"


class _Found(NamedTuple):
    """A message that still exists, and its lane."""

    nacked: int
    epoch: int
    owner: str | None


Messages = Mapping[tuple[int, int], _Found]  # by seq and lane: one that moved to a lane of its own is another one


def _find(connection: sqlite3.Connection, receipts: Sequence[Receipt]) -> Messages:
    rows = _found_rows.decode(one(connection, _FIND, (encode(receipts),)))
    return {(seq, lane): _Found(nacked, epoch, owner) for seq, lane, nacked, epoch, owner in rows}


def ack(
    connection: sqlite3.Connection,
    queue: str,
    receipts: Sequence[Receipt],
    now: float,
    delays: str = Delays.ALL,
    refreshed: set[int] | None = None,
) -> list[Settled]:
    """Delete messages; those already deleted count as done. Adds the lanes that may be ready by that to `refreshed`."""
    seqs_by_lane: dict[int, list[int]] = {}
    for receipt in receipts:
        seqs_by_lane.setdefault(receipt.lane, []).append(receipt.seq)
    found = _lease_rows.decode(one(connection, _LEASES, (encode(list(seqs_by_lane)),)))
    epochs = {lane: epoch for lane, epoch, _ in found}
    stale = [receipt for receipt in receipts if epochs.get(receipt.lane, receipt.epoch) != receipt.epoch]
    for receipt in stale:
        seqs_by_lane[receipt.lane].remove(receipt.seq)
    still_there = _find(connection, stale) if stale else {}
    gone = {receipt for receipt in stale if (receipt.seq, receipt.lane) in still_there}
    ids = encode(seqs_by_lane)
    deleted = connection.execute(_DELETE_NEVER_NACKED, (ids,)).rowcount
    to_refresh, from_leases = set(seqs_by_lane), 0
    if deleted == len(receipts) - len(stale):  # as nearly always: leases that go on are just shorter
        shrunk = [(lane, leased - len(seqs_by_lane[lane])) for lane, _, leased in found]
        go_on = [(lane, leased) for lane, leased in shrunk if leased > 0 and seqs_by_lane[lane]]
        if go_on:
            to_refresh -= {lane for lane, _ in go_on}
            connection.execute(_SHRINK_LEASES, (encode(go_on),))
            from_leases = sum(len(seqs_by_lane[lane]) for lane, _ in go_on)
    else:
        deleted += connection.execute(_DELETE, (ids,)).rowcount
    connection.execute(_COUNT_ACKED, (deleted, from_leases, queue))
    if to_refresh:
        refresh_lanes(connection, queue, to_refresh, now, delays)
        if refreshed is not None:
            refreshed |= to_refresh
    if not gone:
        return [Settled.OK] * len(receipts)
    return [Settled.GONE if receipt in gone else Settled.OK for receipt in receipts]


def nack(
    connection: sqlite3.Connection,
    queue: str,
    failures: Sequence[tuple[Receipt, int]],
    now: float,
    delay_s: float,
    *,
    unlock: bool = False,
    delays: str = Delays.ALL,
) -> list[Settled]:
    """Show messages after `delay_s` and remember how often each has failed so far."""
    found = _find(connection, [receipt for receipt, _ in failures])
    held = [(receipt, count) for receipt, count in failures if _is_held(receipt, found)]
    rows = [(receipt.seq, receipt.lane, count) for receipt, count in held]
    visible_at = now + delay_s if delay_s > 0 else None
    connection.execute(_REQUEUE, {"rows": encode(rows), "visible_at": visible_at})
    if unlock:  # from now on each holds up nobody but itself
        for new, (receipt, _) in enumerate(held, new_numbers(connection, len(held), now)):
            move = {"queue": queue, "lane": receipt.lane, "seq": receipt.seq, "new": new}
            connection.execute(_ADD_OWN_LANE, {**move, "due": visible_at})
            connection.execute(_MOVE, move)
        if visible_at is not None:
            connection.execute(_COUNT_DELAYED, (len(held), queue))
    refresh_lanes(connection, queue, {receipt.lane for receipt, _ in held}, now, delays)
    return [Settled.OK if _is_held(receipt, found) else Settled.GONE for receipt, _ in failures]


# The lane of a group, or the lane that a message of no group, or one that was unlocked, has for itself.
_DELAYED_LANES = """
    SELECT json_group_array(id) FROM lanes
    WHERE queue = :queue AND due IS NOT NULL AND owner IS NULL
      AND (name = :name OR (name IS NULL AND leased_to = :seq))"""
_SHOW = """
    UPDATE messages SET visible_at = NULL FROM json_each(:lanes) AS asked CROSS JOIN lanes AS l ON l.id = asked.value
    WHERE messages.lane = l.id AND messages.seq <= l.leased_to AND messages.visible_at IS NOT NULL"""


def hurry(connection: sqlite3.Connection, queue: str, group: str | None, seq: int | None, now: float) -> bool:
    """End the delays that lock the lane of a message; whether there were any."""
    name = None if group is None else encode(group)
    lanes = one(connection, _DELAYED_LANES, {"queue": queue, "name": name, "seq": seq})
    ids = msgspec.json.decode(lanes, type=list[int])
    if not ids:
        return False
    connection.execute(_SHOW, {"lanes": lanes})
    refresh_lanes(connection, queue, ids, now)
    return True


def extend(connection: sqlite3.Connection, receipts: Sequence[Receipt], owner: str, until: float) -> list[Settled]:
    """Keep messages that `owner` still holds hidden until then, and so the rest of their leases."""
    found = _find(connection, receipts)
    mine = {place: message for place, message in found.items() if message.owner == owner}
    lanes = {receipt.lane for receipt in receipts if _is_held(receipt, mine)}
    connection.execute(_EXTEND, {"lanes": encode(list(lanes)), "until": until})
    return [Settled.OK if _is_held(receipt, mine) else Settled.GONE for receipt in receipts]


def _is_held(receipt: Receipt, found: Messages) -> bool:
    """Whether a receipt is of the newest lease of its lane, and its message was not given back from that."""
    message = found.get((receipt.seq, receipt.lane))
    return message is not None and message.epoch == receipt.epoch != message.nacked


# Owners

_OWNED = """
    SELECT json_group_array(id) FROM lanes
    WHERE due IS NOT NULL AND queue = :queue AND owner IN (SELECT value FROM json_each(:owners))"""
_QUEUES = "SELECT json_group_array(name) FROM queues"
_FORGET_OWNERS = "DELETE FROM owners WHERE owner IN (SELECT value FROM json_each(?))"
_OTHER_OWNERS = "SELECT json_group_array(owner) FROM owners WHERE owner <> ?"


def release(
    connection: sqlite3.Connection,
    owners: Collection[str],
    now: float,
    queue: str | None = None,
    delays: str = Delays.ALL,
) -> None:
    """End the leases of these owners, in one queue or in all of them."""
    for name in [queue] if queue is not None else _names.decode(one(connection, _QUEUES)):
        lanes = one(connection, _OWNED, {"owners": encode(list(owners)), "queue": name})
        if lanes != "[]":
            end_leases(connection, name, lanes, now, delays)


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


def forget(connection: sqlite3.Connection, owners: Collection[str], now: float, delays: str = Delays.ALL) -> None:
    """Release all that these owners hold, and the owners."""
    new_numbers(connection, 0, now)  # should the machine be switched off now, the store's clock goes on from here
    release(connection, owners, now, delays=delays)
    connection.execute(_FORGET_OWNERS, (encode(list(owners)),))


def other_owners(connection: sqlite3.Connection, owner: str) -> list[str]:
    return _names.decode(one(connection, _OTHER_OWNERS, (owner,)))


# Look

# A lane that is due waits for the next look to end its lease. What was given back for longer stays delayed then.
_DEPTH = """
    SELECT json_array(q.messages, q.leased - due.leased, q.delayed - due.delayed)
    FROM queues AS q CROSS JOIN (
      SELECT ifnull(sum(l.leased), 0) AS leased, ifnull(sum(CASE WHEN l.delayed > 0 AND EXISTS (
          SELECT 1 FROM messages WHERE lane = l.id AND seq <= l.leased_to AND visible_at > :now)
        THEN 0 ELSE l.delayed END), 0) AS delayed
      FROM lanes AS l WHERE l.queue = :queue AND l.due <= :now) AS due
    WHERE q.name = :queue"""
_depth_row: Final = msgspec.json.Decoder(tuple[int, int, int])


def queue_names(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM queues")}


def depth(connection: sqlite3.Connection, queue: str, now: float) -> Depth:
    row = connection.execute(_DEPTH, {"queue": queue, "now": now}).fetchone()
    total, leased, delayed = (0, 0, 0) if row is None else _depth_row.decode(row[0])
    return Depth(waiting=total - leased - delayed, leased=leased, delayed=delayed)


# Walks the lanes that are ready for a pool, and no further than it has to.
_WAITING_FOR = """
    SELECT count(*) FROM (
      SELECT 1 FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id
      WHERE l.queue = :queue AND l.due IS NULL AND l.pool = :pool LIMIT :most)"""


def waiting_for(connection: sqlite3.Connection, queue: str, pool: str, most: int) -> int:
    """How many messages are in lanes that are ready and whose first message names this pool, up to `most`."""
    found: int = one(connection, _WAITING_FOR, {"queue": queue, "pool": encode(pool), "most": most})
    return found


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection commits."""
    version: int = one(connection, "PRAGMA data_version")
    return version
