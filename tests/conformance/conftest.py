"""The memory queue needs no real time: its tests run on a loop that jumps from timer to timer."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.support.virtual_loop import VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop} if item.path.name == "memory_test.py" else {"real": asyncio.new_event_loop}
