"""Files of jobs that older versions made: opened, they are brought up to date with all that is counted now."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from flowcatalyst.core.errors import QueueUnavailableError, StorageError
from flowcatalyst.dispatch.job import Status
from flowcatalyst.dispatch.store.contract import Filter, Retry
from flowcatalyst.dispatch.store.platform_contract import EntryKind, EventFilter
from flowcatalyst.dispatch.store.sqlite import STEPS, SqliteJobStore
from tests.conformance.job_bench import BLOCK, take
from tests.conformance.pause_suite import settle
from tests.conformance.position_suite import deliver_next, said
from tests.conformance.sqlite_job_store_test import SqliteJobBench, counts_are_right

DATA = Path(__file__).parent / "data"
FIRST_WITH_EVENTS = 7
ODD = "b ü/\n"  # the name of a group


@pytest.fixture(params=range(4, len(STEPS) + 1), ids="version {}".format)
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[SqliteJobBench]:
    """A file as the code of that version left it when it was killed. Those before are versions of embedded queues."""
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.executescript((DATA / f"jobs_version_{request.param}.sql").read_text())
    bench = SqliteJobBench(tmp_path)
    yield bench
    await bench.close()


@pytest.fixture
async def store(bench: SqliteJobBench) -> SqliteJobStore:
    store = await bench.store()
    assert isinstance(store, SqliteJobStore)
    return store


async def test_an_old_file_gets_the_tables_of_a_new_one(
    bench: SqliteJobBench, store: SqliteJobStore, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    new = SqliteJobBench(tmp_path / "new")
    await new.store()
    assert schema(tmp_path / "jobs.db") == schema(tmp_path / "new" / "jobs.db")
    await new.close()


def schema(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))


async def test_what_an_old_file_holds_is_counted(bench: SqliteJobBench, store: SqliteJobStore) -> None:
    await store.queue.store.writer.read(counts_are_right)
    figures = await store.figures()
    assert (figures.waiting, figures.scheduled, figures.parked) == (9, 1, 3)
    assert (figures.groups, figures.blocked, figures.jobs_in_groups[1]) == (5, 1, 3)
    blocked = await store.group(ODD)
    assert blocked.head is not None
    assert (blocked.jobs, blocked.head.job.id) == (2, "b1")
    assert blocked.blocked_since == pytest.approx(999_999.5, abs=0.5)
    assert [group.group for group in (await store.groups(blocked=False, limit=10)).items] == [ODD, "c", "l", "m", "n"]


async def test_old_jobs_are_found_by_what_is_new(store: SqliteJobStore) -> None:
    async def found(which: Filter) -> list[str]:
        return [state.job.id for state in (await store.page(which, 100)).items]

    assert await found(Filter(metadata=(("tenant", "acme"),))) == ["b1", "done"]
    assert await found(Filter(parked=True)) == ["c1", "i1", "b1"]
    assert await found(Filter(status=Status.CANCELLED)) == ["gone"]
    assert len(await found(Filter(created_from=1_000_000.0))) == 15
    assert [line.action.split()[-1] for line in await store.history_of("c1")] == ["NEXT_ON_ERROR"]


async def test_an_old_file_goes_on_in_order(bench: SqliteJobBench, store: SqliteJobStore) -> None:
    """What a process that died had leased is free, and what waits goes on waiting."""
    await bench.audit(store)
    seen = await bench.finish(store)
    assert sorted(seen) == ["brief", "c2", "l1", "l2", "m1", "m2", "n2"]
    assert [name for name in seen if name[0] == "l"] == ["l1", "l2"]
    await bench.pass_time(30)
    assert await bench.finish(store) == ["n1"]
    await store.act("b1", Retry(), "ann")
    await bench.pass_time(70)
    assert await bench.finish(store) == ["b1", "b2", "later"]
    await bench.audit(store)


async def test_a_job_that_had_left_its_group_before_is_held_with_it(
    bench: SqliteJobBench, store: SqliteJobStore
) -> None:
    for name in ("n", "c"):
        await store.hold(name, "ann")
    await store.act("c1", Retry(), "ann")
    await bench.pass_time(40)
    assert sorted(await bench.finish(store)) == ["brief", "l1", "l2", "m1", "m2"]
    for name in ("n", "c"):
        await store.release(name, "ann")
    assert sorted(await bench.finish(store)) == ["c1", "c2", "n1", "n2"]


async def test_an_old_file_takes_events_and_pauses(bench: SqliteJobBench, store: SqliteJobStore) -> None:
    known = [kept.event.id for kept in (await store.events(EventFilter(), 10)).items]
    if not known:  # it is older than the first of them
        assert await store.entries(EntryKind.SUBSCRIPTION) == []
        await store.add(EntryKind.SUBSCRIPTION, "s", "{}")
        await store.set_paused("s", paused=True)
    await bench.finish(store)
    jobs = [bench.job(name, "s:g", BLOCK, subscription="s") for name in ("s1", "s2")]
    accepted = await store.accept([(bench.event("new", deduplication_id="d2"), jobs)])
    assert [(one.kept.jobs, one.repeated) for one in accepted] == [(2, False)]
    await settle(store)
    assert await take(store) == []
    await store.set_paused("s", paused=False)
    await settle(store)
    assert await deliver_next(bench, store, 2) == ["s1 1/0", "s2 2/1"]
    assert await store.count(Filter(subscription="s"), 10) == 2
    await bench.audit(store)


async def test_what_a_newer_version_kept_besides_jobs_is_there(
    bench: SqliteJobBench, store: SqliteJobStore, request: pytest.FixtureRequest
) -> None:
    since = request.node.callspec.params["bench"]
    if since < FIRST_WITH_EVENTS:
        assert (await store.events(EventFilter(), 10)).items == []
        return
    (kept,) = (await store.events(EventFilter(group="g ü"), 10)).items
    assert (kept.event.id, bytes(kept.event.data), kept.created_at) == ("e1", b'{ "n": 1 }', 1_000_000.0)
    (again,) = await store.accept([(bench.event("e2", deduplication_id="d1"), [])])
    assert (again.repeated, again.kept) == (True, kept)
    (entry,) = await store.entries(EntryKind.SUBSCRIPTION)
    assert (entry.code, entry.revision, await store.revision()) == ("s", 1, 3)
    first, *_ = [one for one in await take(store) if one.pointer.id == "l1"]
    assert said(first) == "6/3"  # 4 and 5 were given to what a router had in hand when it was killed


async def test_a_file_of_jobs_of_a_newer_version_is_refused(tmp_path: Path, bench: SqliteJobBench) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute(f"PRAGMA user_version={len(STEPS) + 1}")
    with pytest.raises((StorageError, QueueUnavailableError), match="made by a newer version of FlowCatalyst"):
        await bench.make().open()
