"""The embedded queue: its cost in work done, and its behaviour against a simple model."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcatalyst.message import Delivery, Settled
from flowcatalyst.queues import embedded_jobs
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.embedded import EmbeddedQueue
from tests.support.clocks import SetClock
from tests.support.embedded import another, bodies, opened, take


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def queue(tmp_path: Path, clock: SetClock) -> AsyncIterator[EmbeddedQueue]:
    async with opened(tmp_path / "queue.db", clock) as queue:
        yield queue


# Cost


def plans(connection: sqlite3.Connection) -> list[str]:
    hot = [
        value
        for name, value in vars(embedded_jobs).items()
        if isinstance(value, str) and name.isupper() and name not in ("_READY_MESSAGES", "_DEPTH", "_OWNED")
    ]
    assert len(hot) > 15
    found = []
    for statement in hot:
        named = {word[1:].rstrip(",)") for word in statement.replace("(", " ").split() if word[0] == ":"}
        parameters: Any = dict.fromkeys(named, None) if named else (None,) * statement.count("?")
        found += [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
    return found


async def test_no_statement_walks_a_whole_table_or_sorts(queue: EmbeddedQueue) -> None:
    steps = await queue.store.writer.read(plans)
    tables = {"messages", "m", "lanes", "l", "deduplication", "d"}
    assert [step for step in steps if step.startswith("SCAN") and step.split()[1] in tables] == []
    assert not [step for step in steps if "TEMP B-TREE" in step]


async def instructions(queue: EmbeddedQueue, job: Callable[[sqlite3.Connection], Any]) -> int:
    """Virtual machine instructions of a job: the work done, whatever the machine is busy with."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    def counted(connection: sqlite3.Connection) -> None:
        connection.set_progress_handler(tick, 1)
        job(connection)
        connection.set_progress_handler(None, 1)

    await queue.store.writer.run(counted)
    return count


async def cost_of_take_and_ack(queue: EmbeddedQueue, clock: SetClock) -> int:
    def work(connection: sqlite3.Connection) -> None:
        taken = embedded_jobs.take(connection, queue.name, 20, "me", clock.now, 60)
        assert len(taken.messages) == 20
        receipts = [message.receipt for message in taken.messages]
        embedded_jobs.nack(connection, queue.name, [(receipt, 0) for receipt in receipts[:5]], clock.now + 5)
        embedded_jobs.ack(connection, receipts[5:])

    return await instructions(queue, work)


async def test_cost_does_not_grow_with_the_backlog(queue: EmbeddedQueue, clock: SetClock) -> None:
    costs = []
    for size in (100, 20_000):
        sized = await another(queue.store, f"backlog {size}")
        await sized.publish([Outgoing("x", f"g{n % (size // 50)}") for n in range(size)])
        costs.append(await cost_of_take_and_ack(sized, clock))
    assert costs[1] < costs[0] * 1.2


async def test_cost_does_not_grow_with_a_hot_locked_group(queue: EmbeddedQueue, clock: SetClock) -> None:
    costs = []
    for size in (10, 20_000):
        sized = await another(queue.store, f"hot {size}")
        await sized.publish([Outgoing("x", "hot")] * size)
        await take(sized, 5)
        await sized.publish([Outgoing("x", f"g{n % 2}") for n in range(20)])
        costs.append(await cost_of_take_and_ack(sized, clock))
    assert costs[1] < costs[0] * 1.2


async def test_settling_in_a_deep_group_costs_no_more_than_in_a_shallow_one(
    queue: EmbeddedQueue, clock: SetClock
) -> None:
    costs = []
    for size in (40, 20_000):
        sized = await another(queue.store, f"deep {size}")
        await sized.publish([Outgoing("x", "hot")] * size)
        costs.append(await cost_of_take_and_ack(sized, clock))
    assert costs[1] < costs[0] * 1.2


# Against a model


class Model:
    """The rules in their simplest form: a list of messages, oldest first."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def publish(self, body: str, group: str) -> None:
        self.messages.append({"body": body, "lane": group, "hidden_until": 0.0})

    def receive(self, now: float) -> list[str]:
        locked = {message["lane"] for message in self.messages if message["hidden_until"] > now}
        taken = [message for message in self.messages if message["lane"] not in locked]
        for message in taken:
            message["hidden_until"] = now + 60
        return [message["body"] for message in taken]

    def settle(self, body: str, hidden_until: float | None, *, unlock: bool) -> None:
        (message,) = [message for message in self.messages if message["body"] == body]
        if hidden_until is None:
            self.messages.remove(message)
            return
        message["hidden_until"] = hidden_until
        message["lane"] = body if unlock else message["lane"]


ACTIONS = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from("abc")),
    st.tuples(st.just("receive"), st.none()),
    st.tuples(st.just("ack"), st.integers(0, 9)),
    st.tuples(st.sampled_from(["nack", "unlock"]), st.integers(0, 9)),
    st.tuples(st.just("advance"), st.sampled_from([5.0, 20.0, 70.0])),
)


async def follow(queue: EmbeddedQueue, clock: SetClock, actions: Sequence[tuple[str, Any]]) -> None:
    model = Model()
    held: dict[str, Delivery] = {}
    for number, (action, argument) in enumerate(actions):
        if action == "publish":
            model.publish(f"{number}", argument)
            await queue.publish([Outgoing(f"{number}", argument)])
        elif action == "receive":
            deliveries = await take(queue)
            assert bodies(deliveries) == model.receive(clock.now)
            held.update(zip(bodies(deliveries), deliveries, strict=True))
        elif action == "advance":
            clock.now += argument
        elif held:
            body = list(held)[argument % len(held)]
            delivery = held.pop(body)
            hidden_until = None if action == "ack" else clock.now + argument
            model.settle(body, hidden_until, unlock=action == "unlock")
            settle = queue.ack if action == "ack" else partial(queue.nack, delay_s=argument, unlock=action == "unlock")
            assert await settle([delivery]) == [Settled.OK]
    assert (await queue.depth()).waiting == sum(message["hidden_until"] <= clock.now for message in model.messages)


@settings(max_examples=100, deadline=None)
@given(actions=st.lists(ACTIONS, max_size=40))
def test_it_behaves_like_the_simple_model(actions: list[tuple[str, Any]]) -> None:
    async def run(folder: str) -> None:
        clock = SetClock()
        async with opened(Path(folder) / "queue.db", clock) as queue:
            await follow(queue, clock, actions)

    with TemporaryDirectory() as folder:
        asyncio.run(run(folder))
