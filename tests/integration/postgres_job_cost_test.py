"""What jobs in PostgreSQL cost, in pages that the server touches: the same with few jobs and with very many."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import asyncpg
import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import Attempt, Delivery, DispatchMode, ErrorKind, Outcome, Result, Terms
from flowcatalyst.dispatch.event import Event
from flowcatalyst.dispatch.job import Job, Kind, Status, as_time
from flowcatalyst.dispatch.store import (
    postgres,
    postgres_actions,
    postgres_events,
    postgres_groups,
    postgres_rows,
    postgres_search,
)
from flowcatalyst.dispatch.store.contract import Cancel, Filter, Retry
from flowcatalyst.dispatch.store.platform_contract import EventFilter
from flowcatalyst.dispatch.store.postgres import PostgresJobStore
from flowcatalyst.queues.postgres.queue import OwedNack
from tests.servers.postgres import PostgresServer
from tests.support.postgres import Bench, server

__all__ = ["server"]

FEW, MANY = 2_000, 100_000
BATCH = 50
ALLOWANCE = 1.7  # indexes are a level deeper then, and each job is looked up in several
FEW_PAGES = 100
BLOCK = DispatchMode.BLOCK_ON_ERROR
NEVER = 1e12


class Counting:
    """A connection that counts the pages of each statement: it is tried and undone first."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.pages = 0

    async def fetchrow(self, statement: str, *parameters: Any) -> Any:
        await self._count(statement, parameters)
        return await self._connection.fetchrow(statement, *parameters)

    async def fetchval(self, statement: str, *parameters: Any) -> Any:
        return (await self.fetchrow(statement, *parameters) or (None,))[0]

    async def fetch(self, statement: str, *parameters: Any) -> Any:
        await self._count(statement, parameters)
        return await self._connection.fetch(statement, *parameters)

    async def execute(self, statement: str, *parameters: Any) -> Any:
        return await self.fetch(statement, *parameters)

    async def _count(self, statement: str, parameters: Any) -> None:
        transaction = self._connection.transaction()
        await transaction.start()
        rows = await self._connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {statement}", *parameters)
        await transaction.rollback()
        top = next((row[0] for row in rows if "Buffers:" in row[0]), "")
        self.pages += sum(int(number) for number in re.findall(r"(?:hit|read)=(\d+)", top))


class Play:
    """A store, and connections on which costs are counted."""

    def __init__(self, store: PostgresJobStore, writer: Any, reader: Any, queue: int) -> None:
        self.store, self.writer, self.reader, self.queue = store, writer, reader, queue
        self.clock = SystemClock()
        self._made = 0

    def jobs(self, count: int, group: str | None) -> list[Job]:
        self._made += count
        return [
            Job(
                id=f"new-{self._made}-{number}",
                kind=Kind.TASK,
                code="new",
                target="http://127.0.0.1:9/",
                payload=b"{}",
                content_type="application/json",
                headers=(),
                group=group and f"{group}{number}",
                sequence=99,
                mode=DispatchMode.IMMEDIATE if group is None else BLOCK,
                pool="NEW",
                terms=Terms(30.0, 3, (1.0,)),
                scheduled_for=None,
                expires_at=None,
                idempotency_key=f"key-{self._made}-{number}",
                metadata={"tenant": "acme"},
                created_at=self.clock.wall(),
            )
            for number in range(count)
        ]

    def event(self, name: str) -> Event:
        time = as_time(self.clock.wall())
        assert time is not None
        more: dict[str, Any] = {
            "subject": "new",
            "message_group": "new",
            "correlation_id": "new",
            "deduplication_id": name,
        }
        return Event(id=name, type="new", source="new", time=time, **more)

    async def make_plans(self) -> None:
        """As a process does that starts with next to nothing; no ANALYZE: they stay as they are."""
        await self.writer.execute(_FILL, self.queue, 2 * BATCH, 10, "first")
        for step in (self._deliver, self._keep_house, self._look):
            await step({})

    async def cost(self) -> dict[str, int]:
        """Of each step in the life of a batch, once plans are made and caches warm."""
        least: dict[str, int] = {}  # of several: now and then the server tidies up, or makes a table longer
        for warm in range(6):
            found: dict[str, int] = {}
            await self._deliver(found)
            await self._keep_house(found)
            await self._look(found)
            if warm < 2:  # until lists have as much as they show
                continue
            least = {step: min(least.get(step, cost), cost) for step, cost in found.items()}
        return least

    async def _count(
        self, found: dict[str, int], step: str, connection: Any, job: Callable[..., Awaitable[Any]]
    ) -> Any:
        counting = Counting(connection)
        result = await job(counting)
        found[step] = counting.pages
        return result

    async def _try(self, found: dict[str, int], step: str, job: Callable[..., Awaitable[Any]]) -> None:
        """Count what it costs, and undo it."""
        transaction = self.writer.transaction()
        await transaction.start()
        await self._count(found, step, self.writer, job)
        await transaction.rollback()

    async def _deliver(self, found: dict[str, int]) -> None:
        queue, wall = self.store.queue, self.clock.wall()
        for group in (None, "new"):
            jobs = self.jobs(BATCH, group)
            create = partial(postgres_rows.create, queue=self.queue, wall=wall, jobs=jobs)
            await self._count(found, f"create {group}", self.writer, create)
            with_jobs = [(self.event(job.id), [replace(job, id=f"of-{job.id}")]) for job in self.jobs(BATCH, group)]
            accept = partial(postgres_events.accept, queue=self.queue, wall=wall, events=with_jobs)
            await self._count(found, f"accept {group}", self.writer, accept)
        await self._count(found, "look", self.writer, lambda one: queue._ready(one, self.queue, None))
        session = await self.store.database.owner()
        firsts = partial(queue._leased_firsts, number=self.queue, owner=session.owner, limits={"A": BATCH})
        await self._try(found, "take firsts", lambda one: firsts(one, claim=session.new_claim()))
        lease = partial(queue._leased, number=self.queue, owner=session.owner, wanted={"A": BATCH})
        leased = await self._count(found, "take", self.writer, lambda one: lease(one, claim=session.new_claim()))
        taken = queue._deliveries(leased, session)
        assert len(taken) == BATCH
        for delivery in taken:
            delivery.attempt = Attempt(wall, 0.1, Outcome(Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, status=500))
        await self._count(found, "ack", self.writer, lambda one: queue._acked(one, taken[:20]))
        await self._count(found, "nack", self.writer, lambda one: queue._nacked(one, _nack(taken[20:40]), 0.0))
        aside = _nack(taken[40:])._replace(unlock=True)
        await self._count(found, "nack aside", self.writer, lambda one: queue._nacked(one, aside, 1000.0))
        await self._count(
            found,
            "retry",
            self.writer,
            lambda one: postgres_actions.act(one, self.queue, wall, taken[40].pointer.id, Retry(), "ann"),
        )

    async def _keep_house(self, found: dict[str, int]) -> None:
        """Each on what is there, which is left as it is."""
        expire = partial(postgres._expire, queue=self.queue, limit=BATCH)
        await self._try(found, "nothing to expire", partial(expire, wall=self.clock.wall()))
        await self._try(found, "expire", partial(expire, wall=NEVER))
        await self._try(found, "cancel", self._cancel)
        await self._try(found, "drop", partial(postgres._drop_finished, queue=self.queue, before=NEVER, limit=BATCH))

    async def _cancel(self, connection: Counting) -> None:
        """The job that was made last."""
        job = self.jobs(1, None)[0]
        await postgres_rows.create(self.writer, self.queue, self.clock.wall(), [job])
        await postgres_actions.act(connection, self.queue, self.clock.wall(), job.id, Cancel(), "ann")

    async def _look(self, found: dict[str, int]) -> None:
        for which in (
            Filter(),
            Filter(status=Status.PENDING),
            Filter(status=Status.PENDING, mode=BLOCK),
            Filter(status=Status.ERROR, mode=BLOCK),
            Filter(status=Status.QUEUED),
            Filter(status=Status.COMPLETED),
            Filter(status=Status.CANCELLED),
            Filter(group="new1"),
            Filter(code="new"),
            Filter(metadata=(("tenant", "acme"),)),
            Filter(created_before=1.0),
            Filter(parked=True),
            Filter(subscription="new"),
            Filter(subscription="new", status=Status.PENDING),
        ):
            find = partial(postgres_search.find_numbers, which=which, limit=20, before=None)
            await self._count(found, str(which), self.reader, find)
        for of_events in (
            EventFilter(),
            EventFilter(type="new"),
            EventFilter(subject="new"),
            EventFilter(group="new"),
            EventFilter(correlation_id="new"),
            EventFilter(deduplication_id="new"),
            EventFilter(created_before=1.0),
        ):
            for newest_first in (True, False):
                look = partial(postgres_events.page, which=of_events, limit=20, cursor=None, newest_first=newest_first)
                await self._count(found, f"{of_events} {newest_first}", self.reader, look)
        await self._count(
            found, "groups", self.reader, lambda one: postgres_groups.groups(one, self.queue, 20, None, blocked=False)
        )
        await self._count(
            found, "figures", self.reader, lambda one: postgres_groups.figures(one, self.queue, self.clock.wall())
        )


def _nack(deliveries: list[Delivery]) -> OwedNack:
    held, attempts = [one.receipt for one in deliveries], [one.attempt for one in deliveries]
    return OwedNack(held, [1] * len(held), attempts, 0.0, 1000.0, 0.0, unlock=False)


@pytest.fixture
async def play(server: PostgresServer) -> AsyncIterator[Play]:
    bench = Bench(server)
    store = PostgresJobStore(bench.database(), SystemClock())
    await store.open()
    queue = await store.database.number_of(store.queue.queue)
    settings = {"search_path": bench.schema, **postgres_search.WALKING}
    reader = await asyncpg.connect(server.url, server_settings=settings)
    yield Play(store, await bench.connection(), reader, queue)
    reader.terminate()
    await store.close()
    await bench.close()


_FILL = """
    WITH rows AS MATERIALIZED (
      SELECT nextval('numbers') AS n, CASE WHEN $3 > 0 THEN $4 || (i % $3) END AS grp,
        CASE WHEN $3 > 0 THEN 'BLOCK_ON_ERROR' ELSE 'IMMEDIATE' END AS mode
      FROM generate_series(1, $2::integer) AS i),
    made AS (
      INSERT INTO lanes (id, queue, name, grp, pool, turn, messages, head)
      SELECT min(n), $1, grp, grp, 'A', min(n), count(*), 0 FROM rows GROUP BY grp, CASE WHEN grp IS NULL THEN n END
      RETURNING id, coalesce(name, id::text) AS key),
    placed AS MATERIALIZED (
      SELECT r.*, made.id AS lane, 99::bigint << 41 | r.n AS place FROM rows AS r
      JOIN made ON made.key = coalesce(r.grp, r.n::text)),
    messages_made AS (INSERT INTO messages (lane, seq, pool, body) SELECT lane, place, 'A', '' FROM placed),
    states_made AS (
      INSERT INTO job_states (number, place, lane, status, mode, grp, expires_at)
      SELECT n, place, lane, 'PENDING', mode, grp, 8e9 FROM placed)
    INSERT INTO jobs (number, id, kind, code, target, content_type, headers, grp, sequence, mode, pool, timeout_s,
      max_retries, delays, metadata, created_at, payload)
    SELECT n, 'old-' || n, 'TASK', 'old', 'http://local/', '', '[]', grp, 99, mode, 'A', 30, 3, '{1}', '{}', 1000, ''
    FROM rows"""
_SOME_FAILED = """
    UPDATE job_states SET status = 'ERROR', next_attempt_at = 9e9
    WHERE number > (SELECT max(number) FROM job_states) - 200"""
_FILL_FINISHED = """
    WITH rows AS MATERIALIZED (SELECT nextval('numbers') AS n FROM generate_series(1, $1::integer)),
    states_made AS (
      INSERT INTO job_states (number, place, status, mode, attempts, finished_at)
      SELECT n, n, 'COMPLETED', 'IMMEDIATE', 1, 5000 FROM rows),
    attempts_made AS (
      INSERT INTO job_attempts (job, attempt, began_at, duration_s, error, counts, detail, excerpt)
      SELECT n, 1, 5000, 1, 'NONE', false, '', '' FROM rows)
    INSERT INTO jobs (number, id, kind, code, target, content_type, headers, sequence, mode, pool, timeout_s,
      max_retries, delays, metadata, created_at)
    SELECT n, 'done-' || n, 'TASK', 'done', 'http://localhost/', '', '[]', 0, 'IMMEDIATE', 'A', 1, 1, '{1}', '{}', 1000
    FROM rows"""


def dearer(few: dict[str, int], many: dict[str, int]) -> dict[str, tuple[int, int]]:
    return {step: (few[step], many[step]) for step in few if many[step] > few[step] * ALLOWANCE + FEW_PAGES}


@pytest.mark.thorough
@pytest.mark.parametrize("groups", [1, 1000, 0], ids=["one hot group", "many groups", "ordered with nothing"])
async def test_no_step_costs_more_with_very_many_jobs_that_wait(play: Play, groups: int) -> None:
    await play.make_plans()
    await play.writer.execute(_FILL, play.queue, FEW, groups, "few")
    await play.writer.execute(_SOME_FAILED)
    await play.writer.execute(_FILL_FINISHED, FEW)
    few = await play.cost()
    await play.writer.execute(_FILL, play.queue, MANY, groups, "many")
    assert dearer(few, await play.cost()) == {}


_FILL_EVENTS = """
    INSERT INTO events (number, id, type, source, subject, grp, correlation_id, jobs, created_at, document)
    SELECT n, 'old-' || n, $2, 'old', $2 || n % 100, $2 || n % 100, $2 || n % 100, 0, 1000,
      '{"id": "old", "type": "old", "source": "old", "time": "2026-01-01T00:00:00Z"}'
    FROM (SELECT nextval('numbers') AS n FROM generate_series(1, $1::integer)) AS rows"""


@pytest.mark.thorough
async def test_no_step_costs_more_with_very_many_events_and_jobs_that_are_paused(play: Play) -> None:
    await play.make_plans()
    await play.writer.execute(_FILL, play.queue, FEW, 100, "few")
    await play.writer.execute(_FILL_EVENTS, FEW, "few")
    await play.store.set_paused("old", paused=True)
    few = await play.cost()
    await play.writer.execute(_FILL, play.queue, MANY, 100, "many")
    await play.writer.execute(
        "UPDATE messages SET tag = 'old' WHERE lane IN (SELECT id FROM lanes WHERE name ~ 'many')"
    )
    await play.writer.execute("UPDATE lanes SET due = 'infinity', delayed = 1 WHERE name ~ 'many'")
    await play.writer.execute(_FILL_EVENTS, MANY, "many")
    assert dearer(few, await play.cost()) == {}


@pytest.mark.thorough
async def test_no_step_costs_more_with_very_many_finished_jobs(play: Play) -> None:
    await play.make_plans()
    await play.writer.execute(_FILL, play.queue, FEW, 100, "few")
    await play.writer.execute(_FILL_FINISHED, FEW)
    few = await play.cost()
    await play.writer.execute(_FILL_FINISHED, MANY)
    assert dearer(few, await play.cost()) == {}


async def test_a_batch_of_jobs_is_made_taken_and_settled_in_one_call_each(play: Play) -> None:
    store = play.store
    assert await store.queue.receive(1, 0.1) == []  # it is known as an owner now, and the number of its queue
    before = store.database.pool.calls
    await store.create(play.jobs(500, "new"))
    assert store.database.pool.calls - before == 1
    before = store.database.pool.calls
    taken = await store.queue.receive(512, 1.0)
    assert (len(taken), store.database.pool.calls - before) == (500, 2)  # a look, and a take
    for delivery in taken:
        delivery.attempt = Attempt(play.clock.wall(), 0.1, Outcome(Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR))
    before = store.database.pool.calls
    await store.queue.ack(taken[:200])
    await store.queue.nack(taken[200:], 1.0)
    assert store.database.pool.calls - before == 2
