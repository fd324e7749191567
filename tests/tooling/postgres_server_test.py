"""The real PostgreSQL behaves as tests rely on: what it confirmed survives a kill, and nothing of it stays behind."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.servers import ServerMissingError, program, skip_or_fail
from tests.servers.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@asynccontextmanager
async def connected(server: PostgresServer) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(server.url)
    try:
        yield connection
    finally:
        connection.terminate()


async def test_every_confirmed_transaction_survives_a_kill_and_no_other_does(postgres: PostgresServer) -> None:
    async with connected(postgres) as open_one, connected(postgres) as connection:
        await connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        for number in range(20):
            await connection.execute("INSERT INTO orders VALUES ($1)", number)
        await open_one.execute("BEGIN")
        await open_one.execute("INSERT INTO orders VALUES (100)")
        postgres.kill()
    postgres.start()
    async with connected(postgres) as connection:
        found = [row["id"] for row in await connection.fetch("SELECT id FROM orders ORDER BY id")]
    assert found == list(range(20))
    assert "not properly shut down" in postgres.log_since_start()


async def test_a_commit_is_synced_to_disk_before_it_is_confirmed(postgres: PostgresServer) -> None:
    """A kill does not show it: the machine's memory outlives it."""
    async with connected(postgres) as connection:
        settings = {name: await connection.fetchval(f"SHOW {name}") for name in ("fsync", "synchronous_commit")}
    assert settings == {"fsync": "on", "synchronous_commit": "on"}


async def test_a_kill_ends_the_work_of_every_client(postgres: PostgresServer) -> None:
    async with connected(postgres) as connection:
        worker = await connection.fetchval("SELECT pg_backend_pid()")
        query = asyncio.create_task(connection.execute("SELECT count(*) FROM generate_series(1, 10000000000)"))
        await until_it_works(worker)
        children = postgres._children()
        assert worker in children
        postgres.kill()
        assert not [pid for pid in children if state_of(pid) not in {"", "Z"}]
        with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
            await query
    assert postgres.start()


async def until_it_works(pid: int) -> None:
    """A busy process looks at nothing else: it would not notice the end of its parent by itself."""
    while state_of(pid) != "R":
        await asyncio.sleep(0.01)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


async def test_while_it_is_paused_a_client_that_is_connected_waits(postgres: PostgresServer) -> None:
    async with connected(postgres) as connection:
        postgres.pause()
        query = asyncio.create_task(connection.fetchval("SELECT 1"))
        done, _ = await asyncio.wait([query], timeout=0.3)
        assert not done
        postgres.resume()
        assert await query == 1


async def test_a_stop_in_order_leaves_nothing_to_recover(postgres: PostgresServer) -> None:
    async with connected(postgres) as connection:
        await connection.execute("CREATE TABLE stopped (id int)")
        postgres.stop()
    assert postgres._process.returncode == 0
    postgres.start()
    assert "not properly shut down" not in postgres.log_since_start()


def test_it_runs_unprivileged_and_listens_on_loopback_only(postgres: PostgresServer) -> None:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{postgres.pid}/status").read_text().splitlines())
    assert "0" not in status["Uid"].split()
    if os.geteuid() == 0:
        assert (status["Groups"].strip(), "0" in status["Gid"].split()) == ("", False)
    listening = [line.split() for line in Path(f"/proc/{postgres.pid}/net/tcp").read_text().splitlines()[1:]]
    assert [row[1] for row in listening if row[3] == "0A" and row[1].endswith(f":{postgres.port:04X}")] == [
        f"0100007F:{postgres.port:04X}"
    ]


async def test_it_asks_for_a_password_if_it_was_given_one(tmp_path: Path) -> None:
    with postgres_server(tmp_path, password="p/ss word") as server:
        async with connected(server) as connection:
            assert await connection.fetchval("SELECT current_user") == "postgres"
        for wrong in ("postgres@", "postgres:wrong@"):
            with pytest.raises(asyncpg.InvalidPasswordError):
                await asyncpg.connect(server.url_for(wrong))


def test_nothing_of_it_stays_behind(tmp_path: Path) -> None:
    with postgres_server(tmp_path) as server:
        data, pid = server.data, server.pid
        assert (tmp_path / "data").resolve() == data
        assert pid in makers_of_shared_memory()
    assert pid not in makers_of_shared_memory()
    del server
    gc.collect()
    assert not data.parent.exists()


def makers_of_shared_memory() -> set[int]:
    return {int(line.split()[4]) for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_it_is_found_where_debian_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        program("postgres")  # installs it where that is possible
    except ServerMissingError as error:
        skip_or_fail(error)
    if not list(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        pytest.skip("this one is not Debian's")
    monkeypatch.setenv("PATH", "/nowhere")
    assert program.__wrapped__("postgres").startswith("/usr/lib/postgresql/")
