"""Clients of queues in a real PostgreSQL, and what has to be true of their tables at any time."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import asyncpg
import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.queues.postgres.queue import PostgresQueue, PostgresStore
from flowcatalyst.storage.postgres import PostgresServer as Database
from tests.servers.postgres import PostgresServer, postgres_server

_numbers = count(1)


class Bench:
    """A schema of its own at a running server, and clients that each have a store of their own, as other processes."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.schema = f"bench_{next(_numbers)}"
        self._clients: list[PostgresQueue] = []
        self._connections: list[Any] = []

    def database(self, **changes: Any) -> Database:
        place: dict[str, Any] = {"hosts": (("127.0.0.1", self.server.port),), "database": "postgres"}
        return Database(**{**place, "user": "postgres", "schema": self.schema, **changes})

    async def client(self, queue: str = "orders", **changes: Any) -> PostgresQueue:
        client = PostgresQueue(PostgresStore(self.database(**changes), SystemClock()), queue)
        await client.open()
        self._clients.append(client)
        return client

    async def connection(self) -> Any:
        """One of an application: autocommit, with the tables of the schema in sight."""
        settings = {"search_path": self.schema}
        connection = await asyncpg.connect(self.server.url, server_settings=settings)
        self._connections.append(connection)
        return connection

    async def vanish(self, client: PostgresQueue) -> None:
        """Its process dies."""
        self._clients.remove(client)
        await client._tasks.cancel()
        await client.store._tasks.cancel()
        await client.store.reconnect()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for connection in self._connections:
            connection.terminate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as running:
        yield running


_WRONG_LANES = """
    SELECT l.id, l.messages, l.leased, l.delayed, c.* FROM lanes AS l CROSS JOIN LATERAL (
      SELECT count(*) AS messages,
        count(*) FILTER (WHERE l.owner IS NOT NULL AND m.seq <= l.leased_to AND m.given_back <> l.epoch) AS leased,
        min(m.seq) AS head, (array_agg(m.pool ORDER BY m.seq))[1] AS pool
      FROM messages AS m WHERE m.lane = l.id) AS c
    WHERE c.messages <> l.messages OR c.messages = 0 OR c.leased <> l.leased OR l.head > c.head
      OR (l.owner IS NULL AND l.pool <> c.pool) OR (l.owner IS NOT NULL AND l.leased = 0)"""
_ORPHANS = "SELECT count(*) FROM messages AS m WHERE NOT EXISTS (SELECT 1 FROM lanes WHERE id = m.lane)"
_COUNTED = "SELECT coalesce(sum(messages), 0)::bigint, coalesce(sum(delayed), 0)::bigint FROM counts"
_REAL = "SELECT (SELECT count(*) FROM messages), (SELECT coalesce(sum(delayed), 0)::bigint FROM lanes)"


async def assert_consistent(connection: Any) -> None:
    """What lanes and counts say of the messages is true."""
    assert await connection.fetch(_WRONG_LANES) == []
    assert await connection.fetchval(_ORPHANS) == 0
    assert tuple(await connection.fetchrow(_COUNTED)) == tuple(await connection.fetchrow(_REAL))


def names(deliveries: Sequence[Any]) -> list[str]:
    return [str(delivery.body) for delivery in deliveries]
