from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.api.running import Running, run_router
from tests.browser.shop import Shop, open_shop
from tests.support.browser import open_browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def router(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_router(tmp_path) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    """One for all tests: each has jobs, groups, events and subscriptions of its own there."""
    async with open_shop(tmp_path_factory.mktemp("shop")) as shop:
        yield shop
