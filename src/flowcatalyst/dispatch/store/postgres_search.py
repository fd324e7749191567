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
from flowcatalyst.dispatch.store.postgres_columns import mark, stored
from flowcatalyst.dispatch.store.postgres_rows import IS_QUEUED
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
LOOKED_AT_FOR_A_PAGE: Final = 10_000  # then it ends early, and the next one goes on from there
CLOCKS_AGREE_TO_S: Final = 60.0  # those of the processes that make jobs: numbers follow times as well as that
NEWEST: Final = (1 << 62) - 1


class Found(NamedTuple):
    """The numbers of jobs, the newest first, and before which to look for more."""

    numbers: list[int]
    before: int | None  # None: there are no more


@dataclass(slots=True)
class Query:
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
        query = Query()
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
    query = Query()
    asked = query.add(numbers)
    _add_conditions(query, which)
    rows = await connection.fetch(
        f"SELECT j.number FROM unnest({asked}::bigint[]) AS c (number) {_JOINED} {where_of(query)}", *query.parameters
    )
    return {row[0] for row in rows}


# Each by its key: joined otherwise, the planner may walk through all jobs to have them in order.
_JOINED: Final = """
    CROSS JOIN LATERAL (SELECT k.* FROM jobs AS k WHERE k.number = c.number OFFSET 0) AS j
    CROSS JOIN LATERAL (SELECT k.* FROM job_states AS k WHERE k.number = c.number OFFSET 0) AS s"""


def where_of(query: Query) -> str:
    return f"WHERE {' AND '.join(query.conditions)}" if query.conditions else ""


def _statement(query: Query, which: Filter, low: int, before: int, most: int, limit: int) -> str:
    candidates = _candidates(query, which, query.add(low), query.add(before), query.add(most))
    _add_conditions(query, which)
    return f"""
        WITH c AS MATERIALIZED ({candidates})
        SELECT (SELECT count(*) FROM c), (SELECT min(c.number) FROM c),
          ARRAY(SELECT j.number FROM c {_JOINED} {where_of(query)} ORDER BY c.number DESC LIMIT {query.add(limit)})"""


def _candidates(query: Query, which: Filter, low: str, before: str, most: str) -> str:
    """Jobs among which all of the filter are, the newest first, by an index."""

    def walk(table: str, condition: str, column: str, value: str) -> str:
        """Through the index that begins with this column: no other one has that order."""
        return f"""
            SELECT number FROM {table} WHERE {condition} AND ({column}, number) < ({value}, {before})
            AND ({column}, number) >= ({value}, {low}) ORDER BY {column} DESC, number DESC LIMIT {most}"""

    unfinished = which.status in (Status.PENDING, Status.ERROR)
    if which.status is Status.QUEUED:
        return f"""
            SELECT number FROM (
              SELECT number_at(m.seq) AS number
              FROM (SELECT k.* FROM lanes AS k WHERE k.owner >= 0 OFFSET 0) AS l CROSS JOIN LATERAL (
                SELECT k.seq FROM messages AS k
                WHERE k.lane = l.id AND k.seq BETWEEN l.head AND l.leased_to AND k.given_back <> l.epoch OFFSET 0) AS m
              WHERE l.queue = number_of_jobs()
              UNION ALL
              SELECT number_at(l.leased_to)
              FROM (SELECT k.* FROM lanes AS k WHERE k.out_until IS NOT NULL OFFSET 0) AS l
              WHERE l.queue = number_of_jobs() AND l.owner IS NULL AND l.out_epoch = l.epoch
                AND l.out_until > server_time()) AS queued
            WHERE number >= {low} AND number < {before} ORDER BY number DESC LIMIT {most}"""
    if which.parked:
        return walk("job_states", "status = 'ERROR' AND next_attempt_at IS NULL", "status", "'ERROR'")
    if which.metadata:
        return walk("job_marks", "true", "hash", f"hashtextextended({query.add(mark(*which.metadata[0]))}, 0)")
    if which.group is not None:
        group = query.add(stored(which.group))
        if unfinished:
            return walk("job_states", "finished_at IS NULL AND grp IS NOT NULL", "grp", group)
        return walk("jobs", "grp IS NOT NULL", "grp", group)
    if which.subscription is not None:
        code = query.add(stored(which.subscription))
        if unfinished:
            return walk("job_states", "finished_at IS NULL AND subscription IS NOT NULL", "subscription", code)
        return walk("jobs", "subscription IS NOT NULL", "subscription", code)
    if unfinished:
        modes = [which.mode] if which.mode is not None else list(DispatchMode)
        keys = [query.add(f"{which.status} {mode}") for mode in modes]
        walks = [walk("job_states", "finished_at IS NULL", "(status || ' ' || mode)", key) for key in keys]
        of_modes = " UNION ALL ".join(f"({one})" for one in walks)
        return f"SELECT number FROM ({of_modes}) AS of_modes ORDER BY number DESC LIMIT {most}"
    if which.status is not None:
        return walk("job_states", "finished_at IS NOT NULL", "status", query.add(which.status))
    if which.code is not None:
        return walk("jobs", "true", "code", query.add(stored(which.code)))
    return f"SELECT number FROM jobs WHERE number >= {low} AND number < {before} ORDER BY number DESC LIMIT {most}"


def _add_conditions(query: Query, which: Filter) -> None:
    if which.status is Status.QUEUED:
        query.conditions.append(f"s.lane IS NOT NULL AND {IS_QUEUED}")
    elif which.status is not None:
        query.want("s.status = {}", which.status.value)
        if which.status not in FINISHED and not which.as_stored:
            query.conditions.append(f"NOT (s.lane IS NOT NULL AND {IS_QUEUED})")
    for column, value in (
        ("j.mode", which.mode),
        ("j.grp", None if which.group is None else stored(which.group)),
        ("j.code", None if which.code is None else stored(which.code)),
        ("j.kind", which.kind),
        ("j.pool", None if which.pool is None else stored(which.pool)),
        ("j.subscription", None if which.subscription is None else stored(which.subscription)),
    ):
        if value is not None:
            query.want(f"{column} = {{}}", value)
    if which.removed:
        query.conditions.append(_IS_REMOVED)
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


_IS_REMOVED: Final = """
    j.subscription IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM catalog AS k WHERE k.kind = 'subscription' AND k.code = j.subscription)"""


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
