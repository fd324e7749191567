"""`flowcatalyst backup` and `restore`: of a router that runs, and what they refuse."""

import io
import sqlite3
import tarfile
import zlib
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.core.errors import StorageError
from flowcatalyst.dispatch.sealing import KeyFile, Sealer
from flowcatalyst.storage import backup
from flowcatalyst.storage.backup import back_up, restore
from tests.servers import free_port
from tests.support.router_process import router_process, run_cli
from tests.support.witness import messages_left

MESSAGES = 60


async def publish(data_dir: Path, count: int, *more: object) -> None:
    lines = "".join(
        f'{{"mediationTarget": "http://127.0.0.1:{free_port()}/", "messageGroupId": "g{number}"}}\n'
        for number in range(count)
    )
    file = data_dir.parent / "messages.jsonl"
    file.write_text(lines)
    code, _, errors = await run_cli("publish", "--file", file, "--data-dir", data_dir, *more)
    assert code == 0, errors


async def test_the_data_of_a_running_router_is_backed_up_and_a_router_goes_on_with_it(tmp_path: Path) -> None:
    file, copy = tmp_path / "backup.tar.gz", tmp_path / "copy"
    async with router_process(tmp_path) as router:
        await publish(router.data_dir, MESSAGES)
        code, said, errors = await run_cli("backup", file, "--data-dir", router.data_dir)
        assert (code, errors) == (0, "")
    assert said.startswith(f"{file} holds audit.db (")
    assert "dead-letters.db (" in said
    assert f" of {tmp_path / 'data'}, " in said
    assert file.stat().st_mode & 0o777 == 0o600
    code, said, errors = await run_cli("restore", file, "--data-dir", copy)
    assert (code, errors) == (0, "")
    assert said.startswith(f"{copy} has audit.db (")
    assert names_in(copy) == {"audit.db", "dead-letters.db", "jobs.db", "pauses.db", "queue.db"}
    assert all((copy / name).stat().st_mode & 0o777 == 0o600 for name in names_in(copy))
    assert len(messages_left(copy / "queue.db")) == MESSAGES
    again = tmp_path / "again"
    again.mkdir()
    copy.rename(again / "data")
    async with router_process(again) as router:
        code, _ = await router.terminate()
    assert code == 0
    assert len(messages_left(again / "data" / "queue.db")) == MESSAGES


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def refused(*args: object) -> str:
    code, output, errors = await run_cli(*args)
    assert (code, output) == (1, "")
    assert errors.startswith("flowcatalyst: ")
    assert errors.count("\n") == 1
    return errors


async def test_nothing_is_overwritten(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "backup.tar"
    await publish(data, 1, "--create")
    assert (await run_cli("backup", file, "--data-dir", data))[0] == 0
    before = file.read_bytes()
    assert f"{file} exists already" in await refused("backup", file, "--data-dir", data)
    assert file.read_bytes() == before
    assert f"{data / 'queue.db'} exists already" in await refused("restore", file, "--data-dir", data)
    assert len(messages_left(data / "queue.db")) == 1
    assert names_in(tmp_path) == {"data", "backup.tar", "messages.jsonl"}


async def test_nothing_is_restored_while_a_router_runs_on_the_folder(tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    async with router_process(tmp_path) as router:
        assert (await run_cli("backup", file, "--data-dir", router.data_dir))[0] == 0
        for path in router.data_dir.glob("*.db*"):
            if path.suffix != ".lock":
                path.unlink()  # it has them open all the same
        said = await refused("restore", file, "--data-dir", router.data_dir)
        assert f"a process has the queue of {router.data_dir} open: stop the router first" in said
        assert not (router.data_dir / "queue.db").exists()


def made(folder: Path, name: str, rows: int = 0) -> sqlite3.Connection:
    folder.mkdir(exist_ok=True)
    connection = sqlite3.connect(folder / name, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA user_version=1")
    connection.execute("CREATE TABLE IF NOT EXISTS message (id INTEGER PRIMARY KEY)")
    connection.executemany("INSERT INTO message VALUES (?)", [(row,) for row in range(rows)])
    return connection


def ids(file: Path) -> set[int]:
    with closing(sqlite3.connect(file)) as connection:
        return {row for (row,) in connection.execute("SELECT id FROM message")}


@pytest.mark.parametrize("start", [0, 1], ids=["from dead-letters.db", "from queue.db"])
@pytest.mark.parametrize("moment", range(1, 5))
def test_what_moves_between_two_files_is_in_one_of_their_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, moment: int
) -> None:
    """Into the new place first, then out of the old one, at each moment of taking the copies."""
    names = ["dead-letters.db", "queue.db"]
    places = [made(tmp_path / "data", name, rows=start == number) for number, name in enumerate(names)]
    old, new = places[start], places[1 - start]
    for place in places:
        place.execute("PRAGMA busy_timeout=0")
    connect, connections = backup._connect, 0

    def connect_and_move(path: Path) -> sqlite3.Connection:
        nonlocal connections
        connections += 1
        connection = connect(path)
        if connections == moment:
            with suppress(sqlite3.OperationalError):  # locked: not now
                new.execute("INSERT INTO message VALUES (0)")
                old.execute("DELETE FROM message")
        return connection

    monkeypatch.setattr(backup, "_connect", connect_and_move)
    backup.back_up(tmp_path / "data", tmp_path / "backup.tar")
    assert connections == 4
    for place in places:
        place.close()
    backup.restore(tmp_path / "backup.tar", tmp_path / "copy")
    assert set().union(*(ids(tmp_path / "copy" / name) for name in names)) == {0}


def test_a_damaged_file_is_not_taken_for_a_backup_and_leaves_nothing_behind(tmp_path: Path) -> None:
    made(tmp_path / "data", "queue.db", rows=5000).close()
    content = bytearray((tmp_path / "data" / "queue.db").read_bytes())
    content[4096 * 3 : 4096 * 5] = bytes(4096 * 2)
    (tmp_path / "data" / "queue.db").write_bytes(content)
    with pytest.raises(StorageError, match=r"queue\.db is damaged"):
        back_up(tmp_path / "data", tmp_path / "backup.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("name", ["../queue.db", "/tmp/queue.db", "notes.txt"])
def test_a_foreign_archive_is_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "foreign.tar", "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 5
        tar.addfile(member, io.BytesIO(b"hello"))
    with pytest.raises(StorageError, match="is not a backup of FlowCatalyst"):
        restore(tmp_path / "foreign.tar", tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["foreign.tar"]


def test_a_backup_that_was_cut_off_restores_nothing(tmp_path: Path) -> None:
    for name in ("audit.db", "queue.db"):
        made(tmp_path / "data", name, rows=5000).close()
    back_up(tmp_path / "data", tmp_path / "whole.tar.gz")
    whole = (tmp_path / "whole.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StorageError, match=r"cut\.tar\.gz is not a backup of FlowCatalyst, or is damaged"):
        restore(tmp_path / "cut.tar.gz", tmp_path / "copy")
    assert not (tmp_path / "copy").exists() or list((tmp_path / "copy").iterdir()) == []


async def test_the_key_of_secrets_goes_along_and_the_backup_says_so(tmp_path: Path) -> None:
    data, file, copy = tmp_path / "data", tmp_path / "backup.tar.gz", tmp_path / "copy"
    made(data, "jobs.db").close()
    sealed = Sealer(KeyFile(data / "secret.key")).seal("whsec_", "orders")
    code, said, errors = await run_cli("backup", file, "--data-dir", data)
    assert (code, errors) == (0, "")
    assert "KiB), secret.key of " in said
    assert said.endswith("With secret.key it can open the secrets of webhooks: keep it where nobody else reads it.\n")
    code, said, errors = await run_cli("restore", file, "--data-dir", copy)
    assert (code, errors) == (0, "")
    assert (copy / "secret.key").stat().st_mode & 0o777 == 0o600
    assert Sealer(KeyFile(copy / "secret.key")).open(sealed, "orders") == "whsec_"


async def test_a_key_that_is_there_is_never_replaced_by_that_of_a_backup(tmp_path: Path) -> None:
    data, file, copy = tmp_path / "data", tmp_path / "backup.tar", tmp_path / "copy"
    made(data, "jobs.db").close()
    copy.mkdir()
    for folder in (data, copy):
        Sealer(KeyFile(folder / "secret.key")).seal("whsec_", "orders")
    back_up(data, file)
    before = (copy / "secret.key").read_text()
    assert f"{copy / 'secret.key'} exists already" in await refused("restore", file, "--data-dir", copy)
    assert names_in(copy) == {"secret.key"}
    assert (copy / "secret.key").read_text() == before


def test_a_folder_without_data_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is nothing to back up in"):
        back_up(tmp_path / "nowhere", tmp_path / "backup.tar")


async def test_a_backup_that_cannot_be_written_names_the_file_that_was_given(tmp_path: Path) -> None:
    made(tmp_path / "data", "queue.db").close()
    file = tmp_path / "nope" / "x.tar"
    said = await refused("backup", file, "--data-dir", tmp_path / "data")
    assert said == (
        f"flowcatalyst: {file} cannot be written (No such file or directory): name a file in a folder that exists "
        "and can be written\n"
    )


def test_a_full_disk_is_told_of_the_backup_not_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "data", "queue.db", rows=5000).close()
    connect = sqlite3.connect

    def connect_to_a_full_disk(database: Path | str, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(database, **options)
        if ".backup-" in str(database):
            connection.execute("PRAGMA max_page_count=3")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_to_a_full_disk)
    with pytest.raises(StorageError) as told:
        back_up(tmp_path / "data", tmp_path / "backup.tar")
    assert str(told.value) == (
        f"{tmp_path / 'backup.tar'} cannot be written (No space left on device): free some space, or name a file on "
        "another disk"
    )
    assert names_in(tmp_path) == {"data"}


@pytest.mark.parametrize("name", ["junk.tar", "junk.tar.gz", "cut.tar.gz", "changed.tar.gz"])
async def test_what_is_not_a_backup_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    made(tmp_path / "data", "queue.db", rows=5000).close()
    back_up(tmp_path / "data", tmp_path / "whole.tar")
    packing = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    begun = packing.compress((tmp_path / "whole.tar").read_bytes()[:40000]) + packing.flush(zlib.Z_FULL_FLUSH)
    content = {
        "junk.tar": b"junk" * 500,
        "junk.tar.gz": b"\x1f\x8b\x08" + b"junk" * 500,
        "cut.tar.gz": begun,
        "changed.tar.gz": begun + b"\xff" * 100,  # no such block
    }
    (tmp_path / name).write_bytes(content[name])
    said = await refused("restore", tmp_path / name, "--data-dir", tmp_path / "copy")
    assert said == (
        f"flowcatalyst: {tmp_path / name} is not a backup of FlowCatalyst, or is damaged: name a file that "
        "`flowcatalyst backup` wrote\n"
    )


async def test_a_backup_that_does_not_exist_is_said_before_anything_about_a_router(tmp_path: Path) -> None:
    async with router_process(tmp_path) as router:
        said = await refused("restore", tmp_path / "nope.tar", "--data-dir", router.data_dir)
    assert said == (
        f"flowcatalyst: {tmp_path / 'nope.tar'} does not exist: name a file that `flowcatalyst backup` wrote\n"
    )
