"""PostgreSQL as a queue under the conformance suite, with a real server."""

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.contract import BrokerQueue
from flowcatalyst.queues.postgres.queue import PostgresQueue, PostgresStore
from flowcatalyst.storage.postgres import PostgresServer as Server
from tests.conformance.bench import Bench
from tests.conformance.front_suite import FrontSuite
from tests.conformance.inspection_suite import InspectionSuite
from tests.conformance.queue_suite import QueueSuite
from tests.servers.postgres import PostgresServer, postgres_server

numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as running:
        yield running


class PostgresBench(Bench):
    """Each client has a store of its own, as another process would. All tests share one schema."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server
        self._queue = f"orders-{next(numbers)}"

    def make(self, visibility_s: float) -> BrokerQueue:
        place = Server((("127.0.0.1", self._server.port),), "postgres", "postgres")
        return PostgresQueue(PostgresStore(place, self.clock), self._queue)

    async def cut(self, client: BrokerQueue) -> None:
        assert isinstance(client, PostgresQueue)
        await client._tasks.cancel()
        await client.store._tasks.cancel()
        await client.store.reconnect()

    def spoil(self, delivery: Delivery) -> None:
        held = delivery.receipt
        delivery.receipt = held._replace(receipt=held.receipt._replace(epoch=held.receipt.epoch + 1000))

    def kill_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()


class TestPostgres(QueueSuite, FrontSuite, InspectionSuite):
    @pytest.fixture
    async def bench(self, server: PostgresServer) -> AsyncIterator[Bench]:
        bench = PostgresBench(server)
        yield bench
        await bench.close()
