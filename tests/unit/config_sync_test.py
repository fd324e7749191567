"""Config sync on virtual time: attempts, pauses, what stays in force, and one sync at a time."""

import asyncio
import json
from typing import Any

import pytest

from flowcatalyst.control.config_source import ConfigUnavailableError, Fetched, FileSource, HttpSource, sources_from
from flowcatalyst.control.config_sync import ConfigSync, ConfigSyncFailedError, SyncReport
from flowcatalyst.control.router_config import RouterConfig
from flowcatalyst.control.settings import SyncSettings
from flowcatalyst.core.errors import INSIDE, ConfigurationError
from flowcatalyst.core.message import Severity
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import ENDINGS, WarningCode, WarningFilter
from flowcatalyst.router.limits import PoolLimits
from tests.support.virtual_loop import VirtualClock

pytestmark = pytest.mark.virtual_time

EPOCH = 1_800_000_000.0


def pools(**concurrency: object) -> bytes:
    """A configuration of pools only."""
    return json.dumps(
        {"processingPools": [{"code": code, "concurrency": n} for code, n in concurrency.items()]}
    ).encode()


class FakeSource:
    """Says what it is told to say. Its version is the text itself."""

    def __init__(self, label: str, says: bytes | str = pools(A=1), takes_s: float = 0.0) -> None:
        self.label = label
        self.says = says  # a str: why it cannot be reached
        self.takes_s = takes_s
        self.asked_at: list[float] = []
        self.asking = 0
        self.most_asking = 0

    async def fetch(self, known: str | None, timeout_s: float) -> Fetched | None:
        self.asked_at.append(asyncio.get_running_loop().time())
        self.asking += 1
        self.most_asking = max(self.asking, self.most_asking)
        says = self.says
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.asking -= 1
        if isinstance(says, str):
            raise ConfigUnavailableError(f"{self.label} {says}")
        return None if known == says.decode() else Fetched(says, says.decode())


class Scene:
    """A `ConfigSync` with fake sources, and what it did."""

    def __init__(self, *sources: FakeSource, **settings: Any) -> None:
        self.applied: list[dict[str, int]] = []  # concurrency by pool
        self.warnings: list[tuple[WarningCode, Severity, str]] = []
        self.mended: list[tuple[WarningCode | None, str | None]] = []
        self.apply_raises: Exception | None = None
        self.apply_takes_s = 0.0
        self.tasks = Tasks()
        self.sync = ConfigSync(
            SyncSettings(**settings), sources, VirtualClock(EPOCH), self, self._apply, self._existing_pools
        )

    def add(self, code: WarningCode, severity: Severity, message: str, source: str) -> None:
        self.warnings.append((code, severity, message))

    def acknowledge_all(self, wanted: WarningFilter) -> int:
        self.mended.append((wanted.code, wanted.text))
        return 1

    def end(self, code: WarningCode, message: str, source: str) -> None:
        self.warnings.append((ENDINGS[code], Severity.WARN, message))

    def texts(self, code: WarningCode) -> list[str]:
        return [message for known, _, message in self.warnings if known is code]

    @property
    def in_force(self) -> dict[str, int] | None:
        return None if self.sync.in_force is None else concurrency(self.sync.in_force)

    async def _apply(self, config: RouterConfig) -> None:
        await asyncio.sleep(self.apply_takes_s)
        self.applied.append(concurrency(config))
        if self.apply_raises is not None:
            raise self.apply_raises

    def _existing_pools(self) -> list[str]:
        return list(self.in_force or ())


def concurrency(config: RouterConfig) -> dict[str, int]:
    return {code: limits.concurrency for code, limits in config.pools.items()}


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_first_sync_puts_what_the_sources_say_in_force_at_once() -> None:
    source = FakeSource("one", pools(A=1))
    scene = Scene(source)
    await scene.sync.first_sync()
    assert (scene.applied, scene.in_force, now()) == ([{"A": 1}], {"A": 1}, 0.0)
    assert (scene.sync.last_attempt_at, scene.sync.last_success_at, scene.sync.last_error) == (EPOCH, EPOCH, "")
    assert scene.sync.sources[0].ok
    assert scene.warnings == []


async def test_first_sync_makes_12_attempts_5_seconds_apart_then_fails_with_a_critical_warning() -> None:
    source = FakeSource("one", "answered 500")
    scene = Scene(source)
    with pytest.raises(ConfigSyncFailedError, match="failed after 12 attempts: one answered 500"):
        await scene.sync.first_sync()
    assert source.asked_at == [5.0 * attempt for attempt in range(12)]
    text = "first config sync failed after 12 attempts: one answered 500"
    assert scene.warnings == [(WarningCode.CONFIG_SYNC_FAILED, Severity.CRITICAL, text)]
    assert (scene.applied, scene.sync.last_success_at) == ([], None)
    assert scene.sync.last_error == "one answered 500"
    assert not scene.sync.sources[0].ok


async def test_first_sync_needs_every_source_and_asks_none_again_that_answered() -> None:
    one, two = FakeSource("one", pools(A=1)), FakeSource("two", "is down")
    scene = Scene(one, two)
    first = scene.tasks.spawn(scene.sync.first_sync())
    await asyncio.sleep(12)
    assert scene.applied == []
    two.says = pools(B=2)
    await first
    assert scene.applied == [{"A": 1, "B": 2}]
    assert (one.asked_at, two.asked_at) == ([0.0], [0.0, 5.0, 10.0, 15.0])


async def test_first_sync_fails_if_one_source_never_answers() -> None:
    scene = Scene(FakeSource("one"), FakeSource("two", "is down"))
    with pytest.raises(ConfigSyncFailedError, match="two is down"):
        await scene.sync.first_sync()
    assert scene.applied == []


async def test_first_sync_takes_an_unusable_document_as_a_failed_attempt() -> None:
    source = FakeSource("one", b"<html>")
    scene = Scene(source)
    first = scene.tasks.spawn(scene.sync.first_sync())
    await asyncio.sleep(7)
    assert scene.sync.sources[0].failure.startswith("one is not valid JSON")
    source.says = pools(A=1)
    await first
    assert scene.applied == [{"A": 1}]


async def test_config_is_synced_every_5_minutes_whatever_a_sync_takes() -> None:
    source = FakeSource("one", takes_s=7.0)
    scene = Scene(source)
    await scene.sync.first_sync()
    scene.tasks.spawn(scene.sync.run())
    await asyncio.sleep(1000)
    assert source.asked_at == [0.0, 307.0, 607.0, 907.0]
    await scene.tasks.cancel()


async def test_a_later_failure_keeps_the_old_config_with_a_warning_and_the_next_sync_recovers() -> None:
    source = FakeSource("one", pools(A=1))
    scene = Scene(source)
    await scene.sync.first_sync()
    scene.tasks.spawn(scene.sync.run())
    source.says = "is down"
    await asyncio.sleep(599)
    assert source.asked_at[1:] == [300.0 + 5.0 * attempt for attempt in range(12)]
    text = "one is down; its pools and queues stay as they are"
    assert scene.warnings == [(WarningCode.CONFIG_SYNC_FAILED, Severity.WARN, text)]
    assert (scene.in_force, scene.sync.last_error, scene.sync.last_success_at) == ({"A": 1}, "one is down", EPOCH)
    source.says = pools(A=3)
    await asyncio.sleep(2)
    assert (scene.in_force, scene.sync.last_error, scene.sync.last_success_at) == ({"A": 3}, "", EPOCH + 600)
    await scene.tasks.cancel()


async def test_if_one_source_is_unreachable_its_pools_stay_and_the_news_of_the_others_apply() -> None:
    one, two = FakeSource("one", pools(A=1, BOTH=1)), FakeSource("two", pools(B=1))
    scene = Scene(one, two)
    await scene.sync.first_sync()
    scene.tasks.spawn(scene.sync.run())
    one.says = "is down"
    two.says = pools(B=2, BOTH=9)  # the first source still wins
    await asyncio.sleep(400)
    assert scene.in_force == {"A": 1, "BOTH": 1, "B": 2}
    assert two.asked_at == [0.0, 300.0]
    assert scene.sync.last_error == "one is down"
    assert [state.ok for state in scene.sync.sources] == [False, True]
    await scene.tasks.cancel()


async def test_equal_config_touches_nothing() -> None:
    source = FakeSource("one", pools(A=1, B=2))
    scene = Scene(source)
    await scene.sync.first_sync()
    source.says = pools(B=2, A=1)
    assert await scene.sync.sync_now() == SyncReport()
    assert await scene.sync.sync_now() == SyncReport()
    assert len(scene.applied) == 1


async def test_a_reload_tells_what_it_changed() -> None:
    source = FakeSource(
        "one",
        b'{"processingPools": [{"code": "A"}, {"code": "B"}, {"code": "C"}],'
        b' "queues": [{"queueName": "p"}, {"queueName": "q"}, {"queueName": "r"}]}',
    )
    scene = Scene(source)
    await scene.sync.first_sync()
    source.says = (
        b'{"processingPools": [{"code": "A"}, {"code": "B", "concurrency": 5}, {"code": "D"}, {"code": "E", '
        b'"concurrency": 0}], "queues": [{"queueName": "p"}, {"queueName": "q", "connections": 2}, '
        b'{"queueName": "s"}]}'
    )
    assert await scene.sync.sync_now() == SyncReport(
        changed=True,
        pools_added=["D"],
        pools_changed=["B"],
        pools_removed=["C"],
        queues_added=["s"],
        queues_changed=["q"],
        queues_removed=["r"],
        problems=["pool 'E' of one: concurrency is 0, it must be at least 1"],
    )


async def test_a_reload_asks_each_source_once_and_tells_who_is_unreachable() -> None:
    one, two = FakeSource("one", pools(A=1)), FakeSource("two", pools(B=1))
    scene = Scene(one, two)
    await scene.sync.first_sync()
    one.says, two.says = pools(A=2), "is down"
    report = await scene.sync.sync_now()
    assert (report.changed, report.pools_changed, report.unreachable) == (True, ["A"], ["two is down"])
    assert (len(one.asked_at), len(two.asked_at)) == (2, 2)
    assert scene.texts(WarningCode.CONFIG_SYNC_FAILED) == ["two is down; its pools and queues stay as they are"]
    assert scene.in_force == {"A": 2, "B": 1}


async def test_a_reload_before_every_source_has_answered_applies_nothing() -> None:
    scene = Scene(FakeSource("one"), FakeSource("two", "is down"))
    assert await scene.sync.sync_now() == SyncReport(unreachable=["two is down"])
    assert (scene.applied, scene.in_force) == ([], None)
    assert scene.texts(WarningCode.CONFIG_SYNC_FAILED) == ["two is down; its pools and queues are not known yet"]


async def test_one_sync_at_a_time_and_all_who_waited_share_one_that_began_after_they_called() -> None:
    source = FakeSource("one", pools(A=1), takes_s=3.0)
    scene = Scene(source)
    running = asyncio.gather(scene.sync.sync_now())
    await asyncio.sleep(1)
    source.says = pools(A=2)  # too late for the one that runs, and those who ask now have to see it
    waited = await asyncio.gather(*(scene.sync.sync_now() for _ in range(5)))
    assert [report.pools_added for report in await running] == [["A"]]
    assert [report.pools_changed for report in waited] == [["A"]] * 5
    assert (source.asked_at, source.most_asking) == ([0.0, 3.0], 1)
    assert scene.applied == [{"A": 1}, {"A": 2}]


async def test_a_reload_waits_for_a_running_attempt_but_not_for_the_pause_before_the_next() -> None:
    source = FakeSource("one", pools(A=1))
    scene = Scene(source)
    await scene.sync.first_sync()
    scene.tasks.spawn(scene.sync.run())
    source.says, source.takes_s = "is down", 2.0
    await asyncio.sleep(301)  # in the first attempt
    source.says, source.takes_s = pools(A=2), 0.0
    report = await scene.sync.sync_now()
    assert (report.changed, now(), source.most_asking) == (True, 302.0, 1)
    await asyncio.sleep(50)
    assert source.asked_at == [
        0.0,
        300.0,
        302.0,
    ]
    assert (len(scene.applied), scene.sync.last_error) == (2, "")
    await scene.tasks.cancel()


async def test_a_periodic_sync_that_falls_due_during_a_reload_waits_for_it() -> None:
    one, two = FakeSource("one", pools(A=1)), FakeSource("two", pools(B=1))
    scene = Scene(one, two)
    await scene.sync.first_sync()
    scene.tasks.spawn(scene.sync.run())
    await asyncio.sleep(298)
    two.takes_s = 5.0
    assert await scene.sync.sync_now() == SyncReport()
    assert (scene.sync.last_error, scene.sync.last_success_at) == ("", EPOCH + 303)
    await asyncio.sleep(100)
    assert (one.asked_at, two.asked_at) == ([0.0, 298.0, 303.0], [0.0, 298.0, 303.0])
    await scene.tasks.cancel()


async def test_whoever_gives_up_waiting_for_a_reload_leaves_the_others_theirs() -> None:
    source = FakeSource("one", pools(A=1), takes_s=3.0)
    scene = Scene(source)
    first = asyncio.get_running_loop().create_task(scene.sync.sync_now())
    second = asyncio.get_running_loop().create_task(scene.sync.sync_now())
    await asyncio.sleep(1)
    first.cancel()
    assert (await second).changed
    assert source.asked_at == [0.0, 1.0]


async def test_a_config_is_applied_to_its_end_although_the_caller_went_away() -> None:
    scene = Scene(FakeSource("one", pools(A=1)))
    scene.apply_takes_s = 3.0
    caller = asyncio.get_running_loop().create_task(scene.sync.sync_now())
    await asyncio.sleep(1)
    caller.cancel()
    await asyncio.wait([caller])
    assert (scene.applied, scene.in_force, now()) == ([{"A": 1}], {"A": 1}, 3.0)


async def test_if_applying_fails_the_old_config_counts_as_in_force_and_the_next_sync_tries_again() -> None:
    source = FakeSource("one", pools(A=1))
    scene = Scene(source)
    await scene.sync.first_sync()
    source.says = pools(A=2)
    scene.apply_raises = RuntimeError("disk full")
    report = await scene.sync.sync_now()
    text = "the configuration could not be applied: disk full"
    assert (report.changed, report.problems, scene.sync.problems) == (False, [text], [text])
    assert (scene.in_force, scene.sync.last_error, scene.sync.last_success_at) == ({"A": 1}, text, EPOCH)
    assert scene.warnings == [(WarningCode.CONFIG_SYNC_FAILED, Severity.WARN, text)]
    scene.apply_raises = None
    report = await scene.sync.sync_now()
    assert (report.changed, report.problems, scene.in_force, scene.sync.last_error) == (True, [], {"A": 2}, "")


async def test_after_a_failed_apply_even_the_config_in_force_is_applied_again() -> None:
    source = FakeSource("one", pools(A=1))
    scene = Scene(source)
    await scene.sync.first_sync()
    source.says, scene.apply_raises = pools(A=2), RuntimeError("half way")
    await scene.sync.sync_now()
    source.says, scene.apply_raises = pools(A=1), None
    await scene.sync.sync_now()
    assert scene.applied == [{"A": 1}, {"A": 2}, {"A": 1}]


async def test_first_sync_tries_a_failed_apply_again() -> None:
    source = FakeSource("one", pools(A=1))
    scene = Scene(source, attempts=3)
    scene.apply_raises = RuntimeError("no")
    with pytest.raises(ConfigSyncFailedError, match="could not be applied: no"):
        await scene.sync.first_sync()
    assert len(scene.applied) == 3
    assert scene.in_force is None


async def test_rejected_entries_and_conflicts_are_warned_of_in_the_same_words_at_every_sync() -> None:
    one, two = FakeSource("one", pools(A=1, BAD=0)), FakeSource("two", pools(A=2))
    scene = Scene(one, two)
    await scene.sync.first_sync()
    await scene.sync.sync_now()
    rejected = "pool 'BAD' of one: concurrency is 0, it must be at least 1"
    conflict = "pool 'A' of two is defined differently by one, which wins"
    assert scene.warnings == 2 * [
        (WarningCode.CONFIG_REJECTED, Severity.WARN, rejected),
        (WarningCode.CONFIG_CONFLICT, Severity.WARN, conflict),
    ]
    assert scene.sync.problems == [rejected, conflict]
    assert len(scene.applied) == 1


async def test_a_pool_whose_new_entry_is_rejected_stays_in_force_as_it_was() -> None:
    source = FakeSource("one", pools(A=4, B=1))
    scene = Scene(source)
    await scene.sync.first_sync()
    source.says = pools(A=-4, B=2)
    await scene.sync.sync_now()
    assert scene.in_force == {"A": 4, "B": 2}


async def test_pools_above_the_limit_are_left_out_and_existing_ones_kept() -> None:
    source = FakeSource("one", pools(B=1, C=1))
    scene = Scene(source, max_pools=2, pool_warning_threshold=1)
    await scene.sync.first_sync()
    source.says = pools(A=1, B=1, C=1)
    report = await scene.sync.sync_now()
    assert (scene.in_force, report.changed) == ({"B": 1, "C": 1}, False)
    critical = [text for code, severity, text in scene.warnings if severity is Severity.CRITICAL]
    assert critical == ["pools above the limit of 2 are left out: 1, the first is 'A'"]
    assert "there are more than 1 pools; above 2 they are left out" in scene.texts(WarningCode.POOL_LIMIT)


async def test_an_unusable_answer_never_passes_as_unchanged() -> None:
    source = FakeSource("one", pools(A=1))
    scene = Scene(source)
    await scene.sync.first_sync()
    source.says = b"{}"
    for _ in range(2):
        report = await scene.sync.sync_now()
        expected = "one is not a router configuration: it has neither queues nor processingPools"
        assert report.unreachable == [expected]
    assert scene.in_force == {"A": 1}


async def test_a_source_that_breaks_in_an_unforeseen_way_is_unreachable_and_the_sync_lives_on() -> None:
    class Broken(FakeSource):
        async def fetch(self, known: str | None, timeout_s: float) -> Fetched | None:
            raise KeyError("secret")

    scene = Scene(Broken("one"))
    assert (await scene.sync.sync_now()).unreachable == [f"one cannot be read: {INSIDE}"]


async def test_a_sync_that_dies_is_told_and_the_next_one_runs() -> None:
    def broken() -> list[str]:
        raise KeyError

    scene = Scene(FakeSource("one"))
    await scene.sync.first_sync()
    scene.sync._existing_pools = broken
    scene.tasks.spawn(scene.sync.run())
    await asyncio.sleep(700)
    assert len(scene.texts(WarningCode.CONFIG_SYNC_FAILED)) == 2
    assert scene.sync.last_error.startswith(f"config sync failed: {INSIDE}")
    await scene.tasks.cancel()


def test_sources_are_separated_by_commas_trimmed_and_taken_once_in_order() -> None:
    sources = sources_from(" http://b/x , ,config.json,https://a:8443/y?z=1, http://b/x,file:///etc/a%20b.json,")
    assert [source.label for source in sources] == [
        "http://b/x",
        "config.json",
        "https://a:8443/y?***",
        "/etc/a b.json",
    ]
    assert [type(source) for source in sources] == [HttpSource, FileSource, HttpSource, FileSource]
    assert sources_from(" , ") == []


@pytest.mark.parametrize(
    "setting",
    [
        "ftp://me:secret@host/x",
        "http://",
        "http:/host",
        "https://me:secret@/x",
        "http://me:secret@host:port/",
        "http://me:secret/word@host/",
        "http://host/a b",
        "http://[::1/",
        "file://server/x",
        "file:x",
        "file:///a%00b",
        "http://good/,redis://me:secret@host",
    ],
)
def test_a_source_that_can_never_be_fetched_is_a_wrong_setting_told_without_its_secrets(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sync\.config_url: ") as caught:
        sources_from(setting)
    assert "secret" not in str(caught.value)


def test_credentials_of_a_source_are_never_shown() -> None:
    [source] = sources_from("https://me:secret@host:8443/config.json?token=secret#secret")
    assert source.label == "https://***@host:8443/config.json?***"
    assert "secret" not in repr(source)


async def test_the_pools_of_a_document_reach_apply_with_all_their_limits() -> None:
    scene = Scene(FakeSource("one", b'{"processingPools": [{"code": "A", "rateLimitPerMinute": 60}]}'))
    await scene.sync.first_sync()
    assert scene.sync.in_force == RouterConfig({"A": PoolLimits(20, 60)}, {})
