"""What a router does when jobs that it has in hand are recalled, or come again edited."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Self

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import Delivery, DispatchMode, Outcome
from flowcatalyst.dispatch import acting
from flowcatalyst.dispatch.job import NewJob, Status, new_job
from flowcatalyst.dispatch.store.contract import Cancel, Change
from flowcatalyst.dispatch.store.sqlite import SqliteJobQueue, SqliteJobStore
from flowcatalyst.queues.contract import Demand
from flowcatalyst.router.consumer import Consumer
from flowcatalyst.router.recaller import Recaller
from flowcatalyst.router.settler import Settler
from tests.support.patience import PATIENCE_S
from tests.support.rig import OK, Rig

BLOCK, IMMEDIATE = DispatchMode.BLOCK_ON_ERROR, DispatchMode.IMMEDIATE


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(0.005)


class SlowQueue(SqliteJobQueue):
    """What it hands out is on its way until a test says so."""

    def __init__(self, queue: SqliteJobQueue) -> None:
        super().__init__(queue.store, poll_interval_s=0.01)
        self.leased = asyncio.Event()
        self.arrives = asyncio.Event()
        self.arrives.set()

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        batch = await super().receive(limit, wait_s, demand)
        if batch:
            self.leased.set()
            await self.arrives.wait()
        return batch


class Gates:
    """An endpoint that knows what it was sent, and answers what hangs when it is told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.hanging: dict[str, asyncio.Event] = {}

    async def attempt(self, delivery: Delivery, timeout_s: float | None = None) -> Outcome:
        self.sent.append((delivery.pointer.id, delivery.pointer.mediation_target))
        if (gate := self.hanging.get(delivery.pointer.id)) is not None:
            await gate.wait()
        return OK


class RecallRig(Rig):
    def __init__(self, store: SqliteJobStore) -> None:
        super().__init__()
        self.gates = Gates()
        self.tools = type(self.tools)(
            **{name: getattr(self.tools, name) for name in self.tools.__slots__} | {"mediator": self.gates}
        )
        self.store = store
        self.slow = SlowQueue(store.queue)
        store.queue = self.slow

    async def __aenter__(self) -> Self:
        self.router.add_pool("DEFAULT-POOL", self._limits["default"])
        await self.slow.open()
        self.settler = Settler(self.slow, self.tracker)
        recaller = Recaller(self.slow, self.settler, self.router)
        self.consumer = Consumer(
            self.slow, self.settler, self.router, self.dead_letters, self.warnings, self.clock, recaller=recaller
        )
        self.tasks.spawn(self.settler.run())
        self.tasks.spawn(recaller.run())
        self.consuming = self.tasks.spawn(self.consumer.run())
        return self

    async def lose_leases(self) -> None:
        """As if the process had been paused for longer than they last."""
        await self.slow.store.writer.run(
            lambda connection: connection.execute("UPDATE lanes SET due = 0 WHERE owner IS NOT NULL").rowcount
        )

    async def until(self, name: str, status: Status) -> None:
        async def is_so() -> bool:
            return (await self.store.find(name)).status is status

        await until(is_so)

    async def until_in_hand(self, *names: str) -> None:
        async def are() -> bool:
            return all([(await self.store.find(name)).status is Status.QUEUED for name in names])

        await until(are)


async def create(store: SqliteJobStore, *names: str, mode: DispatchMode = BLOCK) -> None:
    asked = NewJob(code="test", target_url="http://old/", message_group="g", mode=mode, max_retries=0)
    await store.create([new_job(asked, name, SystemClock().wall()) for name in names])


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[RecallRig]:
    store = SqliteJobStore(tmp_path / "jobs.db", SystemClock(), poll_interval_s=0.01)
    await store.open()
    try:
        async with RecallRig(store) as rig:
            yield rig
    finally:
        await store.close()


async def test_what_was_on_its_way_to_a_router_when_it_was_recalled_is_not_started(rig: RecallRig) -> None:
    rig.slow.arrives.clear()
    await create(rig.store, "a", "b")
    await rig.slow.leased.wait()
    assert (await acting.hold(rig.store, "g", "ann")).held_by == "ann"
    rig.slow.arrives.set()

    async def came_back_or_started() -> bool:
        states = [await rig.store.find(name) for name in ("a", "b")]
        return bool(rig.gates.sent) or all(state.status is Status.PENDING for state in states)

    await until(came_back_or_started)
    assert (rig.gates.sent, len(rig.tracker)) == ([], 0)
    await rig.store.release("g", "ann")
    await rig.until("b", Status.COMPLETED)
    assert [name for name, _ in rig.gates.sent] == ["a", "b"]


async def test_a_recall_takes_what_waits_and_leaves_what_is_in_flight(rig: RecallRig) -> None:
    rig.gates.hanging["a"] = asyncio.Event()
    await create(rig.store, "a", "b", "c")
    await rig.until_in_hand("a", "b", "c")
    assert (await acting.act(rig.store, "b", Cancel(), "ann")).status is Status.CANCELLED
    rig.gates.hanging["a"].set()
    await rig.until("c", Status.COMPLETED)
    assert [name for name, _ in rig.gates.sent] == ["a", "c"]
    assert (await rig.store.find("a")).attempts == (await rig.store.find("c")).attempts == 1


async def test_a_job_that_comes_again_edited_is_sent_as_it_is_then(rig: RecallRig) -> None:
    rig.gates.hanging["a"] = asyncio.Event()
    await create(rig.store, "a", "b")
    await rig.until_in_hand("a", "b")
    await rig.lose_leases()
    await rig.store.act("b", Change(target="http://new/"), "ann")
    await rig.until_in_hand("a", "b")
    rig.gates.hanging["a"].set()
    await rig.until("b", Status.COMPLETED)
    assert rig.gates.sent[-1] == ("b", "http://new/")
    assert ("b", "http://old/") not in rig.gates.sent


@pytest.mark.parametrize("mode", [BLOCK, IMMEDIATE])
async def test_a_delivery_of_what_a_job_was_before_an_edit_does_not_complete_it(
    rig: RecallRig, mode: DispatchMode
) -> None:
    gate = rig.gates.hanging["a"] = asyncio.Event()
    await create(rig.store, "a", mode=mode)
    await rig.until_in_hand("a")
    await rig.lose_leases()
    await rig.store.act("a", Change(target="http://new/"), "ann")

    async def comes_again() -> bool:
        return (await rig.store.find("a")).next_attempt_at is not None

    await until(comes_again)  # and is not tried while the one of before is in flight
    assert rig.gates.sent == [("a", "http://old/")]
    del rig.gates.hanging["a"]
    gate.set()
    await rig.until("a", Status.COMPLETED)
    assert rig.gates.sent == [("a", "http://old/"), ("a", "http://new/")]
    assert len(await rig.store.attempts_of("a")) == 1
