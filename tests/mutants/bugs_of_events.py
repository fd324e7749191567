"""Bugs of events and subscriptions: who gets what, pauses, replays, secrets, and places in groups."""

from collections.abc import Sequence
from dataclasses import replace
from sqlite3 import Connection
from typing import Any, Final

import msgspec

from flowcatalyst.core.message import Nack
from flowcatalyst.dispatch import pausing, rotation
from flowcatalyst.dispatch.catalog import Catalog
from flowcatalyst.dispatch.event import Event
from flowcatalyst.dispatch.job import Job
from flowcatalyst.dispatch.matcher import Matcher
from flowcatalyst.dispatch.pausing import Cancelled
from flowcatalyst.dispatch.stamp import JobStamp, LeasedGroups
from flowcatalyst.dispatch.store import sqlite_queue
from flowcatalyst.dispatch.store.job_rows import catalog as catalog_rows
from flowcatalyst.dispatch.store.job_rows import columns, enter, positions, recalling, settle
from flowcatalyst.dispatch.store.job_rows import events as event_rows
from flowcatalyst.dispatch.store.job_rows import pause as pause_rows
from flowcatalyst.dispatch.store.sqlite import SqliteJobStore
from flowcatalyst.dispatch.subscription import Subscription
from flowcatalyst.router import policy
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.settler import Settler
from tests.mutants.bugs_of_jobs import without_refresh
from tests.mutants.mutant import Bugs, Hunter, instead_of, set_everywhere

BUGS: Final = Bugs(Hunter.EVENTS)
SUITE: Final = "tests/conformance/sqlite_job_store_test.py::TestSqliteJobStore"

Accepting = Sequence[tuple[Event, Sequence[Job]]]


# Events and their jobs


@BUGS.add("an event is kept without the last of its jobs")
def _() -> None:
    @instead_of(event_rows, "accept")
    def accept(original: Any, connection: Connection, events: Accepting, now: float, wall: float) -> Any:
        return original(connection, [(event, list(jobs)[:-1]) for event, jobs in events], now, wall)


@BUGS.add("an event that comes again is kept again")
def _() -> None:
    @instead_of(event_rows, "accept")
    def accept(original: Any, connection: Connection, events: Accepting, now: float, wall: float) -> Any:
        without = [(msgspec.structs.replace(event, deduplication_id=None), jobs) for event, jobs in events]
        return original(connection, without, now, wall)


@BUGS.add("an event that comes again makes its jobs again")
def _() -> None:
    @instead_of(event_rows, "accept")
    def accept(original: Any, connection: Connection, events: Accepting, now: float, wall: float) -> Any:
        accepted = original(connection, events, now, wall)
        for one, (_, jobs) in zip(accepted, events, strict=True):
            if one.repeated:
                enter.create(connection, jobs, now, wall)
        return accepted


@BUGS.add("a process takes events in before it knows who wants them")
def _() -> None:
    @instead_of(Catalog, "ready")
    async def ready(original: Any, self: Any) -> None:
        """It will know soon."""

    @instead_of(Catalog, "fresh")
    async def fresh(original: Any, self: Any) -> None:
        """The same."""


@BUGS.add("who wants an event is not asked again after an edit")
def _() -> None:
    @instead_of(Matcher, "replace")
    def replace_(original: Any, self: Any, subscription: Subscription) -> None:
        if subscription.code not in self._by_code:
            original(self, subscription)


@BUGS.add("a subscription that was edited still wants what it wanted")
def _() -> None:
    @instead_of(Matcher, "replace")
    def replace_(original: Any, self: Any, subscription: Subscription) -> None:
        known = self._by_code.get(subscription.code)
        before = () if known is None else known[0].event_types
        types = tuple(dict.fromkeys((*before, *subscription.event_types)))
        original(self, msgspec.structs.replace(subscription, event_types=types))


@BUGS.add("a removed subscription still gets jobs")
def _() -> None:
    set_everywhere(enter, "_CODES", "SELECT value FROM json_each(?)")


@BUGS.add("other processes hear of no change of the catalog")
def _() -> None:
    @instead_of(Catalog, "follow")
    async def follow(original: Any, self: Any) -> None:
        await self.ready()


@BUGS.add(
    "an added subscription is paused as the one before it was",
    test="tests/conformance/sqlite_job_store_test.py::TestSqliteJobStore::"
    "test_a_new_subscription_is_not_paused_by_what_one_of_its_code_left",
)
def _() -> None:
    @instead_of(catalog_rows, "add")
    def add(original: Any, connection: Connection, *args: Any, **options: Any) -> Any:
        before = connection.execute("SELECT * FROM paused_subscriptions").fetchall()
        added = original(connection, *args, **options)
        connection.execute("DELETE FROM paused_subscriptions")
        connection.executemany("INSERT INTO paused_subscriptions VALUES (?, ?, ?)", before)
        return added


# Pauses


def _settling(refresh: Any) -> None:
    """While lanes of a pause or resume are settled, they are refreshed like this."""
    as_usual = columns.refresh

    @instead_of(pause_rows, "settle")
    def settle_(original: Any, connection: Connection, limit: int, now: float, wall: float) -> int:
        set_everywhere(columns, "refresh", refresh(as_usual))
        try:
            return int(original(connection, limit, now, wall))
        finally:
            set_everywhere(columns, "refresh", as_usual)


@BUGS.add("a pause does not hold up new jobs that are ordered with nothing")
def _() -> None:
    set_everywhere(pause_rows, "paused_of", lambda connection, subscriptions: set())


@BUGS.add("a resume loses the last lane of each part")
def _() -> None:
    _settling(lambda refresh: lambda connection, ids, now: refresh(connection, list(ids)[:-1], now))


@BUGS.add("what is paused or resumed is looked at in one part only")
def _() -> None:
    @instead_of(pause_rows, "settle")
    def settle_(original: Any, connection: Connection, limit: int, now: float, wall: float) -> int:
        settled = int(original(connection, limit, now, wall))
        connection.execute("UPDATE paused_subscriptions SET walked_to = NULL")
        connection.execute("DELETE FROM paused_subscriptions WHERE NOT paused")
        return settled


@BUGS.add("a pause does not reach what waits")
def _() -> None:
    @instead_of(pause_rows, "settle")
    def settle_(original: Any, *args: Any, **options: Any) -> Any:
        return without_refresh(lambda: original(*args, **options))


@BUGS.add("a pause recalls nothing that is in hand")
def _() -> None:
    @instead_of(pausing, "carry_out")
    async def carry_out(original: Any, store: Any, code: str) -> None:
        await pausing.settle(store)


@BUGS.add("a resume is only written down in the catalog")
def _() -> None:
    @instead_of(catalog_rows, "change")
    def change(original: Any, *args: Any, paused: bool | None = None, **options: Any) -> Any:
        return original(*args, paused=paused or None, **options)


@BUGS.add(
    "a subscription is paused or resumed in the catalog first, and in the store a moment later",
    test=f"{SUITE}::test_what_the_catalog_says_of_a_pause_and_what_the_store_does_are_one_unit_of_work",
)
def _() -> None:
    @instead_of(SqliteJobStore, "change")
    async def change(
        original: Any, self: Any, kind: Any, code: str, *args: Any, paused: Any = None, **more: Any
    ) -> Any:
        entry = await original(self, kind, code, *args, **more)
        if paused is not None:
            await self.set_paused(code, paused=paused)
        return entry


@BUGS.add(
    "who gives up a recall takes back what others asked for",
    test=f"{SUITE}::test_who_ends_a_recall_that_was_not_answered_answers_no_other_one",
)
def _() -> None:
    @instead_of(recalling, "end")
    def end(original: Any, connection: Connection, recall: Any, now: float, wall: float) -> None:
        connection.executemany("UPDATE lanes SET recall_epoch = NULL WHERE id = ?", [(lane,) for lane in recall.lanes])
        original(connection, recall, now, wall)


# Removal and replay


@BUGS.add("a removed subscription leaves its jobs behind")
def _() -> None:
    @instead_of(pausing, "cancel_all")
    async def cancel_all(original: Any, store: Any, code: str, actor: str) -> Cancelled:
        return Cancelled(0, 0)


@BUGS.add("a replay stands where its events stood")
def _() -> None:
    @instead_of(enter, "create")
    def create(
        original: Any, connection: Connection, jobs: Sequence[Job], now: float, wall: float, *, behind: bool = False
    ) -> Any:
        return original(connection, jobs, now, wall)


@BUGS.add("a replay leaves out what its subscription got before")
def _() -> None:
    @instead_of(enter, "create")
    def create(
        original: Any, connection: Connection, jobs: Sequence[Job], now: float, wall: float, *, behind: bool = False
    ) -> Any:
        return original(connection, jobs[:1] if behind else jobs, now, wall, behind=behind)


@BUGS.add("a replay that is repeated makes its jobs again")
def _() -> None:
    @instead_of(enter, "create")
    def create(
        original: Any, connection: Connection, jobs: Sequence[Job], now: float, wall: float, *, behind: bool = False
    ) -> Any:
        again = [replace(job, idempotency_key=None) for job in jobs] if behind else jobs
        return original(connection, again, now, wall, behind=behind)


@BUGS.add(
    "a replay makes jobs for a subscription that was removed",
    test="tests/conformance/sqlite_job_store_test.py::TestSqliteJobStore::"
    "test_no_past_event_becomes_a_job_of_a_subscription_that_was_removed",
)
def _() -> None:
    @instead_of(enter, "create_behind")
    def create_behind(original: Any, connection: Connection, jobs: Sequence[Job], now: float, wall: float) -> Any:
        return enter.create(connection, jobs, now, wall, behind=True)


# Secrets


@BUGS.add("a rotation drops the secret before it at once")
def _() -> None:
    @instead_of(rotation, "rotated")
    def rotated(original: Any, sealer: Any, secret: Any, now: float, overlap_s: float) -> Any:
        return original(sealer, secret, now, 0.0)


@BUGS.add("while secrets overlap only the newest one signs")
def _() -> None:
    @instead_of(Catalog, "secrets_of")
    def secrets_of(original: Any, self: Any, code: str, wall: float) -> Sequence[str]:
        return list(original(self, code, wall))[:1]


@BUGS.add("a secret that is over signs on")
def _() -> None:
    @instead_of(Catalog, "secrets_of")
    def secrets_of(original: Any, self: Any, code: str, wall: float) -> Sequence[str]:
        return list(original(self, code, wall - 2.0))


@BUGS.add("secrets that were opened are not opened anew after a rotation")
def _() -> None:
    @instead_of(Catalog, "_read")
    def read(original: Any, self: Any, entry: Any) -> None:
        opened = self._opened.get(entry.code)
        original(self, entry)
        if opened is not None:
            self._opened[entry.code] = opened


# Places in groups


@BUGS.add("a position is given to two jobs")
def _() -> None:
    @instead_of(sqlite_queue, "give_positions")
    def give_positions(original: Any, connection: Connection, *args: Any) -> Any:
        given = original(connection, *args)
        connection.execute("UPDATE group_positions SET given = given - 1 WHERE given > 1")
        return given


@BUGS.add("the store does not know what was delivered last of a group")
def _() -> None:
    @instead_of(positions, "note_delivered")
    def note_delivered(original: Any, connection: Connection, deliveries: Any, wall: float) -> None:
        """Who wants to know?"""


@BUGS.add("jobs that are in hand together do not know what was delivered of them")
def _() -> None:
    @instead_of(JobStamp, "delivered")
    def delivered(original: Any, self: Any, delivery: Any) -> None:
        """Who wants to know?"""


@BUGS.add("what is in hand counts as delivered before it is")
def _() -> None:
    @instead_of(JobStamp, "lines")
    def lines(original: Any, self: Any, delivery: Any, body: bytes, wall: float) -> str:
        text: str = original(self, delivery, body, wall)
        self.delivered(delivery)
        return text


@BUGS.add("a job that failed gets another position")
def _() -> None:
    @instead_of(settle, "nack")
    def nack(original: Any, connection: Connection, *args: Any, **options: Any) -> Any:
        settled = original(connection, *args, **options)
        connection.execute("UPDATE jobs SET position = NULL WHERE position IS NOT NULL")
        return settled


@BUGS.add(
    "an ack that is repeated has the position of a later handing-out",
    test="tests/unit/lost_acks_test.py::test_a_repeated_ack_names_the_position_that_the_request_had",
)
def _() -> None:
    @instead_of(Settler, "ends_already")
    def ends_already(original: Any, self: Any, delivery: Any) -> bool:
        position = delivery.position
        ended = bool(original(self, delivery))
        delivery.position = position
        return ended


@BUGS.add("a process that has something of a group in hand does not hear what others delivered of it")
def _() -> None:
    @instead_of(LeasedGroups, "of")
    def of(original: Any, self: Any, group: str, delivered: int) -> Any:
        leased = self._by_name.get(group)
        return original(self, group, leased.delivered if leased is not None and leased.in_hand else delivered)


@BUGS.add("a job that cannot be signed here is passed by the others of its group")
def _() -> None:
    @instead_of(Pool, "_abandon")
    def _abandon(original: Any, self: Any, delivery: Any, *, unsigned: bool = False, **options: Any) -> None:
        if unsigned and not self.draining:
            self._end_attempt(delivery, None, self._now())
            self._conclude(delivery, Nack(policy.UNSIGNED_DELAY_S))
        else:
            original(self, delivery, unsigned=unsigned, **options)
