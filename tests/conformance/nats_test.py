"""NATS JetStream under the conformance suite, with a real server."""

import itertools
from collections.abc import AsyncIterator, Iterator

import nats
import pytest

from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.address import NatsAddress
from flowcatalyst.queues.contract import BrokerQueue
from flowcatalyst.queues.nats.format import GROUP_HEADER
from flowcatalyst.queues.nats.queue import NatsLogin, NatsQueue
from tests.conformance.bench import Bench
from tests.conformance.queue_suite import QueueSuite
from tests.servers.nats import NatsServer, nats_server

numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


class NatsBench(Bench):
    """A stream of its own for each test, which the first client creates."""

    counts_calls = True

    def __init__(self, server: NatsServer) -> None:
        super().__init__()
        self._server = server
        self.address = NatsAddress((server.url,), f"ORDERS{next(numbers)}", "router", create=True)

    def make(self, visibility_s: float) -> BrokerQueue:
        return NatsQueue("orders", self.address, self.clock, visibility_s=visibility_s, login=NatsLogin())

    async def cut(self, client: BrokerQueue) -> None:
        assert isinstance(client, NatsQueue)
        if client._session is not None:
            client._session.link._connection.abort()
            await client._session.link.close()

    def spoil(self, delivery: Delivery) -> None:
        words = delivery.receipt.reply.split(".")
        words[5:7] = ["1000005", "1000006"]
        delivery.receipt = delivery.receipt._replace(reply=".".join(words), seq=1_000_005)

    def kill_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def calls(self, client: BrokerQueue) -> int:
        assert isinstance(client, NatsQueue)
        return client._session.link.calls if client._session else 0

    async def publish_foreign(self, body: bytes, group: str) -> None:
        await (await self.client()).publish([])
        await (await self.client()).receive(1, 0.0)  # the stream exists now
        connection = await nats.connect(self._server.url)
        await connection.jetstream().publish(f"{self.address.stream}.any", body, headers={GROUP_HEADER: group})
        await connection.close()


class TestNatsQueue(QueueSuite):
    @pytest.fixture
    async def bench(self, server: NatsServer) -> AsyncIterator[Bench]:
        bench = NatsBench(server)
        yield bench
        await bench.close()
