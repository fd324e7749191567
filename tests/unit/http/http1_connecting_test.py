"""How the HTTP/1.1 client connects: addresses in turn, only those that were checked, TLS and its sessions."""

import asyncio
import socket
from contextlib import ExitStack

import pytest

from flowcatalyst.core.errors import ConnectError
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.resolver import Address
from flowcatalyst.http.tls import client_context
from tests.support.http_servers import Call, PrivateCa, raw_server, reply
from tests.unit.http.http1_client import client, counts, post

pytestmark = pytest.mark.both_loops


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
