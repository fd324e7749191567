"""SQS queues, FIFO and standard, under the conformance suite on ElasticMQ, and what of it only moto shows.

Neither is Amazon. Where they differ from what Amazon documents, and why some tests run on moto, too:

- ElasticMQ takes a FIFO receipt after its lease ended, as long as nobody received the message again; it does not know
  the receipt of a deleted message again; it refuses a MessageGroupId on a standard queue. Killed and started again, it
  has lost the order of messages that came within one millisecond.
- moto takes a FIFO receipt for ever, even after a newer one; it answers a duplicate with a message id of its own; it
  checks neither ids nor bodies; it keeps nothing when it is killed. When the leases of several messages of a group ran
  out since it last looked, it shows the last of them first. It takes a MessageGroupId on a standard queue, as Amazon
  does.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.address import SqsAddress
from flowcatalyst.queues.contract import BrokerQueue, Outgoing, Published
from flowcatalyst.queues.sqs.messages import Receipt
from flowcatalyst.queues.sqs.queue import SqsQueue
from tests.conformance.bench import Bench, bodies, grouped, take
from tests.conformance.crash_suite import crashed_twice
from tests.conformance.queue_suite import QueueSuite
from tests.conformance.random_walk import Walk
from tests.servers.elasticmq import ElasticMqServer, elasticmq_server
from tests.servers.moto import MotoServer, moto_server


class PatientSqsQueue(SqsQueue):
    """Publishes one by one, no two messages in one millisecond."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        published: list[Published] = []
        for message in messages:
            published += await super().publish([message])
            await asyncio.sleep(0.002)
        return published


class SqsBench(Bench):
    """Clients create the queue, and create it again where the server lost it."""

    counts_calls = True
    one_by_one = False  # each message is sent in a request of its own

    def __init__(self, server: ElasticMqServer | MotoServer, *, fifo: bool) -> None:
        super().__init__()
        self._server = server
        name = f"orders-{secrets.token_hex(6)}{'.fifo' if fifo else ''}"
        url = f"{server.url}/{server.account}/{name}"
        self._address = SqsAddress(name, url, server.region, server.url, create=True)

    def make(self, visibility_s: float) -> BrokerQueue:
        kind = PatientSqsQueue if self.one_by_one else SqsQueue
        return kind("orders", self._address, self.clock, visibility_s=visibility_s)

    async def cut(self, client: BrokerQueue) -> None:
        assert isinstance(client, SqsQueue)
        await client._tasks.cancel()
        await client._connection.close()

    def spoil(self, delivery: Delivery) -> None:
        receipt = delivery.receipt
        delivery.receipt = Receipt("of-somebody-else", receipt.group_id, receipt.received_at, receipt.until)

    def kill_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def calls(self, client: BrokerQueue) -> int:
        assert isinstance(client, SqsQueue)
        return client.calls.total()


@pytest.fixture(scope="module")
def elasticmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElasticMqServer]:
    with elasticmq_server(tmp_path_factory.mktemp("elasticmq")) as server:
        yield server


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


class TestFifoOnElasticMq(QueueSuite):
    @pytest.fixture
    async def bench(self, elasticmq: ElasticMqServer) -> AsyncIterator[Bench]:
        bench = SqsBench(elasticmq, fifo=True)
        yield bench
        await bench.close()

    async def test_after_a_restart_of_the_broker_everything_is_there_in_order(self, bench: Bench) -> None:
        assert isinstance(bench, SqsBench)
        bench.one_by_one = True
        await super().test_after_a_restart_of_the_broker_everything_is_there_in_order(bench)


class TestStandardOnElasticMq(QueueSuite):
    @pytest.fixture
    async def bench(self, elasticmq: ElasticMqServer) -> AsyncIterator[Bench]:
        bench = SqsBench(elasticmq, fifo=False)
        yield bench
        await bench.close()


class TestFifoOnMoto:
    """A server that takes any receipt, answers duplicates with ids of their own, forgets its queues, and reorders."""

    @pytest.fixture
    async def bench(self, moto: MotoServer) -> AsyncIterator[Bench]:
        bench = SqsBench(moto, fifo=True)
        yield bench
        await bench.close()

    # Receipts that it takes although their lease ended and a newer one is out.
    test_a_lease_that_ends_shows_the_message_again = QueueSuite.test_a_lease_that_ends_shows_the_message_again
    test_a_stale_receipt_is_ok_only_if_it_removes_it = (
        QueueSuite.test_a_stale_receipt_is_ok_only_if_it_removes_the_message
    )
    test_an_ack_of_what_is_gone_is_fine = QueueSuite.test_an_ack_of_what_is_gone_is_fine
    test_a_batch_of_acks_fails_in_part = QueueSuite.test_a_batch_of_acks_fails_in_part
    # Duplicates by another id than the first.
    test_a_deduplication_id_counts_once = QueueSuite.test_a_deduplication_id_counts_once_if_that_is_claimed
    # A broker that comes back without its queue.
    test_a_broker_that_goes_away_is_an_error = (
        QueueSuite.test_a_broker_that_goes_away_is_an_error_and_its_return_is_noticed
    )

    async def test_order_does_not_survive_a_failure_and_its_cascade(self, bench: Bench) -> None:
        """Whatever a client does. When this fails, moto was repaired: remove it."""
        queue = await bench.client()
        await queue.publish(grouped("a1", "a2", "a3"))
        taken = await take(queue, 3)
        await queue.nack(taken, 1.0)
        await asyncio.sleep(1.5)
        assert bodies(await take(queue, 1)) == ["a3"]

    async def test_crashes_in_a_row_lose_nothing_on_a_broker_that_reorders(self, bench: Bench) -> None:
        await crashed_twice(bench)

    async def test_on_a_random_walk_nothing_is_lost_on_a_broker_that_reorders(self, bench: Bench) -> None:
        await Walk(bench, 0, ordered=False).go()


class TestStandardOnMoto:
    """A server that takes the group of a message on a standard queue; ElasticMQ's has to stand beside the body."""

    @pytest.fixture
    async def bench(self, moto: MotoServer) -> AsyncIterator[Bench]:
        bench = SqsBench(moto, fifo=False)
        yield bench
        await bench.close()

    test_a_message_comes_as_it_was_published = QueueSuite.test_a_message_comes_as_it_was_published
    test_any_name_of_a_group_comes_back_as_it_was = QueueSuite.test_any_name_of_a_group_comes_back_as_it_was
    test_messages_without_a_group_wait_for_nobody = QueueSuite.test_messages_without_a_group_wait_for_nobody
    test_a_message_that_unlocks_its_group_comes_later = (
        QueueSuite.test_a_message_that_unlocks_its_group_lets_the_others_pass_and_comes_later
    )
    test_failures_come_with_a_message_that_comes_again = (
        QueueSuite.test_failures_are_handed_out_with_a_message_that_comes_again
    )
