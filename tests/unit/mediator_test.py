"""One attempt over a real socket: the request of 002, and what each answer means."""

import gzip
import json
import re
from email.utils import formatdate

import pytest

from flowcatalyst.clock import SystemClock
from flowcatalyst.delivery.contract import MAX_BODY_BYTES
from flowcatalyst.delivery.egress import EgressGuard
from flowcatalyst.delivery.http1 import Http1Client
from flowcatalyst.delivery.mediator import Mediator, endpoint_of, origin_of
from flowcatalyst.message import ErrorKind, MessagePointer, Result, Severity
from tests.support.http_servers import Call, Script, always, closed_port, raw_server, reply


def mediator() -> Mediator:
    client = Http1Client(guard=EgressGuard(allow_private=True), clock=SystemClock(), request_timeout_s=5.0)
    return Mediator(client, client, SystemClock())


def pointer(port: int, token: str | None = "secret-token", message_id: str = "m1") -> MessagePointer:
    return MessagePointer(id=message_id, mediation_target=f"http://127.0.0.1:{port}/hook?x=1", auth_token=token)


async def test_the_request_is_the_one_of_002() -> None:
    sender = mediator()
    async with raw_server(always(reply(200))) as server:
        await sender.attempt(pointer(server.port, message_id='odd "id" \n'))
        await sender.attempt(pointer(server.port, token=None))
        await sender.close()
    first, second = server.requests
    assert (first.method, first.path) == ("POST", "/hook?x=1")
    assert {name.lower(): value for name, value in first.headers.items()} == {
        "host": f"127.0.0.1:{server.port}",
        "authorization": "Bearer secret-token",
        "content-type": "application/json",
        "accept": "application/json",
        "accept-encoding": "identity",
        "content-length": str(len(first.body)),
    }
    assert json.loads(first.body) == {"messageId": 'odd "id" \n'}
    assert "authorization" not in {name.lower() for name in second.headers}


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
        outcome = await sender.attempt(pointer(server.port))
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
        outcome = await sender.attempt(pointer(server.port))
        await sender.close()
    assert (outcome.result, outcome.retryable) == (Result.ERROR_PROCESS, True)
    assert re.search(why, outcome.detail)


async def test_a_refusal_in_another_charset_is_read() -> None:
    sender = mediator()
    body = '{"ack":false,"delaySeconds":3}'.encode("utf-16")
    async with raw_server(always(reply(200, body, "Content-Type: application/json; charset=UTF-16"))) as server:
        outcome = await sender.attempt(pointer(server.port))
        await sender.close()
    assert (outcome.error, outcome.delay_s) == (ErrorKind.NOT_ACKED, 3.0)


async def test_a_success_that_is_no_json_although_it_says_so_carries_a_note() -> None:
    sender = mediator()
    async with raw_server(always(reply(200, b"done", "Content-Type: application/json"))) as server:
        outcome = await sender.attempt(pointer(server.port))
        await sender.close()
    assert outcome.result is Result.SUCCESS
    assert "JSON" in outcome.note


async def test_retry_after_may_be_a_date() -> None:
    sender = mediator()
    date = formatdate(SystemClock().wall() + 100, usegmt=True)
    raw = f"HTTP/1.1 429 X\r\nRetry-After: {date}\r\nContent-Length: 0\r\n\r\n".encode()
    async with raw_server(always(raw)) as server:
        outcome = await sender.attempt(pointer(server.port))
        await sender.close()
    assert outcome.delay_s is not None
    assert 90 < outcome.delay_s <= 101


async def test_an_endpoint_that_cannot_be_reached_is_an_outcome_not_an_exception() -> None:
    sender = mediator()
    outcome = await sender.attempt(pointer(closed_port()))
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
