"""Positions of jobs in their groups: given when they are leased, kept by those that were begun, never given twice."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from flowcatalyst.core.message import Delivery
from flowcatalyst.dispatch.job import JobState, number_at
from flowcatalyst.dispatch.store.job_rows.columns import QUEUE
from flowcatalyst.queues.embedded.lanes import encode, one
from flowcatalyst.queues.embedded.take import Leased

_GROUPS: Final = """
    SELECT json_group_array(json_array(json(p.name), p.given, p.delivered))
    FROM json_each(:groups) AS asked CROSS JOIN group_positions AS p ON p.name = asked.value -> 0"""
_GIVE: Final = """
    INSERT INTO group_positions (name, given, delivered, touched_at)
    SELECT value -> 0, value ->> 1, 0, :wall FROM json_each(:groups) WHERE true
    ON CONFLICT (name) DO UPDATE SET given = excluded.given, touched_at = excluded.touched_at"""
_group_rows: Final = msgspec.json.Decoder(list[tuple[str, int, int]])


@dataclass(slots=True, frozen=True)
class Positions:
    """Of jobs that were leased together."""

    of_jobs: Mapping[int, int] = field(default_factory=dict)  # by number
    delivered: Mapping[int, int] = field(default_factory=dict)  # by lane: the last one of its group


def give(
    connection: sqlite3.Connection, messages: Sequence[Leased], jobs: Mapping[int, JobState], wall: float
) -> Positions:
    """Give the next positions of their groups to those that have none yet, in the order in which they are leased.

    Those of jobs that are not begun then are nobody's: whether they were used is not known of a router that died.
    """
    of_jobs: dict[int, int] = {}
    lanes: dict[int, str] = {}
    without: dict[str, list[int]] = {}
    for message in messages:
        number = number_at(message.seq)
        state = jobs[number]
        if (group := state.job.lane) is None:
            continue
        lanes[message.lane] = group
        if state.position is None:
            without.setdefault(group, []).append(number)
        else:
            of_jobs[number] = state.position
    if not lanes:
        return Positions()
    asked = encode([(group,) for group in set(lanes.values())])
    rows = _group_rows.decode(one(connection, _GROUPS, {"groups": asked}))
    known = {group: (highest, last) for group, highest, last in rows}
    given: dict[str, int] = {}
    for group, numbers in without.items():
        before = known[group][0] if group in known else _highest(messages, jobs, group)
        of_jobs.update(zip(numbers, range(before + 1, before + 1 + len(numbers)), strict=True))
        given[group] = before + len(numbers)
    if given:
        connection.execute(_GIVE, {"groups": encode(list(given.items())), "wall": wall})
    return Positions(of_jobs, {lane: known[group][1] if group in known else 0 for lane, group in lanes.items()})


def _highest(messages: Sequence[Leased], jobs: Mapping[int, JobState], group: str) -> int:
    """Of those that have one: what was given in a group that was forgotten meanwhile is still theirs."""
    states = [jobs[number_at(message.seq)] for message in messages]
    return max((state.position or 0 for state in states if state.job.lane == group), default=0)


_DELIVERED: Final = """
    UPDATE group_positions SET delivered = asked.value ->> 1, touched_at = :wall
    FROM json_each(:groups) AS asked WHERE group_positions.name = asked.value -> 0"""


def note_delivered(connection: sqlite3.Connection, deliveries: Collection[Delivery], wall: float) -> None:
    """Remember which of each group was delivered last, in the order in which they are settled."""
    last = {one.pointer.message_group_id: one.position for one in deliveries if one.position}
    if last:
        connection.execute(_DELIVERED, {"groups": encode(list(last.items())), "wall": wall})


_FORGET: Final = f"""
    DELETE FROM group_positions WHERE name IN (SELECT value -> 0 FROM json_each(:groups)) AND touched_at < :before
    AND NOT EXISTS (SELECT 1 FROM lanes WHERE queue = '{QUEUE}' AND lanes.name = group_positions.name)
    AND NOT EXISTS (
      SELECT 1 FROM lanes WHERE lanes.name IS NULL AND grp <> 'null' AND grp = group_positions.name)
    AND NOT EXISTS (
      SELECT 1 FROM jobs WHERE entered = 0 AND finished_at IS NULL AND mode <> 'IMMEDIATE'
      AND grp = group_positions.name ->> '$')"""


def forget(connection: sqlite3.Connection, groups: Collection[str], before: float) -> None:
    """Forget those of groups in which nothing waits and nothing happened since then.

    To ask for the groups of jobs that are forgotten is enough: nothing happens in a group after the last of its jobs.
    """
    if groups:
        connection.execute(_FORGET, {"groups": encode([(group,) for group in groups]), "before": before})
