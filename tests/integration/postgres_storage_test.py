"""A PostgreSQL that is set up wrongly, is somebody else's, or goes away: one sentence each, without a password."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from flowcatalyst.core.errors import QueueUnavailableError, StorageError, StorageUnavailableError
from flowcatalyst.queues.postgres.migrations import LANES
from flowcatalyst.storage import postgres as storage
from flowcatalyst.storage.postgres import PostgresPool
from flowcatalyst.storage.postgres import PostgresServer as Database
from flowcatalyst.storage.postgres_migrations import PostgresMigrations
from tests.conformance.bench import grouped, take
from tests.servers import free_port
from tests.servers.postgres import PostgresServer, postgres_server
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Bench, assert_consistent, names
from tests.support.router_process import run_cli
from tests.support.tcp_proxy import tcp_proxy

PASSWORD = "Pl4nted-Passw0rd"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with postgres_server(tmp_path_factory.mktemp("postgres"), password=PASSWORD) as running:
        yield running


class LockedBench(Bench):
    def database(self, **changes: Any) -> Database:
        return super().database(**{"password": PASSWORD, **changes})


@pytest.fixture
async def bench(server: PostgresServer) -> AsyncIterator[Bench]:
    bench = LockedBench(server)
    yield bench
    await bench.close()


async def sentence(database: Database, kind: type[StorageError] = StorageError) -> str:
    pool = PostgresPool(database, [LANES])
    with pytest.raises(kind) as raised:
        await pool.run(lambda connection: connection.fetchval("SELECT 1"))
    await pool.close()
    said = str(raised.value)
    assert "\n" not in said
    assert PASSWORD not in said
    assert PASSWORD not in repr(database)
    assert raised.value.__context__ is None or raised.value.__suppress_context__, "a traceback would show more"
    return said


async def test_what_is_wrong_is_said_in_one_sentence(bench: Bench) -> None:
    place = f"PostgreSQL at 127.0.0.1:{bench.server.port}"
    wrong = await sentence(bench.database(password=f"{PASSWORD}-wrong"))
    who = "the user is postgres, from postgres.user; set postgres.user and postgres.password"
    assert wrong == f"{place} refuses our user or password: {who}"
    assert await sentence(bench.database(database="shop")) == f"{place} has no database shop: create it first"
    nobody = free_port()
    away = await sentence(bench.database(hosts=(("127.0.0.1", nobody),)), StorageUnavailableError)
    assert away == f"PostgreSQL at 127.0.0.1:{nobody} cannot be reached: connection refused"


async def test_a_user_who_may_not_create_a_schema_is_told_so(bench: Bench) -> None:
    connection = await bench.connection()
    await connection.execute(f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'")
    said = await sentence(bench.database(user="guest"))
    assert "does not allow it: permission denied for database postgres" in said


async def test_of_several_hosts_the_one_that_can_be_written_is_used(bench: Bench) -> None:
    queue = await bench.client(hosts=(("127.0.0.1", free_port()), ("127.0.0.1", bench.server.port)))
    await queue.publish(grouped("a1"))
    assert names(await take(queue, 1)) == ["a1"]


async def test_the_commands_reach_a_queue_with_the_credentials_of_the_settings_or_of_libpq(
    bench: Bench, tmp_path: Path
) -> None:
    uri = f"postgresql://127.0.0.1:{bench.server.port}/postgres?queue=orders&schema={bench.schema}"
    file = tmp_path / "flowcatalyst.toml"
    file.write_text(f'[[queues]]\nname = "orders"\nuri = "{uri}"\n[postgres]\nuser = "postgres"\n')
    of_settings = {"FLOWCATALYST_POSTGRES__PASSWORD": PASSWORD}
    of_libpq = {"PGUSER": "postgres", "PGPASSWORD": PASSWORD}
    check = ("check", "--config", file, "--data-dir", tmp_path / "data")
    code, said, _ = await run_cli(*check, env=of_settings)
    assert (code, "orders: answers: 0 waiting" in said.replace(uri, "orders")) == (0, True), said
    connection = await bench.connection()
    assert not await connection.fetchval("SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)", bench.schema)
    code, _, errors = await run_cli("publish", "--uri", uri, "--target", "http://127.0.0.1:9/hook", env=of_libpq)
    assert (code, errors) == (0, "")
    code, said, _ = await run_cli(*check, env=of_settings)
    assert "answers: 1 waiting" in said
    code, said, errors = await run_cli(*check, env={"FLOWCATALYST_POSTGRES__PASSWORD": f"{PASSWORD}-wrong"})
    assert code == 1
    assert "refuses our user or password" in said
    assert PASSWORD not in said + errors


# Migrations


async def test_processes_that_start_at_once_make_the_tables_once(bench: Bench) -> None:
    clients = [await bench.client() for _ in range(6)]
    await asyncio.gather(*(client.publish(grouped(f"a{n}")) for n, client in enumerate(clients)))
    connection = await bench.connection()
    assert dict(await connection.fetch("SELECT part, version FROM versions")) == {"lanes": len(LANES.steps)}
    assert await connection.fetchval("SELECT count(*) FROM messages") == 6


async def test_tables_of_a_newer_version_are_refused_and_left_alone(bench: Bench) -> None:
    await (await bench.client()).publish(grouped("a1"))
    connection = await bench.connection()
    newest = len(LANES.steps)
    await connection.execute("UPDATE versions SET version = version + 1")
    assert await sentence(bench.database()) == (
        f"the schema {bench.schema} of PostgreSQL at 127.0.0.1:{bench.server.port} was made by a newer version of "
        f"FlowCatalyst (schema version {newest + 1}, this one knows up to {newest}): start that version again, or "
        "restore the copy from before its upgrade"
    )
    assert await connection.fetchval("SELECT version FROM versions") == newest + 1


async def test_a_schema_of_somebody_else_is_refused_and_left_alone(bench: Bench) -> None:
    connection = await bench.connection()
    await connection.execute(f"CREATE SCHEMA {bench.schema} CREATE TABLE lanes (theirs text)")
    assert "was not made by FlowCatalyst: name another one" in await sentence(bench.database())
    assert await connection.fetchval("SELECT count(*) FROM lanes") == 0


async def test_a_step_that_fails_leaves_everything_as_it_was_and_later_steps_follow(bench: Bench) -> None:
    broken = PostgresMigrations("lanes", (*LANES.steps, "CREATE TABLE more (one text); SELECT 1 / 0"))
    await (await bench.client()).publish(grouped("a1"))
    connection = await bench.connection()
    pool = PostgresPool(bench.database(), [broken])
    with pytest.raises(StorageError, match="division by zero"):
        await pool.run(lambda connection: connection.fetchval("SELECT 1"))
    assert await connection.fetchval("SELECT version FROM versions") == len(LANES.steps)
    assert await connection.fetchval(f"SELECT to_regclass('{bench.schema}.more')") is None
    mended = PostgresMigrations("lanes", (*LANES.steps, "CREATE TABLE more (one text)"))
    others = PostgresMigrations("jobs", ("CREATE TABLE jobs (id bigint)",))
    pool = PostgresPool(bench.database(), [mended, others])
    assert await pool.run(lambda connection: connection.fetchval("SELECT count(*) FROM more, jobs")) == 0
    await pool.close()
    assert await connection.fetchval("SELECT count(*) FROM messages") == 1


@pytest.mark.parametrize("version", range(1, len(LANES.steps)))
async def test_tables_of_every_older_version_are_brought_up_to_date(bench: Bench, version: int) -> None:
    old = PostgresPool(bench.database(), [PostgresMigrations("lanes", LANES.steps[:version])])
    await old.run(lambda connection: connection.fetchval("SELECT 1"))
    await old.close()
    queue = await bench.client()
    await queue.publish(grouped("a1"))
    assert names(await take(queue, 1)) == ["a1"]


PUBLISHING, RECEIVING = 3, 4  # the versions whose functions do so


async def use_of_old(connection: Any, version: int) -> None:
    """Two groups, of which a process that died had five messages; it had nacked one."""
    queue = await connection.fetchval("SELECT open_queue('orders')")
    for name in ("a1", "a2", "a3", "b1", "b2", "b3"):
        await connection.fetchval("SELECT send('orders', $1, $2)", name, name[0])
    if version < RECEIVING:
        return
    owner = await connection.fetchval("INSERT INTO owners (name) VALUES ('old') RETURNING id")
    taken = await connection.fetch(
        "SELECT * FROM take($1, $2, 1, (SELECT array_agg(DISTINCT pool) FROM lanes), ARRAY[5], 20)", queue, owner
    )
    assert [row["body"] for row in taken] == ["a1", "a2", "a3", "b1", "b2"]
    nacked = [[taken[3][column]] for column in ("lane", "seq", "epoch")]
    await connection.fetchrow("SELECT held FROM nack($1, $2, $3, ARRAY[1], 0.2, false)", *nacked)
    await connection.execute("DELETE FROM owners")


@pytest.mark.parametrize("version", range(PUBLISHING, len(LANES.steps)))
async def test_messages_in_tables_of_every_older_version_come_in_order(bench: Bench, version: int) -> None:
    """Published, leased and delayed by the functions of that version."""
    old = PostgresPool(bench.database(), [PostgresMigrations("lanes", LANES.steps[:version])])
    await old.run(partial(use_of_old, version=version))
    await old.close()
    queue, connection = await bench.client(), await bench.connection()
    await queue.publish(grouped("a4", "b4"))
    seen: list[str] = []
    while len(seen) < 8:
        taken = await take(queue, 1)
        seen += names(taken)
        await queue.ack(taken)
        await assert_consistent(connection)
    assert [name for name in seen if name[0] == "a"] == ["a1", "a2", "a3", "a4"]
    assert [name for name in seen if name[0] == "b"] == ["b1", "b2", "b3", "b4"]
    assert await connection.fetchval("SELECT count(*) FROM lanes") == 0


async def test_tables_that_were_dropped_are_made_again(bench: Bench) -> None:
    queue, connection = await bench.client(), await bench.connection()
    await queue.publish(grouped("a1"))
    await connection.execute(f"DROP SCHEMA {bench.schema} CASCADE")
    with pytest.raises(QueueUnavailableError):
        await queue.publish(grouped("a2"))
    await queue.publish(grouped("a3"))
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                assert names(await take(queue, 1)) == ["a3"]
            except QueueUnavailableError:
                continue
            break


@pytest.mark.parametrize("by", ["this process", "another one"])
async def test_tables_that_were_dropped_and_made_again_are_told_of_with_what_they_held(bench: Bench, by: str) -> None:
    queue, connection = await bench.client(), await bench.connection()
    await queue.publish(grouped(*(f"a{number}" for number in range(12))))
    taken = await take(queue, 2)
    await queue.store.announce()
    assert queue.losses == []
    await connection.execute(f"DROP SCHEMA {bench.schema} CASCADE")
    if by == "another one":
        await (await bench.client()).publish(grouped("b1"))
    async with asyncio.timeout(PATIENCE_S):
        while not queue.losses:
            with suppress(QueueUnavailableError):
                await queue.receive(10, 0.1)
    [loss] = queue.losses
    assert f"the tables in schema {bench.schema} of its database were dropped and made again" in loss.text
    assert "it held 12 messages when last seen" in loss.text
    assert loss.messages == 12
    await queue.publish(grouped("c1"))
    assert len(queue.losses) == 1
    before = (await queue.depth()).waiting
    await queue.ack(taken)  # too late, and no number of theirs is given to another message
    assert (await queue.depth()).waiting == before >= 1


async def test_a_look_at_the_depth_makes_no_tables(bench: Bench) -> None:
    queue, connection = await bench.client(), await bench.connection()
    depth = await queue.depth()
    assert (depth.waiting, depth.leased, depth.delayed) == (0, 0, 0)
    assert not await connection.fetchval("SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)", bench.schema)
    await queue.publish(grouped("a1"))
    assert (await queue.depth()).waiting == 1


# Every call ends


async def test_a_call_over_a_connection_that_swallows_everything_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "CALL_LIMIT_S", 1.0)
    async with tcp_proxy(bench.server.port) as proxy:
        queue = await bench.client(hosts=(("127.0.0.1", proxy.port),))
        await queue.publish(grouped("a1"))
        proxy.swallow()
        with pytest.raises(QueueUnavailableError, match="does not answer in time"):
            await queue.publish(grouped("a2"))
        await queue.publish(grouped("a3"))
        assert names(await take(queue, 2, 5.0)) == ["a1", "a3"]


async def test_a_deadlock_is_no_error(bench: Bench) -> None:
    """Producers that lock groups in any order, as applications in their own transactions do."""
    queue, connection = await bench.client(), await bench.connection()
    await queue.publish(grouped("a0", "b0"))
    met = asyncio.Barrier(2)
    tries: list[str] = []

    async def work(first: str, second: str, connection: Any) -> None:
        tries.append(first)
        await connection.execute("SELECT send('orders', $1, $2)", f"{first}1", first)
        if len(tries) <= 2:
            await met.wait()
        await connection.execute("SELECT send('orders', $1, $2)", f"{second}1", second)

    pool = queue.store.pool
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(
            pool.transaction(lambda connection: work("a", "b", connection)),
            pool.transaction(lambda connection: work("b", "a", connection)),
        )
    assert len(tries) >= 3  # who has to give way may have to do so again
    assert await connection.fetchval("SELECT count(*) FROM messages") == 6
    await assert_consistent(connection)


async def test_a_client_that_is_paused_amid_a_transaction_keeps_nothing_locked_for_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "IDLE_IN_TRANSACTION_S", 0.5)
    queue = await bench.client()
    await queue.publish(grouped("a1"))
    pool = PostgresPool(bench.database(), [LANES])
    paused = await pool.connect()
    await paused.execute("BEGIN")
    await paused.execute("SELECT send('orders', 'a2', 'a')")
    await queue.publish(grouped("a3"))
    assert names(await take(queue, 3, 1.0)) == ["a1", "a3"]
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await paused.execute("COMMIT")
    paused.terminate()


def test_the_folder_of_migrations_holds_nothing_else() -> None:
    folder = Path(storage.__file__).parent.parent / "queues" / "postgres" / "migrations"
    assert len(list(folder.glob("*.sql"))) == len(LANES.steps)
