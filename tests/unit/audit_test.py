"""The audit trail as a file: durable, bounded by action, in pages, and nobody waits for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flowcatalyst.control import audit as audit_module
from flowcatalyst.control.audit import (
    KEPT_PER_ACTION,
    MAX_DETAIL_CHARS,
    MAX_OBJECT_CHARS,
    MAX_PAGE_BYTES,
    MOST_SUMS,
    OTHERS,
    Actor,
    AuditAction,
    AuditEvent,
    AuditFilter,
    AuditLog,
)
from flowcatalyst.core.warnings import WarningCode, WarningLog
from tests.support.clocks import SetClock
from tests.support.patience import PATIENCE_S

ANN = Actor("ann", "admin", "10.0.0.1", None)
BOB = Actor("bob", "admin", "10.0.0.2", "192.0.2.1")
ALL = AuditFilter()


class Trail:
    def __init__(self, folder: Path) -> None:
        self.clock = SetClock()
        self.warnings = WarningLog(self.clock)
        self.log = AuditLog(folder / "audit.db", self.clock, self.warnings)

    async def events(self, wanted: AuditFilter = ALL, limit: int = 10_000) -> list[AuditEvent]:
        """All pages."""
        found: list[AuditEvent] = []
        while page := await self.log.page(limit, wanted):
            found += page
            wanted = replace(wanted, before=page[-1].number)
        return found


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Trail]:
    trail = Trail(folder)
    await trail.log.open()
    try:
        yield trail
    finally:
        await trail.log.close()


@pytest.fixture
async def trail(tmp_path: Path) -> AsyncIterator[Trail]:
    async with opened(tmp_path) as one:
        yield one


async def test_an_event_tells_who_did_what_and_when(trail: Trail) -> None:
    trail.log.record(BOB, AuditAction.POOL_CHANGE, "pool A", "concurrency 5 -> 10", 1)
    assert await trail.events() == [
        AuditEvent(
            number=1,
            at=1_000_000.0,
            until=1_000_000.0,
            action="pool_change",
            who="bob",
            role="admin",
            address="10.0.0.2",
            forwarded_for="192.0.2.1",
            object="pool A",
            detail="concurrency 5 -> 10",
            count=1,
            requests=1,
        )
    ]


async def test_events_survive_a_restart_and_are_listed_newest_first(tmp_path: Path) -> None:
    for number in range(3):
        async with opened(tmp_path) as trail:
            trail.log.record(ANN, AuditAction.BREAKER_RESET, f"endpoint {number}")
            trail.log.add_up(ANN, AuditAction.PUBLISH, f"queue {number}", 5)
    async with opened(tmp_path) as trail:
        assert [one.object for one in await trail.events()] == [
            "queue 2",
            "endpoint 2",
            "queue 1",
            "endpoint 1",
            "queue 0",
            "endpoint 0",
        ]


async def test_events_are_found_by_action_by_who_and_by_time(trail: Trail) -> None:
    for at, (actor, action) in enumerate(
        [(ANN, AuditAction.SEED), (BOB, AuditAction.SEED), (ANN, AuditAction.REFUSED)]
    ):
        trail.clock.now = 1_000.0 + at
        trail.log.record(actor, action, str(at))
    found = [
        [one.object for one in await trail.events(wanted)]
        for wanted in (
            AuditFilter(action=AuditAction.SEED),
            AuditFilter(who="ann"),
            AuditFilter(since=1_001.0),
            AuditFilter(AuditAction.SEED, "ann"),
            AuditFilter(who="nobody"),
        )
    ]
    assert found == [["1", "0"], ["2", "0"], ["2", "1"], ["0"], []]


async def test_many_events_of_one_action_push_out_nothing_of_another(trail: Trail) -> None:
    trail.log.record(ANN, AuditAction.DEAD_LETTER_DELETE, "all dead letters", count=7)
    for number in range(KEPT_PER_ACTION + 200):
        trail.log.record(BOB, AuditAction.BREAKER_RESET, str(number))
    kept = await trail.events(AuditFilter(action=AuditAction.BREAKER_RESET))
    assert [one.object for one in kept] == [str(number) for number in range(KEPT_PER_ACTION + 199, 199, -1)]
    [deleted] = await trail.events(AuditFilter(action=AuditAction.DEAD_LETTER_DELETE))
    assert deleted.count == 7


async def test_publishes_of_a_minute_are_one_event_for_each_caller_and_queue(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "SUM_UP_S", 0.05)
    for number in range(1000):
        trail.clock.now = 2_000.0 + number
        trail.log.add_up(ANN, AuditAction.PUBLISH, "queue a", 10)
    trail.log.add_up(BOB, AuditAction.PUBLISH, "queue a", 1)
    trail.log.add_up(ANN, AuditAction.PUBLISH, "queue b", 1)
    events = await trail.events()
    assert [(one.who, one.object, one.count, one.requests, one.until - one.at) for one in events] == [
        ("ann", "queue b", 1, 1, 0),
        ("bob", "queue a", 1, 1, 0),
        ("ann", "queue a", 10_000, 1000, 999),
    ]
    assert await trail.events() == events  # to look makes no more of them
    async with asyncio.timeout(PATIENCE_S):
        while trail.log._sums:
            await asyncio.sleep(0.01)
    trail.log.add_up(ANN, AuditAction.PUBLISH, "queue a", 3)
    assert [one.count for one in await trail.events()] == [3, 1, 1, 10_000]


async def test_strangers_from_everywhere_are_a_bounded_number_of_events(trail: Trail) -> None:
    for number in range(5000):
        trail.log.add_up(Actor("anonymous", None, f"10.1.{number // 250}.{number % 250}"), AuditAction.REFUSED, "401")
    events = await trail.events()
    assert len(events) == MOST_SUMS + 1
    assert (events[0].who, events[0].address) == (OTHERS, None)
    assert sum(one.requests for one in events) == 5000
    assert {one.count for one in events} == {None}


async def test_a_page_is_bounded_in_events_and_in_bytes_and_pages_miss_nothing(trail: Trail) -> None:
    for number in range(300):
        trail.log.record(ANN, AuditAction.WARNING_DELETE, str(number), "ü" * 10_000)
    page = await trail.log.page(7, ALL)
    assert [one.object for one in page] == [str(number) for number in range(299, 292, -1)]
    assert {len(one.detail) for one in page} == {MAX_DETAIL_CHARS}
    page = await trail.log.page(1000, ALL)
    assert 10 < len(page) <= MAX_PAGE_BYTES / (2 * MAX_DETAIL_CHARS)
    assert [one.object for one in await trail.events(limit=1000)] == [str(number) for number in range(299, -1, -1)]


async def test_what_others_have_a_hand_in_is_one_line_of_bounded_length(trail: Trail) -> None:
    trail.log.record(ANN, AuditAction.DEAD_LETTER_REPLAY, "a\nb\x1b[31m\ud800" + "x" * 1000, "c\r\nd")
    [event] = await trail.events()
    assert event.object.startswith("a?b?[31m?xxx")
    assert (len(event.object), event.detail) == (MAX_OBJECT_CHARS, "c??d")


async def test_what_cannot_be_recorded_is_a_warning_and_no_failure(tmp_path: Path) -> None:
    trail = Trail(tmp_path)
    trail.log.record(ANN, AuditAction.SEED, "before it is open")
    await trail.log.open()
    await trail.log.writer.run(lambda connection: connection.execute("DROP TABLE audit"))
    trail.log.record(ANN, AuditAction.SEED, "in vain")
    trail.log.add_up(ANN, AuditAction.PUBLISH, "in vain")
    await trail.log.close()
    assert {one.code for one in trail.warnings.recent()} == {WarningCode.AUDIT_FAILED}
    assert len(trail.warnings.recent()) == 2
