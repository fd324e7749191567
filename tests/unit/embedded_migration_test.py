"""Files of embedded queues that older versions made: they are brought up to date when they are opened."""

import fcntl
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from flowcatalyst.core.errors import StorageError
from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.contract import Depth, Outgoing
from flowcatalyst.queues.embedded.migrations import STEPS
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from tests.support.clocks import SetClock
from tests.support.demands import SetDemand
from tests.support.embedded import another, bodies, opened, take

DATA = Path(__file__).parent / "data"


@pytest.fixture
def clock() -> SetClock:
    clock = SetClock()
    clock.now = 1_000_000.0  # when the old file was made
    return clock


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    return saved(tmp_path / "queue.db", 1)


def saved(path: Path, version: int) -> Path:
    """A file as the code of that version left it when it was killed."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((DATA / f"embedded_version_{version}.sql").read_text())
    return path


def names(deliveries: list[Delivery]) -> list[str]:
    return [body.split('"')[body.split('"').index("id") + 2] if "id" in body else "" for body in bodies(deliveries)]


async def drained(queue: EmbeddedQueue) -> list[str]:
    seen: list[str] = []
    while batch := await take(queue):
        seen += names(batch)
        await queue.ack(batch)
    return seen


def tables(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))


async def test_an_old_file_drains_in_order(old_file: Path, clock: SetClock) -> None:
    async with opened(old_file, clock) as queue:
        assert (await queue.depth()).waiting == 11
        seen = await drained(queue)
        for group, expected in {"l": ["l1", "l2", "l3"], "r": ["r1", "r2", "r3"], "u": ["u2"], "x": ["x1"]}.items():
            assert [name for name in seen if name.startswith(group)] == expected
        assert {"s1", "t2", ""} <= set(seen)
        clock.now += 20
        assert await drained(queue) == ["u1"]
        clock.now += 10
        first, second = await take(queue)
        assert names([first, second]) == ["d1", "d2"]
        assert (first.failures, first.receive_count) == (3, 2)
        await queue.ack([first, second])
        assert await queue.depth() == Depth(0, 0, 1)
        assert await drained(await another(queue.store, "other")) == ["o1"]


@pytest.mark.parametrize(("version", "store"), [(2, "25dd2622"), (3, "951d0fa6")])
async def test_a_file_of_a_later_version_goes_on_where_it_was(
    tmp_path: Path, clock: SetClock, version: int, store: str
) -> None:
    async with opened(saved(tmp_path / "queue.db", version), clock) as queue:
        assert await queue.depth() == Depth(waiting=10, leased=0, delayed=3)
        assert (await queue.publish([Outgoing("again", "t", "once")]))[0].broker_id == f"embedded-{store}-21"
        seen = await drained(queue)
        for group, expected in {"l": ["l1", "l2", "l3"], "r": ["r1", "r2", "r3"], "u": ["u2"], "x": ["x1"]}.items():
            assert [name for name in seen if name.startswith(group)] == expected
        assert {"", "t2"} <= set(seen)
        clock.now += 20
        assert await drained(queue) == ["u1"]
        clock.now += 10
        first, second = await take(queue)
        assert (names([first, second]), first.failures, first.receive_count) == (["d1", "d2"], 3, 2)
        await queue.ack([first, second])
        assert await queue.depth() == Depth(0, 0, 0)
        assert await drained(await another(queue.store, "other")) == ["o1"]


async def test_what_a_wrong_clock_had_hidden_for_a_year_shows_within_twelve_hours(
    old_file: Path, clock: SetClock
) -> None:
    async with opened(old_file, clock) as queue:
        clock.now += 12 * 3600
        assert "y1" in await drained(queue)


async def test_an_old_file_knows_the_pools_of_its_messages(old_file: Path, clock: SetClock) -> None:
    async with opened(old_file, clock) as queue:
        assert names(await queue.receive(99, 0, SetDemand(A=9))) == ["u2", "r1", "x1", "l1"]
        assert names(await queue.receive(99, 0, SetDemand(others=9, A=9, B=9))) == ["s1", ""]


async def test_broker_ids_and_deduplication_go_on(old_file: Path, clock: SetClock) -> None:
    async with opened(old_file, clock) as queue:
        [again] = await queue.publish([Outgoing("again", "t", "once")])
        assert (again.broker_id, again.duplicate) == ("embedded-b957df0a-15", True)
        [new] = await queue.publish([Outgoing("new")])
        assert int(new.broker_id.split("-")[-1]) > 16
        clock.now += 300
        assert not (await queue.publish([Outgoing("again", "t", "once")]))[0].duplicate


async def test_a_file_that_an_older_process_has_open_is_left_alone(old_file: Path, clock: SetClock) -> None:
    before = tables(old_file)
    with old_file.with_name("queue.db-owner-1-dead.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match=r"queue\.db is in use by an older version of FlowCatalyst"):
            await EmbeddedQueue(EmbeddedStore(old_file, clock), "orders").open()
    assert tables(old_file) == before
    async with opened(old_file, clock) as queue:
        assert (await queue.depth()).waiting == 11


async def test_a_file_of_a_newer_version_is_refused(tmp_path: Path, clock: SetClock) -> None:
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={len(STEPS) + 1}")
    with pytest.raises(StorageError, match=r"queue\.db was made by a newer version of FlowCatalyst"):
        await EmbeddedQueue(EmbeddedStore(path, clock), "orders").open()
