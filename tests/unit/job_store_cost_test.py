"""The SQLite job store: what its calls cost in work done, however many jobs there are."""

import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.core.message import Attempt, DispatchMode, Outcome, Result
from flowcatalyst.dispatch.job import Status
from flowcatalyst.dispatch.store.contract import Cancel, Change, Filter, Retry
from flowcatalyst.dispatch.store.job_rows import (
    act,
    catalog,
    columns,
    enter,
    events,
    groups,
    house,
    look,
    pause,
    positions,
    recalling,
    settle,
    walk,
)
from flowcatalyst.dispatch.store.platform_contract import EntryKind, EventFilter
from flowcatalyst.dispatch.store.sqlite import SqliteJobStore
from tests.conformance.job_bench import BLOCK, IMMEDIATE, NEXT, PARKED
from tests.conformance.sqlite_job_store_test import SqliteJobBench
from tests.support.embedded import instructions

FEW, MANY = 200, 20_000


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SqliteJobBench]:
    bench = SqliteJobBench(tmp_path)
    yield bench
    await bench.close()


async def a_store(folder: Path, size: int) -> tuple[SqliteJobBench, SqliteJobStore]:
    (folder / str(size)).mkdir()
    bench = SqliteJobBench(folder / str(size))
    store = await bench.store()
    assert isinstance(store, SqliteJobStore)
    return bench, store


# Plans


def statements() -> list[str]:
    """All that these modules say to the database, but for what moves with the lists."""
    modules = (act, catalog, columns, enter, events, groups, house, look, pause, positions, recalling, settle)
    found = [
        value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, str) and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)", value)
        if value not in (columns.SELECT, groups._SELECT, look._OLDEST)  # parts of others
    ]
    return [*found, *house._FORGET]


def plan_of(connection: sqlite3.Connection, statement: str) -> list[str]:
    named = set(re.findall(r":(\w+)", statement))
    parameters: Any = dict.fromkeys(named, None) if named else (None,) * statement.count("?")
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]


BIG = {"jobs", "j", "messages", "m", "lanes", "l", "groups", "g", "attempts", "actions", "job_metadata"}
BIG |= {"events", "e", "group_positions", "p"}


async def test_no_statement_walks_a_whole_table_or_sorts(bench: SqliteJobBench) -> None:
    store = await bench.store()
    assert isinstance(store, SqliteJobStore)
    assert len(statements()) > 40

    def plans(connection: sqlite3.Connection) -> list[tuple[str, str]]:
        return [(step, statement) for statement in statements() for step in plan_of(connection, statement)]

    for step, statement in await store.queue.store.writer.read(plans):
        assert not (step.startswith("SCAN") and step.split()[1] in BIG), f"{step}: {statement}"
        assert "TEMP B-TREE" not in step or "DISTINCT" in step, f"{step}: {statement}"


FILTERS = {
    "nothing": Filter(),
    "group": Filter(group="g"),
    "code": Filter(code="x"),
    "subscription": Filter(subscription="x", status=Status.PENDING),
    "metadata": Filter(metadata=(("t", "1"), ("u", "2"))),
    "parked": Filter(parked=True),
    "blocked": Filter(status=Status.PENDING, mode=BLOCK),
    "waiting": Filter(status=Status.PENDING),
    "failed": Filter(status=Status.ERROR),
    "cancelled": Filter(status=Status.CANCELLED),
    "completed": Filter(status=Status.COMPLETED),
    "in hand": Filter(status=Status.QUEUED),
    "time": Filter(created_from=1.0, created_before=2.0),
    "mode": Filter(mode=NEXT),
    "pool": Filter(pool="P"),
    "target": Filter(target="https://none"),
}


@pytest.mark.parametrize("which", FILTERS.values(), ids=FILTERS.keys())
async def test_a_list_is_a_walk_of_one_index_without_sorting(bench: SqliteJobBench, which: Filter) -> None:
    store = await bench.store()
    assert isinstance(store, SqliteJobStore)

    def plan(connection: sqlite3.Connection) -> list[str]:
        way = walk._walk(connection, which, None)
        assert way is not None
        return plan_of(connection, way.statement("j.number"))

    steps = await store.queue.store.writer.read(plan)
    assert [step for step in steps if step.startswith("SCAN") and "INDEX" not in step and "walked" not in step] in (
        [],
        ["SCAN jobs"],  # backwards by its key
    )
    assert [step for step in steps if "TEMP B-TREE" in step] == [] or which.status is Status.QUEUED  # those are few


# Work


async def cost(store: SqliteJobStore, job: Callable[..., Any]) -> int:
    now = store.queue.store.now()
    return await instructions(store.queue, partial(job, now=now))


async def fill(
    bench: SqliteJobBench,
    store: SqliteJobStore,
    size: int,
    mode: DispatchMode = BLOCK,
    groups: int = 50,
    **more: Any,
) -> None:
    """Very many jobs that wait."""
    for first in range(0, size, 1000):
        numbers = range(first, min(first + 1000, size))
        await store.create([bench.job(f"w{n}", f"w{n % groups}", mode, **more) for n in numbers])
    assert await store.count(Filter(mode=mode), size) == size


async def finish(store: SqliteJobStore, size: int) -> None:
    """Very many that are finished, at a stroke."""

    def complete(connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT INTO jobs (number, id, kind, code, target, content_type, headers, grp, sequence, mode, pool, "
            "timeout_s, max_retries, delays, metadata, created_at, status, entered, attempts, finished_at) "
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?) "
            "SELECT n + (SELECT last_number FROM store), 'f' || n, 'TASK', 'old', 'http://a/', 't', '[]', "
            "'g' || n % 9, 99, 'BLOCK_ON_ERROR', 'DEFAULT-POOL', 30, 3, '[1]', '{}', n, 'COMPLETED', 1, 1, 5e5 + n "
            "FROM n",
            (size,),
        )
        connection.execute(
            "INSERT INTO attempts SELECT number, 1, 1, 1, 200, '', 0, '', '' FROM jobs WHERE status = 'COMPLETED'"
        )
        connection.execute("UPDATE store SET last_number = last_number + ?", (size,))

    await store.queue.store.writer.run(complete)


def deliver(bench: SqliteJobBench, store: SqliteJobStore, *groups: str) -> Callable[..., None]:
    """Make twenty jobs, take twenty, complete half of them and let the others fail."""
    names = groups or ("new0", "new1", "new2", "new3")

    def work(connection: sqlite3.Connection, now: float) -> None:
        jobs = [bench.job(f"new{n}", names[n % len(names)], NEXT, metadata={"t": "1"}) for n in range(20)]
        enter.create(connection, jobs, now, now)
        taken = store.queue._lease(partial(take_20, store=store, now=now), connection)
        deliveries = store.queue._deliveries(taken, now + 60)
        assert len(deliveries) == 20
        for delivery in deliveries:
            delivery.attempt = Attempt(now, 1.0, Outcome(Result.SUCCESS))
        settle.ack(connection, deliveries[:10], now, now)
        for delivery in deliveries[10:]:
            settle.nack(connection, [delivery], now, now, 5.0, unlock=True)

    return work


def take_20(connection: sqlite3.Connection, store: SqliteJobStore, now: float) -> Any:
    from flowcatalyst.queues.embedded.take import take

    return take(connection, columns.QUEUE, 20, "me", now, 60, delays=columns.LOCK)


async def test_a_job_costs_the_same_with_many_finished_ones(tmp_path: Path) -> None:
    costs = []
    for size in (FEW, MANY):
        bench, store = await a_store(tmp_path, size)
        await finish(store, size)
        costs.append(await cost(store, deliver(bench, store)))
        await bench.close()
    assert costs[1] < costs[0] * 1.2


@pytest.mark.parametrize("mode", [IMMEDIATE, NEXT, BLOCK])
async def test_a_job_costs_the_same_with_many_that_wait(tmp_path: Path, mode: DispatchMode) -> None:
    costs = []
    for size in (FEW, MANY):
        bench, store = await a_store(tmp_path, size)
        await fill(bench, store, size, mode, expires_at=bench.wall() + 1000)
        costs.append(await cost(store, deliver(bench, store)))
        await bench.close()
    assert costs[1] < costs[0] * 1.2


@pytest.mark.parametrize("mode", [NEXT, BLOCK])
async def test_a_job_costs_the_same_in_a_group_of_very_many(tmp_path: Path, mode: DispatchMode) -> None:
    """Taken from its beginning, put at its end, completed and failed."""
    costs = []
    for size in (FEW, MANY):
        bench, store = await a_store(tmp_path, size)
        await fill(bench, store, size, mode, groups=1, expires_at=bench.wall() + 1000)
        costs.append(await cost(store, deliver(bench, store, "w0")))
        await bench.close()
    assert costs[1] < costs[0] * 1.2


async def test_a_job_costs_the_same_beside_a_group_of_very_many_that_is_blocked(tmp_path: Path) -> None:
    costs = []
    for size in (FEW, MANY):
        bench, store = await a_store(tmp_path, size)
        await fill(bench, store, size, groups=1)
        first, *others = await store.queue.receive(20, 0)
        await store.queue.nack(others, 0.0)
        await bench.fail(store, [first], PARKED)
        await store.create([bench.job(f"x{n}", "x", NEXT) for n in range(10)])
        costs.append(await cost(store, deliver(bench, store, "w0", "new0")))  # half of those have to wait
        await bench.close()
    assert costs[1] < costs[0] * 1.2


async def test_a_job_costs_the_same_with_many_that_are_scheduled_or_parked(tmp_path: Path) -> None:
    costs = []
    for size in (FEW, MANY):
        bench, store = await a_store(tmp_path, size)
        await fill(bench, store, size, IMMEDIATE, scheduled_for=bench.wall() + 1000)
        await fill_parked(bench, store, size // 10)
        costs.append(await cost(store, deliver(bench, store)))
        await bench.close()
    assert costs[1] < costs[0] * 1.2


async def fill_parked(bench: SqliteJobBench, store: SqliteJobStore, size: int) -> None:
    for first in range(0, size, 500):
        await store.create([bench.job(f"p{n}", f"p{n}", BLOCK) for n in range(first, min(first + 500, size))])
        taken = await store.queue.receive(500, 0)
        for delivery in taken:
            delivery.attempt, delivery.failures = bench.attempt(), 1
        await store.queue.nack(taken, PARKED)


@pytest.mark.parametrize("spread", [1, 50], ids=["in one group", "in 50 groups"])
async def test_acting_and_looking_cost_the_same_with_many_jobs(tmp_path: Path, spread: int) -> None:
    found = []
    for size in (FEW, MANY):
        bench, store = await a_store(tmp_path, size)
        await finish(store, size)
        await fill_parked(bench, store, size // 10)
        await fill(bench, store, size, groups=spread, expires_at=bench.wall() + 1000)
        wall = bench.wall()
        change: dict[str, Any] = {"actor": "ann", "wall": wall}
        work: dict[str, Callable[..., Any]] = {
            "figures": partial(look.figures, wall=wall),
            "groups": partial(groups.groups, blocked=False, limit=20, cursor=None),
            "blocked groups": partial(groups.groups, blocked=True, limit=20, cursor=None),
            "group": partial(groups.group, name="w0"),
            "place": partial(look.place_of, job_id="w77"),
            "retry": partial(act.act, job_id="p7", action=Retry(), **change),
            "change": partial(act.act, job_id="p8", action=Change(mode=NEXT), **change),
            "cancel": partial(act.act, job_id="p9", action=Cancel(), **change),
            "cancel in a group": partial(act.act, job_id="w3", action=Cancel(), **change),
            "all": partial(
                act.act_on_all, which=Filter(status=Status.ERROR), action=Retry(), limit=10, cursor=None, **change
            ),
            "hold": partial(groups.hold, name="w0", **change),
            "release": partial(groups.release, name="w0", wall=wall),
            "nothing to expire": partial(house.expire, limit=20, wall=wall),
            "expire": partial(house.expire, limit=20, wall=wall + 2000),
            "drop": lambda connection, now: house.drop_finished(connection, 1e12, 20),
        }
        found.append({name: await cost(store, job) for name, job in work.items()})
        await bench.close()
    few, many = found
    assert {name: (few[name], many[name]) for name in few if many[name] > few[name] * 1.3 + 50} == {}


async def test_a_job_that_is_ordered_with_nothing_pays_nothing_for_positions_and_pauses(bench: SqliteJobBench) -> None:
    store = await bench.store()
    assert isinstance(store, SqliteJobStore)
    await store.create([bench.job(f"x{n}") for n in range(20)])
    told: list[str] = []

    def work(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(told.append)
        now = store.queue.store.now()
        taken = store.queue._lease(partial(take_20, store=store, now=now), connection)
        deliveries = store.queue._deliveries(taken, now + 60)
        assert len(deliveries) == 20
        for delivery in deliveries:
            delivery.attempt = Attempt(now, 1.0, Outcome(Result.SUCCESS))
        settle.ack(connection, deliveries[:10], now, now)
        settle.nack(connection, deliveries[10:], now, now, 5.0, unlock=False)
        connection.set_trace_callback(None)

    await store.queue.store.writer.run(work)
    assert told
    assert [statement for statement in told if "group_positions" in statement] == []


async def pausing(bench: SqliteJobBench, store: SqliteJobStore, size: int) -> None:
    """Very many jobs of a subscription that is paused, and as many groups with a position."""
    for first in range(0, size, 1000):
        numbers = range(first, min(first + 1000, size))
        await store.create([bench.job(f"s{n}", f"s{n}", BLOCK, subscription="s") for n in numbers])

    def give(connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT INTO group_positions SELECT json_quote(grp), 1, 1, 0 FROM jobs WHERE subscription = 's'"
        )

    await store.queue.store.writer.run(give)
    await store.set_paused("s", paused=True)
    while await store.settle_pauses(1000):
        pass


async def test_a_job_costs_the_same_with_many_that_are_paused(tmp_path: Path) -> None:
    costs = []
    for size in (FEW, MANY):
        bench, store = await a_store(tmp_path, size)
        await pausing(bench, store, size)
        costs.append(await cost(store, deliver(bench, store)))
        await bench.close()
    assert costs[1] < costs[0] * 1.2


async def test_events_cost_the_same_with_many_others(tmp_path: Path) -> None:
    found = []
    for size in (FEW, MANY):
        bench, store = await a_store(tmp_path, size)
        await store.add(EntryKind.SUBSCRIPTION, "s", "{}")
        for first in range(0, size, 1000):
            numbers = range(first, min(first + 1000, size))
            kept = [bench.event(f"e{n}", message_group=f"g{n % 9}", deduplication_id=f"d{n}") for n in numbers]
            await store.accept([(event, ()) for event in kept])
        wall = bench.wall()
        jobs = [bench.job("s1", "s:g", BLOCK, subscription="s")]
        new = [(bench.event("new"), jobs), (bench.event("again", deduplication_id="d7"), ())]
        work: dict[str, Callable[..., Any]] = {
            "accept": partial(events.accept, events=new, wall=wall),
            "event": partial(events.event, event_id="e7"),
            "page": partial(events.page, which=EventFilter(), limit=20, cursor=None),
            "page of a group": partial(events.page, which=EventFilter(group="g1"), limit=20, cursor=None),
            "in order": partial(
                events.page, which=EventFilter(type="order.created"), limit=20, cursor=None, oldest_first=True
            ),
            "nothing of a group": partial(events.page, which=EventFilter(group="none"), limit=20, cursor=None),
            "drop": lambda connection, now: events.drop(connection, 1e12, 20),
        }
        found.append({name: await cost(store, job) for name, job in work.items()})
        await bench.close()
    few, many = found
    assert {name: (few[name], many[name]) for name in few if many[name] > few[name] * 1.3 + 50} == {}


async def test_a_pause_goes_over_few_jobs_at_a_time(tmp_path: Path) -> None:
    costs = []
    for size in (FEW, MANY):
        bench, store = await a_store(tmp_path, size)
        await finish(store, size)
        await pausing(bench, store, size)
        await store.set_paused("s", paused=False)
        costs.append(await cost(store, partial(pause.settle, limit=20, wall=bench.wall())))
        costs.append(
            await cost(store, partial(recalling.ask, jobs=(), group=None, subscription="s", wall=bench.wall()))
        )
        await bench.close()
    assert (costs[2] < costs[0] * 1.2 + 50, costs[3] < costs[1] * 1.2 + 50) == (True, True)


async def test_a_list_of_what_is_rare_or_not_there_ends_after_a_bounded_walk(tmp_path: Path) -> None:
    bench, store = await a_store(tmp_path, MANY)
    await finish(store, MANY)
    await fill(bench, store, MANY)
    spent = {
        name: await cost(store, partial(walk.page, which=which, limit=20, cursor=None))
        for name, which in FILTERS.items()
    }
    assert {name: steps for name, steps in spent.items() if steps > walk.SCANNED_AT_ONCE * 60} == {}
    indexed = {name: steps for name, steps in spent.items() if name not in ("mode", "pool", "target")}
    assert {name: steps for name, steps in indexed.items() if steps > 10_000} == {}
    await bench.close()


async def test_a_walk_that_finds_nothing_can_be_gone_on_with_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "SCANNED_AT_ONCE", 10)
    bench, store = await a_store(tmp_path, FEW)
    await store.create(
        [bench.job("first", pool="P"), *(bench.job(f"w{n}") for n in range(95)), bench.job("last", pool="P")]
    )
    for which in (Filter(pool="P"), Filter(pool="P", created_from=0.0)):
        page, found, pages = await store.page(which, 5), list[str](), 1
        found += [state.job.id for state in page.items]
        while page.cursor is not None:
            page, pages = await store.page(which, 5, page.cursor), pages + 1
            found += [state.job.id for state in page.items]
        assert (found, pages >= 9) == (["last", "first"], True)
        assert await store.count(which, 10) == 2
    acted = await store.act_on_all(Filter(pool="P"), Cancel(), "ann", 5)
    assert (acted.done, acted.cursor is not None) == (1, True)
    await bench.close()


async def test_a_list_has_no_job_twice_although_others_come_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page and where it ends are of one moment."""
    monkeypatch.setattr(walk, "SCANNED_AT_ONCE", 10)
    bench, store = await a_store(tmp_path, FEW)
    await store.create([bench.job(f"w{n}", pool="P" if n % 9 == 0 else "Q") for n in range(40)])
    last = walk.Walk.last

    def while_others_come(self: walk.Walk) -> str:
        jobs = [bench.job(f"new{self.parameters['before']}-{n}") for n in range(9)]
        connection = sqlite3.connect(tmp_path / str(FEW) / "jobs.db", isolation_level=None)
        enter.create(connection, jobs, bench.wall(), bench.wall())
        connection.close()
        return last(self)

    monkeypatch.setattr(walk.Walk, "last", while_others_come)
    page = await store.page(Filter(pool="P"), 5)
    found = [state.job.id for state in page.items]
    while page.cursor is not None:
        page = await store.page(Filter(pool="P"), 5, page.cursor)
        found += [state.job.id for state in page.items]
    assert found == ["w36", "w27", "w18", "w9", "w0"]
    await bench.close()
