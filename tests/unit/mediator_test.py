"""One attempt over a real socket: the request, and what each answer means."""

import gzip
import json
import re
from email.utils import formatdate
from typing import Any

import msgspec
import pytest

from flowcatalyst import __version__
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import DEFAULT_GROUP, Delivery, ErrorKind, MessagePointer, Result, Severity
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.http.contract import MAX_BODY_BYTES
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.http1.client import Http1Client
from flowcatalyst.http.mediator import Mediator
from tests.support.http_servers import Call, Script, always, closed_port, raw_server, reply


def mediator() -> Mediator:
    client = Http1Client(guard=EgressGuard(allow_private=True), clock=SystemClock(), request_timeout_s=5.0)
    return Mediator(client, client, SystemClock())


def message(
    port: int,
    token: str | None = "secret-token",
    message_id: str = "m1",
    group: str | None = None,
    **content: Any,
) -> Delivery:
    """A delivery in its first attempt."""
    target = f"http://127.0.0.1:{port}/hook?x=1"
    pointer = MessagePointer(id=message_id, mediation_target=target, auth_token=token, **content)
    made = Delivery(f"broker-{message_id}", None, "", group)
    made.pointer, made.tries = pointer, 1
    return made


def fields_of(request: Call) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


async def test_the_request_is_the_one_of_002() -> None:
    sender = mediator()
    async with raw_server(always(reply(200))) as server:
        await sender.attempt(message(server.port, message_id='odd "id" \n'))
        await sender.attempt(message(server.port, token=None))
        await sender.close()
    first, second = server.requests
    assert (first.method, first.path) == ("POST", "/hook?x=1")
    assert fields_of(first) == {
        "host": f"127.0.0.1:{server.port}",
        "authorization": "Bearer secret-token",
        "content-type": "application/json",
        "accept": "application/json",
        "accept-encoding": "identity",
        "user-agent": f"FlowCatalyst/{__version__}",
        "x-flowcatalyst-message-id": "odd%20%22id%22%20%0A",
        "x-flowcatalyst-attempt": "1",
        "content-length": str(len(first.body)),
    }
    assert json.loads(first.body) == {"messageId": 'odd "id" \n'}
    assert "authorization" not in fields_of(second)


async def test_every_request_names_message_group_and_attempt() -> None:
    sender = mediator()
    async with raw_server(always(reply(200))) as server:
        for message_id, group in (("m1", "order-1"), ("50%", "größe"), ("m3", DEFAULT_GROUP), ("m 4", " g ")):
            sent = message(server.port, message_id=message_id, group=group)
            sent.earlier, sent.tries = 3, 2
            await sender.attempt(sent)
        await sender.close()
    told = [fields_of(request) for request in server.requests]
    assert [one["x-flowcatalyst-message-id"] for one in told] == ["m1", "50%25", "m3", "m 4"]
    assert [one.get("x-flowcatalyst-group") for one in told] == ["order-1", "gr%C3%B6%C3%9Fe", None, "%20g%20"]
    assert {one["x-flowcatalyst-attempt"] for one in told} == {"5"}


PAYLOADS = [
    (b'{ "balance":5.0, "balance":  6 }', None, b'{ "balance":5.0, "balance":  6 }', "application/json"),
    (b'"text"', None, b'"text"', "application/json"),
    (b'"text"', "application/problem+json; charset=utf-8", b'"text"', "application/problem+json; charset=utf-8"),
    (b'"gr\\u00fc\\n"', "text/plain", "grü\n".encode(), "text/plain"),
    (b"[1]", "application/xml", b"[1]", "application/xml"),
    (b'""', "text/plain", b"", "text/plain"),
    (b"0", None, b"0", "application/json"),
]


@pytest.mark.parametrize(("payload", "content_type", "body", "sent_type"), PAYLOADS)
async def test_a_payload_is_sent_as_it_stands(
    payload: bytes, content_type: str | None, body: bytes, sent_type: str
) -> None:
    sender = mediator()
    async with raw_server(always(reply(200))) as server:
        await sender.attempt(message(server.port, payload=msgspec.Raw(payload), content_type=content_type))
        await sender.close()
    [request] = server.requests
    assert request.body == body
    assert fields_of(request)["content-type"] == sent_type
    assert fields_of(request)["content-length"] == str(len(body))


async def test_headers_of_a_message_are_sent_and_may_replace_accept() -> None:
    sender = mediator()
    own = {"X-Tenant": "acme", "accept": "text/plain", "Authorization": "Basic abc"}
    async with raw_server(always(reply(200))) as server:
        await sender.attempt(message(server.port, token=None, headers=own))
        await sender.close()
    [request] = server.requests
    assert (
        fields_of(request).items() >= {"x-tenant": "acme", "accept": "text/plain", "authorization": "Basic abc"}.items()
    )
    assert [name.lower() for name in request.headers].count("accept") == 1
    assert json.loads(request.body) == {"messageId": "m1"}


@pytest.mark.parametrize("body", [b"\xff\x00<order/>", '"quoted" text ü'])
async def test_a_raw_body_is_sent_byte_for_byte(body: str | bytes) -> None:
    sender = mediator()
    async with raw_server(always(reply(200))) as server:
        sent = message(server.port, content_type="application/xml")
        sent.is_raw, sent.body = True, body
        await sender.attempt(sent)
        await sender.close()
    [request] = server.requests
    assert request.body == (body if isinstance(body, bytes) else body.encode())
    assert fields_of(request)["content-type"] == "application/xml"


@pytest.mark.parametrize(
    ("status", "body", "headers", "expected"),
    [
        (200, b'{"ack":true}', "", (Result.SUCCESS, None, None)),
        (200, b"fine", "", (Result.SUCCESS, None, None)),
        (200, b'{"ack":false,"delaySeconds":7}', "", (Result.ERROR_PROCESS, 7.0, None)),
        (404, b"", "", (Result.ERROR_CONFIG, None, Severity.ERROR)),
        (501, b"", "", (Result.ERROR_CONFIG, None, Severity.CRITICAL)),
        (503, b"", "", (Result.ERROR_PROCESS, None, None)),
        (302, b"", "Location: http://127.0.0.1:1/\r\n", (Result.ERROR_PROCESS, None, None)),
        (429, b"", "Retry-After: 12\r\n", (Result.ERROR_PROCESS, 12.0, None)),
        (429, b"", "", (Result.ERROR_PROCESS, 30.0, None)),
    ],
)
async def test_an_answer_becomes_an_outcome(
    status: int, body: bytes, headers: str, expected: tuple[Result, float | None, Severity | None]
) -> None:
    sender = mediator()
    raw = f"HTTP/1.1 {status} X\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body
    async with raw_server(always(raw)) as server:
        outcome = await sender.attempt(message(server.port))
        await sender.close()
    assert (outcome.result, outcome.delay_s, outcome.warning) == expected
    assert outcome.status == status


REFUSAL = b'{"ack":false}'
GZIPPED = gzip.compress(REFUSAL)


async def say_and_close(call: Call) -> None:
    await call.send(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"message":"not now","ack":f')
    call.close()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (always(reply(200, b'{"x":"' + b"x" * MAX_BODY_BYTES + b'","ack":false}')), "longer than the 65536 bytes"),
        (always(reply(200, GZIPPED, "Content-Encoding: gzip")), r"coded \(gzip\)"),
        (
            always(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
                % (len(GZIPPED), GZIPPED)
            ),
            r"coded \(gzip\)",
        ),
        (always(reply(200, REFUSAL + b"\0")), "an ack that is not true"),
        (say_and_close, "an ack that is not true"),
    ],
    ids=["beyond what is read", "gzip", "gzip on the way", "trailing bytes", "cut by FIN"],
)
async def test_a_refusal_that_cannot_be_read_is_tried_again_and_says_why(script: Script, why: str) -> None:
    sender = mediator()
    async with raw_server(script) as server:
        outcome = await sender.attempt(message(server.port))
        await sender.close()
    assert (outcome.result, outcome.retryable) == (Result.ERROR_PROCESS, True)
    assert re.search(why, outcome.detail)


async def test_a_refusal_in_another_charset_is_read() -> None:
    sender = mediator()
    body = '{"ack":false,"delaySeconds":3}'.encode("utf-16")
    async with raw_server(always(reply(200, body, "Content-Type: application/json; charset=UTF-16"))) as server:
        outcome = await sender.attempt(message(server.port))
        await sender.close()
    assert (outcome.error, outcome.delay_s) == (ErrorKind.NOT_ACKED, 3.0)


async def test_a_success_that_is_no_json_although_it_says_so_carries_a_note() -> None:
    sender = mediator()
    async with raw_server(always(reply(200, b"done", "Content-Type: application/json"))) as server:
        outcome = await sender.attempt(message(server.port))
        await sender.close()
    assert outcome.result is Result.SUCCESS
    assert "JSON" in outcome.note


async def test_retry_after_may_be_a_date() -> None:
    sender = mediator()
    date = formatdate(SystemClock().wall() + 100, usegmt=True)
    raw = f"HTTP/1.1 429 X\r\nRetry-After: {date}\r\nContent-Length: 0\r\n\r\n".encode()
    async with raw_server(always(raw)) as server:
        outcome = await sender.attempt(message(server.port))
        await sender.close()
    assert outcome.delay_s is not None
    assert 90 < outcome.delay_s <= 101


async def test_an_endpoint_that_cannot_be_reached_is_an_outcome_not_an_exception() -> None:
    sender = mediator()
    outcome = await sender.attempt(message(closed_port()))
    await sender.close()
    assert (outcome.result, outcome.error) == (Result.ERROR_CONNECTION, ErrorKind.NETWORK_ERROR)
    assert outcome.retryable
    assert outcome.trips_breaker
    assert "secret-token" not in outcome.detail


def test_endpoints_share_a_breaker_whatever_their_query() -> None:
    assert endpoint_of("http://shop.test/hook?a=1") == endpoint_of("HTTP://SHOP.test:80/hook?a=2")
    assert endpoint_of("http://shop.test/hook") != endpoint_of("http://shop.test/other")
    assert endpoint_of("http://shop.test/hook") != endpoint_of("https://shop.test/hook")


def test_an_origin_is_scheme_host_and_port_whatever_the_path() -> None:
    assert origin_of("http://shop.test/hook?a=1") == origin_of("HTTP://SHOP.test:80/other") == "http://shop.test"
    assert origin_of("https://shop.test:8443/hook") == "https://shop.test:8443"
    assert origin_of("not a URL") == "not a URL"
