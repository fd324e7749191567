"""A JetStream server, and a stream of its own for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integration.nats.scene import Scene
from tests.servers.nats import NatsServer, nats_server


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
async def scene(server: NatsServer) -> AsyncIterator[Scene]:
    scene = Scene(server)
    yield scene
    await scene.close()
