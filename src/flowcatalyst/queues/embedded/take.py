"""How the embedded queue chooses what to hand out: as much as each pool has room for, longest ready first."""

import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from flowcatalyst.queues.contract import FreeCapacity
from flowcatalyst.queues.embedded.jobs import data_version
from flowcatalyst.queues.embedded.lanes import Delays, Receipt, count_hidden, encode, one, unlock_what_is_due
from flowcatalyst.queues.sharing import LANE_SHARE, MAX_CODES, MAX_POOLS, share_out


class Leased(NamedTuple):
    """A message as `take` hands it out."""

    turn: int
    seq: int
    lane: int
    epoch: int
    receives: int
    failures: int
    follows: int  # 0: it may not start with those before it: it names another pool, or was given back with a delay
    published_at: float  # wall time
    group: str | None
    body: str

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.seq, self.lane, self.epoch)


_FOLLOWS: Final = attrgetter("follows")
_LANE: Final = attrgetter("lane")
_LANE_AND_SEQ: Final = attrgetter("lane", "seq")


@dataclass(slots=True, frozen=True)
class Taken:
    """What one look at a queue gave."""

    messages: list[Leased]
    next_due: float | None = None  # when the next hidden message of the queue shows, on the store's clock
    data_version: int = 0  # changes when another connection commits; only set when there were no messages
    codes_seen_to: str = ""  # not all pools that messages name were looked at: the next look begins after this one


_pool_rows: Final = msgspec.json.Decoder(list[tuple[str, int]])
_leased_rows: Final = msgspec.json.Decoder(list[list[Leased]])

# Walks from one pool to the next through the index, whatever lies between them.
_READY_POOLS = """
    WITH RECURSIVE walk (pool, turn) AS (
      SELECT * FROM (
        SELECT pool, turn FROM lanes WHERE queue = :queue AND due IS NULL AND pool > :after ORDER BY pool, turn LIMIT 1)
      UNION ALL
      SELECT l.pool, l.turn FROM walk CROSS JOIN lanes AS l ON l.id = (
        SELECT id FROM lanes WHERE queue = :queue AND due IS NULL AND pool > walk.pool ORDER BY pool, turn LIMIT 1)
      LIMIT :most)
    SELECT json_group_array(json_array(pool, turn)) FROM walk"""
_TURNS = """
    SELECT json_group_array(json_array(pool, turn)) FROM (
      SELECT value AS pool, (
        SELECT turn FROM lanes WHERE queue = :queue AND due IS NULL AND pool = value ORDER BY turn LIMIT 1) AS turn
      FROM json_each(:pools))
    WHERE turn IS NOT NULL"""
# Rows are put together as JSON by hand: bodies and groups are JSON already and need no second look.
# `{part}` compares with the last message of the lane's share.
_OF_ONE_POOL = """(
    SELECT '[' || ifnull(group_concat('[' || turn || ',' || seq || ',' || lane || ',' || epoch || ',' || receives
      || ',' || failures || ',' || follows || ',' || published_at || ',' || grp || ',' || body || ']'), '') || ']'
    FROM (
      SELECT l.turn, m.seq, m.lane, l.epoch + 1 AS epoch, m.receives + 1 AS receives, m.failures,
        m.pool = l.pool AND ifnull(m.visible_at <= :now, 1) AS follows, m.published_at, l.grp, m.body
      FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id
      WHERE l.queue = :queue AND l.due IS NULL AND l.pool = :pool{n} AND m.seq {part} ifnull(
        (SELECT seq FROM messages WHERE lane = l.id ORDER BY seq LIMIT 1 OFFSET :share - 1), 9223372036854775807)
      ORDER BY l.turn, m.seq LIMIT :limit{n}))"""
SHARES: Final = "<="
MORE: Final = ">"
_LEASE = """
    UPDATE lanes SET epoch = epoch + 1, leased_to = last.value ->> 1, leased = last.value ->> 2, owner = :owner,
      due = :until
    FROM json_each(:lasts) AS last WHERE lanes.id = last.value ->> 0"""
_COUNT_LEASED = "UPDATE queues SET leased = leased + ? WHERE name = ?"
# What was handed out before, and stays behind what was put in front of it now, is no part of the lease, as if it had
# been given back from there.
_SET_ASIDE = """
    UPDATE messages SET given_back = l.epoch + 1, visible_at = iif(visible_at > :now, visible_at, NULL)
    FROM json_each(:lasts) AS last CROSS JOIN lanes AS l ON l.id = last.value ->> 0
    WHERE messages.lane = l.id AND messages.seq > last.value ->> 1 AND messages.seq <= l.leased_to"""
_COUNT_ASIDE = """
    UPDATE lanes SET delayed = (
      SELECT count(visible_at) FROM messages
      WHERE lane = lanes.id AND seq > last.value ->> 1 AND seq <= lanes.leased_to)
    FROM json_each(:lasts) AS last WHERE lanes.id = last.value ->> 0"""
_REACHES = "SELECT id, leased_to FROM lanes WHERE id IN (SELECT value FROM json_each(?))"


@cache
def ready_messages(part: str, pools: int) -> str:
    """The statement that finds messages for so many pools, a list for each of them."""
    lists = " || ',' || ".join(_OF_ONE_POOL.format(part=part, n=number) for number in range(pools))
    return f"SELECT '[' || {lists} || ']'"


def take(
    connection: sqlite3.Connection,
    queue: str,
    limit: int,
    owner: str,
    now: float,
    visibility_s: float,
    free_capacity: FreeCapacity | None = None,
    codes_after: str = "",
    delays: str = Delays.ALL,
    elsewhere: Collection[str] = (),
) -> Taken:
    """Lease up to `limit` messages, for each pool as many as it has free capacity for (None: for all together).

    That is a share of each lane that is ready, in turn, then more of the same lanes. What is taken of a lane ends
    before its first message for another pool, or that has to wait. Pools `elsewhere` (in JSON) get nothing here.
    """
    next_due = unlock_what_is_due(connection, queue, now, delays)
    ready, seen_to = _ready_pools(connection, queue, free_capacity, codes_after)
    ready = {pool: turn for pool, turn in ready.items() if pool not in elsewhere}
    wanted = _share_out(limit, sorted(ready, key=ready.__getitem__), free_capacity)
    if not wanted:
        return Taken([], next_due, data_version(connection), seen_to)
    found = _ready(connection, SHARES, queue, wanted, now)
    more = {pool: wanted[pool] - len(got) for pool, got in found.items() if LANE_SHARE <= len(got) < wanted[pool]}
    found_more = _ready(connection, MORE, queue, more, now) if more else {}
    messages = sorted(chain(*found.values(), *found_more.values()))  # by turn, then in the order of the lane
    if not all(map(_FOLLOWS, messages)):
        messages = _up_to_a_gap(messages)
    _lease(connection, queue, messages, owner, now, now + visibility_s)
    return Taken(messages, next_due, codes_seen_to=seen_to)


def take_firsts(
    connection: sqlite3.Connection,
    queue: str,
    limits: Mapping[str, int],
    owner: str,
    now: float,
    visibility_s: float,
    delays: str = Delays.ALL,
) -> Taken:
    """Lease the first message of up to so many lanes that are ready for each pool, and nothing more of them."""
    next_due = unlock_what_is_due(connection, queue, now, delays)
    names = {encode(code): limit for code, limit in limits.items() if limit > 0}
    turns = dict(_pool_rows.decode(one(connection, _TURNS, {"queue": queue, "pools": encode(list(names))})))
    wanted = {pool: names[pool] for pool in sorted(turns, key=turns.__getitem__)[:MAX_POOLS]}
    if not wanted:
        return Taken([], next_due, data_version(connection))
    messages = sorted(chain(*_ready(connection, SHARES, queue, wanted, now, share=1).values()))
    _lease(connection, queue, messages, owner, now, now + visibility_s)
    return Taken(messages, next_due)


def _lease(
    connection: sqlite3.Connection, queue: str, messages: Sequence[Leased], owner: str, now: float, until: float
) -> None:
    leased = Counter(map(_LANE, messages))
    lasts = dict(map(_LANE_AND_SEQ, messages))
    if with_front := {message.lane: lasts[message.lane] for message in messages if message.seq < 0}:
        lasts |= _set_aside(connection, queue, with_front, now)
    rows = [(lane, seq, leased[lane]) for lane, seq in lasts.items()]
    connection.execute(_LEASE, {"lasts": encode(rows), "owner": owner, "until": until})
    connection.execute(_COUNT_LEASED, (len(messages), queue))


def _set_aside(connection: sqlite3.Connection, queue: str, lasts: Mapping[int, int], now: float) -> Mapping[int, int]:
    """Keep what older leases reached out of one that begins with a message put in front; how far each lease reaches.

    That is no less far than the older one: what was given back there with a delay locks the lane again later.
    """
    lanes, rows = encode(list(lasts)), encode(list(lasts.items()))
    count_hidden(connection, queue, lanes, -1)
    connection.execute(_SET_ASIDE, {"lasts": rows, "now": now})
    connection.execute(_COUNT_ASIDE, {"lasts": rows})
    count_hidden(connection, queue, lanes, 1)
    return {lane: max(reach, lasts[lane]) for lane, reach in connection.execute(_REACHES, (lanes,))}


def _ready_pools(
    connection: sqlite3.Connection, queue: str, free_capacity: FreeCapacity | None, after: str
) -> tuple[dict[str, int], str]:
    """The turn of the lane that is ready longest, by pool; and how far it came, if there are too many to see them all.

    Those that have free capacity are among them in any case.
    """

    def walk(start: str, most: int) -> dict[str, int]:
        parameters = {"queue": queue, "after": start, "most": most}
        return dict(_pool_rows.decode(one(connection, _READY_POOLS, parameters)))

    found = newest = walk(after, MAX_CODES)
    if after and len(found) < MAX_CODES:
        newest = walk("", MAX_CODES - len(found))  # from the beginning again
        found = found | newest
    if len(found) < MAX_CODES:
        return found, ""
    seen_to = max(newest)
    if free_capacity is not None:
        with_capacity = [encode(code) for code in free_capacity.pools if free_capacity.pools[code] > 0]
        found |= _pool_rows.decode(one(connection, _TURNS, {"queue": queue, "pools": encode(with_capacity)}))
    return found, seen_to


def _share_out(limit: int, ready: Sequence[str], free_capacity: FreeCapacity | None) -> dict[str, int]:
    """How many messages to look for, by pool (in JSON); `ready` names those that have some, longest ready first."""
    names = {msgspec.json.decode(pool): pool for pool in ready}
    return {names[code]: share for code, share in share_out(limit, list(names), free_capacity).items()}


def _ready(
    connection: sqlite3.Connection,
    part: str,
    queue: str,
    wanted: Mapping[str, int],
    now: float,
    share: int = LANE_SHARE,
) -> dict[str, list[Leased]]:
    parameters: dict[str, str | float] = {"queue": queue, "share": share, "now": now}
    width = 1 << (len(wanted) - 1).bit_length()  # few different statements, so that they stay prepared
    for number, (pool, limit) in enumerate([*wanted.items(), *[("", 0)] * (width - len(wanted))]):
        parameters[f"pool{number}"], parameters[f"limit{number}"] = pool, limit
    lists = _leased_rows.decode(one(connection, ready_messages(part, width), parameters))
    return dict(zip(wanted, lists, strict=False))


def _up_to_a_gap(messages: Sequence[Leased]) -> list[Leased]:
    kept, ended = [], set()
    for message in messages:
        if not message.follows:
            ended.add(message.lane)
        if message.lane not in ended:
            kept.append(message)
    return kept
