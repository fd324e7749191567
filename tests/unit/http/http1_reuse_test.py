"""Connections of the HTTP/1.1 client that are used again, those that never are, and idle ones."""

import asyncio
import select

import pytest

from flowcatalyst.http.http1.pool import REST_EVERY
from tests.support.clocks import SetClock
from tests.support.http_servers import Call, Gate, always, raw_server, reply
from tests.unit.http.http1_client import NEVER_S, SHORT_S, client, counts, post, sweep_timer, until_unused

pytestmark = pytest.mark.both_loops


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
