"""One PostgreSQL database with queues: our connections, our registration as an owner, and who is told of changes."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, Protocol, TypeVar

import asyncpg
import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import QueueUnavailableError, StorageError
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.queues.division import Member
from flowcatalyst.queues.postgres import lanes, owners
from flowcatalyst.queues.postgres.migrations import LANES
from flowcatalyst.queues.postgres.owners import RENEW_EVERY_S, OwnerWatch, Session
from flowcatalyst.storage.postgres import Connection, Job, PostgresPool, PostgresServer, close_politely
from flowcatalyst.storage.postgres_migrations import PostgresMigrations

RENEW_LIMIT_S: Final = 2.5  # then the connection hangs: the next renewal goes over another one
HURRY_EVERY_S: Final = 0.25  # while processes come or go
DIVISIONS: Final = "divisions"  # the notice that they changed
RECALLS: Final = "recalls"  # the notice that somebody wants something back, or got it

log = structlog.get_logger("flowcatalyst.postgres")
T = TypeVar("T")


class Listener(Protocol):
    """A queue of the store, as the store sees it."""

    queue: str  # its name in the database

    def wake(self) -> None: ...

    def note_loss(self, what: str, held: int | None) -> None: ...


class PostgresStore:
    """One schema of one database, shared by any number of named queues and by other processes.

    It opens with the first of its queues and closes with the last. Nothing connects before it is needed, and only who
    receives registers as an owner.
    """

    def __init__(
        self, server: PostgresServer, clock: Clock, *, migrations: Sequence[PostgresMigrations] = (LANES,)
    ) -> None:
        self.pool = PostgresPool(server, migrations)
        self.clock = clock
        self.queues: set[Listener] = set()
        self.id = ""  # of the database, known after the first call
        self.setup_warnings: Sequence[str] = ()
        self._numbers: dict[str, int] = {}  # of queues
        self._held: dict[str, int] = {}  # messages in each queue, when last seen
        self._session: Session | None = None
        self._registering = asyncio.Lock()
        self._to_forget: list[int] = []  # owners that we were
        self._watch = OwnerWatch()
        self._link: Connection | None = None  # for renewals and notifications
        self._renewing = asyncio.Lock()
        self.searching = asyncio.Lock()  # one search reads a lot: others wait, whoever they are for
        self._tasks = Tasks()
        self._hurry = asyncio.Event()  # renew now
        self._sleepers = 0  # receives that wait
        self._slept = False  # some waited since the last renewal
        self.is_announced = False  # publishers know that somebody waits here
        self._member: Member | None = None
        self.on_notice: dict[str, Callable[[], None]] = {}  # of what else is told

    @property
    def session(self) -> Session | None:
        return self._session

    async def run(self, job: Job[T], *, migrates: bool = True) -> T:
        """What `job` returns. Raises `QueueUnavailableError`."""
        with storage_errors_as_queue_errors():
            return await self.pool.run(job, migrates=migrates)

    async def number_of(self, queue: str) -> int:
        """The number of a queue, which is made if it is not there."""
        if not self.pool.has_tables:  # or no more: numbers of dropped tables mean nothing
            self._numbers.clear()
        if queue not in self._numbers:
            number = await self.run(partial(lanes.open_queue, name=queue))
            self._identify(*await self.run(lanes.identity))
            self.setup_warnings = await self.run(lanes.setup_warnings)
            self._numbers[queue] = number
        return self._numbers[queue]

    def _identify(self, found: str, held: dict[str, int]) -> None:
        """Notice whether these are still the tables that we know."""
        if self.id and found and found != self.id:
            self._numbers.clear()  # those of tables that are gone mean nothing, or somebody else
            self._to_forget.clear()
            if self._session is not None:
                self._session.ended, self._session = True, None
            what = f"the tables in schema {self.pool.server.schema} of its database were dropped and made again"
            for listener in list(self.queues):
                listener.note_loss(what, self._held.get(listener.queue))
        self.id, self._held = found or self.id, held

    def wake(self, queue: str | None = None) -> None:
        """Tell those who wait on a queue, or on any, that it changed."""
        for listener in list(self.queues):
            if queue is None or listener.queue == queue:
                listener.wake()

    async def close(self) -> None:
        """Give back all that is leased and close the connections."""
        await self.leave()
        await self._drop_link()
        await self.pool.close()

    def join(self, member: Member) -> None:
        """Let somebody take part in the divisions with each of our sessions from now on."""
        self._member = member
        self._hurry.set()

    async def leave(self) -> None:
        """End our session, if there is one, with all that is leased in it, and take part in nothing more."""
        await self._tasks.cancel()
        self._member = None
        async with self._registering:
            session, self._session = self._session, None
            if session is not None:
                session.ended = True
                self._to_forget.append(session.owner)
            if self._to_forget:
                try:
                    await self.run(partial(owners.forget, owners=self._to_forget))
                    self._to_forget.clear()
                except (
                    QueueUnavailableError
                ) as error:  # what is leased comes free all the same, as of a process that died
                    log.warning("queues_not_signed_off", action="queues_not_signed_off", error=str(error))
        self.is_announced = False

    async def reconnect(self) -> None:
        self.pool.reset()
        if self._link is not None:
            self._link.terminate()

    # Owning

    async def owner(self) -> Session:
        """Our registration, made if there is none that lives. What was leased in earlier ones is free again."""
        async with self._registering:
            session = self._session
            if session is None or not session.is_alive(self.clock.monotonic()):
                if session is not None:
                    session.ended = True
                    self._to_forget.append(session.owner)
                    self._session = None
                sent_at = self.clock.monotonic()
                name = f"{socket.gethostname()}-{os.getpid()}"
                session = Session(await self.run(partial(owners.register, name=name)), sent_at)
                self._session = session
                self._tasks.spawn(self._keep(session), "renew postgres owner")
                if self._member is not None:
                    self._hurry.set()
            if self._to_forget:
                await self.run(partial(owners.forget, owners=list(self._to_forget)))
                self._to_forget.clear()
            for claim in sorted(session.doubtful):
                if not await self.run(partial(owners.void, owner=session.owner, claim=claim)):
                    session.doubtful.discard(claim)
            return session

    async def announce(self) -> None:
        """Let publishers know that somebody waits here, before a last look."""
        session = await self.owner()
        self._slept = True
        with storage_errors_as_queue_errors():
            await self._renew(session)

    @contextmanager
    def sleeping(self) -> Iterator[None]:
        """While a receive waits."""
        self._sleepers += 1
        self._slept = True
        try:
            yield
        finally:
            self._sleepers -= 1

    async def _keep(self, session: Session) -> None:
        """Renew the session for as long as it lives."""
        while True:
            hurries = self._member is not None and self._member.hurries
            with suppress(TimeoutError):
                async with asyncio.timeout(HURRY_EVERY_S if hurries else RENEW_EVERY_S):
                    await self._hurry.wait()
            self._hurry.clear()
            if not session.is_alive(self.clock.monotonic()):
                break
            try:
                await self._renew(session)
            except StorageError as error:
                log.warning("owner_not_renewed", action="owner_not_renewed", error=str(error))
                await asyncio.sleep(RENEW_EVERY_S / 5)
                self._hurry.clear()  # a connection that breaks says so
        session.ended = True
        self.is_announced = False
        log.warning("owner_lapsed", action="owner_lapsed", owner=session.owner)
        self.wake()

    async def _renew(self, session: Session) -> None:
        """Raises `StorageError`."""
        async with self._renewing:
            waits = self._sleepers > 0 or self._slept
            self._slept = False
            member, owner = self._member, session.owner
            keeps_to = None if member is None else member.keeps_to(owner)
            try:
                async with asyncio.timeout(RENEW_LIMIT_S):
                    link = await self._linked()
                    sent_at = self.clock.monotonic()
                    standing = await owners.renew(link, owner, waits=waits, keeps_to=keeps_to)
                    now = self.clock.monotonic()
                    self._identify(*await lanes.identity(link))
                    session.ended |= owner not in standing.beats  # somebody took us for dead
                    session.renewed(sent_at, now)
                    if member is not None and session.is_alive(now):
                        for thing, division in member.saw(owner, session.until, standing, now).items():
                            await owners.divide(link, thing, standing.divisions[thing], division)
            except (
                asyncpg.PostgresError,
                asyncpg.InterfaceError,
                asyncpg.InternalClientError,
                OSError,
                TimeoutError,
            ) as error:
                self.is_announced = False
                await self._drop_link()
                raise self.pool.translated(error) from None
            except BaseException:
                await self._drop_link()
                raise
            if member is not None and session.ended:
                member.lost()
            elif member is not None and member.keeps_to(owner) != keeps_to:
                self._hurry.set()
            self.is_announced = waits and not session.ended
        others = {one: beat for one, beat in standing.beats.items() if one != owner}
        if dead := self._watch.dead_among(others, now):
            freed = await self.pool.run(partial(owners.forget, owners=list(dead), beats=list(dead.values())))
            log.warning("owners_ended", action="owners_ended", owners=list(dead), lanes=freed)
            self.wake()
            self._hurry.set()

    async def _linked(self) -> Connection:
        if self._link is None or self._link.is_closed():
            self._link = await self.pool.connect()
            self._link.add_termination_listener(self._on_link_broken)
            await self._link.add_listener(f"flowcatalyst_{self.pool.server.schema}", self._on_notice)
        return self._link

    async def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await close_politely(link)

    def _on_link_broken(self, link: Connection) -> None:
        self._hurry.set()
        self.wake()

    def _on_notice(self, link: Connection, pid: int, channel: str, payload: str) -> None:
        if payload == DIVISIONS and self._member is not None:
            self._hurry.set()
        if payload in self.on_notice:
            self.on_notice[payload]()
        for name, number in self._numbers.items():
            if str(number) == payload:
                self.wake(name)


@contextmanager
def storage_errors_as_queue_errors() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise QueueUnavailableError(str(error)) from None
