"""Intake: an event that thousands want is taken in turns, and what is sent is made once."""

import asyncio
from collections.abc import Sequence
from typing import cast
from unittest.mock import patch

import msgspec

from flowcatalyst.core.clock import IdSource
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.dispatch.catalog import Catalog
from flowcatalyst.dispatch.event import Event, NewEvent, new_event
from flowcatalyst.dispatch.intake import JOBS_A_TURN, Intake
from flowcatalyst.dispatch.job import Job
from flowcatalyst.dispatch.sealing import Sealer
from flowcatalyst.dispatch.store import postgres_columns
from flowcatalyst.dispatch.store.platform_contract import EventAccepted, EventKept, EventStore
from flowcatalyst.dispatch.subscription import EventTypeBinding, Subscription, jobs_of
from tests.support.clocks import SetClock
from tests.unit.catalog_test import Store

MANY = 4 * JOBS_A_TURN + 7


class Keeping(Store):
    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []

    async def accept(self, events: Sequence[tuple[Event, Sequence[Job]]]) -> list[EventAccepted]:
        self.jobs += [job for _, jobs in events for job in jobs]
        return [EventAccepted(EventKept(event, len(jobs), 1.0)) for event, jobs in events]


class CountedIds(IdSource):
    """Ids by the turn of the loop in which somebody asked for them."""

    def __init__(self, clock: SetClock) -> None:
        super().__init__(clock)
        self.by_turn = [0]

    def new_id(self) -> str:
        self.by_turn[-1] += 1
        return super().new_id()

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.by_turn.append(0)


def subscription(code: str, *, data_only: bool = False) -> Subscription:
    wanted = (EventTypeBinding("order.*"),)
    return Subscription(code=code, target_url="https://shop.example/", event_types=wanted, data_only=data_only)


def happened(data_base64: str | None = None) -> Event:
    asked = NewEvent(type="order.created", source="shop", message_group="g", data_base64=data_base64)
    return new_event(asked, "e", 1.0)


async def test_the_jobs_of_an_event_are_made_in_turns_and_in_order() -> None:
    clock, store, tasks = SetClock(), Keeping(), Tasks()
    catalog = Catalog(store, Sealer(b"k" * 32), clock, WarningLog(clock), lambda: asyncio.sleep(0))
    for number in range(MANY):
        catalog.matcher.replace(subscription(f"s{number:05}"))
    ids = CountedIds(clock)
    intake = Intake(cast(EventStore, store), catalog, ids, clock)
    tasks.spawn(ids.watch())
    (accepted,) = await intake.accept([happened()])
    await tasks.cancel()
    assert max(ids.by_turn) == JOBS_A_TURN
    assert accepted.kept.jobs == MANY
    assert [job.subscription for job in store.jobs] == [f"s{number:05}" for number in range(MANY)]
    assert {job.created_at for job in store.jobs} == {clock.wall()}


def test_data_are_decoded_once_for_all_who_want_them_alone() -> None:
    event = happened("AP8=")
    wanted = [subscription(f"s{number}", data_only=number < 20) for number in range(40)]
    with patch.object(Event, "data_bytes", autospec=True, side_effect=Event.data_bytes) as asked:
        jobs = jobs_of(event, wanted, lambda: "j", 1.0)
    assert asked.call_count == 1
    assert {job.payload for job in jobs[:20]} == {b"\x00\xff"}
    assert len({id(job.payload) for job in jobs}) == 2


async def test_what_jobs_have_in_common_goes_to_a_database_once_and_in_turns() -> None:
    clock, tasks, turns = SetClock(), Tasks(), [0]
    event = happened()
    wanted = [subscription(f"s{number}", data_only=number % 2 == 0) for number in range(MANY)]
    jobs = jobs_of(event, wanted, IdSource(clock).new_id, 1.0)

    async def watch() -> None:
        while True:
            await asyncio.sleep(0)
            turns[0] += 1

    tasks.spawn(watch())
    *columns, _, _, which = await postgres_columns.job_columns(jobs)
    await tasks.cancel()
    assert turns[0] >= MANY // postgres_columns.JOBS_A_TURN - 1  # the first of them begins the watch
    own = [number for number, column in enumerate(columns) if column is not None and len(column) == MANY]
    assert own == [0, 4, 5, 6, 16, 19]  # id, content type, headers, group, metadata, subscription
    assert columns[18] == [b"null", jobs[1].payload]
    assert which == [1 + number % 2 for number in range(MANY)]
    assert msgspec.json.decode(jobs[1].payload or b"")["type"] == "order.created"
