"""What is special about the client on pyreqwest. What all clients promise is in client_contract_test."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import ConnectError, TargetRefusedError
from flowcatalyst.core.targets import parse_target
from flowcatalyst.http import http2
from flowcatalyst.http.contract import Response
from flowcatalyst.http.egress import EgressGuard, Resolver
from flowcatalyst.http.http2 import Http2Client
from flowcatalyst.http.resolver import Address
from tests.support.clocks import SetClock
from tests.support.http_servers import (
    Gate,
    PrivateCa,
    always,
    http2_front,
    raw_server,
    reply,
)

ANYWHERE = EgressGuard(allow_private=True)


@asynccontextmanager
async def client(**options: Any) -> AsyncIterator[Http2Client]:
    made = Http2Client(**{"guard": ANYWHERE, "clock": SystemClock(), **options})
    try:
        yield made
    finally:
        await made.close()
        assert repr(made) == "<Http2Client unused>"


async def post(http: Http2Client, url: str, *headers: tuple[str, str], body: bytes = b"{}") -> Response:
    return await http.post(parse_target(url), headers, body)


def resolver_of(*answers: str) -> Resolver:
    """A resolver that gives the first answer first and so on, then the last one for ever. Comma: more than one."""
    left = list(answers)

    async def resolve(host: str, port: int) -> list[Address]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, address) for address in answer.split(",")]

    return resolve


# -- HTTP/2 ---------------------------------------------------------------------------------------------------------


async def test_request_goes_over_http2_when_the_server_offers_it(nginx: str) -> None:
    authority = PrivateCa()
    guard = EgressGuard(allow_private=True, resolver=resolver_of("127.0.0.1"))
    answer = reply(404, b"nope", "X-Reason: gone", "Set-Cookie: a=b")
    async with (
        raw_server(always(answer)) as server,
        http2_front(nginx, server, authority, "shop.test") as port,
        client(guard=guard, root_certificates_pem=authority.root_pem) as http,
    ):
        for _ in range(2):
            response = await post(
                http, f"https://shop.test:{port}/a?b=c", ("X-One", "1"), ("X-Two", "2"), body=b"x" * 200_000
            )
        assert repr(http) == f"<Http2Client https://shop.test:{port} at 127.0.0.1>"
    assert (response.status, response.body, response.header("X-Reason")) == (404, b"nope", "gone")
    for call in server.requests:
        assert (call.method, call.path, call.body) == ("POST", "/a?b=c", b"x" * 200_000)
        assert call.headers["x-protocol"] == "HTTP/2.0"
        assert call.headers["host"] == f"shop.test:{port}"
        assert (call.headers["x-one"], call.headers["x-two"]) == ("1", "2")
        assert not {"cookie", "accept-encoding", "referer"} & call.headers.keys()


async def test_http2_carries_many_requests_at_once(nginx: str) -> None:
    authority, gate = PrivateCa(), Gate()
    async with (
        raw_server(gate) as server,
        http2_front(nginx, server, authority) as port,
        client(root_certificates_pem=authority.root_pem) as http,
    ):
        tasks = [asyncio.create_task(post(http, f"https://localhost:{port}/{number}")) for number in range(32)]
        await server.until(lambda server: len(server.requests) == 32)
        gate.opened.set()
        assert {response.status for response in await asyncio.gather(*tasks)} == {200}
    assert {call.headers["x-protocol"] for call in server.requests} == {"HTTP/2.0"}


# -- HTTP/1.1, by the server's choice -------------------------------------------------------------------------------


async def test_server_without_http2_gets_http_1_1() -> None:
    authority = PrivateCa()
    async with (
        raw_server(always(reply(200, b"ok")), tls=authority.server_context()) as server,
        client(root_certificates_pem=authority.root_pem) as http,
    ):
        for _ in range(2):
            assert (await post(http, server.url(host="localhost"))).body == b"ok"
    assert (server.connections, len(server.requests)) == (1, 2)


async def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_server(always(reply(502))) as proxy, raw_server() as server:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url())
        async with client() as http:
            assert (await post(http, server.url())).status == 200
    assert proxy.connections == 0


# -- failures -------------------------------------------------------------------------------------------------------


async def test_every_certificate_of_a_bundle_is_trusted() -> None:
    one, two = PrivateCa(), PrivateCa()
    for authority in (one, two):
        async with (
            raw_server(tls=authority.server_context()) as server,
            client(root_certificates_pem=one.root_pem + two.root_pem) as http,
        ):
            assert (await post(http, server.url(host="localhost"))).status == 200


# -- the address really dialled -------------------------------------------------------------------------------------


async def test_odd_form_of_an_address_is_dialled_as_it_was_checked() -> None:
    # Whatever pyreqwest would make of 127.1 by itself, the guard's resolver says 127.0.0.2.
    guard = EgressGuard(allow_private=True, resolver=resolver_of("127.0.0.2"))
    async with raw_server() as server, client(guard=guard) as http:
        with pytest.raises(ConnectError, match=r"127\.0\.0\.2"):
            await post(http, server.url(host="127.1"))
    assert server.connections == 0


async def test_next_address_is_tried_when_one_does_not_connect_and_then_kept() -> None:
    guard = EgressGuard(allow_private=True, resolver=resolver_of("127.0.0.2,127.0.0.1"))
    clock = SetClock()
    async with raw_server() as server, client(guard=guard, clock=clock) as http:
        assert (await post(http, server.url(host="shop.test"))).status == 200
        clock.now += http2.ADDRESS_TRUSTED_S
        assert (await post(http, server.url(host="shop.test"))).status == 200
        assert repr(http) == f"<Http2Client http://shop.test:{server.port} at 127.0.0.1>"
    assert server.connections == 1


async def test_name_is_resolved_again_after_a_while() -> None:
    guard = EgressGuard(False, ["127.0.0.1/32"], resolver_of("127.0.0.1", "10.0.0.1"))
    clock = SetClock()
    async with raw_server() as server, client(guard=guard, clock=clock) as http:
        for _ in range(2):
            assert (await post(http, server.url(host="shop.test"))).status == 200
        clock.now += http2.ADDRESS_TRUSTED_S
        with pytest.raises(TargetRefusedError):
            await post(http, server.url(host="shop.test"))
    assert len(server.requests) == 2


# -- how many clients -----------------------------------------------------------------------------------------------


async def test_client_of_an_origin_that_is_not_used_is_dropped_with_its_connections() -> None:
    clock = SetClock()
    async with raw_server() as old, raw_server() as new, client(clock=clock, idle_limit_s=60.0) as http:
        await post(http, old.url())
        clock.now += http2.ORIGIN_IDLE_S
        await post(http, new.url())
        assert repr(http) == f"<Http2Client {new.url('')} at 127.0.0.1>"
        await old.until(lambda server: server.open_connections == 0)


async def test_number_of_origins_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "MAX_ORIGINS", 2)
    guard = EgressGuard(allow_private=True, resolver=resolver_of("127.0.0.1"))
    async with raw_server() as server, client(guard=guard) as http:
        for host in ("a.test", "b.test", "a.test", "c.test"):
            await post(http, server.url(host=host))
        assert [origin[1] for origin in http._clients] == ["a.test", "c.test"]
