"""What the API bears from clients before anybody has looked at their credentials."""

import asyncio
import gc
import json
import re
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.api import connection
from flowcatalyst.api.connection import Connection
from flowcatalyst.api.reception import ConnectionLimits
from tests.api.running import Running, run_router, until
from tests.support.patience import PATIENCE_S

LIVE = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
POST = b"POST /api/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
IMPATIENT = ConnectionLimits(head_s=0.3, transfer_s=0.3, linger_s=0.3, look_every_s=0.05)


class Stranger:
    """A client that sends any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, Any]:
        """Status and body of the next answer, which has to have a Content-Length."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None, head
        return int(head.split()[1]), json.loads(await self.reader.readexactly(int(length[1])) or b"null")

    async def assert_refused(self, status: int, words: str) -> None:
        """This answer comes, and then the end."""
        given, problem = await self.answer()
        assert (given, problem["status"]) == (status, status)
        assert words in problem["detail"]
        await self.until_closed()

    async def until_closed(self) -> bytes:
        """What else comes before the connection ends."""
        rest = b""
        try:
            while chunk := await self.reader.read(65536):
                rest += chunk
        except ConnectionError:
            pass
        return rest


@asynccontextmanager
async def stranger(running: Running, **options: Any) -> AsyncIterator[Stranger]:
    async with asyncio.timeout(PATIENCE_S):
        opened = await asyncio.open_connection("127.0.0.1", running.listening.port, **options)
        try:
            yield Stranger(*opened)
        finally:
            opened[1].transport.abort()


async def test_a_head_of_more_than_64_kib_is_refused(router: Running) -> None:
    async with stranger(router) as client:
        client.send(b"GET /health/live HTTP/1.1\r\nX: " + b"x" * 70_000)
        await client.assert_refused(431, "larger than 64 KiB")


async def test_a_head_of_64_kib_is_read(router: Running) -> None:
    start, end = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"\r\n\r\n"
    for too_many in (0, 1):
        async with stranger(router) as client:
            client.send(start + b"x" * (64 * 1024 - len(start) - len(end) + too_many) + end)
            assert (await client.answer())[0] == (431 if too_many else 200)


async def test_a_head_without_end_is_not_parsed_beyond_its_limit(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = 0
    parse = Connection._parse

    def count(self: Connection, piece: memoryview) -> None:
        nonlocal parsed
        parsed += len(piece)
        parse(self, piece)

    monkeypatch.setattr(Connection, "_parse", count)
    async with stranger(router) as client:
        client.send(b"GET /health/live HTTP/1.1\r\nX: " + b"x" * 4_000_000)
        await client.until_closed()
    assert parsed == 64 * 1024


async def test_more_than_100_headers_are_refused(router: Running) -> None:
    async with stranger(router) as client:
        client.send(b"GET /health/live HTTP/1.1\r\n" + b"a:\r\n" * 101 + b"\r\n")
        await client.assert_refused(431, "more than 100 headers")


async def test_trailers_count_as_headers(router: Running) -> None:
    async with stranger(router) as client:
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a:\r\n" * 200 + b"\r\n")
        await client.assert_refused(431, "more than 100 headers")


async def test_a_long_url_is_refused(router: Running) -> None:
    async with stranger(router) as client:
        client.send(b"GET /health/live?" + b"a&" * 5000)
        await client.assert_refused(414, "longer than 8192 bytes")


async def test_what_is_not_http_is_refused(router: Running) -> None:
    async with stranger(router) as client:
        client.send(b"\x16\x03\x01\x02\x00\x01\x00")
        await client.assert_refused(400, "not HTTP/1.1")


async def test_a_silent_connection_is_closed(tmp_path: Path) -> None:
    async with run_router(tmp_path, limits=IMPATIENT) as router, stranger(router) as client:
        assert await client.until_closed() == b""


async def test_a_head_that_takes_too_long_gets_408(tmp_path: Path) -> None:
    async with run_router(tmp_path, limits=IMPATIENT) as router, stranger(router) as client:
        client.send(LIVE + LIVE[:20])  # the second of a connection too
        assert (await client.answer())[0] == 200
        await client.assert_refused(408, "headers of the request did not arrive within 0.3 s")


async def test_a_body_that_trickles_gets_408(tmp_path: Path) -> None:
    async with run_router(tmp_path, limits=IMPATIENT) as router, stranger(router) as client:
        client.send(POST + b"Content-Length: 1000000\r\n\r\n")
        trickling = asyncio.ensure_future(_trickle(client))
        await client.assert_refused(408, "body of the request did not arrive within 0.3 s")
        trickling.cancel()


async def _trickle(client: Stranger) -> None:
    while True:
        client.send(b" ")
        await asyncio.sleep(0.02)


async def test_a_body_that_comes_at_a_fair_pace_may_take_longer(tmp_path: Path) -> None:
    limits = ConnectionLimits(transfer_s=0.1, transfer_bytes_per_s=1000, look_every_s=0.02)
    async with run_router(tmp_path, limits=limits) as router, stranger(router) as client:
        body = json.dumps({"mediationTarget": router.receiver("fast")}).encode().ljust(5000)
        client.send(POST + b"Content-Length: 5000\r\n\r\n" + body[:4000])
        await asyncio.sleep(0.5)
        client.send(body[4000:])
        assert (await client.answer())[0] == 202


async def test_chunks_of_one_byte_are_a_body_like_any_other(router: Running) -> None:
    body = json.dumps({"mediationTarget": router.receiver("fast"), "authToken": "t" * 5000}).encode()
    async with stranger(router) as client:
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        client.send(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n" + LIVE)
        assert (await client.answer())[0] == 202
        assert (await client.answer())[0] == 200


def publishing(body: bytes, *, chunked: bool = False) -> bytes:
    if not chunked:
        return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = [body[start : start + 5000] for start in range(0, len(body), 5000)]
    sent = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return POST + b"Transfer-Encoding: chunked\r\n\r\n" + sent + b"0\r\n\r\n"


def large_messages(router: Running, count: int, payload_chars: int) -> bytes:
    one = {"mediationTarget": router.receiver("fast"), "payload": {"text": "x" * payload_chars}}
    return json.dumps([one] * count).encode()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("count", "payload_chars"), [(1, 70_000), (500, 100)])
@pytest.mark.parametrize("pipelined", [False, True])
async def test_the_bytes_of_a_large_body_do_not_count_as_head(
    router: Running, chunked: bool, count: int, payload_chars: int, pipelined: bool
) -> None:
    request = publishing(large_messages(router, count, payload_chars), chunked=chunked)
    assert len(request) > 64 * 1024
    async with stranger(router) as client:
        if pipelined:
            client.send(request * 3 + LIVE)
        for _ in range(3):
            if not pipelined:
                client.send(request)
            assert (await client.answer())[0] == 202
        if not pipelined:
            client.send(LIVE)
        assert (await client.answer())[0] == 200


async def test_a_head_of_64_kib_is_read_behind_a_large_body(router: Running) -> None:
    start, end = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"\r\n\r\n"
    head = start + b"x" * (64 * 1024 - len(start) - len(end)) + end
    async with stranger(router) as client:
        client.send(publishing(large_messages(router, 1, 70_000)) + head)
        assert [(await client.answer())[0] for _ in range(2)] == [202, 200]


async def test_a_body_that_nobody_wants_is_read_for_a_moment_only(tmp_path: Path) -> None:
    async with run_router(tmp_path) as router, stranger(router) as client:
        client.send(b"POST /nothing-here HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000000\r\n\r\n")
        assert (await client.answer())[0] == 404
        client.send(b"x" * 8_000_000)
        await client.until_closed()


async def test_who_got_an_early_answer_and_stays_is_closed(tmp_path: Path) -> None:
    async with run_router(tmp_path, limits=IMPATIENT) as router, stranger(router) as client:
        client.send(b"POST /nothing-here HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n")
        assert (await client.answer())[0] == 404
        await client.until_closed()


async def test_after_an_early_answer_a_body_that_ends_soon_leaves_the_connection_open(router: Running) -> None:
    async with stranger(router) as client:
        client.send(b"POST /nothing-here HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n")
        assert (await client.answer())[0] == 404
        client.send(b"x" * 100 + LIVE)
        assert (await client.answer())[0] == 200


async def test_requests_sent_ahead_are_answered_in_order(router: Running) -> None:
    async with stranger(router) as client:
        client.send((LIVE + LIVE.replace(b"/live", b"/none")) * 4)
        assert [(await client.answer())[0] for _ in range(8)] == [200, 404] * 4
        client.send(LIVE)
        assert (await client.answer())[0] == 200


async def test_a_flood_of_requests_sent_ahead_is_cut_off(router: Running) -> None:
    async with stranger(router) as client:
        client.send(LIVE * 1000)
        assert (await client.until_closed()).count(b"HTTP/1.1 200") == 8


async def test_an_upgrade_that_is_not_offered_is_answered_without(router: Running) -> None:
    async with stranger(router) as client:
        client.send(LIVE[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await client.answer())[0] == 200
        assert await client.until_closed() == b""


async def test_an_answer_that_is_not_read_does_not_keep_its_connection(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ""

    async def is_said() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "answer_not_read" in said

    async with run_router(tmp_path, limits=IMPATIENT) as router:
        router.listening.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", router.listening.port))
            sock.sendall(b"GET /schema/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await until(is_said)


async def test_who_is_idle_for_longest_makes_way_when_there_are_too_many(tmp_path: Path) -> None:
    async with (
        run_router(tmp_path, limits=ConnectionLimits(connections=4)) as router,
        stranger(router) as first,
        stranger(router),
        stranger(router),
        stranger(router),
        stranger(router) as newcomer,
    ):
        newcomer.send(LIVE)
        assert (await newcomer.answer())[0] == 200
        assert await first.until_closed() == b""


async def test_who_has_a_request_under_way_does_not_make_way(tmp_path: Path) -> None:
    async with run_router(tmp_path, limits=ConnectionLimits(connections=1)) as router, stranger(router) as first:
        slow = POST.replace(b"/api/messages", b"/api/test/slow?delayMs=500")
        first.send(slow + b'Content-Length: 17\r\n\r\n{"messageId":"m"}')

        async def first_is_served() -> bool:
            return bool(router.app.sandbox.judge.requests)

        await until(first_is_served)
        async with stranger(router) as second:
            second.send(LIVE)
            assert (await first.answer())[0] == 200
            assert (await second.answer())[0] == 200


async def test_a_connection_that_ended_leaves_nothing_to_the_garbage_collector(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Any]] = []
    make = connection._Http.__init__

    def remember(self: Any, *args: Any) -> None:
        made.append(weakref.ref(self))
        make(self, *args)

    async def are_gone() -> bool:
        return len(made) == 2 and not any(one() for one in made)

    monkeypatch.setattr(connection._Http, "__init__", remember)
    gc.disable()
    try:
        async with stranger(router), stranger(router) as client:
            client.send(LIVE)
            assert (await client.answer())[0] == 200
        await until(are_gone)
    finally:
        gc.enable()


async def test_a_thousand_ended_connections_are_one_line_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = asyncio.get_running_loop()
    async with run_router(tmp_path, limits=ConnectionLimits(look_every_s=0.5)) as router:
        began = loop.time()
        for _ in range(20):
            async with stranger(router) as client:
                client.send(b"\x00")
                await client.assert_refused(400, "not HTTP/1.1")
        looks = (loop.time() - began) // 0.5 + 2  # of a busy machine there are more
        await asyncio.sleep(0.6)
    assert 1 <= capsys.readouterr().out.count("api_connections_ended") <= looks
