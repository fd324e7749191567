"""Config sync against real files and a real HTTP server that answers well, badly, late or not at all."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowcatalyst.control.config_source import MAX_BYTES, ConfigUnavailableError, Fetched, FileSource, sources_from
from flowcatalyst.control.config_sync import ConfigSync, ConfigSyncFailedError
from flowcatalyst.control.router_config import RouterConfig
from flowcatalyst.control.settings import SyncSettings
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.warnings import WarningCode, WarningLog
from tests.support import config_server
from tests.support.config_server import document, versioned
from tests.support.http_servers import (
    Call,
    Gate,
    PrivateCa,
    RawServer,
    Script,
    always,
    closed_port,
    in_turn,
    raw_server,
    reply,
)

SHORT_S = 0.2
LONG_S = 30.0
GOOD = document(A=1)


class Synced:
    """A `ConfigSync` on real sources, and what it applied."""

    def __init__(self, setting: str, tls: ssl.SSLContext | None = None, timeout_s: float = LONG_S) -> None:
        self.applied: list[dict[str, int]] = []
        self.warnings = WarningLog(SystemClock())
        settings = SyncSettings(attempts=2, attempt_pause_s=0.0, timeout_s=timeout_s)
        sources = sources_from(setting, tls)
        self.sync = ConfigSync(settings, sources, SystemClock(), self.warnings, self._apply, list)

    async def _apply(self, config: RouterConfig) -> None:
        self.applied.append({code: limits.concurrency for code, limits in config.pools.items()})


@pytest.fixture
async def server() -> AsyncIterator[RawServer]:
    async with raw_server(always(reply(200, GOOD))) as running:
        yield running


async def test_the_config_of_a_server_is_applied(server: RawServer) -> None:
    synced = Synced(server.url("/api/config?env=test"))
    await synced.sync.first_sync()
    assert synced.applied == [{"A": 1}]
    [call] = server.requests
    assert (call.method, call.path) == ("GET", "/api/config?env=test")
    assert (call.headers["host"], call.headers["accept"]) == (f"127.0.0.1:{server.port}", "application/json")
    assert not {"authorization", "if-none-match"} & call.headers.keys()


async def test_a_known_etag_is_sent_and_304_means_unchanged(server: RawServer) -> None:
    server.script = versioned(GOOD, 'W/"one"')
    synced = Synced(server.url())
    await synced.sync.first_sync()
    assert not (await synced.sync.sync_now()).changed
    server.script = versioned(document(A=2), '"two"')
    assert (await synced.sync.sync_now()).pools_changed == ["A"]
    assert not (await synced.sync.sync_now()).changed
    asked_with = [call.headers.get("if-none-match") for call in server.requests]
    assert asked_with == [None, 'W/"one"', 'W/"one"', '"two"']
    assert synced.applied == [{"A": 1}, {"A": 2}]
    assert synced.sync.sources[0].version == '"two"'
    assert synced.sync.last_error == ""


async def test_304_for_who_knows_nothing_is_a_failure(server: RawServer) -> None:
    server.script = always(reply(304))
    [failure] = (await Synced(server.url()).sync.sync_now()).unreachable
    assert failure.endswith(" answered 304")


async def test_an_etag_that_cannot_be_sent_back_is_not(server: RawServer) -> None:
    server.script = always(reply(200, GOOD, f"ETag: {'x' * 5000}"))
    synced = Synced(server.url())
    await synced.sync.first_sync()
    await synced.sync.sync_now()
    assert "if-none-match" not in server.requests[1].headers


async def test_a_slow_answer_in_time_is_good(server: RawServer) -> None:
    server.script = gate = Gate(reply(200, GOOD))
    synced = Synced(server.url())
    waiting = asyncio.get_running_loop().create_task(synced.sync.first_sync())
    await server.until(lambda it: len(it.requests) == 1)
    assert synced.applied == []
    gate.opened.set()
    await waiting
    assert synced.applied == [{"A": 1}]


BAD_ANSWERS: list[tuple[Script, str]] = [
    (always(reply(500, b"{}")), "answered 500"),
    (always(reply(404, GOOD)), "answered 404"),
    (always(reply(204)), "answered 204"),
    (always(reply(302, b"", "Location: /elsewhere")), "answered 302: redirects are not followed"),
    (always(reply(200, b"<html>maintenance</html>")), "is not valid JSON"),
    (always(reply(200, b"")), "is not valid JSON"),
    (always(reply(200, b'{"message": "try later"}')), "it has neither queues nor processingPools"),
    (always(reply(200, b"[" * 100_000)), "is not valid JSON"),
    (config_server.truncated, "closed the connection before its response was complete"),
    (config_server.truncated_between_chunks, "closed the connection before its response was complete"),
    (config_server.truncated_unframed, "is not valid JSON"),
    (config_server.reset, "broke the connection before its response was complete"),
    (always(reply(200, b"\x1f\x8b", "Content-Encoding: gzip")), "sent an encoded body (gzip)"),
    (config_server.no_http, "did not speak HTTP/1.1"),
    (config_server.endless_body, f"sent more than {MAX_BYTES} bytes"),
    (config_server.endless_head, "sent too many header or framing bytes"),
]
NO_ANSWERS = [config_server.hanging, config_server.hanging_in_the_body, config_server.dripping]


@pytest.mark.parametrize(("script", "said"), BAD_ANSWERS)
async def test_a_bad_answer_keeps_the_old_config_and_the_next_good_one_applies(
    server: RawServer, script: Script, said: str
) -> None:
    synced = Synced(server.url())
    await synced.sync.first_sync()
    server.script = script
    report = await synced.sync.sync_now()
    [failure] = report.unreachable
    assert said in failure
    assert failure.startswith(server.url())
    assert (report.changed, synced.applied, synced.sync.last_error) == (False, [{"A": 1}], failure)
    [warning] = synced.warnings.recent()
    assert warning.code is WarningCode.CONFIG_SYNC_FAILED
    server.script = always(reply(200, document(A=2)))
    assert (await synced.sync.sync_now()).changed
    assert (synced.applied[-1], synced.sync.last_error, synced.sync.sources[0].ok) == ({"A": 2}, "", True)
    await server.until(lambda it: it.open_connections == 0)


@pytest.mark.parametrize("script", NO_ANSWERS)
async def test_a_server_that_hangs_is_given_up_after_the_timeout_and_recovers(
    server: RawServer, script: Script
) -> None:
    synced = Synced(server.url(), timeout_s=SHORT_S)
    await synced.sync.first_sync()
    server.script = script
    assert (await synced.sync.sync_now()).unreachable == [f"{server.url()} did not answer within 0.2 s"]
    server.script = always(reply(200, document(A=2)))
    await synced.sync.sync_now()
    assert synced.applied == [{"A": 1}, {"A": 2}]
    await server.until(lambda it: it.open_connections == 0)


async def test_a_redirect_is_not_followed(server: RawServer) -> None:
    server.script = always(reply(301, b"", f"Location: {server.url('/elsewhere')}"))
    with pytest.raises(ConfigSyncFailedError, match="answered 301: redirects are not followed"):
        await Synced(server.url("/config")).sync.first_sync()
    assert {call.path for call in server.requests} == {"/config"}


async def test_a_first_sync_survives_bad_answers_within_its_attempts(server: RawServer) -> None:
    server.script = in_turn(always(reply(503)), always(reply(200, GOOD)))
    synced = Synced(server.url())
    await synced.sync.first_sync()
    assert synced.applied == [{"A": 1}]
    assert synced.warnings.recent() == []


async def test_a_refused_connection_fails_the_first_sync_and_a_server_that_comes_back_is_used() -> None:
    port = closed_port()
    synced = Synced(f"http://127.0.0.1:{port}/")
    with pytest.raises(ConfigSyncFailedError, match="cannot be reached"):
        await synced.sync.first_sync()
    server = await asyncio.start_server(_say_good, "127.0.0.1", port)
    async with server:
        await synced.sync.first_sync()
    assert synced.applied == [{"A": 1}]


async def _say_good(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(reply(200, GOOD))
    writer.close()


async def test_a_host_that_does_not_exist_is_unreachable() -> None:
    [failure] = (await Synced("http://nobody.invalid/config").sync.sync_now()).unreachable
    assert failure.startswith("http://nobody.invalid/config cannot be reached: ")


async def test_credentials_of_the_url_are_sent_but_never_shown(server: RawServer) -> None:
    server.script = in_turn(always(reply(200, GOOD)), always(reply(401)), config_server.no_http, config_server.reset)
    url = server.url("/config?token=secret").replace("//", "//me:se%63ret@")
    synced = Synced(url)
    await synced.sync.first_sync()
    failures = [(await synced.sync.sync_now()).unreachable[0] for _ in range(3)]
    assert server.requests[0].headers["authorization"] == "Basic bWU6c2VjcmV0"  # me:secret
    assert server.requests[0].path == "/config?token=secret"
    for failure in failures:
        assert failure.startswith(f"http://***@127.0.0.1:{server.port}/config?*** ")
    shown = [repr(failures), repr(synced.sync.sources), repr(synced.warnings.recent())]
    assert not [text for text in shown if "secret" in text or "se%63ret" in text]


async def test_interim_answers_chunks_and_an_unframed_body_are_understood(server: RawServer) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    interim = b"HTTP/1.1 103 Early Hints\r\nETag: no\r\n\r\n" + chunked

    async def unframed(call: Call) -> None:
        await call.send(b"HTTP/1.0 200 OK\r\n\r\n" + GOOD)
        call.close()

    for script in (always(chunked), always(interim), unframed):
        server.script = script
        synced = Synced(server.url())
        await synced.sync.first_sync()
        assert synced.applied == [{"A": 1}]
        assert synced.sync.sources[0].version is None


async def test_https_needs_a_certificate_that_is_trusted() -> None:
    authority = PrivateCa()
    async with raw_server(always(reply(200, GOOD)), tls=authority.server_context()) as server:
        trusting = Synced(server.url(host="localhost"), authority.client_context())
        await trusting.sync.first_sync()
        assert trusting.applied == [{"A": 1}]
        [failure] = (await Synced(server.url(host="localhost")).sync.sync_now()).unreachable
        assert "certificate verify failed" in failure


async def test_one_source_down_keeps_its_part_while_the_news_of_the_other_apply(server: RawServer) -> None:
    async with raw_server(always(reply(200, document(B=1)))) as other:
        synced = Synced(f"{server.url()}, {other.url()}")
        await synced.sync.first_sync()
        server.script = always(reply(500))
        other.script = always(reply(200, document(A=9, B=2)))
        report = await synced.sync.sync_now()
    assert synced.applied == [{"A": 1, "B": 1}, {"A": 1, "B": 2}]
    assert report.unreachable == [f"{server.url()} answered 500"]
    assert [warning.code for warning in synced.warnings.recent()].count(WarningCode.CONFIG_CONFLICT) == 1


async def test_repeated_warnings_are_counted_not_listed_again(server: RawServer) -> None:
    server.script = always(reply(200, document(A=1, BAD=0)))
    synced = Synced(server.url())
    await synced.sync.first_sync()
    for _ in range(4):
        await synced.sync.sync_now()
    [warning] = synced.warnings.recent()
    assert (warning.code, warning.count) == (WarningCode.CONFIG_REJECTED, 5)


async def test_a_file_is_a_source_and_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "router config.json"
    path.write_bytes(GOOD)
    for setting in (str(path), path.as_uri()):
        synced = Synced(setting)
        await synced.sync.first_sync()
        assert synced.applied == [{"A": 1}]
    source = FileSource(path)
    fetched = await source.fetch(None, LONG_S)
    assert isinstance(fetched, Fetched)
    assert await source.fetch(fetched.version, LONG_S) is None
    replacement = tmp_path / "new"
    replacement.write_bytes(document(A=2))
    info = path.stat()
    os.utime(replacement, ns=(info.st_atime_ns, info.st_mtime_ns))  # only the inode tells
    replacement.rename(path)
    again = await source.fetch(fetched.version, LONG_S)
    assert isinstance(again, Fetched)
    assert again.text == document(A=2)


async def test_a_file_that_cannot_be_read_is_unreachable_and_recovers(tmp_path: Path) -> None:
    path, pipe, huge = tmp_path / "config.json", tmp_path / "pipe", tmp_path / "huge"
    os.mkfifo(pipe)
    huge.write_bytes(b" " * (MAX_BYTES + 1))
    for wrong, said in [
        (path, "cannot be read: No such file or directory"),
        (tmp_path, "is not a file"),
        (pipe, "is not a file"),
        (huge, f"has more than {MAX_BYTES} bytes"),
    ]:
        with pytest.raises(ConfigUnavailableError) as caught:
            await FileSource(wrong).fetch(None, LONG_S)
        assert str(caught.value) == f"{wrong} {said}"
    synced = Synced(str(path))
    assert not (await synced.sync.sync_now()).changed
    path.write_bytes(GOOD)
    assert (await synced.sync.sync_now()).changed
