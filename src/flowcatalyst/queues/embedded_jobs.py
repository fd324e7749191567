"""What the embedded queue does to its database: plain functions of a connection, each a part of one transaction.

Every step of a statement gives up Python's interpreter lock and has to win it back from a busy event loop, so the
statements work on whole sets: arrays go in as JSON, and results come out as one row of JSON.
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from flowcatalyst.message import Settled
from flowcatalyst.queues.contract import Depth, Outgoing

DEDUPLICATION_S: Final = 300.0
LANE_SHARE: Final = 20  # messages of one lane in a batch while other lanes have some: what a pool buffers per slot


class Receipt(NamedTuple):
    """Proof of one delivery. It goes stale when its lane is leased again."""

    seq: int
    lane: int
    epoch: int


class Leased(NamedTuple):
    """A message as `take` hands it out."""

    seq: int
    lane: int
    epoch: int
    receives: int
    failures: int
    group: str | None
    body: str

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.seq, self.lane, self.epoch)


@dataclass(slots=True, frozen=True)
class Taken:
    """What one look at a queue gave."""

    messages: list[Leased]
    next_due: float | None = None  # wall time when the next hidden message of the queue shows
    data_version: int = 0  # changes when another connection commits; only set when there were no messages


@dataclass(slots=True)
class Accepted:
    """What became of a publish: the seq of each message, and which of them were duplicates."""

    seqs: list[int] = field(default_factory=list)
    duplicates: set[int] = field(default_factory=set)  # positions


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _one(connection: sqlite3.Connection, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
    return connection.execute(query, parameters).fetchone()[0]


_leased_rows: Final = msgspec.json.Decoder(list[tuple[int, int, int, int, int, str | None, str]])
_seq_by_id_rows: Final = msgspec.json.Decoder(list[tuple[str, int]])
_epoch_rows: Final = msgspec.json.Decoder(list[tuple[int, int]])
_found_rows: Final = msgspec.json.Decoder(list[tuple[int, int, int, str | None]])
_owner_rows: Final = msgspec.json.Decoder(list[str])


# Publish

_LAST_SEQ = "SELECT last_seq FROM store"
_SET_LAST_SEQ = "UPDATE store SET last_seq = ?"
# Rows are [seq, group, body]; a row of a lane of its own is marked by its place in the one or the other list.
_INSERT_GROUP_LANES = """
    INSERT INTO lanes (queue, name, grp, head)
    SELECT :queue, value -> 1, value -> 1, value ->> 0 FROM json_each(:rows) WHERE true
    ON CONFLICT (queue, name) WHERE name IS NOT NULL DO NOTHING"""
_INSERT_GROUPED = """
    INSERT INTO messages (lane, seq, body, published_at)
    SELECT l.id, r.value ->> 0, r.value -> 2, :now
    FROM json_each(:rows) AS r CROSS JOIN lanes AS l ON l.queue = :queue AND l.name = r.value -> 1"""
_INSERT_OWN_LANES = """
    INSERT INTO lanes (queue, grp, head) SELECT :queue, value -> 1, value ->> 0 FROM json_each(:rows)"""
_INSERT_UNGROUPED = """
    INSERT INTO messages (lane, seq, body, published_at)
    SELECT l.id, l.head, r.value -> 2, :now FROM json_each(:rows) AS r
    CROSS JOIN lanes AS l ON l.queue = :queue AND l.due IS NULL AND l.head = r.value ->> 0"""
_FORGET_OLD_IDS = "DELETE FROM deduplication WHERE expires_at <= ?"
_KNOWN_IDS = """
    SELECT json_group_array(json_array(json(d.id), d.seq))
    FROM json_each(:ids) AS asked CROSS JOIN deduplication AS d ON d.queue = :queue AND d.id = asked.value -> 0"""
_REMEMBER_IDS = """
    INSERT INTO deduplication (queue, id, seq, expires_at)
    SELECT :queue, value -> 0, value ->> 1, :expires_at FROM json_each(:ids)"""


Row = tuple[int, str | None, str]


def publish(connection: sqlite3.Connection, queue: str, messages: Sequence[Outgoing], now: float) -> Accepted:
    """Append messages with consecutive seqs, but for those whose deduplication id is known."""
    seq_by_id = _find_known_ids(connection, queue, messages, now)
    known_before = len(seq_by_id)
    first = _one(connection, _LAST_SEQ) + 1
    accepted = Accepted()
    rows: list[Row] = []
    for position, message in enumerate(messages):
        seq = first + len(rows)
        if message.deduplication_id is not None:
            original = seq_by_id.setdefault(message.deduplication_id, seq)
            if original != seq:
                accepted.seqs.append(original)
                accepted.duplicates.add(position)
                continue
        accepted.seqs.append(seq)
        rows.append((seq, message.group, message.body))
    if rows:
        _insert(connection, queue, rows, now)
    if len(seq_by_id) > known_before:
        new = [item for item in seq_by_id.items() if item[1] >= first]
        expires_at = now + DEDUPLICATION_S
        connection.execute(_REMEMBER_IDS, {"queue": queue, "ids": _encode(new), "expires_at": expires_at})
    return accepted


def _find_known_ids(
    connection: sqlite3.Connection, queue: str, messages: Sequence[Outgoing], now: float
) -> dict[str, int]:
    ids = [(message.deduplication_id,) for message in messages if message.deduplication_id is not None]
    if not ids:
        return {}
    connection.execute(_FORGET_OLD_IDS, (now,))
    return dict(_seq_by_id_rows.decode(_one(connection, _KNOWN_IDS, {"ids": _encode(ids), "queue": queue})))


def _insert(connection: sqlite3.Connection, queue: str, rows: Sequence[Row], now: float) -> None:
    connection.execute(_SET_LAST_SEQ, (rows[-1][0],))
    if grouped := [row for row in rows if row[1] is not None]:
        firsts = {row[1]: row for row in reversed(grouped)}  # the first row of each group
        lanes = [(seq, group) for seq, group, _ in firsts.values()]
        connection.execute(_INSERT_GROUP_LANES, {"rows": _encode(lanes), "queue": queue})
        connection.execute(_INSERT_GROUPED, {"rows": _encode(grouped), "queue": queue, "now": now})
    if alone := [row for row in rows if row[1] is None]:
        parameters = {"rows": _encode(alone), "queue": queue}
        connection.execute(_INSERT_OWN_LANES, parameters)
        connection.execute(_INSERT_UNGROUPED, {**parameters, "now": now})


# Take

_NEXT_DUE = "SELECT min(due) FROM lanes WHERE queue = ? AND due IS NOT NULL"
_DUE_LANES = "SELECT json_group_array(id) FROM lanes WHERE queue = ? AND due <= ?"
# Rows are put together as JSON by hand: bodies and groups are JSON already and need no second look.
# `{part}` compares with the last message of the lane's share.
_READY_MESSAGES = """
    SELECT '[' || ifnull(group_concat('[' || seq || ',' || lane || ',' || epoch || ',' || receives || ',' || failures
      || ',' || grp || ',' || body || ']'), '') || ']'
    FROM (
      SELECT m.seq, m.lane, l.epoch + 1 AS epoch, m.receives + 1 AS receives, m.failures, l.grp, m.body
      FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id
      WHERE l.queue = :queue AND l.due IS NULL AND m.seq {part} ifnull(
        (SELECT seq FROM messages WHERE lane = l.id ORDER BY seq LIMIT 1 OFFSET :share - 1), 9223372036854775807)
      ORDER BY l.head, m.seq LIMIT :limit)"""
TAKE_SHARES: Final = _READY_MESSAGES.format(part="<=")
TAKE_MORE: Final = _READY_MESSAGES.format(part=">")
_LEASE = """
    UPDATE lanes SET epoch = epoch + 1, leased_to = last.value ->> 1, owner = :owner, due = :until
    FROM json_each(:lasts) AS last WHERE lanes.id = last.value ->> 0"""


def take(connection: sqlite3.Connection, queue: str, limit: int, owner: str, now: float, visibility_s: float) -> Taken:
    """Lease up to `limit` messages: a share of each ready lane, oldest head first, then more of the same lanes."""
    next_due = _unlock_what_is_due(connection, queue, now)
    messages = _ready(connection, TAKE_SHARES, queue, limit)
    if not messages:
        return Taken([], next_due, data_version(connection))
    if LANE_SHARE <= len(messages) < limit:
        messages += _ready(connection, TAKE_MORE, queue, limit - len(messages))
    messages.sort()  # by seq, which keeps the order of each lane and does not lean on that of group_concat
    lasts = {message.lane: message.seq for message in messages}
    connection.execute(_LEASE, {"lasts": _encode(list(lasts.items())), "owner": owner, "until": now + visibility_s})
    return Taken(messages, next_due)


def _ready(connection: sqlite3.Connection, query: str, queue: str, limit: int) -> list[Leased]:
    rows = _one(connection, query, {"queue": queue, "limit": limit, "share": LANE_SHARE})
    return list(map(Leased._make, _leased_rows.decode(rows)))


def _unlock_what_is_due(connection: sqlite3.Connection, queue: str, now: float) -> float | None:
    next_due = _next_due(connection, queue)
    if next_due is None or next_due > now:
        return next_due
    _end_leases(connection, _one(connection, _DUE_LANES, (queue, now)), now)
    return _next_due(connection, queue)


def _next_due(connection: sqlite3.Connection, queue: str) -> float | None:
    due: float | None = _one(connection, _NEXT_DUE, (queue,))
    return due


# Lanes, in JSON arrays of ids

_COUNT_UNSETTLED = """
    UPDATE messages SET receives = receives + 1 FROM json_each(?) AS asked CROSS JOIN lanes AS l ON l.id = asked.value
    WHERE l.owner IS NOT NULL AND messages.lane = l.id AND messages.seq <= l.leased_to
    AND messages.given_back <> l.epoch"""
_UNLOCK_OR_DELAY = """
    UPDATE lanes SET owner = NULL, due = (
      SELECT max(visible_at) FROM messages WHERE lane = lanes.id AND seq <= leased_to AND visible_at > :now)
    WHERE id IN (SELECT value FROM json_each(:lanes))"""


def _end_leases(connection: sqlite3.Connection, lanes: str, now: float) -> None:
    """The leases and delays of these lanes are over; what was given back for longer still locks its lane."""
    connection.execute(_COUNT_UNSETTLED, (lanes,))
    connection.execute(_UNLOCK_OR_DELAY, {"lanes": lanes, "now": now})


_DROP_EMPTY_LANES = """
    DELETE FROM lanes WHERE id IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM messages WHERE lane = lanes.id)"""
# A lane stays as locked as it is while a message of its lease is unsettled. After that only delays lock it.
_REFRESH_LANES = """
    UPDATE lanes SET
      head = (SELECT min(seq) FROM messages WHERE lane = lanes.id),
      due = CASE WHEN unsettled THEN due ELSE delayed_until END,
      owner = CASE WHEN unsettled THEN owner END
    FROM (
      SELECT l.id AS lane_id,
        EXISTS (SELECT 1 FROM messages WHERE lane = l.id AND seq <= l.leased_to AND given_back <> l.epoch) AS unsettled,
        (SELECT max(visible_at) FROM messages WHERE lane = l.id AND seq <= l.leased_to) AS delayed_until
      FROM json_each(?) AS asked CROSS JOIN lanes AS l ON l.id = asked.value)
    WHERE lanes.id = lane_id"""


def _refresh_lanes(connection: sqlite3.Connection, lanes: Collection[int]) -> None:
    """Work out head and lock of lanes from the messages they hold."""
    ids = _encode(list(lanes))
    connection.execute(_DROP_EMPTY_LANES, (ids,))
    connection.execute(_REFRESH_LANES, (ids,))


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
    INSERT INTO lanes (queue, grp, head, leased_to, due)
    SELECT :queue, grp, :seq, :seq, :due FROM lanes WHERE id = :lane RETURNING id"""
_MOVE = "UPDATE messages SET lane = :new, given_back = 0 WHERE lane = :lane AND seq = :seq"
_PARK_READY_LANE = "UPDATE lanes SET due = 0 WHERE id = ? AND due IS NULL"
_EXTEND = "UPDATE lanes SET due = :until WHERE id IN (SELECT value FROM json_each(:lanes))"


class _Found(NamedTuple):
    """A message that still exists, and its lane."""

    seq: int
    given_back: int
    epoch: int
    owner: str | None


def _find(connection: sqlite3.Connection, receipts: Sequence[Receipt]) -> dict[int, _Found]:
    rows = _found_rows.decode(_one(connection, _FIND, (_encode(receipts),)))
    return {row[0]: _Found(*row) for row in rows}


def ack(connection: sqlite3.Connection, receipts: Sequence[Receipt]) -> list[Settled]:
    """Delete messages; those already deleted count as done."""
    seqs_by_lane: dict[int, list[int]] = {}
    for receipt in receipts:
        seqs_by_lane.setdefault(receipt.lane, []).append(receipt.seq)
    epochs = dict(_epoch_rows.decode(_one(connection, _EPOCHS, (_encode(list(seqs_by_lane)),))))
    stale = [receipt for receipt in receipts if epochs.get(receipt.lane, receipt.epoch) != receipt.epoch]
    for receipt in stale:
        seqs_by_lane[receipt.lane].remove(receipt.seq)
    still_there = _find(connection, stale) if stale else {}
    gone = {receipt for receipt in stale if receipt.seq in still_there}
    connection.execute(_DELETE, (_encode(seqs_by_lane),))
    _refresh_lanes(connection, seqs_by_lane)
    return [Settled.GONE if receipt in gone else Settled.OK for receipt in receipts]


def nack(
    connection: sqlite3.Connection,
    queue: str,
    failures: Sequence[tuple[Receipt, int]],
    visible_at: float | None,
    *,
    unlock: bool = False,
) -> list[Settled]:
    """Show messages from `visible_at` on (None: at once) and remember how often each has failed so far."""
    found = _find(connection, [receipt for receipt, _ in failures])
    held = [(receipt, count) for receipt, count in failures if _is_held(receipt, found)]
    rows = [(receipt.seq, receipt.lane, count) for receipt, count in held]
    connection.execute(_GIVE_BACK, {"rows": _encode(rows), "visible_at": visible_at})
    if unlock:
        for receipt, _ in held:
            _move_to_own_lane(connection, queue, receipt, visible_at)
    _refresh_lanes(connection, {receipt.lane for receipt, _ in held})
    return [Settled.OK if _is_held(receipt, found) else Settled.GONE for receipt, _ in failures]


def _move_to_own_lane(connection: sqlite3.Connection, queue: str, receipt: Receipt, visible_at: float | None) -> None:
    """From now on the message holds up nobody but itself."""
    lane = {"queue": queue, "lane": receipt.lane, "seq": receipt.seq}
    # A seq is the head of one ready lane at most. The lane it leaves is ready only if its lease ran out; due in the
    # distant past, it is made ready again by the next take.
    connection.execute(_PARK_READY_LANE, (receipt.lane,))
    [new] = connection.execute(_ADD_OWN_LANE, {**lane, "due": visible_at}).fetchone()
    connection.execute(_MOVE, {**lane, "new": new})


def extend(connection: sqlite3.Connection, receipts: Sequence[Receipt], owner: str, until: float) -> list[Settled]:
    """Keep messages that `owner` still holds hidden until then, and so the rest of their leases."""
    found = _find(connection, receipts)
    mine = {seq: message for seq, message in found.items() if message.owner == owner}
    lanes = {receipt.lane for receipt in receipts if _is_held(receipt, mine)}
    connection.execute(_EXTEND, {"lanes": _encode(list(lanes)), "until": until})
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
    lanes = _one(connection, _OWNED, {"owners": _encode(list(owners)), "queue": queue})
    _end_leases(connection, lanes, now)


def register(connection: sqlite3.Connection, owner: str) -> str:
    """Enter an owner; the id of the store."""
    connection.execute("INSERT INTO owners (owner) VALUES (?) ON CONFLICT DO NOTHING", (owner,))
    store_id: str = _one(connection, "SELECT id FROM store")
    return store_id


def forget(connection: sqlite3.Connection, owners: Collection[str], now: float) -> None:
    """Release all that these owners hold, and the owners."""
    release(connection, owners, now)
    connection.execute(_FORGET_OWNERS, (_encode(list(owners)),))


def other_owners(connection: sqlite3.Connection, owner: str) -> list[str]:
    return _owner_rows.decode(_one(connection, _OTHER_OWNERS, (owner,)))


# Look

_DEPTH = """
    SELECT count(*),
      count(l.owner IS NOT NULL AND l.due > :now AND m.seq <= l.leased_to AND m.given_back <> l.epoch OR NULL),
      count(m.visible_at > :now OR NULL)
    FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id WHERE l.queue = :queue"""


def depth(connection: sqlite3.Connection, queue: str, now: float) -> Depth:
    total, leased, delayed = connection.execute(_DEPTH, {"queue": queue, "now": now}).fetchone()
    return Depth(waiting=total - leased - delayed, leased=leased, delayed=delayed)


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection commits."""
    version: int = _one(connection, "PRAGMA data_version")
    return version
