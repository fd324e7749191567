"""How many connections the HTTP/1.1 client has, who waits for one, and what cancelled and late requests leave."""

import asyncio
import socket

import pytest

from flowcatalyst.core.errors import ConnectError, ConnectionBrokenError, RequestTimeoutError
from flowcatalyst.core.targets import parse_target
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.resolver import Address
from tests.support.http_servers import Call, Gate, always, closed_port, in_turn, raw_server, reply
from tests.unit.http.http1_client import SHORT_S, client, counts, held_requests, post

pytestmark = pytest.mark.both_loops


# -- the bound ------------------------------------------------------------------------------------------------------


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
        pool.release(connection)
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
        pool.release(connection)
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
