"""Both brokers of ActiveMQ, and clients that are closed in the end."""

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.queues.address import AmqpAddress
from flowcatalyst.queues.amqp.queue import ActiveMqQueue, AmqpLogin
from tests.integration.activemq.scene import PASSWORD, Client, Server
from tests.servers.activemq import ActiveMqServer, activemq_server
from tests.servers.artemis import ArtemisServer, artemis_server

_numbers = count(1)


@pytest.fixture(scope="package")
def classic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMqServer]:
    with activemq_server(tmp_path_factory.mktemp("activemq")) as server:
        yield server


@pytest.fixture(scope="package")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtemisServer]:
    with artemis_server(tmp_path_factory.mktemp("artemis")) as server:
        yield server


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMqServer]:
    folder = tmp_path_factory.mktemp("guarded")
    with activemq_server(folder, user="router", password=PASSWORD, tls=True) as server:
        yield server


@pytest.fixture(params=["classic", "artemis"])
def broker(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def queue_name() -> str:
    return f"orders.{next(_numbers)}"


@pytest.fixture
async def client(queue_name: str) -> AsyncIterator[Client]:
    """Makes clients of the test's queue and closes them."""
    made: list[ActiveMqQueue] = []

    def make(
        *servers: Server,
        port: int = 0,
        tls: bool = False,
        login: AmqpLogin | None = None,
        clock: SystemClock | None = None,
    ) -> ActiveMqQueue:
        hosts = tuple(("127.0.0.1", port or server.port) for server in servers)
        address = AmqpAddress(hosts, queue_name, tls=tls)
        made.append(ActiveMqQueue("orders", address, clock or SystemClock(), login=login or AmqpLogin()))
        return made[-1]

    yield make
    for queue in made:
        await queue.close()
