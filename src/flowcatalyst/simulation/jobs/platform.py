"""The platform of each simulated process: its catalog and its intake, and what clients and people ask of them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import count
from sqlite3 import Connection
from typing import Any, Final, TypeVar

import msgspec

from flowcatalyst.core.clock import Clock, IdSource
from flowcatalyst.core.errors import QueueUnavailableError, StorageError
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.core.webhook import secret_of
from flowcatalyst.dispatch import subscribing
from flowcatalyst.dispatch.api_keys import ApiKeys
from flowcatalyst.dispatch.catalog import Catalog
from flowcatalyst.dispatch.catalog_entries import StoredSubscription
from flowcatalyst.dispatch.event import Event, NewEvent
from flowcatalyst.dispatch.housekeeping import Housekeeping
from flowcatalyst.dispatch.intake import Intake
from flowcatalyst.dispatch.job import Job
from flowcatalyst.dispatch.job_counts import JobCounts
from flowcatalyst.dispatch.job_watch import JobWatch
from flowcatalyst.dispatch.pausing import Cancelled
from flowcatalyst.dispatch.platform import Platform
from flowcatalyst.dispatch.replaying import Replayed, replay
from flowcatalyst.dispatch.rotation import rotated, sealed
from flowcatalyst.dispatch.sealing import Sealer, SealError
from flowcatalyst.dispatch.store.contract import Acted, Action, Created, Filter
from flowcatalyst.dispatch.store.platform_contract import Entry, EventAccepted, UnknownEntryError
from flowcatalyst.dispatch.subscription import Subscription
from flowcatalyst.simulation.jobs.history import History, KeptEvent, Kind, Replay, Rotation, ToldEvent, Version
from flowcatalyst.simulation.jobs.store import Disk, WitnessedJobStore
from flowcatalyst.simulation.jobs.world import HOUSEKEEPING_S, JobsWorld, Process

T = TypeVar("T")
BLOCKED_S: Final = 1e9
SETTLED_AT_ONCE: Final = 2
_REVISION: Final = "SELECT revision FROM catalog_revision"
_CANCELLED: Final = "SELECT id FROM jobs WHERE status = 'CANCELLED' ORDER BY number"
_MADE: Final = "SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(?))"
_document: Final = msgspec.json.Decoder(StoredSubscription)


class PlainSealer(Sealer):
    """As safe as a simulation needs it, and the same in each run."""

    def __init__(self) -> None:
        super().__init__(bytes(32))

    def seal(self, text: str, about: str) -> str:
        return f"{about} {text}"

    def open(self, sealed: str, about: str) -> str:
        code, _, text = sealed.partition(" ")
        if code != about:
            raise SealError("it was sealed about something else")
        return text


class WitnessedPlatformStore(WitnessedJobStore):
    """The store of one process, which tells what it did to events, subscriptions and pauses when that is committed."""

    history: History
    disk: Disk

    @property
    def owner(self) -> str:
        return self.queue.store.owner

    async def accept(self, events: Sequence[tuple[Event, Sequence[Job]]]) -> list[EventAccepted]:
        made: set[str] = set()

        def look(connection: Connection) -> None:
            ids = msgspec.json.encode([job.id for _, jobs in events for job in jobs]).decode()
            made.clear()
            made.update(name for (name,) in connection.execute(_MADE, (ids,)))

        def tell(results: list[EventAccepted]) -> None:
            for (event, jobs), accepted in zip(events, results, strict=True):
                really = tuple(job for job in jobs if job.id in made)
                if not accepted.repeated:
                    kept = KeptEvent(
                        event.type,
                        event.message_group,
                        event.deduplication_id,
                        really,
                        accepted.kept.jobs,
                        accepted.kept.created_at,
                    )
                    self.history.add(Kind.KEPT, event.id, self.owner, kept)
                for job in really:
                    self.history.add(Kind.CREATED, job.id, self.owner, job)

        return await self.queue.witnessed(super().accept(events), tell, look)

    async def create(self, jobs: Sequence[Job], *, behind: bool = False) -> list[Created]:
        def tell(results: list[Created] | UnknownEntryError) -> None:
            for created in [] if isinstance(results, UnknownEntryError) else results:
                if not created.repeated:
                    self.history.add(Kind.CREATED, created.state.job.id, self.owner, created.state.job)

        return await self.queue.witnessed(super().create(jobs, behind=behind), tell)

    async def _change_catalog(self, job: Callable[..., Any]) -> Any:
        revision = 0

        def look(connection: Connection) -> None:
            nonlocal revision
            revision = connection.execute(_REVISION).fetchone()[0]

        def tell(result: Entry | Exception | None) -> None:
            if isinstance(result, Entry):
                version = Version(result.revision, _document.decode(result.document))
                self.history.add(Kind.ENTRY, result.code, self.owner, version)
                assert isinstance(job, partial)
                if (paused := job.keywords.get("paused")) is not None:
                    self.history.add(Kind.PAUSE if paused else Kind.RESUME, result.code, self.owner)
            elif result is None:
                assert isinstance(job, partial)
                self.history.add(Kind.ENTRY, job.keywords["code"], self.owner, Version(revision, None))
                self.history.add(Kind.PAUSE, job.keywords["code"], self.owner)

        return await self.queue.witnessed(super()._change_catalog(job), tell, look)

    async def set_paused(self, subscription: str, *, paused: bool) -> None:
        kind = Kind.PAUSE if paused else Kind.RESUME

        def tell(_: None) -> None:
            self.history.add(kind, subscription, self.owner)

        await self.queue.witnessed(super().set_paused(subscription, paused=paused), tell)

    async def forget_pause(self, subscription: str) -> None:
        def tell(_: None) -> None:
            self.history.add(Kind.RESUME, subscription, self.owner)

        await self.queue.witnessed(super().forget_pause(subscription), tell)

    async def settle_pauses(self, limit: int) -> int:
        """A part is small, so that there are several."""
        return await super().settle_pauses(min(limit, SETTLED_AT_ONCE))

    async def act_on_all(
        self, which: Filter, action: Action, actor: str, limit: int, cursor: int | None = None
    ) -> Acted:
        acting = super().act_on_all(which, action, actor, limit, cursor)
        return await self.queue.witnessed(acting, lambda _: None, self._tell_cancelled)

    async def act(self, job_id: str, action: Action, actor: str) -> Any:
        acting = super().act(job_id, action, actor)
        if actor != REMOVER:
            return await acting
        return await self.queue.witnessed(acting, lambda _: None, self._tell_cancelled)

    def _tell_cancelled(self, connection: Connection) -> None:
        for (name,) in connection.execute(_CANCELLED).fetchall():
            if name not in self.disk.cancelled:
                self.queue.store.writer.after_commit(partial(self._cancelled, name))

    def _cancelled(self, name: str) -> None:
        if name not in self.disk.cancelled:
            self.disk.cancelled.add(name)
            if not any(event.kind is Kind.CANCELLED and event.job == name for event in self.history):  # by a person
                self.history.add(Kind.CANCELLED, name, self.owner)


REMOVER: Final = "remover"


class WitnessedCatalog(Catalog):
    """Tells the history what it knows."""

    history: History
    owner: str
    told: int | None = None

    async def refresh(self, age_s: float = 0.0) -> None:
        await super().refresh(age_s)
        if self._seen != self.told:
            self.told = self._seen
            self.history.add(Kind.SEEN, process=self.owner, value=self._seen)


class ShortIds(IdSource):
    """As a person who reads a history likes them."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._count = count(1)

    def new_id(self) -> str:
        return f"n{next(self._count)}"


class PlatformWorld(JobsWorld):
    """Processes that take events in too."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.platforms: dict[str, Platform] = {}  # by life of a process
        self.secrets: dict[str, list[str]] = {}  # by code: all that a subscription ever had
        self._ids = ShortIds(self.clock)

    async def _work(self, process: Process) -> None:
        """What a process does besides delivering."""
        platform = self.platforms[process.owner]
        counts = JobCounts()
        watch = JobWatch(platform.store, counts, self.clock, WarningLog(self.clock), BLOCKED_S)
        house = Housekeeping(platform.store, counts, watch, self.clock, 0.0)
        process.tasks.append(self.loop.create_task(platform.catalog.follow()))
        process.tasks.append(self.loop.create_task(_repeat(house.settle_pauses)))

    def new_store(self, owner: str) -> WitnessedPlatformStore:
        store = self._open_store(WitnessedPlatformStore, owner)
        store.history, store.disk = self.history, self.disk
        sealer = PlainSealer()
        catalog = WitnessedCatalog(store, sealer, self.clock, WarningLog(self.clock), _nothing)
        catalog.history, catalog.owner = self.history, owner
        store.queue.secrets_of = catalog.secrets_of
        intake, keys = Intake(store, catalog, self._ids, self.clock), ApiKeys(store, self._ids, self.clock)
        self.platforms[owner] = Platform(store, catalog, intake, sealer, keys)
        return store

    def new_secret(self, code: str) -> str:
        others = self.secrets.setdefault(code, [])
        others.append(secret_of(sha256(f"{code} {len(others)}".encode()).digest()))
        return others[-1]

    # What clients and people do. Each is done in the process that is asked, which may die on the way.

    async def publish(self, process: Process, asked: Sequence[NewEvent]) -> list[EventAccepted]:
        intake = self.platforms[process.owner].intake

        async def accept() -> list[EventAccepted]:
            events = [intake.event_of(one) for one in asked]
            for event in events:
                self.history.add(Kind.INTAKE, event.id, process.owner)
            return await intake.accept(events)

        accepted = await self._ask(process, accept)
        for one in accepted:
            self.dice.note("an event that was known came again", one.repeated)
            event = one.kept.event
            self.history.add(Kind.EVENT_TOLD, event.id, process.owner, ToldEvent(event.deduplication_id, one.kept.jobs))
        return accepted

    async def subscribe(self, process: Process, asked: Subscription) -> None:
        platform, wall = self.platforms[process.owner], self.clock.wall()
        secret = sealed(platform.sealer, asked.code, self.new_secret(asked.code), wall)
        document = StoredSubscription(**msgspec.structs.asdict(asked), secrets=(secret,))
        await self._ask(process, self._seen(process, asked.code, lambda: subscribing.add(platform, document)))

    async def edit(self, process: Process, code: str, edit: Callable[[StoredSubscription], StoredSubscription]) -> None:
        platform = self.platforms[process.owner]
        await self._ask(process, self._seen(process, code, lambda: subscribing.save(platform, code, edit)))

    async def rotate(self, process: Process, code: str, overlap_s: float) -> None:
        platform, wall = self.platforms[process.owner], self.clock.wall()
        secret = self.new_secret(code)
        edit = rotated(platform.sealer, sealed(platform.sealer, code, secret, wall), wall, overlap_s)
        change = partial(platform.catalog.change_subscription, code, edit)
        await self._ask(process, self._seen(process, code, change))
        self.history.add(Kind.ROTATE_TOLD, code, process.owner, Rotation(secret, wall, overlap_s))

    async def pause_subscription(self, process: Process, code: str) -> None:
        platform, began = self.platforms[process.owner], len(self.history)
        await self._ask(process, self._seen(process, code, lambda: subscribing.pause(platform, code)))
        is_ours = (Kind.PAUSE, code, process.owner)
        events = self.history.events
        place = next(
            n for n in range(began, len(events)) if (events[n].kind, events[n].job, events[n].process) == is_ours
        )
        self.history.add(Kind.PAUSE_TOLD, code, process.owner, place)

    async def resume_subscription(self, process: Process, code: str) -> None:
        platform = self.platforms[process.owner]
        await self._ask(process, self._seen(process, code, lambda: subscribing.resume(platform, code)))
        self.history.add(Kind.RESUME_TOLD, code, process.owner)

    async def unsubscribe(self, process: Process, code: str) -> Cancelled:
        platform = self.platforms[process.owner]
        call = self._seen(process, code, lambda: subscribing.remove(platform, code, REMOVER))
        cancelled = await self._ask(process, call)
        if not cancelled.in_flight:
            self.history.add(Kind.REMOVE_TOLD, code, process.owner)
        return cancelled

    async def replay(self, process: Process, code: str, asked: Replay) -> Replayed:
        platform = self.platforms[process.owner]

        async def call() -> Replayed:
            self.history.add(Kind.REPLAY, code, process.owner, asked)
            await platform.catalog.ready()
            kept = platform.catalog.subscription(code)
            return await replay(platform.store, kept, asked.id, asked.span, self._ids.new_id, self.clock)

        replayed = await self._ask(process, call)
        self.history.add(Kind.REPLAY_TOLD, code, process.owner, asked)
        return replayed

    async def _ask(self, process: Process, call: Callable[[], Awaitable[T]]) -> T:
        return await self.ask(process, lambda _: call())

    def _seen(self, process: Process, code: str, call: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        """A change that is made in a process is known there when the call has returned."""

        async def seen() -> T:
            result = await call()
            latest = self._latest(Kind.ENTRY, code, process.owner)
            kept = self.platforms[process.owner].catalog.subscriptions.get(code)
            if latest is not None:
                version: Version = self.history.events[latest].value  # perhaps of a call that has not returned yet
                if kept is not None:
                    self.history.add(Kind.SEEN, code, process.owner, min(version.revision, kept.revision))
                elif version.document is None:
                    self.history.add(Kind.SEEN, code, process.owner, version.revision)
            return result

        return seen

    def _latest(self, kind: Kind, job: str, process: str) -> int | None:
        events = self.history.events
        for place in range(len(events) - 1, -1, -1):
            event = events[place]
            if event.kind is kind and event.job == job and event.process == process:
                return place
        return None


async def _nothing() -> None:
    """Pools stay as they are."""


async def _repeat(look: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(HOUSEKEEPING_S)
        with suppress(QueueUnavailableError, StorageError):
            await look()
