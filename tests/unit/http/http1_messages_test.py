"""Requests and responses of the HTTP/1.1 client: what it writes, reads and takes for no HTTP."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from flowcatalyst.core.errors import ConnectError
from flowcatalyst.http.contract import MAX_BODY_BYTES
from flowcatalyst.http.http1 import connection
from flowcatalyst.http.http1.client import Http1Client
from flowcatalyst.http.http1.connection import MAX_HEAD_BYTES, Connection
from tests.support.http_servers import Call, always, in_turn, raw_server, reply
from tests.unit.http.http1_client import assert_breaks, client, counts, post

pytestmark = pytest.mark.both_loops


# -- requests and responses ----------------------------------------------------------------------------------------


async def test_request_arrives_as_given_and_response_comes_back() -> None:
    answer = reply(404, b"nope", "X-Reason: gone", "X-Reason: later")
    async with raw_server(always(answer)) as server, client() as http:
        response = await post(http, server.url("/a?b=c#d"), ("Content-Type", "text/plain"), body=b"hello")
    call = server.requests[0]
    assert (call.method, call.path, call.body) == ("POST", "/a?b=c", b"hello")
    assert call.headers == {
        "host": f"127.0.0.1:{server.port}",
        "content-type": "text/plain",
        "content-length": "5",
    }
    assert (response.status, response.body, response.truncated) == (404, b"nope", False)
    assert response.header("x-REASON") == "gone"
    assert response.header("x-other") is None


async def test_large_request_body_arrives_whole() -> None:
    body = bytes(range(256)) * 8192
    async with raw_server() as server, client() as http:
        await post(http, server.url(), body=body)
        await post(http, server.url(), body=body)
    assert [call.body for call in server.requests] == [body, body]
    assert server.connections == 1


async def test_chunked_response_with_trailers_is_joined_and_its_trailers_are_no_headers() -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"4;ext=1\r\nwiki\r\n5\r\npedia\r\n0\r\nX-Trailer: 1\r\nX-More: 2\r\n\r\n"
    )
    async with raw_server(always(answer)) as server, client() as http:
        for _ in range(2):
            response = await post(http, server.url())
            assert response.body == b"wikipedia"
            assert list(response.headers) == [(b"transfer-encoding", b"chunked")]
    assert server.connections == 1


async def test_response_that_arrives_byte_by_byte_is_whole() -> None:
    async def drip(call: Call) -> None:
        for byte in reply(200, b"abc", "X-Name: value"):
            await call.send(bytes([byte]))
            await asyncio.sleep(0)

    async with raw_server(drip) as server, client() as http:
        response = await post(http, server.url())
    assert (response.body, response.header("x-name")) == (b"abc", "value")


async def test_response_without_length_ends_with_its_connection() -> None:
    async def until_close(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\n\r\nall ")
        await call.send(b"of it")
        call.close()

    async with raw_server(until_close) as server, client() as http:
        response = await post(http, server.url())
        assert (response.body, response.framed) == (b"all of it", False)
        assert repr(http) == "<Http1Client unused>"


async def test_interim_responses_are_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with raw_server(always(interim + reply(200, b"ok"))) as server, client() as http:
        for _ in range(2):
            response = await post(http, server.url())
            assert (response.status, response.body, response.header("link")) == (200, b"ok", None)
    assert server.connections == 1


async def test_no_content_and_not_modified_have_no_body_and_keep_the_connection() -> None:
    answers = [always(f"HTTP/1.1 {status} X\r\n\r\n".encode()) for status in (204, 304)]
    async with raw_server(in_turn(*answers)) as server, client() as http:
        assert [(await post(http, server.url())).status for _ in answers] == [204, 304]
    assert server.connections == 1


# -- limits ---------------------------------------------------------------------------------------------------------


async def test_body_of_exactly_the_cap_is_whole() -> None:
    async with raw_server(always(reply(200, b"x" * MAX_BODY_BYTES))) as server, client() as http:
        response = await post(http, server.url())
        assert (len(response.body), response.truncated) == (MAX_BODY_BYTES, False)
        assert counts(http) == "idle=1 active=0 waiting=0"


async def test_body_beyond_the_cap_is_cut_and_its_connection_closed() -> None:
    async with raw_server(always(reply(200, b"x" * (MAX_BODY_BYTES + 1)))) as server, client() as http:
        response = await post(http, server.url())
        assert (len(response.body), response.truncated) == (MAX_BODY_BYTES, True)
        assert repr(http) == "<Http1Client unused>"
        await server.until(lambda server: server.open_connections == 0)


async def test_headers_beyond_their_limit_break_the_connection() -> None:
    await assert_breaks(always(reply(200, b"", f"X-Big: {'x' * MAX_HEAD_BYTES}")), "too (large|many)")


async def test_headers_without_end_break_the_connection() -> None:
    async def endless(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nX-Endless: ")
        while True:
            await call.send(b"x" * 4096)

    await assert_breaks(endless, "too many header")


async def test_trailers_without_end_break_the_connection() -> None:
    async def endless(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Endless: ")
        while True:
            await call.send(b"x" * 4096)

    await assert_breaks(endless, "framing")


async def test_interim_responses_without_end_break_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they cost the loop seconds: with each of thousands in a chunk all of them were read again."""
    readings = 0

    class Counted(connection.RawHeaders):
        def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
            nonlocal readings
            readings += 1
            return super().__iter__()

    async def endless(call: Call) -> None:
        while True:
            await call.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)

    monkeypatch.setattr(connection, "RawHeaders", Counted)
    await assert_breaks(endless, "too many header")
    assert readings == 0


# -- what is not HTTP -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 099 Low\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n12",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
    ],
)
async def test_garbage_breaks_the_connection(garbage: bytes) -> None:
    await assert_breaks(always(garbage))


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"HTTP/1.1 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
async def test_part_of_a_response_is_no_response(part: bytes) -> None:
    async def half(call: Call) -> None:
        await call.send(part)
        call.close()

    await assert_breaks(half, "before its response was complete")


async def test_a_connection_that_ends_as_soon_as_it_is_made_leaves_its_place_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dial = Http1Client._dial

    async def dial_in_vain(*args: Any) -> Connection:
        connection = await dial(*args)
        asyncio.get_running_loop().call_soon(connection.discard)  # before anybody who waits for it goes on
        return connection

    async with raw_server(always(reply())) as server, client(max_connections_per_origin=1) as http:
        with monkeypatch.context() as patch:
            patch.setattr(Http1Client, "_dial", dial_in_vain)
            for _ in range(3):
                with pytest.raises(ConnectError, match="closed the connection at once"):
                    await post(http, server.url())
        assert (await post(http, server.url())).status == 200


async def test_reset_breaks_the_connection() -> None:
    async def reset(call: Call) -> None:
        call.reset()

    await assert_breaks(reset, "before its response was complete")
