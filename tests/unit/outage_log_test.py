"""The log of what fails for long: it stays short, and tells the beginning and the end."""

import asyncio
from functools import partial
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from flowcatalyst.core.clock import IdSource
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.outage_log import OutageLog
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.dispatch import api_keys, catalog, housekeeping
from flowcatalyst.dispatch.api_keys import ApiKeys
from tests.support.clocks import SetClock
from tests.unit.catalog_test import Process, Store

TRIES = 50  # far more than there are lines


def test_an_outage_is_a_line_at_its_beginning_one_a_minute_and_one_at_its_end() -> None:
    clock = SetClock()
    outage = OutageLog(clock, structlog.get_logger(), "work_failed", "work_recovered", task="a")
    with capture_logs() as logged:
        outage.succeeded()
        for _ in range(1250):
            outage.failed(ValueError("away"))
            clock.now += 0.1
        outage.succeeded()
        outage.succeeded()
        outage.failed(ValueError("again"))
    assert [(line["action"], line.get("lasts_s", line.get("lasted_s"))) for line in logged] == [
        ("work_failed", 0),
        ("work_failed", 60),
        ("work_failed", 120),
        ("work_recovered", 125),
        ("work_failed", 0),
    ]
    assert {line["task"] for line in logged} == {"a"}


class Away(Store):
    """A store that is away for a number of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def revision(self) -> int:
        self.calls += 1
        if self.calls <= TRIES:
            raise QueueUnavailableError("away")
        return await super().revision()

    async def changed(self, since: int, wait_s: float) -> int:
        await asyncio.sleep(0)
        return await self.revision()

    async def look(self) -> None:
        await self.revision()


def _followers(store: Away) -> dict[str, Any]:
    outage = OutageLog(SetClock(), housekeeping.log, "housekeeping_failed", "housekeeping_recovered")
    return {
        "catalog": Process(store).catalog.follow,
        "api_keys": ApiKeys(store, IdSource(SetClock()), SetClock()).follow,
        "housekeeping": partial(housekeeping._repeat, outage, 0.0, store.look),
    }


@pytest.mark.parametrize(
    ("who", "actions"),
    [
        ("catalog", ["catalog_not_followed", "catalog_followed_again"]),
        ("api_keys", ["api_keys_not_followed", "api_keys_followed_again"]),
        ("housekeeping", ["housekeeping_failed", "housekeeping_recovered"]),
    ],
)
async def test_a_database_that_is_away_is_told_once_and_once_when_it_is_back(
    who: str, actions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "RETRY_S", 0.0)
    monkeypatch.setattr(api_keys, "RETRY_S", 0.0)
    store, tasks = Away(), Tasks()
    with capture_logs() as logged:
        tasks.spawn(_followers(store)[who]())
        async with asyncio.timeout(10):
            while store.calls < TRIES + 5:
                await asyncio.sleep(0)
        await tasks.cancel()
    assert [line["action"] for line in logged] == actions
