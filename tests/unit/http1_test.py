import asyncio
import inspect
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import uvloop

from flowcatalyst.clock import SystemClock
from flowcatalyst.delivery.contract import MAX_BODY_BYTES, Response, parse_target
from flowcatalyst.delivery.egress import EgressGuard
from flowcatalyst.delivery.http1 import Http1Client
from flowcatalyst.delivery.http1_connection import MAX_HEAD_BYTES, Connection
from flowcatalyst.delivery.http1_pool import REST_EVERY
from flowcatalyst.delivery.resolver import Address
from flowcatalyst.delivery.tls import client_context
from flowcatalyst.errors import ConnectError, ConnectionBrokenError, RequestTimeoutError, TargetRefusedError
from tests.support.clocks import SetClock
from tests.support.http_servers import Call, Gate, PrivateCa, RawServer, always, closed_port, in_turn, raw_server, reply

ANYWHERE = EgressGuard(allow_private=True)
SHORT_S = 0.05
NEVER_S = 60.0


@asynccontextmanager
async def client(**options: Any) -> AsyncIterator[Http1Client]:
    made = Http1Client(**{"guard": ANYWHERE, "clock": SystemClock(), "idle_limit_s": NEVER_S, "rest_s": 0.0, **options})
    try:
        yield made
    finally:
        await made.close()
        assert repr(made) == "<Http1Client unused>"


async def post(http: Http1Client, url: str, *headers: tuple[str, str], body: bytes = b"{}") -> Response:
    return await http.post(parse_target(url), headers, body)


def counts(http: Http1Client) -> str:
    """The part of the client's repr that follows the origin."""
    return repr(http).removeprefix("<Http1Client ").removesuffix(">").partition(" ")[2]


async def until_unused(http: Http1Client) -> None:
    """Return when the client's loop has noticed that its last connection ended."""
    for _ in range(10_000):
        if repr(http) == "<Http1Client unused>":
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{http!r} still has connections")


def sweep_timer(http: Http1Client) -> asyncio.TimerHandle | None:
    [pool] = http._pools.values()
    return pool._sweep_timer


async def assert_breaks(
    script: Callable[[Call], Awaitable[None]], saying: str = "did not speak HTTP|switched protocols"
) -> None:
    async with raw_server(script) as server, client() as http:
        with pytest.raises(ConnectionBrokenError, match=saying):
            await post(http, server.url())
        assert repr(http) == "<Http1Client unused>"
        assert len(server.requests) == 1


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


async def test_redirect_is_just_a_response() -> None:
    async with raw_server() as other:
        script = always(reply(307, b"", f"Location: {other.url()}"))
        async with raw_server(script) as server, client() as http:
            assert (await post(http, server.url())).status == 307
        assert other.connections == 0


async def test_compressed_body_is_not_touched() -> None:
    async with raw_server(always(reply(200, b"\x1f\x8b!", "Content-Encoding: gzip"))) as server, client() as http:
        assert (await post(http, server.url())).body == b"\x1f\x8b!"
    assert "accept-encoding" not in server.requests[0].headers


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


async def test_endless_body_is_cut_at_the_cap() -> None:
    async def endless(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await call.send(b"x" * 4096)

    async with raw_server(endless) as server, client() as http:
        response = await post(http, server.url())
        assert (len(response.body), response.truncated) == (MAX_BODY_BYTES, True)
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


async def test_interim_responses_without_end_break_the_connection() -> None:
    async def endless(call: Call) -> None:
        while True:
            await call.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)

    await assert_breaks(endless, "too many header")


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


# -- reuse ----------------------------------------------------------------------------------------------------------


async def test_one_connection_carries_requests_that_follow_each_other() -> None:
    async with raw_server() as server, client() as http:
        for _ in range(5):
            await post(http, server.url())
        assert repr(http) == f"<Http1Client http://127.0.0.1:{server.port} idle=1 active=0 waiting=0>"
    assert (server.connections, len(server.requests)) == (1, 5)


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, b"", "Connection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        reply(200, b"", "Keep-Alive: timeout=0"),
        reply(200, b"ok") + b"x",
        reply(200, b"ok") + reply(200, b"again"),
        reply(200, b"", "Connection: close") + b"x",
    ],
)
async def test_connection_is_not_reused_after(answer: bytes) -> None:
    async with raw_server(always(answer)) as server, client() as http:
        for _ in range(2):
            assert (await post(http, server.url())).status == 200
            assert repr(http) == "<Http1Client unused>"
    assert server.connections == 2


async def test_http_1_0_connection_is_reused_when_the_server_says_so() -> None:
    answer = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"
    async with raw_server(always(answer)) as server, client() as http:
        await post(http, server.url())
        await post(http, server.url())
    assert server.connections == 1


async def test_unasked_data_closes_an_idle_connection() -> None:
    say_more = asyncio.Event()

    async def late_words(call: Call) -> None:
        await call.send(reply())
        await say_more.wait()
        await call.send(reply(408))
        await call.until_client_is_gone()

    async with raw_server(late_words) as server, client() as http:
        await post(http, server.url())
        assert counts(http) == "idle=1 active=0 waiting=0"
        say_more.set()
        await server.until(lambda server: server.open_connections == 0)
        assert repr(http) == "<Http1Client unused>"


async def test_a_second_answer_is_never_taken_for_the_answer_to_the_next_request() -> None:
    async def answer_twice(call: Call) -> None:
        await call.send(reply(200, call.path.encode()))
        await asyncio.sleep(0.001)
        await call.send(reply(200, call.path.encode()))

    async with raw_server(answer_twice) as server, client(rest_s=NEVER_S) as http:
        for number in range(40):
            assert (await post(http, server.url(f"/{number}"))).body == f"/{number}".encode()


async def test_a_request_goes_elsewhere_when_its_connection_has_bytes_that_the_loop_did_not_read() -> None:
    """The bytes arrive after the loop looked for the last time and before the request is written."""
    clients: list[asyncio.StreamWriter] = []

    async def remember(call: Call) -> None:
        clients.append(call._writer)
        await call.send(reply(200, call.path.encode()))

    async with raw_server(remember) as server, client() as http:
        await post(http, server.url("/first"))
        [pool] = http._pools.values()
        [connection] = pool._idle
        send_all = pool._send_all

        def send_after_more_came() -> None:
            if len(clients) == 1:
                clients[0].write(reply(200, b"/first again"))
                while not select.select([connection.fileno], [], [], 0)[0]:
                    pass
            send_all()

        pool._send_all = send_after_more_came  # type: ignore[method-assign]
        assert (await post(http, server.url("/second"))).body == b"/second"
    assert (server.connections, len(server.requests)) == (2, 2)


async def test_no_connection_is_used_again_before_an_origin_was_quiet_for_a_rest_after_its_first_answer() -> None:
    clock = SetClock()
    async with raw_server() as server, client(rest_s=0.005, clock=clock) as http:
        for _ in range(3):
            await post(http, server.url())
        assert (server.connections, counts(http)) == (3, "idle=3 active=0 waiting=0")
        clock.now += 0.005
        for _ in range(20):
            await post(http, server.url())
        assert (server.connections, counts(http)) == (3, "idle=3 active=0 waiting=0")


async def test_connections_rest_now_and_then_however_well_they_are_known() -> None:
    clock = SetClock()
    async with raw_server() as server, client(rest_s=0.005, clock=clock) as http:
        for number in range(REST_EVERY):
            await post(http, server.url())
            if number == 0:
                clock.now += 0.005
        assert server.connections == 1
        await post(http, server.url())
        assert server.connections == 2


async def test_a_resting_connection_leaves_its_place_to_who_needs_it() -> None:
    async with raw_server() as server, client(rest_s=NEVER_S, max_connections_per_origin=1) as http:
        await post(http, server.url())
        assert counts(http) == "idle=1 active=0 waiting=0"
        await asyncio.gather(*(post(http, server.url()) for _ in range(3)))
        assert counts(http) == "idle=1 active=0 waiting=0"
    assert (server.connections, len(server.requests)) == (4, 4)


async def test_an_origin_that_ever_sent_unasked_data_gets_a_new_connection_for_every_request() -> None:
    say_more = asyncio.Event()

    async def late_words(call: Call) -> None:
        await call.send(reply())
        if call.number == 1:
            await say_more.wait()
            await call.send(reply())
        await call.until_client_is_gone()

    async with raw_server(late_words) as server, raw_server() as other, client() as http:
        await post(http, server.url())
        say_more.set()
        await server.until(lambda server: server.open_connections == 0)
        for number in range(2, 5):
            await post(http, server.url())
            assert repr(http) == "<Http1Client unused>"
            assert server.connections == number
        for _ in range(3):
            await post(http, other.url())
        assert other.connections == 1


async def test_an_empty_line_after_a_body_is_nothing_unasked() -> None:
    async def careless(call: Call) -> None:
        await call.send(reply())
        await call.send(b"\r\n")

    async with raw_server(careless) as server, client() as http:
        for _ in range(5):
            await post(http, server.url())
            await asyncio.sleep(0.002)  # for the line to arrive
        assert counts(http) == "idle=1 active=0 waiting=0"


async def test_answer_before_the_whole_request_was_read_does_not_leave_a_reusable_connection() -> None:
    answered = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(413))
        await answered.wait()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    async with client() as http:
        response = await post(http, f"http://127.0.0.1:{port}/", body=b"x" * 20_000_000)
        assert response.status == 413
        assert repr(http) == "<Http1Client unused>"
        answered.set()
    server.close()
    await server.wait_closed()


async def test_connection_the_server_closed_while_idle_is_replaced() -> None:
    async def answer_then_close(call: Call) -> None:
        await call.send(reply())
        call.close()

    async with raw_server(answer_then_close) as server, client() as http:
        for _ in range(3):
            await post(http, server.url())
            await until_unused(http)
    assert (server.connections, len(server.requests)) == (3, 3)


async def test_request_on_a_reused_connection_that_dies_is_never_sent_twice() -> None:
    async def die(call: Call) -> None:
        call.close()

    async with raw_server(in_turn(always(reply()), die, always(reply()))) as server, client() as http:
        await post(http, server.url())
        with pytest.raises(ConnectionBrokenError):
            await post(http, server.url())
        assert (server.connections, len(server.requests)) == (1, 2)
        await post(http, server.url())
    assert (server.connections, len(server.requests)) == (2, 3)


async def test_the_connection_used_last_is_used_next() -> None:
    gate = Gate()
    async with raw_server(gate) as server, client() as http:
        pair = [asyncio.ensure_future(post(http, server.url())) for _ in range(2)]
        await server.until(lambda server: len(server.requests) == 2)
        gate.opened.set()
        await asyncio.gather(*pair)
        assert counts(http) == "idle=2 active=0 waiting=0"
        for _ in range(3):
            await post(http, server.url())
        assert len({call.connection for call in server.requests[2:]}) == 1


# -- idle connections -----------------------------------------------------------------------------------------------


async def test_idle_connection_is_closed_after_its_limit() -> None:
    async with raw_server() as server, client(idle_limit_s=SHORT_S) as http:
        await post(http, server.url())
        await server.until(lambda server: server.open_connections == 0)
        assert repr(http) == "<Http1Client unused>"


@pytest.mark.parametrize(
    ("keep_alive", "idle_s", "connections"),
    [
        ("max=5", 3.9, 1),
        ("max=5", 4.0, 2),
        ("timeout=3", 2.4, 1),
        ("timeout=3, max=5", 2.5, 2),
        ("timeout=60", 3.9, 1),
        ("timeout=60", 4.0, 2),
    ],
)
async def test_idle_connection_is_used_within_the_smaller_of_our_limit_and_the_servers_promise(
    keep_alive: str, idle_s: float, connections: int
) -> None:
    clock = SetClock()
    script = always(reply(200, b"", f"Keep-Alive: {keep_alive}"))
    async with raw_server(script) as server, client(idle_limit_s=4.0, clock=clock) as http:
        await post(http, server.url())
        clock.now += idle_s
        await post(http, server.url())
    assert server.connections == connections


async def test_no_timer_runs_when_nothing_is_idle() -> None:
    gate = Gate()
    async with raw_server(gate) as server, client() as http:
        request = asyncio.ensure_future(post(http, server.url()))
        await server.until(lambda server: len(server.requests) == 1)
        assert sweep_timer(http) is None
        gate.opened.set()
        await request
        first_timer = sweep_timer(http)
        assert first_timer is not None
        await post(http, server.url())
        assert sweep_timer(http) is first_timer


# -- the bound ------------------------------------------------------------------------------------------------------


async def held_requests(http: Http1Client, server: RawServer, count: int) -> list[asyncio.Task[Response]]:
    """Requests named 0, 1, 2 ... in their path, started in this order; the server holds the first one."""
    tasks = [asyncio.create_task(post(http, server.url(f"/{number}"))) for number in range(count)]
    await server.until(lambda server: len(server.requests) == 1)
    return tasks


async def test_requests_beyond_the_bound_wait_and_are_served_first_come_first_served() -> None:
    gate = Gate()
    async with raw_server(gate) as server, client(max_connections_per_origin=1) as http:
        tasks = await held_requests(http, server, 5)
        assert counts(http) == "idle=0 active=1 waiting=4"
        gate.opened.set()
        await asyncio.gather(*tasks)
        assert counts(http) == "idle=1 active=0 waiting=0"
    assert [call.path for call in server.requests] == ["/0", "/1", "/2", "/3", "/4"]
    assert server.connections == 1


async def test_newcomer_does_not_overtake_those_who_wait() -> None:
    gate = Gate()
    async with raw_server(gate) as server, client(max_connections_per_origin=1) as http:
        first, second = await held_requests(http, server, 2)
        gate.opened.set()
        await first  # in this moment the connection belongs to the second already
        newcomer = asyncio.create_task(post(http, server.url("/newcomer")))
        await asyncio.gather(second, newcomer)
    assert [call.path for call in server.requests] == ["/0", "/1", "/newcomer"]


async def test_connections_are_bounded_for_each_origin_on_its_own() -> None:
    gate = Gate()
    async with raw_server(gate) as one, raw_server(gate) as two, client(max_connections_per_origin=2) as http:
        tasks = [asyncio.create_task(post(http, server.url())) for server in (one, two) for _ in range(5)]
        for server in (one, two):
            await server.until(lambda server: len(server.requests) == 2)
        assert repr(http).count("idle=0 active=2 waiting=3") == 2
        gate.opened.set()
        await asyncio.gather(*tasks)
        assert (one.connections, two.connections) == (2, 2)


async def test_cancelled_waiter_leaves_the_line() -> None:
    gate = Gate()
    async with raw_server(gate) as server, client(max_connections_per_origin=1) as http:
        tasks = await held_requests(http, server, 3)
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        assert counts(http) == "idle=0 active=1 waiting=1"
        gate.opened.set()
        await asyncio.gather(tasks[0], tasks[2])
    assert [call.path for call in server.requests] == ["/0", "/2"]


async def test_waiter_cancelled_together_with_the_hand_over_loses_nothing() -> None:
    async with raw_server() as server, client(max_connections_per_origin=1) as http:
        await post(http, server.url())
        [pool] = http._pools.values()
        connection = pool.take_idle()
        assert connection is not None
        waiting = [asyncio.create_task(post(http, server.url(f"/{number}"))) for number in range(2)]
        await asyncio.sleep(0)
        assert counts(http) == "idle=0 active=1 waiting=2"
        pool.give_back(connection)
        waiting[0].cancel()  # its future has the connection, but the task has not run yet
        await asyncio.gather(*waiting, return_exceptions=True)
        assert waiting[0].cancelled()
        assert waiting[1].result().status == 200
        assert counts(http) == "idle=1 active=0 waiting=0"
    assert [call.path for call in server.requests] == ["/", "/1"]
    assert server.connections == 1


async def test_connection_that_dies_between_hand_over_and_use_is_replaced_unsent() -> None:
    async with raw_server() as server, client(max_connections_per_origin=1) as http:
        await post(http, server.url())
        [pool] = http._pools.values()
        connection = pool.take_idle()
        assert connection is not None
        waiting = asyncio.create_task(post(http, server.url("/late")))
        await asyncio.sleep(0)
        pool.give_back(connection)
        connection.eof_received()
        assert (await waiting).status == 200
        assert counts(http) == "idle=1 active=0 waiting=0"
    assert [call.connection for call in server.requests] == [1, 2]


async def test_place_of_a_broken_connection_goes_to_the_next_in_line() -> None:
    gate = Gate(b"garbage\r\n\r\n")
    async with raw_server(in_turn(gate, always(reply()))) as server, client(max_connections_per_origin=1) as http:
        tasks = await held_requests(http, server, 3)
        gate.opened.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], ConnectionBrokenError)
        assert counts(http) == "idle=1 active=0 waiting=0"
    assert [(call.path, call.connection) for call in server.requests] == [("/0", 1), ("/1", 2), ("/2", 2)]


async def test_failure_to_connect_gives_the_place_to_the_next_in_line() -> None:
    url = f"http://127.0.0.1:{closed_port()}/"
    async with client(max_connections_per_origin=1) as http:
        results = await asyncio.gather(*(post(http, url) for _ in range(5)), return_exceptions=True)
        assert [type(result) for result in results] == [ConnectError] * 5
        assert repr(http) == "<Http1Client unused>"


# -- cancellation and deadlines -------------------------------------------------------------------------------------


async def test_cancelled_request_closes_its_connection() -> None:
    async with raw_server(Gate()) as server, client() as http:
        [task] = await held_requests(http, server, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert repr(http) == "<Http1Client unused>"


async def test_request_cancelled_during_its_body_closes_its_connection() -> None:
    half_sent = asyncio.Event()

    async def half(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        half_sent.set()
        await call.until_client_is_gone()

    async with raw_server(half) as server, client() as http:
        [task] = await held_requests(http, server, 1)
        await half_sent.wait()
        task.cancel()
        await server.until(lambda server: server.open_connections == 0)
        assert task.cancelled()
        assert repr(http) == "<Http1Client unused>"


async def test_cancellation_at_any_step_leaves_no_place_taken() -> None:
    async with raw_server() as server, client(max_connections_per_origin=1) as http:
        for steps in range(12):
            task = asyncio.create_task(post(http, server.url()))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert "active=0 waiting=0" in repr(http) or repr(http) == "<Http1Client unused>"
        assert (await post(http, server.url())).status == 200


async def test_deadline_ends_a_request_without_an_answer() -> None:
    async def silent(call: Call) -> None:
        await call.until_client_is_gone()

    async with raw_server(silent) as server, client(request_timeout_s=SHORT_S) as http:
        with pytest.raises(RequestTimeoutError):
            await post(http, server.url())
        await server.until(lambda server: server.open_connections == 0)
        assert repr(http) == "<Http1Client unused>"


async def test_deadline_ends_a_dripping_body() -> None:
    async def drip(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await call.send(b"1\r\nx\r\n")
            await asyncio.sleep(0.005)

    async with raw_server(drip) as server, client(request_timeout_s=SHORT_S) as http:
        with pytest.raises(RequestTimeoutError):
            await post(http, server.url())
        await server.until(lambda server: server.open_connections == 0)


async def test_deadline_ends_the_wait_for_a_connection() -> None:
    gate = Gate()
    async with raw_server(gate) as server, client(max_connections_per_origin=1, request_timeout_s=SHORT_S) as http:
        results = await asyncio.gather(*await held_requests(http, server, 3), return_exceptions=True)
        assert [type(result) for result in results] == [RequestTimeoutError] * 3
        assert repr(http) == "<Http1Client unused>"


async def test_a_request_may_have_a_shorter_deadline_than_the_client() -> None:
    async def silent(call: Call) -> None:
        await call.until_client_is_gone()

    async with raw_server(silent) as server, client(max_connections_per_origin=1) as http:
        patient = asyncio.create_task(post(http, server.url()))
        await server.until(lambda server: len(server.requests) == 1)
        for url in (server.url(), server.url(host="localhost")):  # waits for a connection; waits for an answer
            with pytest.raises(RequestTimeoutError):
                await http.post(parse_target(url), (), b"", SHORT_S)
        assert not patient.done()
        patient.cancel()


async def test_deadline_covers_the_resolution_of_the_name() -> None:
    async def never(host: str, port: int) -> list[Address]:
        await asyncio.Event().wait()
        return []

    guard = EgressGuard(allow_private=True, resolver=never)
    async with client(guard=guard, request_timeout_s=SHORT_S) as http:
        with pytest.raises(RequestTimeoutError):
            await post(http, "http://slow.test/")
        assert repr(http) == "<Http1Client unused>"


async def test_connect_timeout_ends_a_connect_that_hangs() -> None:
    async def mute(call: Call) -> None:
        await call.until_client_is_gone()

    # A server that accepts but never shakes hands: TCP connects, TLS does not.
    async with raw_server(greeting=mute) as server, client(connect_timeout_s=SHORT_S) as http:
        with pytest.raises(ConnectError, match="did not connect in"):
            await post(http, f"https://127.0.0.1:{server.port}/")
        assert repr(http) == "<Http1Client unused>"


# -- connecting -----------------------------------------------------------------------------------------------------


async def test_refused_connection_is_a_connect_error_that_names_the_target() -> None:
    port = closed_port()
    async with client() as http:
        with pytest.raises(ConnectError, match=f"http://127.0.0.1:{port} cannot be reached"):
            await post(http, f"http://127.0.0.1:{port}/")


async def test_unresolvable_name_is_a_connect_error() -> None:
    async def unknown(host: str, port: int) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with client(guard=EgressGuard(allow_private=True, resolver=unknown)) as http:
        with pytest.raises(ConnectError, match=r"nowhere\.test cannot be resolved"):
            await post(http, "http://nowhere.test/")
        assert repr(http) == "<Http1Client unused>"


async def test_addresses_are_tried_in_order_and_the_name_stays_in_the_host_header() -> None:
    async def two_addresses(host: str, port: int) -> list[Address]:
        return [(socket.AF_INET, "127.0.0.9"), (socket.AF_INET, "127.0.0.1")]

    guard = EgressGuard(allow_private=True, resolver=two_addresses)
    async with raw_server() as server, client(guard=guard) as http:
        assert (await post(http, server.url(host="shop.test"))).status == 200
    assert server.requests[0].headers["host"] == f"shop.test:{server.port}"


async def test_an_address_that_does_not_answer_does_not_use_up_the_time_of_the_next_one() -> None:
    async def two_addresses(host: str, port: int) -> list[Address]:
        return [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "127.0.0.1")]

    guard = EgressGuard(allow_private=True, resolver=two_addresses)
    async with raw_server() as server, client(guard=guard, connect_timeout_s=10.0) as http:
        with socket.create_server(("127.0.0.2", server.port), backlog=0), ExitStack() as stack:
            for _ in range(4):  # then the kernel drops the packets of who wants to connect
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.2", server.port))
            assert (await post(http, server.url(host="shop.test"))).status == 200
            assert counts(http) == "idle=1 active=0 waiting=0"


async def test_the_first_address_that_connects_wins_and_the_other_connections_are_closed() -> None:
    shake_hands = asyncio.Event()
    authority = PrivateCa()

    async def slow_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands.wait()
        writer.close()

    async def two_addresses(host: str, port: int) -> list[Address]:
        return [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "127.0.0.1")]

    guard = EgressGuard(allow_private=True, resolver=two_addresses)
    tls = authority.server_context("shop.test")
    async with (
        raw_server(tls=tls) as server,
        client(guard=guard, ssl_context=authority.client_context()) as http,
    ):
        mute = await asyncio.start_server(slow_first, "127.0.0.2", server.port)  # connects, and never shakes hands
        assert (await post(http, server.url(host="shop.test"))).status == 200
        assert counts(http) == "idle=1 active=0 waiting=0"
        shake_hands.set()
        mute.close()
        await mute.wait_closed()


async def test_private_address_is_refused_before_any_dial() -> None:
    async with raw_server() as server, client(guard=EgressGuard(allow_private=False)) as http:
        for url in (server.url(), server.url(host="127.1"), server.url(host="localhost")):
            with pytest.raises(TargetRefusedError, match="not a public address"):
                await post(http, url)
        assert repr(http) == "<Http1Client unused>"
        assert server.connections == 0


async def test_name_that_resolves_differently_the_second_time_gets_no_second_time() -> None:
    answers = [[(int(socket.AF_INET), "127.0.0.2")], [(int(socket.AF_INET), "127.0.0.1")]]

    async def rebinding(host: str, port: int) -> list[Address]:
        return answers.pop(0)

    # 127.0.0.2 passes the check and nobody listens there; 127.0.0.1 would fail it, and a server listens.
    guard = EgressGuard(allow_private=False, allowed_networks=["127.0.0.2/32"], resolver=rebinding)
    async with raw_server() as server, client(guard=guard) as http:
        with pytest.raises(ConnectError, match=r"127\.0\.0\.2"):
            await post(http, server.url(host="rebind.test"))
        assert len(answers) == 1
        with pytest.raises(TargetRefusedError):
            await post(http, server.url(host="rebind.test"))
        assert server.connections == 0


async def test_tls_verifies_and_reuses_the_connection() -> None:
    authority = PrivateCa()
    tls = authority.server_context()
    async with raw_server(tls=tls) as server, client(ssl_context=authority.client_context()) as http:
        for _ in range(2):
            assert (await post(http, server.url(host="localhost"), body=b"x" * 300_000)).status == 200
        assert counts(http) == "idle=1 active=0 waiting=0"
    assert server.connections == 1


async def test_tls_names_the_host_offers_http_1_1_and_resumes_its_session() -> None:
    authority = PrivateCa()
    seen: list[tuple[str | None, str | None, bool]] = []

    async def close(call: Call) -> None:
        tls = call._writer.get_extra_info("ssl_object")
        seen.append((names[-1], tls.selected_alpn_protocol(), tls.session_reused))
        await call.send(reply(200, b"", "Connection: close"))

    names: list[str | None] = []
    server_tls = authority.server_context()
    server_tls.set_alpn_protocols(["h2", "http/1.1"])
    server_tls.sni_callback = lambda tls, name, context: names.append(name)
    ours = client_context()
    authority.ca.configure_trust(ours)
    async with raw_server(close, tls=server_tls) as server, client(ssl_context=ours) as http:
        for _ in range(3):
            assert (await post(http, server.url(host="localhost"))).status == 200
        assert (await post(http, server.url(host="127.0.0.1"))).status == 200
    resumed = [("localhost", "http/1.1", reused) for reused in (False, True, True)]
    assert seen == [*resumed, (None, "http/1.1", False)]  # an address is no name


async def test_a_session_is_not_resumed_with_a_host_that_was_never_verified() -> None:
    authority, other = PrivateCa(), PrivateCa()
    ours = client_context()
    authority.ca.configure_trust(ours)
    async with raw_server(tls=other.server_context()) as server, client(ssl_context=ours) as http:
        for _ in range(3):
            with pytest.raises(ConnectError, match="certificate verify failed"):
                await post(http, server.url(host="localhost"))
    assert server.requests == []


async def test_certificate_of_an_unknown_authority_is_a_connect_error() -> None:
    async with raw_server(tls=PrivateCa().server_context()) as server, client() as http:
        with pytest.raises(ConnectError, match="certificate verify failed"):
            await post(http, server.url())
        assert repr(http) == "<Http1Client unused>"
    assert server.requests == []


async def test_certificate_for_another_name_is_a_connect_error() -> None:
    authority = PrivateCa()
    tls = authority.server_context("other.test")
    async with raw_server(tls=tls) as server, client(ssl_context=authority.client_context()) as http:
        with pytest.raises(ConnectError, match="certificate verify failed"):
            await post(http, server.url())
    assert server.requests == []


# -- injection ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-A", "a\r\nX-B: b"),
        ("X-A", "a\nb"),
        ("X-A", "a\rb"),
        ("X-A", "a\0b"),
        ("X-A", "a\x7f"),
        ("X-A", "a\x85b"),
        ("X-A", "snowman \N{SNOWMAN}"),
        ("X-A: b\r\nX-C", "d"),
        ("X A", "a"),
        ("", "a"),
        ("X-\xe9", "a"),
        ("Content-Length", "0"),
        ("transfer-encoding", "chunked"),
        ("Host", "elsewhere.test"),
    ],
)
async def test_header_that_could_change_the_request_is_refused_before_anything_is_sent(name: str, value: str) -> None:
    async with raw_server() as server, client() as http:
        with pytest.raises(TargetRefusedError):
            await post(http, server.url(), (name, value))
        assert repr(http) == "<Http1Client unused>"
    assert server.connections == 0


async def test_refused_header_does_not_show_its_value() -> None:
    async with client() as http:
        with pytest.raises(TargetRefusedError) as refused:
            await post(http, "http://127.0.0.1/", ("Authorization", "Bearer s3cret\n"))
    assert "s3cret" not in str(refused.value)


# -- closing --------------------------------------------------------------------------------------------------------


async def test_close_fails_what_is_on_its_way_and_leaves_no_socket() -> None:
    async def silent(call: Call) -> None:
        await call.until_client_is_gone()

    async with raw_server(silent) as server, client(max_connections_per_origin=1) as http:
        on_its_way, waiting = await held_requests(http, server, 2)
        await http.close()
        results = await asyncio.gather(on_its_way, waiting, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionBrokenError, ConnectError]
        await server.until(lambda server: server.open_connections == 0)
        with pytest.raises(ConnectError, match="closed"):
            await post(http, server.url())
        await http.close()


async def test_close_during_a_connect_leaves_no_socket() -> None:
    resolving, resolved = asyncio.Event(), asyncio.Event()

    async def slow(host: str, port: int) -> list[Address]:
        resolving.set()
        await resolved.wait()
        return [(socket.AF_INET, "127.0.0.1")]

    guard = EgressGuard(allow_private=True, resolver=slow)
    async with raw_server() as server, client(guard=guard) as http:
        request = asyncio.create_task(post(http, server.url(host="slow.test")))
        await resolving.wait()
        await http.close()
        resolved.set()
        with pytest.raises(ConnectError, match="closed"):
            await request
    assert server.requests == []


# -- the loop of production -----------------------------------------------------------------------------------------

GUARANTEES = [
    thing
    for name, thing in list(globals().items())
    if name.startswith("test_") and inspect.iscoroutinefunction(thing) and not inspect.signature(thing).parameters
]


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda guarantee: guarantee.__name__)
def test_uvloop_keeps_the_same_guarantee(guarantee: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(guarantee())
