"""The real SQLite job store without threads and files: a database in memory that several processes share.

Every transaction is a real one and runs between two steps of the loop. What can go wrong on the way to a database and
back is drawn from the seed.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final, TypeVar

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import StorageUnavailableError
from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.dispatch.store.sqlite import SqliteJobQueue, SqliteJobStore
from flowcatalyst.queues.embedded.store import EmbeddedStore, OwnerLock
from flowcatalyst.queues.embedded.take import Leased, Taken
from flowcatalyst.simulation.jobs.history import History, Kind, Lease, Settlement
from flowcatalyst.simulation.queue import Dice
from flowcatalyst.storage.migrations import Migrations
from flowcatalyst.storage.sqlite import Request, SqliteWriter, resolve

T = TypeVar("T")
Witness = Callable[[Any], None]  # is told the result of a call once that is committed, whoever hears the answer

# Who wants to know of the call that this task makes.
WITNESS: ContextVar[Witness | None] = ContextVar("witness", default=None)
EXPIRED_AT_ONCE: Final = 100
_databases = count()
_template: list[Connection] = []


def _nothing(connection: Connection) -> None:
    """There is nothing to look at."""


# What to look at before it is committed.
LOOK: ContextVar[Callable[[Connection], None]] = ContextVar("look", default=_nothing)


@dataclass(slots=True)
class StoreFaults:
    """How likely each fault is, for each transaction. All zero: a perfect database."""

    write_fails: float = 0.0  # nothing was done
    answer_is_lost: float = 0.0  # it was done, and whoever asked is told that it failed
    neighbour_fails: float = 0.0  # what shares its transaction is rolled back, and done again
    read_fails: float = 0.0
    is_slow: float = 0.0
    slow_s: float = 3.0  # at most
    latency_s: float = 0.0  # of all, at most

    def heal(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0.0)


class Disk:
    """A database that outlives the processes, and the kernel's list of those that have it open."""

    def __init__(self, history: History) -> None:
        self.path = Path("simulated.db")
        self.owners: set[str] = set()  # alive
        self.expired: set[str] = set()  # jobs of which the history was told
        self.cancelled: set[str] = set()  # the same, of those that were cancelled with their subscription
        self._uri = f"file:simulated-{next(_databases)}?mode=memory&cache=shared"
        self._connections: dict[str, Connection] = {}
        self._connection = self.connect("")  # while there is one, it exists
        self._history = history

    def connect(self, name: str) -> Connection:
        """The connection of a process. Its lives have it one after the other, and with it the prepared statements."""
        if name not in self._connections:
            self._connections[name] = sqlite3.connect(self._uri, uri=True, isolation_level=None)
        return self._connections[name]

    def prepare(self, migrations: Migrations) -> None:
        """Make the tables. They are copied from those of the first history: that takes a tenth of the time."""
        if self.rows("PRAGMA user_version") != [(migrations.newest,)]:
            if not _template:
                _template.append(sqlite3.connect(":memory:", isolation_level=None))
                migrations.apply(_template[0])
            _template[0].backup(self._connection)

    def sign_off(self, owner: str) -> None:
        if owner in self.owners:
            self.owners.discard(owner)
            self._history.add(Kind.SIGNED_OFF, process=owner)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query).fetchall()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


class _Lock(OwnerLock):
    """The kernel unlocks it when its process dies."""

    def __init__(self, disk: Disk, owner: str) -> None:
        self._disk, self._owner = disk, owner

    def hold(self) -> None:
        self._disk.owners.add(self._owner)

    def is_held(self) -> bool:
        return self._owner in self._disk.owners

    def remove(self) -> None:
        self._disk.sign_off(self._owner)


class InlineWriter(SqliteWriter):
    """Does on the loop what the real one does in its threads, and fails as a database can."""

    def __init__(self, disk: Disk, name: str, migrations: Migrations, faults: StoreFaults, dice: Dice) -> None:
        super().__init__(disk.path, migrations)
        self._name = name
        self.unreachable_until = 0.0
        self._disk = disk
        self._faults = faults
        self._dice = dice
        self._is_busy = False
        self._committing: list[Callable[[], None]] = []

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._disk.prepare(self._migrations)
        self._connection = self._disk.connect(self._name)
        self._accepts = True

    async def close(self) -> None:
        while self._accepts and self._is_busy:  # noqa: ASYNC110 - a look on virtual time costs nothing
            await asyncio.sleep(0.01)
        self.drop()

    def drop(self) -> None:
        """The process is gone."""
        self._accepts = False

    def submit(self, job: Callable[[Connection], T], *, writes: bool = True) -> "asyncio.Future[T]":
        done = super().submit(job, writes=writes)
        if not self._is_busy:
            self._is_busy = True
            self._go_there()
        return done

    async def read(self, job: Callable[[Connection], T]) -> T:
        if not self._accepts:
            raise StorageUnavailableError(f"{self.path} is closed")
        if delay_s := self._delay_s():
            await asyncio.sleep(delay_s)
        if self._cannot_be_reached() or self._dice.hit("read_fails", self._faults.read_fails):
            raise StorageUnavailableError("the database cannot be reached")
        return job(self._connection)

    def after_commit(self, tell: Callable[[], None]) -> None:
        """Call it when the transaction that is under way is committed, and only then."""
        self._committing.append(tell)

    def _commit(self, requests: Sequence[Request]) -> None:
        self._committing.clear()
        super()._commit(requests)
        for tell in self._committing:
            tell()

    def _go_there(self) -> None:
        if delay_s := self._delay_s():
            self._loop.call_later(delay_s, self._arrive)
        else:
            self._loop.call_soon(self._arrive)

    def _arrive(self) -> None:
        faults, dice = self._faults, self._dice
        batch = self._next_batch()
        if self._cannot_be_reached() or dice.hit("write_fails", faults.write_fails):
            _fail_all(batch, "the database cannot be reached")
        else:
            fails = dice.hit("neighbour_fails", faults.neighbour_fails)
            neighbours = [Request(_fail, self._loop.create_future())] if fails else []
            self._serve([*batch, *neighbours])
            if dice.hit("answer_is_lost", faults.answer_is_lost):
                _fail_all(batch, "the connection broke before the answer came")
        if delay_s := self._delay_s():
            self._loop.call_later(delay_s, resolve, batch)
        else:
            resolve(batch)
        if self._requests.empty():
            self._is_busy = False
        else:
            self._go_there()

    def _delay_s(self) -> float:
        faults, dice = self._faults, self._dice
        if dice.hit("is_slow", faults.is_slow):
            return dice.rng.uniform(0.0, faults.slow_s)
        return dice.rng.uniform(0.0, faults.latency_s) if faults.latency_s else 0.0

    def _cannot_be_reached(self) -> bool:
        return self._loop.time() < self.unreachable_until


def _fail(connection: Connection) -> None:
    raise ValueError("this one fails, and the others of its transaction have to be done again")


def _fail_all(batch: Sequence[Request], why: str) -> None:
    for request in batch:
        request.error = StorageUnavailableError(why)


class SimulatedFile(EmbeddedStore):
    """The file of one process."""

    def __init__(
        self, path: Path, clock: Clock, *, disk: Disk, owner: str, faults: StoreFaults, dice: Dice, **options: Any
    ) -> None:
        self._disk, self._faults, self._dice = disk, faults, dice
        self._process = owner.partition("/")[0]
        super().__init__(path, clock, "simulation", **options)
        self.owner = owner
        self._lock = self._lock_of(owner)

    writer: InlineWriter

    def _new_writer(self) -> InlineWriter:
        migrations = self._migrations(self.clock.wall, self._refuse_if_in_use)
        return InlineWriter(self._disk, self._process, migrations, self._faults, self._dice)

    def _lock_of(self, owner: str) -> OwnerLock:
        return _Lock(self._disk, owner)


NAME_OF_JOB: Final = "SELECT id FROM jobs WHERE number = ?"
EXPIRED: Final = "SELECT id FROM jobs WHERE status = 'EXPIRED' ORDER BY number"


class WitnessedJobQueue(SqliteJobQueue):
    """The queue of one process, which tells the history what it did once that is committed."""

    store: SimulatedFile

    def __init__(
        self,
        store: SimulatedFile,
        disk: Disk,
        history: History,
        leases: "count[int]",
        *,
        poll_interval_s: float,
        visibility_s: float,
        long_poll_s: float,
    ) -> None:
        super().__init__(store, poll_interval_s=poll_interval_s)
        self.capabilities = replace(self.capabilities, visibility_s=visibility_s, long_poll_s=long_poll_s)
        self._history = history
        self._leases = leases
        self._disk = disk

    def _lease(self, take: Callable[[Connection], Taken], connection: Connection) -> Taken:
        taken = super()._lease(take, connection)
        assert isinstance(take, partial)
        on_its_way_s = self.store.now() - take.keywords["now"]  # a lease goes on from when it was asked for
        until = self._clock.monotonic() + self.capabilities.visibility_s - on_its_way_s
        lease = Lease(next(self._leases), until)
        self.tell_expired(connection)
        for message in taken.messages:
            self._tell_later(Kind.TAKEN, _name_of(connection, message), lease)
        return taken

    async def expire(self, store: SqliteJobStore) -> None:
        """What housekeeping does now and then."""
        await self.witnessed(store.expire(EXPIRED_AT_ONCE), lambda _: None, self.tell_expired)

    def tell_expired(self, connection: Connection) -> None:
        """Tell of jobs that expired in the transaction that is under way."""
        for (name,) in connection.execute(EXPIRED).fetchall():
            if name not in self._disk.expired:
                self.store.writer.after_commit(partial(self._tell_expired, name))

    def _tell_expired(self, name: str) -> None:
        if name not in self._disk.expired:
            self._disk.expired.add(name)
            self._tell(Kind.EXPIRED, name)

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        return await self.witnessed(super().ack(deliveries), partial(self._tell_settled, Kind.ACKED, deliveries, {}))

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        how = {"delay_s": delay_s, "unlock": unlock}
        nacking = super().nack(deliveries, delay_s, unlock=unlock)
        return await self.witnessed(nacking, partial(self._tell_settled, Kind.NACKED, deliveries, how))

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        until = self._clock.monotonic() + seconds

        def tell(results: list[Settled]) -> None:
            for delivery, result in zip(deliveries, results, strict=True):
                if result is Settled.OK:
                    self._tell(Kind.EXTENDED, delivery.pointer.id, until)

        return await self.witnessed(super().extend(deliveries, seconds), tell)

    def _requeue(self, leasing: "asyncio.Future[Taken]") -> None:
        names: list[str] = []
        if not (leasing.cancelled() or leasing.exception()):
            names = [leasing.result().jobs[int(one.body)].job.id for one in leasing.result().messages]  # type: ignore[attr-defined]

        def tell(results: list[Settled]) -> None:
            for name, result in zip(names, results, strict=True):
                self._tell(Kind.NACKED, name, Settlement(result))

        WITNESS.set(tell)
        super()._requeue(leasing)
        WITNESS.set(None)

    def _submit(self, job: Callable[[Connection], T]) -> "asyncio.Future[T]":
        witness, look = WITNESS.get(), LOOK.get()
        if witness is None:
            return super()._submit(job)

        def witnessed(connection: Connection) -> T:
            result = job(connection)
            look(connection)
            self.store.writer.after_commit(partial(witness, result))
            return result

        return super()._submit(witnessed)

    async def witnessed(
        self, call: Awaitable[T], tell: Callable[[T], None], look: Callable[[Connection], None] = _nothing
    ) -> T:
        before = WITNESS.get(), LOOK.get()
        WITNESS.set(tell)
        LOOK.set(look)
        try:
            return await call
        finally:
            WITNESS.set(before[0])
            LOOK.set(before[1])

    def _tell_settled(
        self, kind: Kind, deliveries: Sequence[Delivery], how: dict[str, Any], results: list[Settled]
    ) -> None:
        for delivery, result in zip(deliveries, results, strict=True):
            outcome = None if delivery.attempt is None else delivery.attempt.outcome
            self._tell(kind, delivery.pointer.id, Settlement(result, outcome=outcome, **how))

    def _tell(self, kind: Kind, job: str, value: object = None) -> None:
        self._history.add(kind, job, self.store.owner, value)

    def _tell_later(self, kind: Kind, job: str, value: object) -> None:
        self.store.writer.after_commit(partial(self._tell, kind, job, value))


def _name_of(connection: Connection, message: Leased) -> str:
    name: str = connection.execute(NAME_OF_JOB, (int(message.body),)).fetchone()[0]
    return name


class WitnessedJobStore(SqliteJobStore):
    """The store of one process."""

    queue: WitnessedJobQueue
