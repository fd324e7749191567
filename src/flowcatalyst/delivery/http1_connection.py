"""One HTTP/1.1 connection: writes a request, reads its response, and knows whether it may carry another one."""

import asyncio
import re
from collections.abc import Sequence
from typing import Final, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from flowcatalyst.delivery.contract import MAX_BODY_BYTES, Response, Target, check_header
from flowcatalyst.errors import ConnectionBrokenError, DeliveryError, RequestTimeoutError

MAX_HEAD_BYTES: Final = 64 * 1024  # status line and headers, interim responses included
# Everything a response may take on the wire, so that endless trailers or chunk extensions end too. A body that comes
# in chunks of one byte needs six bytes for each.
MAX_WIRE_BYTES: Final = MAX_HEAD_BYTES + 8 * MAX_BODY_BYTES
# A server that promises to wait N seconds counts from when it sent the response; we would count from later.
KEEP_ALIVE_MARGIN_S: Final = 0.5
NO_DEADLINE: Final = float("inf")

_KEEP_ALIVE_TIMEOUT: Final = re.compile(rb"\btimeout\s*=\s*(\d{1,9})\b", re.IGNORECASE)


# Senders use few different sets of headers over and over: those of the last ones, checked and joined.
_MAX_CACHED_HEADERS: Final = 1024
_header_lines: dict[tuple[tuple[str, str], ...], str] = {}


def encode_request(target: Target, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    """The whole request as it goes over the wire. `TargetRefusedError` if a header cannot be sent."""
    given = tuple(headers)
    lines = _header_lines.get(given)
    if lines is None:
        lines = _join_headers(given)
    head = f"POST {target.path} HTTP/1.1\r\nhost: {target.authority}\r\n{lines}content-length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def _join_headers(headers: tuple[tuple[str, str], ...]) -> str:
    for name, value in headers:
        check_header(name, value)
    if len(_header_lines) >= _MAX_CACHED_HEADERS:
        _header_lines.clear()
    lines = _header_lines[headers] = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return lines


class ConnectionOwner(Protocol):
    """What a connection tells about itself. Called from the event loop, never awaits."""

    def send_soon(self, connection: "Connection") -> None:
        """A request waits to be written: call `connection.send()` before the loop waits for anything."""

    def exchange_ended(self, connection: "Connection") -> None:
        """The request on this connection is over; `connection.usable` says whether it may carry another one."""

    def idle_connection_ended(self, connection: "Connection") -> None:
        """A connection without a request became unusable."""

    def connection_opened(self, connection: "Connection") -> None: ...

    def connection_closed(self, connection: "Connection") -> None:
        """The socket is gone."""


class Connection(asyncio.Protocol):
    """Carries one request at a time. Every state change is a plain function; only the answer is awaited."""

    def __init__(self, owner: ConnectionOwner, label: str, loop: asyncio.AbstractEventLoop) -> None:
        self.usable = False
        self.keep_alive_s = float("inf")  # how long the server promises to keep it open while idle
        self.idle_since = 0.0
        self.deadline = NO_DEADLINE  # of the request it carries, in loop time
        self._owner = owner
        self._label = label
        self._loop = loop
        self._transport: asyncio.Transport
        self._parser = HttpResponseParser(self)
        self._answer: asyncio.Future[Response] | None = None
        self._unsent = b""  # the request, until it is written
        self._expect_response()

    def _expect_response(self) -> None:
        self._status = 0  # of the final response, once its headers are complete
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._wire_bytes = 0
        self._complete = False
        self._reusable = False

    # -- used by the pool ------------------------------------------------------------------------------------------

    def start(self, request: bytes, deadline: float) -> asyncio.Future[Response]:
        """Take a request. The returned future gets the response or a `DeliveryError`.

        The connection only remembers the deadline; its owner calls `expire` when that has passed. It also calls
        `send`: all requests of one pass of the loop are written in a row, which keeps the processor's caches warm for
        the code between them (a tenth of the CPU time of a message).
        """
        assert self.usable, "an unusable connection was given a request"
        assert self._answer is None, "a connection was given a second request"
        self._expect_response()
        self._answer = answer = self._loop.create_future()
        self.deadline = deadline
        self._unsent = request
        self._owner.send_soon(self)
        return answer

    def send(self) -> None:
        """Write the request, unless it was ended meanwhile."""
        request, self._unsent = self._unsent, b""
        if request:
            self._transport.write(request)

    def expire(self) -> None:
        self.fail(RequestTimeoutError(f"{self._label} did not answer completely before the deadline"))

    def abandon(self, answer: asyncio.Future[Response]) -> None:
        """Nobody waits for the answer any more: what it still brings must not meet another request."""
        if answer is self._answer:
            self._end_exchange(reusable=False)
        elif answer.done() and not answer.cancelled():
            answer.exception()  # looked at, so that asyncio does not log it as forgotten

    def discard(self) -> None:
        """Close at once, without a farewell to the server."""
        self.usable = False
        self._transport.abort()

    def fail(self, error: DeliveryError) -> None:
        """End the connection; a request that is on it fails with `error`."""
        answer = self._answer
        if answer is None:
            self.discard()
            return
        self._end_exchange(reusable=False)
        if not answer.done():
            answer.set_exception(error)

    # -- ends of an exchange ---------------------------------------------------------------------------------------

    def _broken(self, what: str) -> None:
        self.fail(ConnectionBrokenError(f"{self._label} {what}"))

    def _deliver(self, *, truncated: bool = False, reusable: bool = False) -> None:
        answer = self._answer
        assert answer is not None
        response = Response(self._status, self._headers, b"".join(self._body), truncated)
        self._end_exchange(reusable)
        if not answer.done():
            answer.set_result(response)

    def _end_exchange(self, reusable: bool) -> None:
        self._answer = None
        self._unsent = b""
        self.deadline = NO_DEADLINE
        # A server may answer before it has read the whole request; what we still have to send would come first.
        if not reusable or self._transport.is_closing() or self._transport.get_write_buffer_size():
            self.discard()
        self._owner.exchange_ended(self)

    # -- called by the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses of it
        self.usable = True
        self._owner.connection_opened(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self._idle_ended()  # unasked data: a late error response such as 408, or a confused server
            return
        if self._unsent:
            self._broken("answered before it was asked")
            return
        self._wire_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            if not self._complete:
                # An error of ours from a parser callback comes wrapped, with itself as the context.
                self._broken(f"did not speak HTTP/1.1: {error.__context__ or error}")
                return
            self._reusable = False  # something that is not HTTP came after the response
        except HttpParserUpgrade:
            self._broken("switched protocols without being asked")
            return
        if self._body_bytes > MAX_BODY_BYTES:
            self._deliver_truncated()
        elif self._complete:
            self._deliver(reusable=self._reusable)
        elif self._wire_bytes > (MAX_WIRE_BYTES if self._status else MAX_HEAD_BYTES):
            self._broken("sent too many header or framing bytes")

    def _deliver_truncated(self) -> None:
        self._body = [b"".join(self._body)[:MAX_BODY_BYTES]]
        self._deliver(truncated=True)

    def eof_received(self) -> None:
        if self._answer is None:
            self._idle_ended()
        elif self._status and not self._framed():
            self._deliver()
        else:
            self._broken("closed the connection before its response was complete")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None:
            self._broken(f"broke the connection before its response was complete: {exc or 'closed'}")
        elif self.usable:
            self._idle_ended()
        self._owner.connection_closed(self)

    def _idle_ended(self) -> None:
        if self.usable:
            self.discard()
            self._owner.idle_connection_ended(self)

    def _framed(self) -> bool:
        """Whether the response says itself where it ends; otherwise the end of the connection is its end."""
        for name, value in self._headers:
            if name == b"content-length" or (name == b"transfer-encoding" and b"chunked" in value.lower()):
                return True
        return False

    # -- called by the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._reusable = False  # a second response to one request: remembered until the first one is delivered

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status:
            return  # a trailer
        name = name.lower()
        if name == b"keep-alive" and (timeout := _KEEP_ALIVE_TIMEOUT.search(value)):
            self.keep_alive_s = int(timeout[1]) - KEEP_ALIVE_MARGIN_S
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 100 or status == 101:
            raise ValueError(f"status {status} makes no sense here")
        if self._wire_bytes > MAX_HEAD_BYTES and _head_size(self._headers) > MAX_HEAD_BYTES:
            raise ValueError("its headers are too large")
        if status < 200:
            self._headers = []  # interim, such as 100 Continue or 103 Early Hints: the response is still to come
        else:
            self._status = status

    def on_body(self, chunk: bytes) -> None:
        if self._body_bytes <= MAX_BODY_BYTES and not self._complete:
            self._body.append(chunk)
            self._body_bytes += len(chunk)

    def on_message_complete(self) -> None:
        if self._status and not self._complete:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()  # only the parser's flags of this moment can tell


def _head_size(headers: list[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) + len(b": \r\n") for name, value in headers)
