"""What a queue of Amazon's would cost: requests, which are billed one by one. Counted where they leave."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiobotocore.session import get_session  # type: ignore[import-untyped]

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import DEFAULT_POOL, Delivery, Outcome
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.queues.address import SqsAddress
from flowcatalyst.queues.sqs import memory as sqs_memory
from flowcatalyst.queues.sqs import queue as sqs
from flowcatalyst.queues.sqs.queue import SqsQueue
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.limits import PoolLimits
from tests.servers.elasticmq import ElasticMqServer
from tests.support.rig import OK, ListedDeadLetters, SilentLog, outgoing

MESSAGES, GROUPS = 1000, 50
MOST_CALLS_PER_MESSAGE = 0.25
SHORT_POLL_S = 2.0
IDLE_S = 12


class Willing:
    """Takes every message at once."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    async def attempt(self, delivery: Delivery, timeout_s: float | None = None) -> Outcome:
        self.taken.append(delivery.pointer.id)
        return OK


@pytest.fixture
def address(elasticmq: ElasticMqServer) -> SqsAddress:
    name = f"cost-{secrets.token_hex(6)}.fifo"
    url = f"{elasticmq.url}/{elasticmq.account}/{name}"
    return SqsAddress(name, url, elasticmq.region, elasticmq.url, create=True)


@asynccontextmanager
async def engine_on(queue: SqsQueue, mediator: Willing) -> AsyncIterator[Engine]:
    clock = SystemClock()
    engine = Engine(ListedDeadLetters(), WarningLog(clock), clock)
    engine.start({"orders": queue}, {DEFAULT_POOL: PoolLimits(concurrency=20)}, mediator, SilentLog())
    try:
        yield engine
    finally:
        await engine.stop()


async def fill(address: SqsAddress) -> None:
    publisher = SqsQueue("orders", address, SystemClock())
    await publisher.open()
    await publisher.publish([outgoing(f"m{number}", f"g{number % GROUPS}") for number in range(MESSAGES)])
    await publisher.close()


async def test_a_router_at_work_makes_few_calls_for_a_message(
    address: SqsAddress, elasticmq: ElasticMqServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqs, "LONG_POLL_S", SHORT_POLL_S)  # the last poll, which a stop waits for
    await fill(address)
    queue, mediator = SqsQueue("orders", address, SystemClock()), Willing()
    await queue.open()
    async with engine_on(queue, mediator) as engine:
        async with asyncio.timeout(60):
            while len(mediator.taken) < MESSAGES or len(engine.tracker):
                await asyncio.sleep(0.01)
        ours = (queue.calls["ReceiveMessage"] + queue.calls["DeleteMessageBatch"]) / MESSAGES
        print(f"\n{ours:.3f} calls a message: {dict(queue.calls)}")
    await queue.close()
    assert len(set(mediator.taken)) == MESSAGES
    assert ours <= MOST_CALLS_PER_MESSAGE

    await fill(address)
    theirs = await calls_one_by_one(address, elasticmq)
    print(f"{theirs:.3f} calls a message by a consumer that deletes one by one")
    assert theirs >= 1.1


async def calls_one_by_one(address: SqsAddress, elasticmq: ElasticMqServer) -> float:
    """Of a consumer as it is often written."""
    calls = deleted = 0
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    where = {"region_name": elasticmq.region, "endpoint_url": elasticmq.url}
    async with get_session().create_client("sqs", **where, **keys) as plain:
        while deleted < MESSAGES:
            batch = await plain.receive_message(QueueUrl=address.queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
            calls += 1
            for message in batch.get("Messages", []):
                await plain.delete_message(QueueUrl=address.queue_url, ReceiptHandle=message["ReceiptHandle"])
                calls, deleted = calls + 1, deleted + 1
    return calls / deleted


async def test_an_idle_queue_costs_its_long_polls_and_nothing_else(
    address: SqsAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With polls of 20 s that is three calls a minute, however often somebody asks for the depth."""
    assert sqs.LONG_POLL_S == 20.0
    monkeypatch.setattr(sqs, "LONG_POLL_S", SHORT_POLL_S)
    monkeypatch.setattr(sqs_memory, "DEPTH_CACHE_S", 1.5 * SHORT_POLL_S)
    queue = SqsQueue("orders", address, SystemClock())
    await queue.open()
    async with engine_on(queue, Willing()):
        while not queue.calls["ReceiveMessage"]:
            await asyncio.sleep(0.01)
        before = queue.calls.total()
        for _ in range(IDLE_S):
            await asyncio.sleep(1.0)
            depth = await queue.depth()
            assert depth is not None
            assert depth.waiting == 0
        calls = queue.calls.total() - before
        print(f"\n{calls} calls in {IDLE_S} s with polls of {SHORT_POLL_S:g} s: {dict(queue.calls)}")
    await queue.close()
    assert calls <= IDLE_S / SHORT_POLL_S + 1
