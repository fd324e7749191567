from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio

from flowcatalyst.dispatch.sealing import new_secret_key
from tests.api.dispatching import Dispatching, dispatching
from tests.api.running import Running, run_router
from tests.api.subscribing import Subscribing, subscribing
from tests.servers.postgres import PostgresServer, postgres_server

_schemas = count(1)


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_router(tmp_path) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def idle_router(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One router for all tests that ask for nothing that changes it. They have to run in its loop: `on_idle_router`."""
    async with run_router(tmp_path_factory.mktemp("idle")) as running:
        yield running


@pytest.fixture(scope="session")
def job_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings of each kind of store."""
    platform = {}
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("job_server")
        platform["database_url"] = f"{server.url}?schema=jobs_{next(_schemas)}"
        platform["secret_key"] = new_secret_key()
    return platform


@pytest.fixture
async def jobs(tmp_path: Path, store: dict[str, str]) -> AsyncIterator[Dispatching]:
    """A router that dispatches jobs, on each kind of store."""
    async with dispatching(tmp_path, platform=store) as jobs:
        yield jobs


@pytest.fixture
async def shop(tmp_path: Path, store: dict[str, str]) -> AsyncIterator[Subscribing]:
    """A platform with an application that gets webhooks, on each kind of store."""
    async with subscribing(tmp_path, platform=store) as shop:
        yield shop
