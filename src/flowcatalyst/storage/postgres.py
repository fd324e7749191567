"""A PostgreSQL database, reached over a few connections.

A call takes a connection of its own for as long as it runs, and every call ends: by the server's time limits, and by
ours if the server does not answer. A connection on which anything went wrong, or whose caller was cancelled, is never
used again.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import asyncpg

from flowcatalyst.core.errors import StorageError, StorageUnavailableError
from flowcatalyst.storage.postgres_errors import REPEATABLE, in_words, is_lasting, lacks_tables
from flowcatalyst.storage.postgres_migrations import PostgresMigrations, migrate

T = TypeVar("T")
Connection: TypeAlias = Any  # of asyncpg, whose types are incomplete
Job = Callable[[Connection], Awaitable[T]]

CONNECT_LIMIT_S: Final = 5.0
STATEMENT_LIMIT_S: Final = 8.0  # then the server gives up a statement
CALL_LIMIT_S: Final = 10.0  # then we give up a call: the server, or the way to it, hangs
IDLE_IN_TRANSACTION_S: Final = 8.0  # a paused client keeps nothing locked for longer
CLOSE_LIMIT_S: Final = 2.0
MAX_REPEATS: Final = 5
# Before a repeat: the other one of a deadlock, who waits for a row of ours, gets it first.
REPEAT_PAUSE_S: Final = 0.1
DEFAULT_SCHEMA: Final = "flowcatalyst"


@dataclass(slots=True, frozen=True)
class PostgresServer:
    """Where a database is and who we are there. What is None comes from where libpq finds it: PGUSER, ~/.pgpass."""

    hosts: tuple[tuple[str, int], ...]
    database: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl: Any = "prefer"  # a mode of libpq, or a context
    schema: str = DEFAULT_SCHEMA
    user_setting: str = "postgres.user"  # that the user is from

    @property
    def who(self) -> str:
        """Whom we claim to be, where that was said, and so where it can be changed. For people."""
        settings = f"set {self.user_setting}" + (
            " and postgres.password" if self.user_setting == "postgres.user" else ""
        )
        if self.user is not None:
            return f"the user is {self.user}, from {self.user_setting}; {settings}"
        if user := os.environ.get("PGUSER"):
            return f"the user is {user}, from the variable PGUSER; {settings}"
        return f"no user was given, so it is that of this process; {settings}"

    @property
    def where(self) -> str:
        """For people."""
        return f"PostgreSQL at {', '.join(f'{host}:{port}' for host, port in self.hosts)}"


class PostgresPool:
    """Connections to one database, made when they are needed, and the tables that `migrations` make there."""

    def __init__(
        self,
        server: PostgresServer,
        migrations: Sequence[PostgresMigrations],
        size: int = 8,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.server = server
        self._settings = settings or {}  # of each connection, beside ours
        self.calls = 0  # made so far
        self._migrations = migrations
        self.has_tables: bool | None = None  # None: not known
        self._migrating = asyncio.Lock()
        self._free = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()

    async def run(self, job: Job[T], *, migrates: bool = True) -> T:
        """What `job` returns. It is one statement, or opens a transaction; it runs again after a deadlock.

        Raises `StorageError`, `StorageUnavailableError` if it may work later. Without `migrates` the tables are taken
        as they are, should there be any.
        """
        for repeats_left in reversed(range(MAX_REPEATS)):
            try:
                return await self._run_once(job, migrates)
            except asyncpg.PostgresError as error:
                if error.sqlstate not in REPEATABLE or not repeats_left:
                    if lacks_tables(error):  # somebody dropped them: the next call makes new ones
                        self.reset()
                        self.has_tables = False
                    raise self.translated(error) from None
                await asyncio.sleep(REPEAT_PAUSE_S)
            except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError) as error:
                raise self.translated(error) from None
        raise AssertionError("the last repeat returns or raises")

    async def transaction(self, job: Job[T]) -> T:
        """The same for a job of several statements: all of it happens or nothing."""

        async def whole(connection: Connection) -> T:
            async with connection.transaction():
                return await job(connection)

        return await self.run(whole)

    async def connect(self, *, migrates: bool = True) -> Connection:
        """A connection for the caller alone, who closes it. Raises `StorageError`."""
        try:
            return await self._connect(migrates)
        except (
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
            OSError,
            TimeoutError,
        ) as error:
            raise self.translated(error) from None

    def reset(self) -> None:
        """Use the present connections no more: calls under way on them fail, later ones dial."""
        for connection in [*self._idle, *self._busy]:
            connection.terminate()
        self._idle.clear()

    async def close(self) -> None:
        """Close the connections; calls under way fail. It can be used again."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(close_politely(connection) for connection in idle))
        self.reset()

    async def _run_once(self, job: Job[T], migrates: bool) -> T:
        async with self._free:
            connection = await self._idle_or_new(migrates)
            self._busy.add(connection)
            self.calls += 1
            try:
                async with asyncio.timeout(CALL_LIMIT_S):
                    result = await job(connection)
            except asyncpg.PostgresError:
                self._put_back(connection)
                raise
            except BaseException:
                connection.terminate()  # an answer to this call may still be on its way
                raise
            else:
                self._put_back(connection)
                return result
            finally:
                self._busy.discard(connection)

    def _put_back(self, connection: Connection) -> None:
        if not connection.is_closed() and not connection.is_in_transaction():
            self._idle.append(connection)
        else:
            connection.terminate()

    async def _idle_or_new(self, migrates: bool) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                if migrates:
                    await self._migrate(connection)
                return connection
        return await self._connect(migrates)

    async def _connect(self, migrates: bool) -> Connection:
        server = self.server
        connection = await asyncpg.connect(
            host=[host for host, _ in server.hosts],
            port=[port for _, port in server.hosts],
            user=server.user,
            password=server.password,
            database=server.database,
            ssl=server.ssl,
            timeout=CONNECT_LIMIT_S,
            target_session_attrs="primary" if len(server.hosts) > 1 else "any",
            server_settings={
                "application_name": "flowcatalyst",
                "search_path": server.schema,
                "statement_timeout": _ms(STATEMENT_LIMIT_S),
                "lock_timeout": _ms(STATEMENT_LIMIT_S / 2),
                "idle_in_transaction_session_timeout": _ms(IDLE_IN_TRANSACTION_S),
                # The server gives up a client that is gone or takes nothing any more, and with it what that has locked.
                "tcp_keepalives_idle": "5",
                "tcp_keepalives_interval": "2",
                "tcp_keepalives_count": "3",
                "tcp_user_timeout": _ms(STATEMENT_LIMIT_S),
                **self._settings,
            },
        )
        try:
            if migrates:
                await self._migrate(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _migrate(self, connection: Connection) -> None:
        if not self.has_tables:
            async with self._migrating:
                await migrate(connection, self.server.schema, self._migrations, self.server.where)
                self.has_tables = True

    def translated(self, error: Exception) -> StorageError:
        """An error of asyncpg or of the connection as one sentence."""
        sentence = f"{self.server.where} {in_words(error, self.server.database, self.server.who)}"
        return StorageError(sentence) if is_lasting(error) else StorageUnavailableError(sentence)


async def close_politely(connection: Connection) -> None:
    """Say goodbye; by force if the server does not take part."""
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await connection.close()
    connection.terminate()


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))
