"""Several processes at work on the jobs of one PostgreSQL database: each job once, in order, whoever dies or sleeps."""

import asyncio
import random
import signal
from asyncio.subprocess import Process
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from flowcatalyst.core.errors import StorageError
from flowcatalyst.core.message import Attempt, Delivery, DispatchMode, Settled
from flowcatalyst.dispatch.job import Job, Status
from flowcatalyst.dispatch.store import postgres_rows
from flowcatalyst.dispatch.store.contract import Cancel, Filter
from flowcatalyst.dispatch.store.postgres import PostgresJobStore
from flowcatalyst.dispatch.store.postgres_migrations import JOBS
from flowcatalyst.queues.postgres.lanes import open_queue
from flowcatalyst.queues.postgres.migrations import LANES
from flowcatalyst.storage.postgres import PostgresPool
from flowcatalyst.storage.postgres_migrations import PostgresMigrations
from tests.support.postgres import assert_consistent, server
from tests.support.postgres_jobs import DELIVERED, FAILED, PATIENCE_S, Jobs, jobs, take
from tests.support.tcp_proxy import tcp_proxy

__all__ = ["jobs", "server"]

BLOCK, NEXT = DispatchMode.BLOCK_ON_ERROR, DispatchMode.NEXT_ON_ERROR
CREATING = 2  # the version whose functions make jobs
RECALLING = 6  # the version that came with the lanes of version 7
PLATFORM = 7  # the version that came with the lanes of today
ACCEPTING = 8  # the version whose functions know subscriptions
# How jobs were made before that.
_CREATE_OF_OLD = """
    SELECT create_jobs($1, $2, $3, $4, $4, $4, $4, array_fill('[]'::text, ARRAY[$7::integer]), $5, $6,
      array_fill('BLOCK_ON_ERROR'::text, ARRAY[$7]), $4, array_fill(30.0::float8, ARRAY[$7]), $6,
      array_fill('{1}'::text, ARRAY[$7]), array_fill(NULL::float8, ARRAY[$7]),
      array_fill(NULL::float8, ARRAY[$7]), NULL, array_fill('{}'::text, ARRAY[$7]),
      array_fill($2::float8, ARRAY[$7]), array_fill(''::bytea, ARRAY[$7]), '{}', '{}')"""


def names(deliveries: list[Delivery]) -> list[str]:
    return [delivery.pointer.id for delivery in deliveries]


async def line_of(worker: Process) -> list[str]:
    assert worker.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        while line := (await worker.stdout.readline()).decode():
            if line.startswith("> "):
                return line.split()[1:]
    raise AssertionError("the worker ended")


@pytest.mark.parametrize("seed", [1, 2])
async def test_jobs_of_two_makers_reach_one_of_three_routers_each_in_order(jobs: Jobs, seed: int) -> None:
    luck = random.Random(seed)
    makers, routers = [await jobs.store() for _ in range(2)], [await jobs.store() for _ in range(3)]
    groups, each = 8, 30
    started: dict[str, list[str]] = {f"g{group}": [] for group in range(groups)}
    in_flight: set[str] = set()
    done: set[str] = set()
    wanted = groups * each * len(makers)

    async def make(number: int, maker: PostgresJobStore) -> None:
        for step in range(each):
            order = luck.sample(range(groups), groups)
            await maker.create([jobs.job(f"{number}-{group}-{step:03}", f"g{group}") for group in order])

    async def route(router: PostgresJobStore) -> None:
        while len(done) < wanted:
            for delivery in await router.queue.receive(20, 0.2):
                group, name = str(delivery.group), delivery.pointer.id
                assert group not in in_flight
                assert name not in done
                in_flight.add(group)
                started[group].append(name)
                await asyncio.sleep(0)
                in_flight.discard(group)
                if luck.random() < 0.1:
                    started[group].pop()
                    delivery.failures += 1
                    delivery.attempt = Attempt(jobs.clock.wall(), 0.0, FAILED)
                    assert await router.queue.nack([delivery], 0.0) == [Settled.OK]
                    break  # those behind it go back when they are not ours any more
                delivery.attempt = Attempt(jobs.clock.wall(), 0.0, DELIVERED)
                assert await router.queue.ack([delivery]) == [Settled.OK]
                done.add(name)
            else:
                continue
            await release(router)

    async def release(router: PostgresJobStore) -> None:
        await router.database.close()  # all that it has in hand comes free; it registers anew

    async with asyncio.timeout(PATIENCE_S * 2):
        await asyncio.gather(*(make(*one) for one in enumerate(makers)), *(route(one) for one in routers))
    for group in started.values():
        assert len(group) == len(set(group)) == each * len(makers)
        for number in range(len(makers)):
            mine = [name for name in group if name.startswith(f"{number}-")]
            assert mine == sorted(mine)
    connection = await jobs.bench.connection()
    await assert_consistent(connection)
    attempts = "(SELECT count(*) FROM job_attempts AS a WHERE a.job = s.number)"
    assert await connection.fetchval(f"SELECT count(*) FROM job_states AS s WHERE s.attempts <> {attempts}") == 0
    assert await connection.fetchval("SELECT count(*) FROM job_states WHERE status = 'COMPLETED'") == wanted


async def test_jobs_of_a_process_that_is_killed_come_to_another_one_in_order(jobs: Jobs) -> None:
    store = await jobs.store()
    await store.create([jobs.job(f"a{number}", "a") for number in range(3)])
    async with jobs.worker() as worker:
        assert await line_of(worker) == ["a0", "a1", "a2"]
        assert await store.queue.receive(10, 0.0) == []
        assert (await store.find("a1")).status is Status.QUEUED
        worker.kill()
        assert names(await take(store, 3)) == ["a0", "a1", "a2"]


async def test_a_process_that_slept_for_too_long_changes_nothing(jobs: Jobs) -> None:
    store = await jobs.store()
    await store.create([jobs.job(f"a{number}", "a") for number in range(2)])
    async with jobs.worker() as worker:
        assert await line_of(worker) == ["a0", "a1"]
        worker.send_signal(signal.SIGSTOP)
        first, second = await take(store, 2)
        first.attempt = Attempt(jobs.clock.wall(), 0.1, FAILED)
        first.failures = 1
        await store.queue.nack([second], 0.0)
        await store.queue.nack([first], 1000.0)
        before = [await store.find(name) for name in ("a0", "a1")]
        worker.send_signal(signal.SIGCONT)
        assert worker.stdin is not None
        worker.stdin.write(b"ack\n")
        assert await line_of(worker) == [Settled.GONE.value] * 2
    assert [await store.find(name) for name in ("a0", "a1")] == before
    assert len(await store.attempts_of("a0")) == 1


async def test_a_process_that_is_cut_off_knows_that_its_jobs_are_no_longer_its_own(jobs: Jobs) -> None:
    other = await jobs.store()
    await other.create([jobs.job("a0", "a")])
    async with tcp_proxy(jobs.bench.server.port) as proxy:
        store = await jobs.store(hosts=(("127.0.0.1", proxy.port),))
        (held,) = await take(store, 1)
        proxy.cut_clients()
        proxy.cut_server()
        (again,) = await take(other, 1)
        assert not store.queue.still_ours(held)
        await proxy.mend()
        assert again.pointer.id == "a0"
        again.attempt = Attempt(jobs.clock.wall(), 0.1, DELIVERED)
        assert await other.queue.ack([again]) == [Settled.OK]


async def test_makers_that_race_with_the_same_keys_make_each_job_once(jobs: Jobs) -> None:
    stores = [await jobs.store() for _ in range(3)]
    keys = [f"k{number}" for number in range(50)]

    async def make(number: int) -> list[str]:
        order = random.Random(number).sample(keys, len(keys))
        asked = [jobs.job(f"{number}-{key}", "g", idempotency_key=key) for key in order]
        created = await stores[number].create(asked)
        return [one.state.job.id for one in created if not one.repeated]

    made = await asyncio.gather(*(make(number) for number in range(len(stores))))
    assert sum(map(len, made)) == len(keys)
    page = await stores[0].page(Filter(), 1000)
    assert sorted(state.job.id for state in page.items) == sorted(name for names in made for name in names)
    await assert_consistent(await jobs.bench.connection())


async def test_several_who_end_what_expired_end_each_job_once(jobs: Jobs) -> None:
    stores = [await jobs.store() for _ in range(3)]
    asked = [jobs.job(f"{number}", f"g{number % 7}") for number in range(200)]
    await stores[0].create(asked)
    connection = await jobs.bench.connection()
    await connection.execute("UPDATE job_states SET expires_at = 1")
    ended = 0
    async with asyncio.timeout(PATIENCE_S):
        while ended < 200:
            ended += sum(await asyncio.gather(*(store.expire(50) for store in stores)))
    assert ended == 200
    await assert_consistent(connection)


async def test_one_process_keeps_house_and_another_one_after_it(jobs: Jobs) -> None:
    first, second = await jobs.store(), await jobs.store()
    assert (await first.lead(), await first.lead(), await second.lead()) == (True, True, False)
    first._resign()  # its connection breaks
    async with asyncio.timeout(PATIENCE_S):
        while not await second.lead():
            await asyncio.sleep(0.01)
    assert not await first.lead()


async def test_tables_of_a_newer_version_are_refused_with_one_sentence(jobs: Jobs) -> None:
    await jobs.store()
    connection = await jobs.bench.connection()
    await connection.execute("UPDATE versions SET version = 1000 WHERE part = 'jobs'")
    store = PostgresJobStore(jobs.bench.database(), jobs.clock)
    with pytest.raises(StorageError, match=r"made by a newer version of FlowCatalyst \(schema version 1000, this one"):
        await store.open()
    await store.close()


async def create_of_old(connection: Any, queue: int, wall: float, jobs: list[Job]) -> None:
    """One after the other in order, of which only id and group count."""
    ids, groups, count = [job.id for job in jobs], [job.group for job in jobs], len(jobs)
    await connection.execute(_CREATE_OF_OLD, queue, wall, ids, ["TASK"] * count, groups, [99] * count, count)


@pytest.mark.parametrize("version", range(1, len(JOBS.steps)))
async def test_jobs_in_tables_of_every_older_version_are_delivered_and_can_be_recalled(
    jobs: Jobs, version: int
) -> None:
    """The lanes are those that came with it, with jobs in hand if there are functions that make them."""
    lanes = LANES.steps[: 6 if version < RECALLING else 7 if version < PLATFORM else len(LANES.steps)]
    parts = [PostgresMigrations("lanes", lanes), PostgresMigrations("jobs", JOBS.steps[:version])]
    old = PostgresPool(jobs.bench.database(), parts)
    queue = await old.run(partial(open_queue, name=postgres_rows.QUEUE))
    made = [jobs.job("a1", "a"), jobs.job("a2", "a"), jobs.job("a3", "a")]
    create = postgres_rows.create if version >= ACCEPTING else create_of_old
    if version >= CREATING:
        await old.run(partial(create, queue=queue, wall=jobs.clock.wall(), jobs=made))
    await old.close()
    store = await jobs.store()
    if version < CREATING:
        await store.create(made)
    held = await store.queue.receive(10, 0)
    assert [(one.pointer.id, one.position) for one in held] == [("a1", 1), ("a2", 2), ("a3", 3)]
    recall = await store.recall(["a2"])
    leases = await store.queue.recalled(PATIENCE_S)
    await store.queue.nack(held[1:], 0.0)
    await store.queue.returned(leases)
    assert await store.returned(recall, PATIENCE_S)
    await store.act("a2", Cancel(), "ann")
    await store.end_recall(recall)
    assert await store.queue.ack(held[:1]) == [Settled.OK]
    assert [(await store.find(name)).status for name in ("a1", "a2")] == [Status.COMPLETED, Status.CANCELLED]
    await store.create([replace(jobs.job("a4", "a"), subscription="s")])
    await store.set_paused("s", paused=True)
    assert await store.settle_pauses(10) == 1
    assert names(await store.queue.receive(10, 0)) == ["a3"]
