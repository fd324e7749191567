"""The embedded queue: its cost in work done, and its behaviour against a simple model."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcatalyst.message import Delivery, Settled
from flowcatalyst.queues import embedded_jobs, embedded_lanes, embedded_take
from flowcatalyst.queues.contract import Outgoing, Room
from flowcatalyst.queues.embedded import EmbeddedQueue
from tests.support.clocks import SetClock
from tests.support.embedded import another, bodies, instructions, opened, take


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def queue(tmp_path: Path, clock: SetClock) -> AsyncIterator[EmbeddedQueue]:
    async with opened(tmp_path / "queue.db", clock) as queue:
        yield queue


# Cost


def plans(connection: sqlite3.Connection) -> list[str]:
    constants = [item for module in (embedded_jobs, embedded_lanes, embedded_take) for item in vars(module).items()]
    hot = [
        value
        for name, value in constants
        if isinstance(value, str)
        and name[0] == "_"
        and name.isupper()
        and name not in ("_OF_ONE_POOL", "_OWNED", "_ALL_BY_DEFAULT")
    ]
    hot += [embedded_take.ready_messages(part, 2) for part in (embedded_take.SHARES, embedded_take.MORE)]
    assert len(hot) > 20
    found = []
    for statement in hot:
        named = set(re.findall(r":(\w+)", statement))
        parameters: Any = dict.fromkeys(named, None) if named else (None,) * statement.count("?")
        found += [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
    return found


async def test_no_statement_walks_a_whole_table_or_sorts(queue: EmbeddedQueue) -> None:
    steps = await queue.store.writer.read(plans)
    tables = {"messages", "m", "lanes", "l", "deduplication", "d"}
    assert [step for step in steps if step.startswith("SCAN") and step.split()[1] in tables] == []
    assert not [step for step in steps if "TEMP B-TREE" in step]


async def cost_of_take_and_ack(queue: EmbeddedQueue, room: Room | None = None) -> int:
    def work(connection: sqlite3.Connection) -> None:
        taken = embedded_take.take(connection, queue.name, 20, "me", queue.store.now(), 60, room)
        assert len(taken.messages) == 20
        receipts = [message.receipt for message in taken.messages]
        embedded_jobs.nack(connection, queue.name, [(receipt, 0) for receipt in receipts[:5]], queue.store.now(), 5)
        embedded_jobs.ack(connection, queue.name, receipts[5:], queue.store.now())

    return await instructions(queue, work)


async def test_cost_does_not_grow_with_the_backlog(queue: EmbeddedQueue) -> None:
    costs = []
    for size in (100, 20_000):
        sized = await another(queue.store, f"backlog {size}")
        await sized.publish([Outgoing("x", f"g{n % (size // 50)}") for n in range(size)])
        costs.append(await cost_of_take_and_ack(sized))
    assert costs[1] < costs[0] * 1.2


async def test_cost_does_not_grow_with_a_hot_locked_group(queue: EmbeddedQueue) -> None:
    costs = []
    for size in (10, 20_000):
        sized = await another(queue.store, f"hot {size}")
        await sized.publish([Outgoing("x", "hot")] * size)
        await take(sized, 5)
        await sized.publish([Outgoing("x", f"g{n % 2}") for n in range(20)])
        costs.append(await cost_of_take_and_ack(sized))
    assert costs[1] < costs[0] * 1.2


async def test_settling_in_a_deep_group_costs_no_more_than_in_a_shallow_one(queue: EmbeddedQueue) -> None:
    costs = []
    for size in (40, 20_000):
        sized = await another(queue.store, f"deep {size}")
        await sized.publish([Outgoing("x", "hot")] * size)
        costs.append(await cost_of_take_and_ack(sized))
    assert costs[1] < costs[0] * 1.2


async def test_cost_does_not_grow_with_the_backlog_of_a_pool_without_room(queue: EmbeddedQueue) -> None:
    costs = []
    for size in (100, 20_000):
        sized = await another(queue.store, f"full pool {size}")
        await sized.publish([Outgoing('{"poolCode": "FULL"}', f"g{n % (size // 5)}") for n in range(size)])
        await sized.publish([Outgoing('{"poolCode": "IDLE"}', f"h{n % 4}") for n in range(40)])
        costs.append(await cost_of_take_and_ack(sized, Room({"FULL": 0, "IDLE": 100})))
    assert costs[1] < costs[0] * 1.2


async def test_cost_does_not_grow_with_the_number_of_pools_that_messages_name(queue: EmbeddedQueue) -> None:
    costs = []
    for size in (1000, 20_000):
        sized = await another(queue.store, f"codes {size}")
        await sized.publish([Outgoing(f'{{"poolCode": "P{n}"}}', f"g{n}") for n in range(size)])
        await sized.publish([Outgoing('{"poolCode": "IDLE"}', f"h{n % 4}") for n in range(40)])
        costs.append(await cost_of_take_and_ack(sized, Room({"IDLE": 100})))
    assert costs[1] < costs[0] * 1.2


async def test_cost_of_looking_for_nothing_does_not_grow_with_what_there_is_no_room_for(queue: EmbeddedQueue) -> None:
    costs = []
    for size in (100, 20_000):
        sized = await another(queue.store, f"no room {size}")
        await sized.publish([Outgoing('{"poolCode": "FULL"}', f"g{n}") for n in range(size)])
        room = Room({"FULL": 0, "IDLE": 100})
        look = partial(embedded_take.take, queue=sized.name, limit=20, owner="me", now=0.0, visibility_s=60, room=room)
        costs.append(await instructions(sized, look))
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

    def by_lane(self, bodies: Sequence[str]) -> dict[str, list[str]]:
        lanes = {message["body"]: message["lane"] for message in self.messages}
        return {lane: [body for body in bodies if lanes[body] == lane] for lane in set(lanes.values())}

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
            assert model.by_lane(bodies(deliveries)) == model.by_lane(model.receive(clock.now))
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
