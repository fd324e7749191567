"""Answers of a server of router configurations, good and bad, as scripts of `raw_server`."""

import asyncio
import json

from tests.support.http_servers import Call, Script, reply


def document(**concurrency: int) -> bytes:
    """A configuration of these pools and one queue."""
    pools = [{"code": code, "concurrency": number} for code, number in concurrency.items()]
    return json.dumps({"processingPools": pools, "queues": [{"queueName": "orders"}]}).encode()


def versioned(text: bytes, etag: str) -> Script:
    """200 with an ETag, or 304 for who knows it."""

    async def script(call: Call) -> None:
        known = call.headers.get("if-none-match") == etag
        await call.send(reply(304, b"", f"ETag: {etag}") if known else reply(200, text, f"ETag: {etag}"))

    return script


async def hanging(call: Call) -> None:
    """Never says a word."""
    await call.until_client_is_gone()


async def hanging_in_the_body(call: Call) -> None:
    await call.send(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"queues": [')
    await call.until_client_is_gone()


async def dripping(call: Call) -> None:
    """Says a little more all the time, for ever."""
    await call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await call.send(b"1\r\n \r\n")
        await asyncio.sleep(0.01)


async def truncated(call: Call) -> None:
    """Closes before the announced length."""
    await call.send(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"queues": []}')
    call.close()


async def truncated_between_chunks(call: Call) -> None:
    """Closes where the document looks complete but the last chunk is missing."""
    await call.send(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ne\r\n{"queues": []}\r\n')
    call.close()


async def truncated_unframed(call: Call) -> None:
    """Says that the end of the connection is the end of the document, then closes in the middle."""
    await call.send(b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"queues": [')
    call.close()


async def reset(call: Call) -> None:
    call.reset()


async def no_http(call: Call) -> None:
    await call.send(b"220 mail.test ESMTP\r\n\r\n")
    call.close()


async def endless_body(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        await call.send(b" " * 65536)


async def endless_head(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await call.send(b"X-Again: " + b"a" * 8000 + b"\r\n")
