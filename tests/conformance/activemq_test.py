"""ActiveMQ Classic and Artemis under the conformance suite, over AMQP 1.0."""

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
from proton import Message

from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.address import AmqpAddress
from flowcatalyst.queues.amqp.connection import AmqpConnection
from flowcatalyst.queues.amqp.queue import ActiveMqQueue, AmqpLogin
from flowcatalyst.queues.contract import BrokerQueue
from tests.conformance.bench import Bench
from tests.conformance.queue_suite import QueueSuite
from tests.servers.activemq import ActiveMqServer, activemq_server
from tests.servers.artemis import ArtemisServer, artemis_server

_numbers = count(1)


class AmqpBench(Bench):
    def __init__(self, server: ActiveMqServer | ArtemisServer) -> None:
        super().__init__()
        self._server = server
        self._address = AmqpAddress((("127.0.0.1", server.port),), f"orders.{next(_numbers)}")

    def make(self, visibility_s: float) -> BrokerQueue:
        return ActiveMqQueue("orders", self._address, self.clock, login=AmqpLogin())

    async def cut(self, client: BrokerQueue) -> None:
        assert isinstance(client, ActiveMqQueue)
        if client._connection is not None:
            client._connection.abort()
        await client.close()

    def spoil(self, delivery: Delivery) -> None:
        delivery.receipt.connection = None

    def kill_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    async def publish_foreign(self, body: bytes, group: str) -> None:
        host, port = self._address.hosts[0]
        raw = Message(body=body, inferred=True, group_id=group, durable=True).encode()
        connection = await AmqpConnection.connect(
            host, port, user=None, password=None, tls=None, limit_s=5.0, clock=self.clock
        )
        await connection.open_sender(self._address.queue, 5.0)
        await connection.send([bytes(raw)], 5.0)
        await connection.close(2.0)


@pytest.fixture(scope="module")
def classic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMqServer]:
    with activemq_server(tmp_path_factory.mktemp("activemq")) as server:
        yield server


@pytest.fixture(scope="module")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtemisServer]:
    with artemis_server(tmp_path_factory.mktemp("artemis")) as server:
        yield server


class TestActiveMqClassic(QueueSuite):
    @pytest.fixture
    async def bench(self, classic: ActiveMqServer) -> AsyncIterator[Bench]:
        bench = AmqpBench(classic)
        yield bench
        await bench.close()


class TestArtemis(QueueSuite):
    @pytest.fixture
    async def bench(self, artemis: ArtemisServer) -> AsyncIterator[Bench]:
        bench = AmqpBench(artemis)
        yield bench
        await bench.close()
