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
from flowcatalyst.queues.contract import Outgoing

DEDUPLICATION_S: Final = 300.0
LANE_SHARE: Final = 10  # messages of one lane in a batch, while other lanes have some


class Receipt(NamedTuple):
    """Proof of one delivery. It goes stale when the message is delivered again."""

    seq: int
    receives: int


class Leased(NamedTuple):
    """A message as `take` hands it out."""

    seq: int
    receives: int
    failures: int
    group: str | None
    body: str


@dataclass(slots=True, frozen=True)
class Taken:
    """What one look at a queue gave."""

    messages: list[Leased]
    next_due: float | None = None  # wall time when the next hidden message of the queue shows
    data_version: int = 0  # changes when another connection commits; only set when there were no messages


@dataclass(slots=True, frozen=True)
class Depth:
    """How many messages a queue holds."""

    waiting: int
    leased: int
    delayed: int


@dataclass(slots=True)
class Accepted:
    """What became of a publish: the seq of each message, and which of them were duplicates."""

    seqs: list[int] = field(default_factory=list)
    duplicates: set[int] = field(default_factory=set)  # positions


Lane = tuple[str, str | None] | tuple[str, str | None, int]


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _one(connection: sqlite3.Connection, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
    return connection.execute(query, parameters).fetchone()[0]


_leased_rows: Final = msgspec.json.Decoder(list[tuple[int, int, int, str | None, str]])
_seq_by_id_rows: Final = msgspec.json.Decoder(list[tuple[str, int]])
_located_rows: Final = msgspec.json.Decoder(list[tuple[int, int, str | None, str]])
_owned_rows: Final = msgspec.json.Decoder(list[tuple[int, str]])
_owner_rows: Final = msgspec.json.Decoder(list[str])


# Publish

_LAST_SEQ = "SELECT ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0)"
_INSERT_MESSAGES = """
    INSERT INTO messages (seq, lane, body, published_at)
    SELECT :first + key, value -> 0, value -> 1, :now FROM json_each(:rows)"""
_INSERT_LANES = """
    INSERT INTO lanes (lane, queue, head)
    SELECT value -> 0, :queue, value ->> 1 FROM json_each(:heads) WHERE true
    ON CONFLICT (lane) DO NOTHING"""
_FORGET_OLD_IDS = "DELETE FROM deduplication WHERE expires_at <= ?"
_KNOWN_IDS = """
    SELECT json_group_array(json_array(json(d.id), d.seq))
    FROM json_each(:ids) AS asked CROSS JOIN deduplication AS d ON d.queue = :queue AND d.id = asked.value -> 0"""
_REMEMBER_IDS = """
    INSERT INTO deduplication (queue, id, seq, expires_at)
    SELECT :queue, value -> 0, value ->> 1, :expires_at FROM json_each(:ids)"""


def publish(connection: sqlite3.Connection, queue: str, messages: Sequence[Outgoing], now: float) -> Accepted:
    """Append messages with consecutive seqs, but for those whose deduplication id is known."""
    seq_by_id = _find_known_ids(connection, queue, messages, now)
    known_before = len(seq_by_id)
    first = _one(connection, _LAST_SEQ) + 1
    accepted = Accepted()
    rows: list[tuple[Lane, str]] = []
    for position, message in enumerate(messages):
        seq = first + len(rows)
        if message.deduplication_id is not None:
            original = seq_by_id.setdefault(message.deduplication_id, seq)
            if original != seq:
                accepted.seqs.append(original)
                accepted.duplicates.add(position)
                continue
        accepted.seqs.append(seq)
        rows.append(((queue, None, seq) if message.group is None else (queue, message.group), message.body))
    if rows:
        _insert(connection, queue, rows, first, now)
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


def _insert(
    connection: sqlite3.Connection, queue: str, rows: Sequence[tuple[Lane, str]], first: int, now: float
) -> None:
    heads: dict[Lane, int] = {}
    for position, (lane, _) in enumerate(rows):
        heads.setdefault(lane, first + position)
    connection.execute(_INSERT_MESSAGES, {"rows": _encode(rows), "first": first, "now": now})
    connection.execute(_INSERT_LANES, {"heads": _encode(list(heads.items())), "queue": queue})


# Take

_NEXT_DUE = "SELECT min(due) FROM lanes WHERE queue = ? AND due IS NOT NULL"
_DUE_LANES = "SELECT json_group_array(lane) FROM lanes WHERE queue = ? AND due <= ?"
_SHOW_DUE = """
    UPDATE messages SET visible_at = NULL, owner = NULL
    WHERE lane IN (SELECT value FROM json_each(:lanes)) AND visible_at <= :now"""
# No message of a ready lane is hidden. `{part}` compares with the last message of the lane's share.
_READY_MESSAGES = """
    SELECT json_group_array(json_array(seq, receives + 1, failures, lane -> 1, json(body))) FROM (
      SELECT m.seq, m.receives, m.failures, m.lane, m.body
      FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.lane
      WHERE l.queue = :queue AND l.due IS NULL AND m.seq {part} ifnull(
        (SELECT seq FROM messages WHERE lane = l.lane ORDER BY seq LIMIT 1 OFFSET :share - 1), 9223372036854775807)
      ORDER BY l.head, m.seq LIMIT :limit)"""
TAKE_SHARES: Final = _READY_MESSAGES.format(part="<=")
TAKE_MORE: Final = _READY_MESSAGES.format(part=">")
_LEASE = """
    UPDATE messages SET visible_at = :until, owner = :owner, receives = receives + 1
    WHERE seq IN (SELECT value FROM json_each(:seqs))"""
_LOCK_LANES = """
    UPDATE lanes SET due = :until
    WHERE queue = :queue AND due IS NULL AND head IN (SELECT value FROM json_each(:seqs))"""


def take(connection: sqlite3.Connection, queue: str, limit: int, owner: str, now: float, visibility_s: float) -> Taken:
    """Lease up to `limit` messages: a share of each ready lane, oldest head first, then more of the same lanes."""
    next_due = _show_what_is_due(connection, queue, now)
    messages = _ready(connection, TAKE_SHARES, queue, limit)
    if not messages:
        return Taken([], next_due, data_version(connection))
    if LANE_SHARE <= len(messages) < limit:
        messages += _ready(connection, TAKE_MORE, queue, limit - len(messages))
    messages.sort()  # by seq, which keeps the order of each lane and does not lean on that of json_group_array
    lease = {"seqs": _encode([message.seq for message in messages]), "until": now + visibility_s}
    connection.execute(_LEASE, {**lease, "owner": owner})
    connection.execute(_LOCK_LANES, {**lease, "queue": queue})
    return Taken(messages, next_due)


def _ready(connection: sqlite3.Connection, query: str, queue: str, limit: int) -> list[Leased]:
    rows = _one(connection, query, {"queue": queue, "limit": limit, "share": LANE_SHARE})
    return [Leased(*row) for row in _leased_rows.decode(rows)]


def _show_what_is_due(connection: sqlite3.Connection, queue: str, now: float) -> float | None:
    next_due = _next_due(connection, queue)
    if next_due is None or next_due > now:
        return next_due
    lanes = _one(connection, _DUE_LANES, (queue, now))
    connection.execute(_SHOW_DUE, {"lanes": lanes, "now": now})
    _refresh_lanes(connection, lanes)
    return _next_due(connection, queue)


def _next_due(connection: sqlite3.Connection, queue: str) -> float | None:
    due: float | None = _one(connection, _NEXT_DUE, (queue,))
    return due


_DROP_EMPTY_LANES = """
    DELETE FROM lanes WHERE lane IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM messages WHERE messages.lane = lanes.lane)"""
_REFRESH_LANES = """
    UPDATE lanes SET
      head = (SELECT min(seq) FROM messages WHERE messages.lane = lanes.lane),
      due = (SELECT min(visible_at) FROM messages WHERE messages.lane = lanes.lane AND visible_at IS NOT NULL)
    WHERE lane IN (SELECT value FROM json_each(?))"""


def _refresh_lanes(connection: sqlite3.Connection, lanes: str) -> None:
    """Work out head and lock of lanes from the messages they hold; `lanes` is a JSON array."""
    connection.execute(_DROP_EMPTY_LANES, (lanes,))
    connection.execute(_REFRESH_LANES, (lanes,))


# Settle

_LOCATE = """
    SELECT json_group_array(json_array(m.seq, m.receives, m.owner, m.lane))
    FROM json_each(?) AS asked CROSS JOIN messages AS m ON m.seq = asked.value"""
_DELETE = "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_HIDE = """
    UPDATE messages SET visible_at = :visible_at, owner = NULL, failures = asked.value ->> 1
    FROM json_each(:counts) AS asked WHERE messages.seq = asked.value ->> 0"""
_MOVE_TO_OWN_LANES = """
    UPDATE messages SET lane = json_insert(lane, '$[2]', seq) WHERE seq IN (SELECT value FROM json_each(?))"""
_INSERT_OWN_LANES = """
    INSERT INTO lanes (lane, queue, head, due)
    SELECT m.lane, :queue, m.seq, m.visible_at
    FROM json_each(:seqs) AS asked CROSS JOIN messages AS m ON m.seq = asked.value WHERE true
    ON CONFLICT (lane) DO NOTHING"""
_EXTEND = """
    UPDATE messages SET visible_at = :until WHERE seq IN (SELECT value FROM json_each(:seqs))"""


class _Found(NamedTuple):
    seq: int
    receives: int
    owner: str | None
    lane: str


def _find(connection: sqlite3.Connection, receipts: Sequence[Receipt]) -> dict[int, _Found]:
    """The messages of the receipts that still exist, by seq."""
    rows = _one(connection, _LOCATE, (_encode([receipt.seq for receipt in receipts]),))
    return {row.seq: row for row in map(_Found._make, _located_rows.decode(rows))}


def _is_valid(receipt: Receipt, found: Mapping[int, _Found]) -> bool:
    message = found.get(receipt.seq)
    return message is not None and message.receives == receipt.receives


def _lanes_by_seq(receipts: Sequence[Receipt], found: Mapping[int, _Found]) -> dict[int, str]:
    """The lane of each message whose receipt is valid."""
    return {receipt.seq: found[receipt.seq].lane for receipt in receipts if _is_valid(receipt, found)}


def ack(connection: sqlite3.Connection, receipts: Sequence[Receipt]) -> list[Settled]:
    """Delete messages; those already deleted count as done."""
    found = _find(connection, receipts)
    lanes = _lanes_by_seq(receipts, found)
    if lanes:
        connection.execute(_DELETE, (_encode(list(lanes)),))
        _refresh_lanes(connection, _encode(list(set(lanes.values()))))
    return [
        Settled.GONE if receipt.seq in found and not _is_valid(receipt, found) else Settled.OK for receipt in receipts
    ]


def nack(
    connection: sqlite3.Connection,
    queue: str,
    failures: Sequence[tuple[Receipt, int]],
    visible_at: float | None,
    *,
    unlock: bool = False,
) -> list[Settled]:
    """Show messages from `visible_at` on (None: at once) and remember how often each has failed so far."""
    receipts = [receipt for receipt, _ in failures]
    found = _find(connection, receipts)
    lanes = _lanes_by_seq(receipts, found)
    if lanes:
        counts = {receipt.seq: count for receipt, count in failures if _is_valid(receipt, found)}
        connection.execute(_HIDE, {"counts": _encode(list(counts.items())), "visible_at": visible_at})
        if unlock:
            connection.execute(_MOVE_TO_OWN_LANES, (_encode(list(lanes)),))
        _refresh_lanes(connection, _encode(list(set(lanes.values()))))
        if unlock:
            # After the refresh: a head may stand in one ready lane only.
            connection.execute(_INSERT_OWN_LANES, {"seqs": _encode(list(lanes)), "queue": queue})
    return _ok_or_gone(receipts, found)


def extend(connection: sqlite3.Connection, receipts: Sequence[Receipt], owner: str, until: float) -> list[Settled]:
    """Keep messages that `owner` still holds hidden until then."""
    every = _find(connection, receipts)
    held = {seq: message for seq, message in every.items() if message.owner == owner}
    lanes = _lanes_by_seq(receipts, held)
    if lanes:
        connection.execute(_EXTEND, {"seqs": _encode(list(lanes)), "until": until})
        _refresh_lanes(connection, _encode(list(set(lanes.values()))))
    return _ok_or_gone(receipts, held)


def _ok_or_gone(receipts: Sequence[Receipt], found: Mapping[int, _Found]) -> list[Settled]:
    return [Settled.OK if _is_valid(receipt, found) else Settled.GONE for receipt in receipts]


# Owners

_OWNED = """
    SELECT json_group_array(json_array(m.seq, m.lane))
    FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.lane AND m.visible_at IS NOT NULL
    WHERE l.due IS NOT NULL AND l.queue = ifnull(:queue, l.queue)
    AND m.owner IN (SELECT value FROM json_each(:owners))"""
_SHOW = "UPDATE messages SET visible_at = NULL, owner = NULL WHERE seq IN (SELECT value FROM json_each(?))"
_FORGET_OWNERS = "DELETE FROM owners WHERE owner IN (SELECT value FROM json_each(?))"
_OTHER_OWNERS = "SELECT json_group_array(owner) FROM owners WHERE owner <> ?"


def release(connection: sqlite3.Connection, owners: Collection[str], queue: str | None = None) -> int:
    """Show what these owners hold, in one queue or in all of them; how many messages that were."""
    found = _one(connection, _OWNED, {"owners": _encode(list(owners)), "queue": queue})
    lanes = dict(_owned_rows.decode(found))
    if lanes:
        connection.execute(_SHOW, (_encode(list(lanes)),))
        _refresh_lanes(connection, _encode(list(set(lanes.values()))))
    return len(lanes)


def register(connection: sqlite3.Connection, owner: str) -> str:
    """Enter an owner; the id of the store."""
    connection.execute("INSERT INTO owners (owner) VALUES (?) ON CONFLICT DO NOTHING", (owner,))
    store_id: str = _one(connection, "SELECT id FROM store")
    return store_id


def forget(connection: sqlite3.Connection, owners: Collection[str]) -> int:
    """Release all that these owners hold, and the owners."""
    released = release(connection, owners)
    connection.execute(_FORGET_OWNERS, (_encode(list(owners)),))
    return released


def other_owners(connection: sqlite3.Connection, owner: str) -> list[str]:
    return _owner_rows.decode(_one(connection, _OTHER_OWNERS, (owner,)))


# Look

_DEPTH = """
    SELECT count(*), count(m.visible_at > :now AND m.owner IS NOT NULL OR NULL), count(m.visible_at > :now OR NULL)
    FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.lane WHERE l.queue = :queue"""


def depth(connection: sqlite3.Connection, queue: str, now: float) -> Depth:
    total, leased, hidden = connection.execute(_DEPTH, {"queue": queue, "now": now}).fetchone()
    return Depth(waiting=total - hidden, leased=leased, delayed=hidden - leased)


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection commits."""
    version: int = _one(connection, "PRAGMA data_version")
    return version
