"""The embedded queue: waiting, and what a cancelled, closed or locked one leaves behind."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.core.errors import QueueUnavailableError, StorageError
from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.contract import Depth, Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from tests.support.clocks import SetClock
from tests.support.embedded import another, bodies, grouped, opened, take

LONG_S = 30.0  # never waited for: a test that does has failed


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def queue(tmp_path: Path, clock: SetClock) -> AsyncIterator[EmbeddedQueue]:
    async with opened(tmp_path / "queue.db", clock) as queue:
        yield queue


def file_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def until_waiting(queue: EmbeddedQueue, count: int) -> None:
    """Let the loop run until that many receives have found nothing and wait."""
    while len(queue._sleepers) < count:  # no time passes: it only lets others run
        await asyncio.sleep(0)


async def waiting_receive(queue: EmbeddedQueue) -> asyncio.Task[list[Delivery]]:
    """A receive that has found nothing and now waits."""
    task = asyncio.get_running_loop().create_task(queue.receive(10, LONG_S))
    await until_waiting(queue, 1)
    return task


async def finish(task: asyncio.Task[list[Delivery]]) -> list[str]:
    async with asyncio.timeout(LONG_S / 3):
        return bodies(await task)


# Waiting


async def test_a_publish_wakes_a_waiting_receive(queue: EmbeddedQueue) -> None:
    task = await waiting_receive(queue)
    await queue.publish(grouped("a1"))
    assert await finish(task) == ["a1"]


async def test_a_publish_wakes_it_although_the_publisher_was_cancelled(queue: EmbeddedQueue) -> None:
    task = await waiting_receive(queue)
    publishing = asyncio.get_running_loop().create_task(queue.publish(grouped("a1")))
    await asyncio.sleep(0)
    publishing.cancel()
    assert await finish(task) == ["a1"]


async def test_an_ack_that_unlocks_a_group_wakes_a_waiting_receive(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped("a1", "a2"))
    (first,) = await take(queue, 1)
    task = await waiting_receive(queue)
    await queue.ack([first])
    assert await finish(task) == ["a2"]


async def test_an_ack_that_leaves_its_group_leased_lets_a_waiting_receive_wait(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped("a1", "a2", "a3"))
    first, second = await take(queue, 2)
    task = await waiting_receive(queue)
    woken = queue._changes
    await queue.ack([first])
    assert queue._changes == woken
    await queue.ack([second])
    assert await finish(task) == ["a3"]


async def test_a_receive_wakes_when_a_delay_is_over(queue: EmbeddedQueue, clock: SetClock) -> None:
    queue._poll_interval_s = LONG_S
    await queue.publish(grouped("a1"))
    await queue.nack(await take(queue), 0.02)
    task = await waiting_receive(queue)
    clock.now += 0.02
    assert await finish(task) == ["a1"]


async def test_all_who_wait_are_woken(queue: EmbeddedQueue) -> None:
    queue._poll_interval_s = LONG_S
    tasks = [asyncio.get_running_loop().create_task(queue.receive(1, LONG_S)) for _ in range(5)]
    await until_waiting(queue, 5)
    await queue.publish([Outgoing(str(n)) for n in range(5)])
    assert sorted([body for task in tasks for body in await finish(task)]) == ["0", "1", "2", "3", "4"]


async def test_a_receive_that_finds_nothing_in_time_is_empty(queue: EmbeddedQueue) -> None:
    assert await queue.receive(10, 0.01) == []


async def test_a_commit_of_another_process_is_seen_while_waiting(queue: EmbeddedQueue, clock: SetClock) -> None:
    queue._poll_interval_s = 0.005
    async with opened(queue.store.path, clock) as other:
        task = await waiting_receive(queue)
        await other.publish(grouped("a1"))
        assert await finish(task) == ["a1"]
        assert await take(other) == []  # locked for everybody


async def test_broker_ids_of_two_files_differ(queue: EmbeddedQueue, tmp_path: Path, clock: SetClock) -> None:
    async with opened(tmp_path / "other.db", clock) as other:
        (here,), (there,) = await queue.publish(grouped("a1")), await other.publish(grouped("a1"))
        assert here.broker_id != there.broker_id


# Cancelling, closing, dying


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancelled_receive_loses_nothing(queue: EmbeddedQueue, steps: int) -> None:
    """Cancelled before, while and after the lease is committed; the leases must come back in each case."""
    await queue.publish(grouped("a1", "a2"))
    queue.store._reap_at = float("inf")
    receiving = asyncio.get_running_loop().create_task(queue.receive(10, LONG_S))
    for step in range(steps):
        # The second step and later ones see the lease committed, but not yet handled by the loop.
        await (asyncio.sleep(0) if step == 0 else asyncio.shield(queue.store.writer.submit(lambda c: None)))
    if receiving.done():
        await queue.nack(receiving.result(), 0)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    async with asyncio.timeout(LONG_S / 3):
        assert bodies(await queue.receive(10, LONG_S)) == ["a1", "a2"]


async def test_a_receive_cancelled_between_commit_and_wake_up_gives_back(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped("a1"))
    taking: list[asyncio.Future[Any]] = []
    submit = queue.store.writer.submit

    def remember(job: Callable[[sqlite3.Connection], Any], *, writes: bool = True) -> asyncio.Future[Any]:
        taking.append(submit(job, writes=writes))
        return taking[-1]

    queue.store._reap_at = float("inf")
    queue.store.writer.submit = remember  # type: ignore[method-assign]
    receiving = asyncio.get_running_loop().create_task(queue.receive(10, LONG_S))
    await asyncio.sleep(0)
    taking[0].add_done_callback(lambda _: receiving.cancel())  # the result is there, the task has not run yet
    with pytest.raises(asyncio.CancelledError):
        await receiving
    async with asyncio.timeout(LONG_S / 3):
        (again,) = await queue.receive(10, LONG_S)
    assert again.receive_count == 2


async def test_closing_gives_back_what_this_store_holds_and_no_more(queue: EmbeddedQueue, clock: SetClock) -> None:
    async with opened(queue.store.path, clock) as other:
        await queue.publish(grouped("a1", "b1", "c1"))
        await take(other, 1)
        await take(queue, 1)
        await queue.store.close()
        assert bodies(await take(other)) == ["c1", "b1"]  # in the order in which they became ready


async def test_closing_one_queue_leaves_the_leases_of_the_others(queue: EmbeddedQueue) -> None:
    one, two = await another(queue.store, "one"), await another(queue.store, "two")
    for each in (one, two):
        await each.publish(grouped("a1"))
        await take(each)
    await one.close()
    await one.close()
    assert (await one.depth(), await two.depth()) == (Depth(1, 0, 0), Depth(0, 1, 0))


async def test_a_closed_queue_is_unavailable_and_can_be_opened_again(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped("a1"))
    await take(queue)
    await queue.close()
    with pytest.raises(QueueUnavailableError, match="is closed"):
        await queue.receive(1, 0)
    await queue.open()
    assert bodies(await take(queue)) == ["a1"]


async def test_a_clean_close_leaves_no_files_but_the_database(queue: EmbeddedQueue, tmp_path: Path) -> None:
    await queue.close()
    assert file_names(tmp_path) == ["queue.db"]


async def test_a_locked_file_makes_the_queue_unavailable(queue: EmbeddedQueue) -> None:
    await queue.store.writer.read_in_turn(lambda connection: connection.execute("PRAGMA busy_timeout=1").fetchone())
    other = sqlite3.connect(queue.store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(QueueUnavailableError, match=r"queue\.db is locked"):
        await queue.publish(grouped("a1"))
    other.close()


@pytest.mark.parametrize("folder", ["", "missing"])
async def test_a_file_that_cannot_be_used_is_left_alone(tmp_path: Path, clock: SetClock, folder: str) -> None:
    path = tmp_path / folder / "queue.db"
    if not folder:
        path.write_text("not a database")
    with pytest.raises(StorageError, match=r"queue\.db"):
        await EmbeddedQueue(EmbeddedStore(path, clock), "orders").open()
    assert file_names(tmp_path) == ([] if folder else ["queue.db"])
