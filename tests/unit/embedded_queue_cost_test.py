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
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.queues.contract import Depth, FreeCapacity, Outgoing
from flowcatalyst.queues.embedded import jobs as embedded_jobs
from flowcatalyst.queues.embedded import lanes as embedded_lanes
from flowcatalyst.queues.embedded import take as embedded_take
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
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
        value.replace("{delays}", delays)
        for delays in embedded_lanes.Delays
        for name, value in constants
        if isinstance(value, str)
        and name[0] == "_"
        and name.isupper()
        and name not in ("_OF_ONE_POOL", "_OWNED", "_ALL_BY_DEFAULT")
    ]
    hot += [embedded_take.ready_messages(part, 2) for part in (embedded_take.SHARES, embedded_take.MORE)]
    assert len(hot) > 40
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


async def cost_of_take_and_ack(queue: EmbeddedQueue, free_capacity: FreeCapacity | None = None) -> int:
    def work(connection: sqlite3.Connection) -> None:
        taken = embedded_take.take(connection, queue.name, 20, "me", queue.store.now(), 60, free_capacity)
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
        costs.append(await cost_of_take_and_ack(sized, FreeCapacity({"FULL": 0, "IDLE": 100})))
    assert costs[1] < costs[0] * 1.2


async def test_cost_does_not_grow_with_the_number_of_pools_that_messages_name(queue: EmbeddedQueue) -> None:
    costs = []
    for size in (1000, 20_000):
        sized = await another(queue.store, f"codes {size}")
        await sized.publish([Outgoing(f'{{"poolCode": "P{n}"}}', f"g{n}") for n in range(size)])
        await sized.publish([Outgoing('{"poolCode": "IDLE"}', f"h{n % 4}") for n in range(40)])
        costs.append(await cost_of_take_and_ack(sized, FreeCapacity({"IDLE": 100})))
    assert costs[1] < costs[0] * 1.2


async def test_cost_of_looking_for_nothing_does_not_grow_with_what_there_is_no_room_for(queue: EmbeddedQueue) -> None:
    costs = []
    for size in (100, 20_000):
        sized = await another(queue.store, f"no room {size}")
        await sized.publish([Outgoing('{"poolCode": "FULL"}', f"g{n}") for n in range(size)])
        free_capacity = FreeCapacity({"FULL": 0, "IDLE": 100})
        look = partial(
            embedded_take.take,
            queue=sized.name,
            limit=20,
            owner="me",
            now=0.0,
            visibility_s=60,
            free_capacity=free_capacity,
        )
        costs.append(await instructions(sized, look))
    assert costs[1] < costs[0] * 1.2


# Against a model


class Model:
    """The rules in their simplest form: a list of messages, oldest first."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def publish(self, body: str, group: str) -> None:
        self.messages.append({"body": body, "lane": group, "hidden_until": 0.0, "delayed": False})

    def receive(self, now: float) -> list[str]:
        locked = {message["lane"] for message in self.messages if message["hidden_until"] > now}
        taken = [message for message in self.messages if message["lane"] not in locked]
        for message in taken:
            message.update(hidden_until=now + 60, delayed=False)
        return [message["body"] for message in taken]

    def by_lane(self, bodies: Sequence[str]) -> dict[str, list[str]]:
        lanes = {message["body"]: message["lane"] for message in self.messages}
        return {lane: [body for body in bodies if lanes[body] == lane] for lane in set(lanes.values())}

    def ack(self, body: str) -> None:
        self.messages.remove(self.find(body))

    def nack(self, body: str, now: float, delay_s: float, *, unlock: bool) -> None:
        message = self.find(body)
        message.update(hidden_until=now + delay_s, delayed=delay_s > 0, lane=body if unlock else message["lane"])

    def find(self, body: str) -> dict[str, Any]:
        (message,) = [message for message in self.messages if message["body"] == body]
        return message

    def depth(self, now: float) -> Depth:
        """What was given back with a delay counts as delayed for as long as anything locks its lane."""
        locked = {message["lane"] for message in self.messages if message["hidden_until"] > now}
        delayed = [message for message in self.messages if message["delayed"] and message["lane"] in locked]
        leased = [message for message in self.messages if message["hidden_until"] > now and not message["delayed"]]
        return Depth(len(self.messages) - len(leased) - len(delayed), len(leased), len(delayed))


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
            if action == "ack":
                model.ack(body)
                assert await queue.ack([delivery]) == [Settled.OK]
            else:
                unlock = action == "unlock"
                model.nack(body, clock.now, argument, unlock=unlock)
                assert await queue.nack([delivery], delay_s=argument, unlock=unlock) == [Settled.OK]
        assert await queue.depth() == model.depth(clock.now)


LEASE_OVER_ONE_GIVEN_BACK = [("publish", "a"), ("publish", "a"), ("receive", None), ("advance", 70.0), ("nack", 1)]
TWO_DELAYS = [("publish", "a"), ("publish", "a"), ("receive", None), ("nack", 2), ("nack", 9), ("advance", 5.0)]


@settings(deadline=None)
@given(actions=st.lists(ACTIONS, max_size=40))
@example(actions=LEASE_OVER_ONE_GIVEN_BACK)
@example(actions=TWO_DELAYS)
def test_it_behaves_like_the_simple_model(actions: list[tuple[str, Any]]) -> None:
    async def run(folder: str) -> None:
        clock = SetClock()
        async with opened(Path(folder) / "queue.db", clock) as queue:
            await follow(queue, clock, actions)

    with TemporaryDirectory() as folder:
        asyncio.run(run(folder))
