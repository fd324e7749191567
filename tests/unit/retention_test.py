"""Retention of dead letters: by age and by number, told, and never in anybody's way."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowcatalyst.control.audit import AuditAction, AuditFilter, AuditLog
from flowcatalyst.control.dead_letters import DROP_BATCH, DeadLetters
from flowcatalyst.control.retention import DAY_S, Retention
from flowcatalyst.control.settings import DeadLetterSettings
from flowcatalyst.core.message import Delivery
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningLog
from tests.support.clocks import SetClock
from tests.support.deliveries import RecordingSource


class Kept:
    """Dead letters with everything that their retention needs."""

    def __init__(self, folder: Path) -> None:
        self.clock = SetClock()
        self.warnings = WarningLog(self.clock)
        self.audit = AuditLog(folder / "audit.db", self.clock, self.warnings)
        self.letters = DeadLetters(folder / "dead-letters.db", self.clock)

    def retention(self, max_age_days: float = 0, max_count: int = 0) -> Retention:
        settings = DeadLetterSettings(max_age_days=max_age_days, max_count=max_count)
        return Retention(self.letters, settings, self.warnings, self.audit)

    async def record(self, *reasons: str) -> None:
        await asyncio.gather(*(self.letters.record(delivery(), reason, None) for reason in reasons))

    async def reasons(self) -> list[str]:
        return [letter.reason for letter in await self.letters.page(10_000)]

    async def told(self) -> list[tuple[str, str, int | None]]:
        events = await self.audit.page(100, AuditFilter(action=AuditAction.DEAD_LETTER_DROP))
        return [(one.who, one.object, one.count) for one in reversed(events)]


def delivery() -> Delivery:
    delivery = Delivery("q-1", 1, "no pointer", "g")
    delivery.source = RecordingSource()
    return delivery


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    kept = Kept(tmp_path)
    await kept.audit.open()
    await kept.letters.open()
    yield kept
    await kept.letters.close()
    await kept.audit.close()


async def test_letters_are_dropped_when_they_are_too_old(kept: Kept) -> None:
    retention = kept.retention(max_age_days=90)
    await kept.record("old")
    kept.clock.now += 80 * DAY_S
    await kept.record("young")
    kept.clock.now += 10 * DAY_S
    await retention.look()
    assert await kept.reasons() == ["old", "young"]  # ninety days to the second are not more than ninety
    kept.clock.now += 1
    await retention.look()
    assert await kept.reasons() == ["young"]
    assert await kept.told() == [("retention", "dead letters older than 90 days", 1)]
    assert (await kept.letters.count(), kept.letters.dropped) == (1, {"age": 1, "count": 0})
    assert kept.warnings.recent() == []  # as agreed


async def test_the_oldest_are_dropped_when_there_are_too_many(kept: Kept) -> None:
    for number in range(7):
        await kept.record(f"r{number}")
    retention = kept.retention(max_count=5)
    await retention.look()
    await retention.look()
    assert await kept.reasons() == ["r2", "r3", "r4", "r5", "r6"]
    assert await kept.told() == [("retention", "dead letters beyond 5", 2)]
    [warning] = kept.warnings.recent()
    assert (warning.code, warning.count) == (WarningCode.DEAD_LETTERS_DROPPED, 1)
    assert "more than 5: replay or remove some, or raise dead_letters.max_count" in warning.message
    assert (await kept.letters.count(), kept.letters.dropped) == (5, {"age": 0, "count": 2})


async def test_both_bounds_are_on_and_generous_by_default_and_zero_is_none(kept: Kept) -> None:
    assert DeadLetterSettings().model_dump() == {"max_age_days": 90.0, "max_count": 1_000_000}
    await kept.record("one", "two")
    kept.clock.now += 10_000 * DAY_S
    await kept.retention(max_age_days=0, max_count=0).look()
    assert await kept.letters.count() == 2


@pytest.mark.parametrize("bounds", [{"max_age_days": 1}, {"max_count": 50}], ids=str)
async def test_many_are_dropped_in_small_batches_and_a_new_letter_waits_for_one_at_most(
    kept: Kept, bounds: dict[str, int]
) -> None:
    await kept.record(*["old"] * 1_050)
    kept.clock.now += 2 * DAY_S
    commits = kept.letters.writer.commits
    looking = Tasks().spawn(kept.retention(**bounds).look())
    await asyncio.sleep(0)
    await kept.record("new")
    assert not looking.done()
    await looking
    assert kept.letters.writer.commits - commits >= 1_000 // DROP_BATCH
    kept_now = await kept.reasons()
    assert kept_now[-1] == "new"
    assert len(kept_now) == await kept.letters.count() == (1 if "max_age_days" in bounds else 50)
    assert [count for _, _, count in await kept.told()] == [1_051 - len(kept_now)]


async def test_removing_all_goes_in_small_batches_too_and_spares_what_comes_meanwhile(kept: Kept) -> None:
    await kept.record(*["old"] * 350)
    counts = []
    async for count in kept.letters.purge_all():
        counts.append(count)
        await kept.record("new")
    assert counts == [100, 100, 100, 50]
    assert await kept.reasons() == ["new"] * 4
