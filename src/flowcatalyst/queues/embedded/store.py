"""The file of the embedded queues: who has it open, and what happens to the leases of those who died."""

import asyncio
import fcntl
import os
import secrets
from contextlib import suppress
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Final, Protocol

import structlog

from flowcatalyst.core.clock import Clock, boot_id
from flowcatalyst.core.errors import StorageError
from flowcatalyst.queues.embedded import jobs as embedded_jobs
from flowcatalyst.queues.embedded.lanes import Delays
from flowcatalyst.queues.embedded.migrations import MakeMigrations, embedded_migrations
from flowcatalyst.storage.sqlite import SqliteWriter

REAP_EVERY_S: Final = 5.0  # how often an open store looks for owners that died

log = structlog.get_logger("flowcatalyst.embedded")


class Listener(Protocol):
    """A queue of the store, as the store sees it."""

    name: str

    def wake(self) -> None: ...

    def note_loss(self, what: str, messages: int) -> None:
        """The file is gone, with so many messages of this queue."""

    def withdraw_loss(self) -> None:
        """The file is back."""


class OwnerLock:
    """A locked file beside the database says that its owner lives; the kernel unlocks it when the process dies."""

    def __init__(self, database: Path, owner: str) -> None:
        self._path = database.with_name(f"{database.name}-owner-{owner}.lock")
        self._descriptor: int | None = None

    def hold(self) -> None:
        if self._descriptor is not None:
            return
        try:
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(f"{self._path} cannot be locked: {error.strerror}, check its folder") from None

    def is_held(self) -> bool:
        """Whether the owner lives: by trying to lock its file, which is undone at once."""
        try:
            descriptor = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            return False
        except PermissionError:
            return True  # of another user: not ours to judge
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def announce(self, url: str) -> None:
        """Say in the file where its owner can be reached. A disk without space keeps it from that, no more."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.pwrite(self._descriptor, url.encode(), 0)

    def announced(self) -> str:
        """Where the owner can be reached; empty if it did not say, or not to this user."""
        try:
            return self._path.read_text()
        except (OSError, UnicodeError):
            return ""

    def remove(self) -> None:
        """The file may stay where the folder cannot be written any more: unlocked, it says nothing."""
        with suppress(OSError):
            self._path.unlink()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def owners_alive(database: Path) -> int:
    """How many processes have the file open now, or have had it open when somebody removed it."""
    return len(_live_locks(database))


def routers_on(database: Path) -> dict[str, int]:
    """The routers that have the file open now: the URL of each, as seen from this machine, and its process."""
    found = {lock.announced(): int(owner.partition("-")[0]) for owner, lock in _live_locks(database).items()}
    return {url: process for url, process in found.items() if url}


def _live_locks(database: Path) -> dict[str, OwnerLock]:
    files = database.parent.glob(f"{database.name}-owner-*.lock")
    owners = [file.name.removeprefix(f"{database.name}-owner-").removesuffix(".lock") for file in files]
    return {owner: lock for owner in owners if (lock := OwnerLock(database, owner)).is_held()}


class EmbeddedStore:
    """One database file, shared by any number of named queues and by other processes.

    It opens with the first of its queues and closes with the last.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        boot: str | None = None,
        *,
        delays: str = Delays.ALL,
        migrations: MakeMigrations = embedded_migrations,
    ) -> None:
        self.path = path
        self.clock = clock
        self.delays = delays
        self._migrations = migrations
        self._boot = boot_id() if boot is None else boot
        self._clock_offset = 0.0
        self.id = ""  # of the file, known once it is open
        # Not from the injected ids: it has to differ from that of any other process, in a replay too.
        self.owner = f"{os.getpid()}-{secrets.token_hex(6)}"
        self.queues: set[Listener] = set()
        self.writer = self._new_writer()
        self._lock = self._lock_of(self.owner)
        self._reap_at = 0.0  # on the loop's clock
        self._opening = asyncio.Lock()
        self._is_open = False
        self._inode: tuple[int, int] | None = None  # of the file that is open
        self.others_alive = 0  # other processes that have the file open, when last looked for
        self.moved = ""  # what became of that file; empty: it is still where it was

    async def open(self) -> None:
        """Open the file, and give back what dead processes had leased from it."""
        async with self._opening:
            if self._is_open:
                return
            self.writer = self._new_writer()
            await self.writer.open()
            try:
                self.id, self._clock_offset = await self.writer.run(self._register)
                self._inode = await self.writer.read(lambda _: _inode_of(self.path))
                self.moved = ""
                await self.reap()
            except BaseException:
                await self._shut()
                raise
            self._is_open = True

    async def close(self) -> None:
        """Give back all that is leased and close the file."""
        async with self._opening:
            if self._is_open:
                self._is_open = False
                await self._shut()

    def announce(self, url: str) -> None:
        """Tell other processes where this one, a router, can be reached. Only while the file is open."""
        self._lock.announce(url)

    def _new_writer(self) -> SqliteWriter:
        return SqliteWriter(self.path, self._migrations(self.clock.wall, self._refuse_if_in_use))

    def _lock_of(self, owner: str) -> OwnerLock:
        return OwnerLock(self.path, owner)

    async def _shut(self) -> None:
        try:
            await self.writer.run(self._unregister)
        except StorageError as error:  # a full disk: what is leased comes free all the same, as of a process that died
            self._lock.remove()
            log.warning("queues_not_signed_off", action="queues_not_signed_off", file=str(self.path), error=str(error))
        finally:
            await self.writer.close()

    def now(self) -> float:
        """Seconds on the clock of the file, on which leases, delays and deduplication end.

        It is the machine's monotonic clock with an offset, so it is the same in all processes, and setting the
        machine's time neither ends nor prolongs anything. It stands still while the machine is off or asleep.
        """
        return self.clock.monotonic() + self._clock_offset

    async def queue_names(self) -> set[str]:
        """The queues that ever had a message."""
        return await self.writer.read(embedded_jobs.queue_names)

    def wake(self, queue: str) -> None:
        """Tell those who wait on a queue that it changed."""
        for listener in self.queues:
            if listener.name == queue:
                listener.wake()

    async def reap_now_and_then(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._reap_at:
            self._reap_at = now + REAP_EVERY_S
            await self._notice_moved_file()
            await self.reap()

    async def _notice_moved_file(self) -> None:
        """What a file that was removed or replaced holds is delivered as long as this process has it open."""
        before, self.moved = self.moved, await self.writer.read(lambda _: self.where_it_went())
        if self.moved and not before:
            for queue in list(self.queues):
                depth = await self.writer.read(partial(embedded_jobs.depth, queue=queue.name, now=self.now()))
                if held := depth.waiting + depth.leased + depth.delayed:
                    queue.note_loss(self.moved, held)
        if before and not self.moved:
            for queue in self.queues:
                queue.withdraw_loss()

    async def reap(self) -> None:
        """Give back what owners that died without closing had leased."""
        dead = await self.writer.read(self._dead_owners)
        if dead:
            await self.writer.run(partial(self._forget_dead, dead))
            for queue in self.queues:
                queue.wake()

    # From here on: in the writer's threads.

    def where_it_went(self) -> str:
        """Why nobody would find again what is stored now; empty if the file is still the one at its path."""
        found = _inode_of(self.path)
        if found == self._inode:
            return ""
        what = "was removed" if found is None else "was replaced by another file"
        hint = "put it back, and do not stop the router before that: it still has what was in it"
        return f"{self.path} {what} while it was open: {hint}"

    def _refuse_if_in_use(self, connection: Connection) -> None:
        """A process of an older version would not understand the tables any more."""
        if self._others_live(connection):
            raise StorageError(f"{self.path} is in use by an older version of FlowCatalyst: stop that first")

    def _others_live(self, connection: Connection) -> bool:
        owners = embedded_jobs.other_owners(connection, self.owner)
        return any(self._lock_of(owner).is_held() for owner in owners)

    def _register(self, connection: Connection) -> tuple[str, float]:
        self._lock.hold()  # before anybody can read of this owner
        others_live = self._others_live(connection)
        # Read here, under the write lock: no earlier than any time that another process has stored.
        monotonic = self.clock.monotonic()
        return embedded_jobs.register(connection, self.owner, self._boot, monotonic, others_live=others_live)

    def _unregister(self, connection: Connection) -> None:
        embedded_jobs.forget(connection, [self.owner], self.now(), self.delays)
        self._lock.remove()

    def _dead_owners(self, connection: Connection) -> list[str]:
        others = embedded_jobs.other_owners(connection, self.owner)
        dead = [owner for owner in others if not self._lock_of(owner).is_held()]
        self.others_alive = len(others) - len(dead)
        return dead

    def _forget_dead(self, dead: list[str], connection: Connection) -> None:
        embedded_jobs.forget(connection, dead, self.now(), self.delays)
        for owner in dead:
            self._lock_of(owner).remove()


def _inode_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
