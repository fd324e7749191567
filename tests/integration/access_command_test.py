"""Access control from the command line: making credentials, and a start that is refused without them."""

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from flowcatalyst.core.credentials import PasswordHash, hash_key
from flowcatalyst.dispatch.sealing import read_secret_keys
from tests.support.router_process import run_cli


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "flowcatalyst", *map(str, args)]


async def run_with_input(given: bytes, *args: object) -> tuple[int, str, str]:
    """Run the command with this on its standard input: exit code, output, errors."""
    process = await asyncio.create_subprocess_exec(
        *command(*args),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate(given)
    return process.returncode or 0, output.decode(), errors.decode()


@asynccontextmanager
async def up(folder: Path, *args: object, **settings: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`flowcatalyst up` with these variables, and its address; killed at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *command("up", "--port", 0, "--data-dir", folder / "data", *args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {f"FLOWCATALYST_{name}": value for name, value in settings.items()},
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        found = re.search(r"http://[\d.:]+", line)
        assert found is not None, f"it did not start: {line}"
        yield process, found[0]
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_hash_key_prints_a_key_and_its_hash_and_explains_beside_them() -> None:
    code, output, errors = await run_cli("hash-key")
    assert code == 0
    key, entry = output.splitlines()
    assert entry == hash_key(key.encode())
    assert f'[auth]\nmode = "api_key"\nadmin = ["{entry}"]' in errors
    assert key not in errors


async def test_hash_key_makes_another_key_each_time() -> None:
    (_, first, _), (_, second, _) = await asyncio.gather(run_cli("hash-key"), run_cli("hash-key"))
    assert first != second


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b""])
async def test_hash_key_hashes_the_password_it_reads(ending: bytes) -> None:
    password = " pässword ".encode()
    code, output, errors = await run_with_input(password + ending, "hash-key", "--basic", "ann")
    assert code == 0
    name, _, hashed = output.removesuffix("\n").partition(":")
    stored = PasswordHash.parse(hashed)
    assert name == "ann"
    assert stored is not None
    assert stored.matches(password)
    assert f'[auth]\nmode = "basic"\nadmin = ["ann:{hashed}"]' in errors
    assert "pässword" not in output + errors


@pytest.mark.parametrize("name", ["", "a:b", " ann", "a\nb"])
async def test_hash_key_refuses_a_name_that_basic_cannot_carry(name: str) -> None:
    code, output, errors = await run_with_input(b"a password\n", "hash-key", "--basic", name)
    assert (code, output) == (2, "")
    assert errors.startswith("flowcatalyst: this name cannot be used")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("password", [b"", b"\n", b"short\n"])
async def test_hash_key_refuses_a_short_password(password: bytes) -> None:
    code, output, errors = await run_with_input(password, "hash-key", "--basic", "ann")
    assert (code, output) == (2, "")
    assert errors.startswith("flowcatalyst: the password is too short")
    assert "Traceback" not in errors


async def test_hash_key_asks_twice_on_a_terminal_and_shows_nothing_of_the_password() -> None:
    code, shown = await asyncio.to_thread(type_on_terminal, [b"a password\n", b"a password\n"])
    assert code == 0
    assert "Password of ann:" in shown
    assert "The same again:" in shown
    assert "a password" not in shown
    found = re.search(r"^ann:(scrypt:\S+)", shown, re.MULTILINE)
    assert found is not None
    stored = PasswordHash.parse(found[1])
    assert stored is not None
    assert stored.matches(b"a password")


async def test_hash_key_refuses_two_passwords_that_differ() -> None:
    code, shown = await asyncio.to_thread(type_on_terminal, [b"a password\n", b"another one\n"])
    assert code == 2
    assert "the two passwords differ" in shown


def type_on_terminal(lines: list[bytes]) -> tuple[int, str]:
    """Run hash-key on a terminal of its own and answer each question. Exit code and all that was shown."""
    ours, its = pty.openpty()
    with subprocess.Popen(
        command("hash-key", "--basic", "ann"), stdin=its, stdout=its, stderr=its, start_new_session=True
    ) as process:
        os.close(its)
        shown = b""
        with suppress(OSError):  # the other side is gone
            while data := os.read(ours, 4096):
                shown += data
                if lines and shown.endswith((b"Password of ann: ", b"The same again: ")):
                    os.write(ours, lines.pop(0))
        os.close(ours)
    return process.returncode, shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_an_address_that_others_can_reach_is_refused_without_credentials(tmp_path: Path, host: str) -> None:
    code, output, errors = await run_cli("up", "--host", host, "--port", 0, "--data-dir", tmp_path / "data")
    assert (code, output) == (2, "")
    assert "set auth.mode to api_key or basic" in errors
    assert "`flowcatalyst hash-key`" in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "data").exists()


async def test_wrong_credentials_in_settings_stop_the_start_without_being_repeated(tmp_path: Path) -> None:
    config = tmp_path / "wrong.toml"
    config.write_text('[auth]\nmode = "api_key"\nadmin = ["the-plain-key"]\n')
    code, output, errors = await run_cli("up", "--port", 0, "--data-dir", tmp_path / "data", "--config", config)
    assert (code, output) == (2, "")
    assert "auth has no hash of a key at admin[0]" in errors
    assert "the-plain-key" not in errors
    assert errors.count("\n") == 1


async def test_what_hash_key_prints_opens_an_address_that_others_can_reach(tmp_path: Path) -> None:
    _, output, _ = await run_cli("hash-key")
    key, entry = output.splitlines()
    settings = {"AUTH__MODE": "api_key", "AUTH__ADMIN": entry}
    async with up(tmp_path, "--host", "0.0.0.0", **settings) as (_, url), aiohttp.ClientSession(url) as session:
        async with session.get("/monitoring/queue-stats") as response:
            assert response.status == 401
        async with session.get("/monitoring/queue-stats", headers={"X-API-Key": key}) as response:
            assert response.status == 200


async def test_demo_works_behind_credentials(tmp_path: Path) -> None:
    settings = {"AUTH__MODE": "api_key", "AUTH__ADMIN": hash_key(b"key")}
    async with up(tmp_path, "--demo", **settings) as (process, _):
        assert process.stdout is not None
        line = ""
        while "delivered" not in line:
            line = (await process.stdout.readline()).decode()
            assert line, "it ended early"
        process.send_signal(signal.SIGINT)
        await process.communicate()
    found = re.search(r"delivered ([\d,]+) ", line)
    assert found is not None
    assert int(found[1].replace(",", "")) > 0
    assert '"verdict":"dead_letter"' not in (tmp_path / "data" / "flowcatalyst.log").read_text()


async def test_secret_key_prints_a_new_key_that_the_settings_take() -> None:
    code, output, errors = await run_cli("secret-key")
    assert code == 0
    assert "FLOWCATALYST_PLATFORM__SECRET_KEY" in errors
    (key,) = output.splitlines()
    assert len(read_secret_keys(key)) == 1
    assert (await run_cli("secret-key"))[1] != output
    assert 0 < errors.find("OLD,NEW first") < errors.find("then NEW,OLD")  # as the manual: nobody meets an unknown key


async def test_a_wrong_key_of_secrets_is_refused_in_one_sentence_that_does_not_repeat_it(tmp_path: Path) -> None:
    settings = {"FLOWCATALYST_PLATFORM__SECRET_KEY": "my-own-password"}
    code, output, errors = await run_cli("up", "--data-dir", tmp_path, env=settings)
    assert (code, output) == (2, "")
    assert "platform.secret_key has as number 1 something that is not the base64 of 32 bytes" in errors
    assert "my-own-password" not in errors
    assert errors.count("\n") == 1
