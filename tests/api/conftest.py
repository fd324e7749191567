from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.api.dispatching import Dispatching, dispatching
from tests.api.running import Running, run_router


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_router(tmp_path) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def idle_router(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One router for all tests that ask for nothing that changes it. They have to run in its loop: `on_idle_router`."""
    async with run_router(tmp_path_factory.mktemp("idle")) as running:
        yield running


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Dispatching]:
    """A router that dispatches jobs."""
    async with dispatching(tmp_path) as jobs:
        yield jobs
