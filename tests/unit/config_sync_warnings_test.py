"""Config sync tells when a state is over: a source answers again, an entry is mended."""

import asyncio

import pytest
from structlog.testing import capture_logs

from flowcatalyst.control.config_sync import ConfigSync
from flowcatalyst.control.router_config import RouterConfig
from flowcatalyst.control.settings import SyncSettings
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningFilter, WarningLog
from tests.support.virtual_loop import VirtualClock
from tests.unit.config_sync_test import FakeSource, pools

pytestmark = pytest.mark.virtual_time

FAILED, RECOVERED = WarningCode.CONFIG_SYNC_FAILED, WarningCode.CONFIG_SYNC_RECOVERED


class Synced:
    """A sync with a real list of warnings, and what a webhook would get."""

    def __init__(self, *sources: FakeSource, **settings: float) -> None:
        self.warnings = WarningLog(VirtualClock())
        self.told: list[WarningCode] = []
        self.apply_raises: Exception | None = None
        self.warnings.on_new = lambda warning: self.told.append(warning.code)
        options = SyncSettings(**settings)
        self.sync = ConfigSync(options, sources, VirtualClock(), self.warnings, self._apply, list)

    async def _apply(self, config: RouterConfig) -> None:
        if self.apply_raises is not None:
            raise self.apply_raises

    def open(self) -> list[tuple[WarningCode, str]]:
        return [(one.code, one.message) for one in self.warnings.recent(WarningFilter(acknowledged=False))]


async def test_each_outage_of_a_source_is_told_with_its_end() -> None:
    source = FakeSource("one")
    scene, tasks = Synced(source, interval_s=300.0), Tasks()
    await scene.sync.first_sync()
    tasks.spawn(scene.sync.run())
    for _ in range(2):
        source.says = "is down"
        await asyncio.sleep(900)
        assert scene.open() == [(FAILED, "one is down; its pools and queues stay as they are")]
        source.says = pools(A=1)
        await asyncio.sleep(600)
        assert scene.open() == []
        assert scene.sync.last_error == ""
    assert scene.told == 2 * [FAILED, RECOVERED]
    await tasks.cancel()


async def test_a_source_that_is_back_is_no_longer_told_while_another_is_still_away() -> None:
    one, two = FakeSource("one"), FakeSource("two", pools(B=1))
    scene = Synced(one, two)
    await scene.sync.first_sync()
    one.says = two.says = "is down"
    await scene.sync.sync_now()
    one.says = pools(A=1)
    await scene.sync.sync_now()
    assert scene.open() == [(FAILED, "two is down; its pools and queues stay as they are")]
    assert scene.told == [FAILED, FAILED]
    two.says = pools(B=1)
    await scene.sync.sync_now()
    assert scene.open() == []


async def test_a_configuration_that_can_be_applied_at_last_ends_the_warning_that_it_could_not() -> None:
    source = FakeSource("one")
    scene = Synced(source)
    scene.apply_raises = OSError("no disk")
    await scene.sync.sync_now()
    assert [code for code, _ in scene.open()] == [FAILED]
    scene.apply_raises = None
    report = await scene.sync.sync_now()
    assert (report.problems, scene.sync.problems) == ([], [])
    assert scene.open() == []


async def test_warnings_about_entries_are_acknowledged_when_a_later_configuration_is_fine() -> None:
    one, two = FakeSource("one", pools(A=-1, B=1)), FakeSource("two", pools(B=2))
    scene = Synced(one, two, max_pools=1)
    two.says = pools(B=2, C=1)
    await scene.sync.sync_now()
    codes = {WarningCode.CONFIG_REJECTED, WarningCode.CONFIG_CONFLICT, WarningCode.POOL_LIMIT}
    assert {code for code, _ in scene.open()} == codes
    one.says = two.says = pools(B=1)
    report = await scene.sync.sync_now()
    assert (report.problems, scene.sync.problems, scene.open()) == ([], [], [])


async def test_a_reload_does_not_repeat_what_was_wrong_with_a_document_that_it_could_not_fetch() -> None:
    source = FakeSource("one", pools(A=-1, B=1))
    scene = Synced(source)
    assert len((await scene.sync.sync_now()).problems) == 1
    source.says = "is down"
    report = await scene.sync.sync_now()
    assert (report.problems, report.unreachable) == ([], ["one is down"])
    assert len(scene.sync.problems) == 1  # it is still the configuration in force


async def test_what_cannot_be_used_is_in_the_log_once_with_its_reason() -> None:
    source = FakeSource("one", b'{"queues": [{"queueName": "q", "connections": 0}]}')
    scene = Synced(source)
    with capture_logs() as logged:
        await scene.sync.first_sync()
        await scene.sync.sync_now()
    [line] = [one for one in logged if one.get("action") == "config_problem"]
    assert line["text"] == "queue 'q' of one: connections is 0, it must be at least 1"
