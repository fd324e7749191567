"""Which jobs a filter means: walks one index from the newest job on, and looks at no more than so many at once.

The index is the one that leads past the fewest others. Statements are made for connections that are kept from reading
whole tables (`WALKING`): the planner believes its old estimates, and a store grows from nothing to millions in an hour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from flowcatalyst.core.message import DispatchMode
from flowcatalyst.dispatch.job import FINISHED, Status
from flowcatalyst.dispatch.store.contract import Filter
from flowcatalyst.dispatch.store.postgres_rows import IS_LEASED, mark, stored
from flowcatalyst.storage.postgres import Connection

WALKING: Final[Mapping[str, str]] = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    "jit": "off",
}
LOOKED_AT_ONCE: Final = 2000
LOOKED_AT_FOR_A_PAGE: Final = 50_000  # then it ends early, and the next one goes on from there
CLOCKS_AGREE_TO_S: Final = 60.0  # those of the processes that make jobs: numbers follow times as well as that
NEWEST: Final = (1 << 62) - 1


class Found(NamedTuple):
    """The numbers of jobs, the newest first, and before which to look for more."""

    numbers: list[int]
    before: int | None  # None: there are no more


@dataclass(slots=True)
class _Query:
    """Parts of a statement, and its parameters in order."""

    conditions: list[str] = field(default_factory=list)
    parameters: list[Any] = field(default_factory=list)

    def add(self, value: Any) -> str:
        self.parameters.append(value)
        return f"${len(self.parameters)}"

    def want(self, condition: str, value: Any) -> None:
        self.conditions.append(condition.format(self.add(value)))


async def find_numbers(
    connection: Connection, which: Filter, limit: int, before: int | None, looks: int = LOOKED_AT_FOR_A_PAGE
) -> Found:
    """Up to `limit` jobs of a filter. There may be fewer although there are more, after so many looks in vain."""
    numbers: list[int] = []
    low, high = await _bounds(connection, which)
    before = high if before is None else min(before, high)
    while looks > 0:
        most = max(min(limit - len(numbers) + 1, LOOKED_AT_ONCE), 100)
        query = _Query()
        statement = _statement(query, which, low, before, most, limit - len(numbers) + 1)
        seen, last, found = await connection.fetchrow(statement, *query.parameters)
        numbers += found
        if len(numbers) > limit:
            return Found(numbers[:limit], numbers[limit - 1])
        if seen < most:
            return Found(numbers, None)
        looks -= seen
        before = last
    return Found(numbers, before)


async def match(connection: Connection, which: Filter, numbers: Sequence[int]) -> set[int]:
    """Which of these jobs a filter means."""
    query = _Query()
    asked = query.add(numbers)
    _add_conditions(query, which)
    rows = await connection.fetch(
        f"SELECT j.number FROM unnest({asked}::bigint[]) AS c (number) {_JOINED} {_where(query)}", *query.parameters
    )
    return {row[0] for row in rows}


_JOINED: Final = "JOIN jobs AS j ON j.number = c.number JOIN job_states AS s ON s.number = c.number"


def _where(query: _Query) -> str:
    return f"WHERE {' AND '.join(query.conditions)}" if query.conditions else ""


def _statement(query: _Query, which: Filter, low: int, before: int, most: int, limit: int) -> str:
    candidates = _candidates(query, which, query.add(low), query.add(before), query.add(most))
    _add_conditions(query, which)
    return f"""
        WITH c AS MATERIALIZED ({candidates})
        SELECT (SELECT count(*) FROM c), (SELECT min(c.number) FROM c),
          ARRAY(SELECT j.number FROM c {_JOINED} {_where(query)} ORDER BY c.number DESC LIMIT {query.add(limit)})"""


def _candidates(query: _Query, which: Filter, low: str, before: str, most: str) -> str:
    """Jobs among which all of the filter are, the newest first, by an index."""
    part = f"number >= {low} AND number < {before} ORDER BY number DESC LIMIT {most}"
    if which.status is Status.QUEUED:
        return f"""
            SELECT number FROM (
              SELECT number_at(m.seq) AS number FROM lanes AS l JOIN messages AS m ON m.lane = l.id
              WHERE l.owner IS NOT NULL AND l.queue = (SELECT id FROM queues WHERE name = 'dispatch jobs')
              AND m.seq BETWEEN l.head AND l.leased_to AND m.given_back <> l.epoch) AS leased
            WHERE {part}"""
    unfinished = which.status is not None and which.status not in FINISHED
    if which.parked:
        return f"SELECT number FROM job_states WHERE status = 'ERROR' AND next_attempt_at IS NULL AND {part}"
    if which.metadata:
        hashed = f"hashtextextended({query.add(mark(*which.metadata[0]))}, 0)"
        return f"SELECT number FROM job_marks WHERE hash = {hashed} AND {part}"
    if which.group is not None:
        group = query.add(stored(which.group))
        if unfinished:
            return f"SELECT number FROM job_states WHERE finished_at IS NULL AND grp = {group} AND {part}"
        return f"SELECT number FROM jobs WHERE grp = {group} AND {part}"
    if which.status in (Status.CANCELLED, Status.EXPIRED):
        # As a literal: only so the planner knows that the index has them.
        return f"SELECT number FROM job_states WHERE status = '{which.status}' AND {part}"
    if unfinished:
        status = query.add(which.status)
        modes = [which.mode] if which.mode is not None else list(DispatchMode)
        of_modes = " UNION ALL ".join(
            f"(SELECT number FROM job_states WHERE finished_at IS NULL AND status = {status} "
            f"AND mode = '{mode}' AND {part})"
            for mode in modes
        )
        return f"SELECT number FROM ({of_modes}) AS of_modes ORDER BY number DESC LIMIT {most}"
    if which.code is not None:
        return f"SELECT number FROM jobs WHERE code = {query.add(stored(which.code))} AND {part}"
    return f"SELECT number FROM jobs WHERE {part}"


def _add_conditions(query: _Query, which: Filter) -> None:
    if which.status is Status.QUEUED:
        query.conditions.append(f"s.lane IS NOT NULL AND {IS_LEASED}")
    elif which.status is not None:
        query.want("s.status = {}", which.status.value)
        if which.status not in FINISHED:
            query.conditions.append(f"NOT (s.lane IS NOT NULL AND {IS_LEASED})")
    for column, value in (
        ("j.mode", which.mode),
        ("j.grp", None if which.group is None else stored(which.group)),
        ("j.code", None if which.code is None else stored(which.code)),
        ("j.kind", which.kind),
        ("j.pool", None if which.pool is None else stored(which.pool)),
    ):
        if value is not None:
            query.want(f"{column} = {{}}", value)
    if which.target is not None:
        query.want("starts_with(j.target, {})", stored(which.target))
    if which.created_from is not None:
        query.want("j.created_at >= {}", which.created_from)
    if which.created_before is not None:
        query.want("j.created_at < {}", which.created_before)
    for name, value in which.metadata:
        query.want(
            "EXISTS (SELECT 1 FROM job_marks AS k WHERE k.hash = hashtextextended({}, 0) AND k.number = j.number)",
            mark(name, value),
        )
    if which.parked is not None:
        is_parked = "(s.status = 'ERROR' AND s.next_attempt_at IS NULL)"
        query.conditions.append(is_parked if which.parked else f"NOT {is_parked}")


async def _bounds(connection: Connection, which: Filter) -> tuple[int, int]:
    """Between which numbers all jobs are that were made in the time of a filter."""
    low, high = 0, NEWEST
    if which.created_from is not None:
        first = await connection.fetchval(_FIRST_FROM, which.created_from - CLOCKS_AGREE_TO_S)
        low = high if first is None else first
    if which.created_before is not None:
        first = await connection.fetchval(_FIRST_FROM, which.created_before + CLOCKS_AGREE_TO_S)
        high = high if first is None else first
    return low, high


_FIRST_FROM: Final = "SELECT number FROM jobs WHERE created_at >= $1 ORDER BY created_at LIMIT 1"
