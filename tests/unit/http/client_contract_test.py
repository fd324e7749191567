"""What every HTTP client promises, whichever of them carries a message. What one of them cannot do is listed here."""

import asyncio
import inspect
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import ConnectError, ConnectionBrokenError, RequestTimeoutError, TargetRefusedError
from flowcatalyst.core.targets import parse_target
from flowcatalyst.http.contract import MAX_BODY_BYTES, HttpClient, Response
from flowcatalyst.http.egress import EgressGuard, Resolver
from flowcatalyst.http.http1.client import Http1Client
from flowcatalyst.http.http2 import Http2Client
from flowcatalyst.http.resolver import Address
from tests.support.http_servers import (
    Call,
    Gate,
    PrivateCa,
    RawServer,
    Script,
    always,
    closed_port,
    http2_front,
    in_turn,
    raw_server,
    reply,
)

pytestmark = pytest.mark.both_loops

SHORT_S = 0.1
KINDS = ("http1", "http1 over TLS", "http2's HTTP/1.1 over TLS", "http2")
# Which promise a client cannot keep, and why.
CANNOT = {
    ("http2", "test_cancelled_request_is_taken_from_the_server"): "pyreqwest lets a cancelled request run on",
    ("http2", "test_header_bytes_beyond_ascii_arrive"): "pyreqwest tells only ASCII values; the name arrives",
    ("http2", "test_body_cut_by_the_end_of_its_connection_is_said_to_be_unframed"): "HTTP/2 frames every body",
    ("http2", "test_part_of_a_body_is_no_response"): "the nginx in between answers for the server",
    ("http2", "test_request_that_may_have_arrived_is_broken_and_never_sent_twice"): "the nginx answers 502",
    ("http2", "test_request_on_a_kept_connection_that_dies_is_never_sent_twice"): "the nginx answers 502",
    ("http2", "test_a_server_that_never_shakes_hands_is_a_connect_error"): "there is always an nginx",
}
CANNOT |= {("http2's HTTP/1.1 over TLS", test): why for (_, test), why in list(CANNOT.items())[:2]}


@dataclass
class Scene:
    """One kind of client, and a server it can reach."""

    kind: str
    nginx: str
    authority: PrivateCa = field(default_factory=PrivateCa)

    @asynccontextmanager
    async def server(self, script: Script | None = None) -> AsyncIterator[tuple[RawServer, str]]:
        """The server and a URL that leads to it."""
        tls = None if self.kind in ("http1", "http2") else self.authority.server_context()
        async with raw_server(script, tls=tls) as server:
            if self.kind == "http2":
                async with http2_front(self.nginx, server, self.authority) as port:
                    yield server, f"https://localhost:{port}/hook?x=1"
            else:
                yield server, server.url("/hook?x=1", host="localhost")

    @asynccontextmanager
    async def client(
        self, guard: EgressGuard | None = None, request_timeout_s: float = 60.0, connect_timeout_s: float = 30.0
    ) -> AsyncIterator[HttpClient]:
        guard = guard or EgressGuard(allow_private=True)
        made: HttpClient
        if self.kind.startswith("http1"):
            made = Http1Client(
                guard=guard,
                clock=SystemClock(),
                request_timeout_s=request_timeout_s,
                connect_timeout_s=connect_timeout_s,
                rest_s=0.0,  # a connection may be used again at once
                ssl_context=self.authority.client_context(),
            )
        else:
            made = Http2Client(
                guard=guard,
                clock=SystemClock(),
                request_timeout_s=request_timeout_s,
                connect_timeout_s=connect_timeout_s,
                root_certificates_pem=self.authority.root_pem,
            )
        try:
            yield made
        finally:
            await made.close()
            assert repr(made).endswith("unused>")

    def assert_no_connection_is_left(self, http: HttpClient) -> None:
        """As far as one can see: pyreqwest does not tell."""
        assert not self.kind.startswith("http1") or repr(http) == "<Http1Client unused>"


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest, nginx: str) -> Scene:
    name = request.function.__name__
    if (request.param, name) in CANNOT:
        pytest.skip(CANNOT[request.param, name])
    return Scene(request.param, nginx)


def test_what_is_said_to_be_impossible_is_a_promise_of_this_suite() -> None:
    tests = {name for name, thing in globals().items() if name.startswith("test_") and inspect.isfunction(thing)}
    assert {(kind, name) for kind, name in CANNOT if kind not in KINDS or name not in tests} == set()


async def post(
    http: HttpClient, url: str, *headers: tuple[str, str], body: bytes = b"{}", timeout_s: float | None = None
) -> Response:
    return await http.post(parse_target(url), headers, body, timeout_s)


async def silent(call: Call) -> None:
    await call.until_client_is_gone()


# -- requests and responses ----------------------------------------------------------------------------------------


async def test_request_arrives_as_given_and_response_comes_back(scene: Scene) -> None:
    answer = always(reply(404, b"nope", "X-Reason: gone"))
    async with scene.server(answer) as (server, url), scene.client() as http:
        response = await post(http, url, ("X-One", "1"), ("Accept-Encoding", "identity"), body=b"x" * 200_000)
    [call] = server.requests
    assert (call.method, call.path, call.body) == ("POST", "/hook?x=1", b"x" * 200_000)
    assert (call.headers["x-one"], call.headers["accept-encoding"]) == ("1", "identity")
    assert call.headers["host"] == parse_target(url).authority
    assert (response.status, response.body, response.header("X-Reason")) == (404, b"nope", "gone")
    assert (response.truncated, response.framed) == (False, True)


async def test_lines_of_one_request_arrive_beside_the_shared_headers(scene: Scene) -> None:
    shared = (("X-One", "1"), ("User-Agent", "FlowCatalyst/1"))
    async with scene.server(always(reply(200))) as (server, url), scene.client() as http:
        for number in (1, 2):
            lines = f"X-Message: m {number}: a\r\nX-Attempt: {number}\r\n"
            await http.post(parse_target(url), shared, b"{}", None, lines)
        await http.post(parse_target(url), shared, b"{}")
    told = [(call.headers.get("x-message"), call.headers.get("x-attempt")) for call in server.requests]
    assert told == [("m 1: a", "1"), ("m 2: a", "2"), (None, None)]
    assert {(call.headers["x-one"], call.headers["user-agent"]) for call in server.requests} == {
        ("1", "FlowCatalyst/1")
    }


async def test_redirect_is_just_a_response(scene: Scene) -> None:
    async with raw_server() as other:
        answer = always(reply(307, b"", f"Location: {other.url()}"))
        async with scene.server(answer) as (_, url), scene.client() as http:
            assert (await post(http, url)).status == 307
        assert other.connections == 0


async def test_coded_body_is_not_touched_and_says_so(scene: Scene) -> None:
    answer = always(reply(200, b"\x1f\x8b!", "Content-Encoding: gzip", "Content-Type: Application/JSON"))
    async with scene.server(answer) as (server, url), scene.client() as http:
        response = await post(http, url)
    assert "accept-encoding" not in server.requests[0].headers
    assert response.body == b"\x1f\x8b!"
    assert (response.content().coding, response.content().type) == ("gzip", "application/json")


@pytest.mark.parametrize(("size", "truncated"), [(MAX_BODY_BYTES, False), (MAX_BODY_BYTES + 1, True)])
async def test_body_is_read_to_the_cap(scene: Scene, size: int, truncated: bool) -> None:
    async with scene.server(always(reply(200, b"x" * size))) as (_, url), scene.client() as http:
        response = await post(http, url)
    assert (len(response.body), response.truncated) == (MAX_BODY_BYTES, truncated)


async def test_endless_body_is_cut_and_reading_stops(scene: Scene) -> None:
    async def endless(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await call.send(b"x" * 4096)

    async with scene.server(endless) as (server, url), scene.client() as http:
        response = await post(http, url)
        assert (len(response.body), response.truncated) == (MAX_BODY_BYTES, True)
        await server.until(lambda server: server.open_connections == 0)


async def test_body_cut_by_the_end_of_its_connection_is_said_to_be_unframed(scene: Scene) -> None:
    async def until_close(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\n\r\n{")
        call.close()

    async with scene.server(until_close) as (_, url), scene.client() as http:
        response = await post(http, url)
    assert (response.body, response.framed) == (b"{", False)


async def test_header_bytes_beyond_ascii_do_not_hide_that_the_message_was_delivered(scene: Scene) -> None:
    answer = always(b'HTTP/1.1 200 OK\r\nX-Name: caf\xe9 \xff\r\nContent-Length: 12\r\n\r\n{"ack":true}')
    async with scene.server(answer) as (server, url), scene.client() as http:
        response = await post(http, url)
    assert (response.status, response.body, len(server.requests)) == (200, b'{"ack":true}', 1)
    assert response.header("x-name") is not None


async def test_header_bytes_beyond_ascii_arrive(scene: Scene) -> None:
    answer = always(b"HTTP/1.1 200 OK\r\nX-Name: caf\xe9\r\nContent-Length: 0\r\n\r\n")
    async with scene.server(answer) as (_, url), scene.client() as http:
        assert (await post(http, url)).header("x-name") == "caf\xe9"


# -- failures -------------------------------------------------------------------------------------------------------


async def close(call: Call) -> None:
    call.close()


async def reset(call: Call) -> None:
    call.reset()


async def half(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    call.close()


@pytest.mark.parametrize("script", [close, reset, half, always(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")])
async def test_request_that_may_have_arrived_is_broken_and_never_sent_twice(scene: Scene, script: Script) -> None:
    # Two addresses, one server: a client that took this for a failure to connect would try the other one.
    guard = EgressGuard(allow_private=True, resolver=resolver_of("127.0.0.1", "127.0.0.1"))
    async with scene.server(script) as (server, url), scene.client(guard) as http:
        with pytest.raises(ConnectionBrokenError):
            await post(http, url)
    assert len(server.requests) == 1


async def test_request_on_a_kept_connection_that_dies_is_never_sent_twice(scene: Scene) -> None:
    async with scene.server(in_turn(always(reply()), close, always(reply()))) as (server, url), scene.client() as http:
        await post(http, url)
        with pytest.raises(ConnectionBrokenError):
            await post(http, url)
        assert (server.connections, len(server.requests)) == (1, 2)
        await post(http, url)
    assert (server.connections, len(server.requests)) == (2, 3)


async def test_part_of_a_body_is_no_response(scene: Scene) -> None:
    async with scene.server(half) as (_, url), scene.client() as http:
        with pytest.raises(ConnectionBrokenError):
            await post(http, url)


async def test_refused_connection_is_a_connect_error_that_names_the_target(scene: Scene) -> None:
    async with scene.client() as http:
        for scheme in ("http", "https"):
            origin = f"{scheme}://127.0.0.1:{closed_port()}"
            with pytest.raises(ConnectError, match=f"{origin} cannot be reached"):
                await post(http, f"{origin}/")


async def test_unresolvable_name_is_a_connect_error(scene: Scene) -> None:
    async def unknown(host: str, port: int) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with scene.client(EgressGuard(allow_private=True, resolver=unknown)) as http:
        with pytest.raises(ConnectError, match=r"nowhere\.test cannot be resolved"):
            await post(http, "http://nowhere.test/")
        scene.assert_no_connection_is_left(http)


async def test_a_server_that_never_shakes_hands_is_a_connect_error(scene: Scene) -> None:
    async with raw_server(greeting=silent) as server, scene.client(connect_timeout_s=SHORT_S) as http:
        words = "did not connect in" if scene.kind.startswith("http1") else "cannot be reached"
        with pytest.raises(ConnectError, match=words):
            await post(http, f"https://127.0.0.1:{server.port}/")
        scene.assert_no_connection_is_left(http)


async def test_certificate_of_an_unknown_authority_is_a_connect_error(scene: Scene) -> None:
    async with raw_server(tls=PrivateCa().server_context()) as server, scene.client() as http:
        words = "certificate verify failed" if scene.kind.startswith("http1") else "certificate"
        with pytest.raises(ConnectError, match=words):
            await post(http, server.url(host="localhost"))
        scene.assert_no_connection_is_left(http)
    assert server.requests == []


async def test_certificate_for_another_name_is_a_connect_error(scene: Scene) -> None:
    async with raw_server(tls=scene.authority.server_context("other.test")) as server, scene.client() as http:
        words = "certificate verify failed" if scene.kind.startswith("http1") else "certificate"
        with pytest.raises(ConnectError, match=words):
            await post(http, server.url(host="localhost"))
        scene.assert_no_connection_is_left(http)
    assert server.requests == []


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
async def test_header_that_could_change_the_request_is_refused_before_anything_is_sent(
    scene: Scene, name: str, value: str
) -> None:
    async with raw_server() as server, scene.client() as http:
        with pytest.raises(TargetRefusedError):
            await post(http, server.url(), (name, value))
        scene.assert_no_connection_is_left(http)
    assert server.connections == 0


async def test_refused_header_does_not_show_its_value(scene: Scene) -> None:
    async with scene.client() as http:
        with pytest.raises(TargetRefusedError) as refused:
            await post(http, "http://127.0.0.1/", ("Authorization", "Bearer s3cret\n"))
    assert "s3cret" not in str(refused.value)


# -- deadlines and cancellation -------------------------------------------------------------------------------------


async def test_deadline_ends_a_request_without_an_answer(scene: Scene) -> None:
    async with scene.server(silent) as (server, url), scene.client(request_timeout_s=0.5) as http:
        with pytest.raises(RequestTimeoutError):
            await post(http, url)
        await server.until(lambda server: server.open_connections == 0)
        scene.assert_no_connection_is_left(http)
    assert len(server.requests) == 1


async def test_a_request_may_have_a_shorter_deadline_than_the_client(scene: Scene) -> None:
    async with scene.server(silent) as (server, url), scene.client() as http:
        with pytest.raises(RequestTimeoutError):
            await post(http, url, timeout_s=0.5)
        await server.until(lambda server: server.open_connections == 0)


@pytest.mark.parametrize(("of_client_s", "of_request_s"), [(60.0, SHORT_S), (SHORT_S, None)])
async def test_deadline_covers_the_resolution_of_the_name(
    scene: Scene, of_client_s: float, of_request_s: float | None
) -> None:
    async def never(host: str, port: int) -> list[Address]:
        await asyncio.Event().wait()
        return []

    async with scene.client(EgressGuard(allow_private=True, resolver=never), of_client_s) as http:
        with pytest.raises(RequestTimeoutError):
            await post(http, "https://slow.test/", timeout_s=of_request_s)
        scene.assert_no_connection_is_left(http)


@pytest.mark.parametrize(
    ("header", "drop"), [(b"", b"x"), (b"Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n")], ids=["unframed", "chunked"]
)
async def test_deadline_ends_a_dripping_body(scene: Scene, header: bytes, drop: bytes) -> None:
    async def drip(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\n" + header + b"\r\n")
        while True:
            await call.send(drop)
            await asyncio.sleep(0.005)

    async with scene.server(drip) as (server, url), scene.client(request_timeout_s=0.5) as http:
        with pytest.raises(RequestTimeoutError):
            await post(http, url)
        await server.until(lambda server: server.open_connections == 0)


async def test_cancelled_request_stops_waiting_and_the_client_goes_on(scene: Scene) -> None:
    async with scene.server(in_turn(Gate(), always(reply()))) as (server, url), scene.client() as http:
        task = asyncio.create_task(post(http, url))
        await server.until(lambda server: len(server.requests) == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert (await post(http, url)).status == 200


async def test_cancelled_request_is_taken_from_the_server(scene: Scene) -> None:
    async with scene.server(silent) as (server, url), scene.client() as http:
        task = asyncio.create_task(post(http, url))
        await server.until(lambda server: len(server.requests) == 1)
        task.cancel()
        await server.until(lambda server: server.open_connections == 0)


async def test_close_fails_what_is_on_its_way(scene: Scene) -> None:
    async with scene.server(Gate()) as (server, url), scene.client() as http:
        task = asyncio.create_task(post(http, url))
        await server.until(lambda server: len(server.requests) == 1)
        await http.close()
        with pytest.raises(ConnectionBrokenError):
            await task
        with pytest.raises(ConnectError, match="closed"):
            await post(http, url)


# -- the address really dialled -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "localhost"])
async def test_private_address_is_refused_before_any_dial(scene: Scene, host: str) -> None:
    async with raw_server() as server, scene.client(EgressGuard(allow_private=False)) as http:
        with pytest.raises(TargetRefusedError, match="not a public address"):
            await post(http, server.url(host=host))
        scene.assert_no_connection_is_left(http)
    assert server.connections == 0


async def test_name_that_resolves_differently_the_second_time_gets_no_second_time(scene: Scene) -> None:
    answers = [[(int(socket.AF_INET), "127.0.0.2")], [(int(socket.AF_INET), "127.0.0.1")]]

    async def rebinding(host: str, port: int) -> list[Address]:
        return answers.pop(0)

    # 127.0.0.2 passes the check and nobody listens there; 127.0.0.1, which the system says too, would fail it.
    guard = EgressGuard(allow_private=False, allowed_networks=["127.0.0.2/32"], resolver=rebinding)
    async with raw_server() as server, scene.client(guard) as http:
        with pytest.raises(ConnectError, match=r"127\.0\.0\.2"):
            await post(http, server.url(host="localhost"))
        assert len(answers) == 1
        with pytest.raises(TargetRefusedError):
            await post(http, server.url(host="localhost"))
    assert server.connections == 0


def resolver_of(*addresses: str) -> Resolver:
    async def resolve(host: str, port: int) -> list[Address]:
        return [(int(socket.AF_INET), address) for address in addresses]

    return resolve


async def test_addresses_are_tried_in_order_and_the_name_stays_in_the_host_header(scene: Scene) -> None:
    guard = EgressGuard(allow_private=True, resolver=resolver_of("127.0.0.9", "127.0.0.1"))
    async with scene.server() as (server, url), scene.client(guard) as http:
        assert (await post(http, url)).status == 200
    assert [call.headers["host"] for call in server.requests] == [parse_target(url).authority]


async def test_every_address_is_tried_within_the_connect_timeout(scene: Scene) -> None:
    guard = EgressGuard(allow_private=True, resolver=resolver_of("127.0.0.2", "127.0.0.1"))
    async with scene.server() as (server, url), scene.client(guard, connect_timeout_s=1.0) as http:
        mute = await asyncio.start_server(hang, "127.0.0.2", parse_target(url).port)
        if url.startswith("http:"):
            mute.close()  # without TLS a connection is all there is to wait for: it refuses instead
        assert (await post(http, url)).status == 200
        mute.close()
    assert len(server.requests) == 1


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Connects, and never shakes hands."""
    try:
        while await reader.read(65536):
            pass
    finally:
        writer.close()
