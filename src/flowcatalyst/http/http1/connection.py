"""One HTTP/1.1 connection: writes a request, reads its response, and knows whether it may carry another one."""

import asyncio
import re
import select
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final, Protocol, cast

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from flowcatalyst.core.errors import ConnectionBrokenError, DeliveryError, RequestTimeoutError
from flowcatalyst.core.targets import Target
from flowcatalyst.http.contract import MAX_BODY_BYTES, Response, check_header

MAX_HEAD_BYTES: Final = 64 * 1024  # status line and headers, interim responses included
# What a response may take on the wire for each byte of its body, so that endless trailers or chunk extensions end too:
# a body that comes in chunks of one byte needs six bytes for each.
WIRE_BYTES_PER_BODY_BYTE: Final = 8
# A server that promises to wait N seconds counts from when it sent the response; we would count from later.
KEEP_ALIVE_MARGIN_S: Final = 0.5
NO_DEADLINE: Final = float("inf")
UNREAD_LIMIT_S: Final = 1.0  # how long a connection stays open to find out what it has to say unasked

_KEEP_ALIVE_TIMEOUT: Final = re.compile(rb"\btimeout\s*=\s*(\d{1,9})\b", re.IGNORECASE)


def encode_request(
    target: Target, headers: Sequence[tuple[str, str]], body: bytes, method: str = "POST", lines: str = ""
) -> bytes:
    """The whole request as it goes over the wire. `TargetRefusedError` if a header cannot be sent."""
    shared = _joined(tuple(headers))
    length = f"content-length: {len(body)}\r\n" if body or method == "POST" else ""
    head = f"{method} {target.path} HTTP/1.1\r\nhost: {target.authority}\r\n{shared}{lines}{length}\r\n"
    return head.encode("latin-1") + body


@lru_cache(maxsize=1024)  # senders use few different sets of headers over and over
def _joined(headers: tuple[tuple[str, str], ...]) -> str:
    for name, value in headers:
        check_header(name, value)
    return "".join(f"{name}: {value}\r\n" for name, value in headers)


class NotSentError(DeliveryError):
    """A kept connection ended before anything of the request was written: another one may carry it."""


class ConnectionOwner(Protocol):
    """What a connection tells about itself. Called from the event loop, never awaits."""

    def send_soon(self, connection: "Connection") -> None:
        """A request waits to be written: call `connection.send()` before the loop waits for anything."""

    def exchange_ended(self, connection: "Connection") -> None:
        """The request on this connection is over; `connection.usable` says whether it may carry another one."""

    def idle_connection_ended(self, connection: "Connection") -> None:
        """A connection without a request became unusable."""

    def sent_unasked(self) -> None:
        """The server said something that answers no request."""

    def connection_opened(self, connection: "Connection") -> None: ...

    def connection_closed(self, connection: "Connection") -> None:
        """The socket is gone."""


class Connection(asyncio.Protocol):
    """Carries one request at a time. Every state change is a plain function; only the answer is awaited."""

    def __init__(
        self,
        owner: ConnectionOwner,
        label: str,
        loop: asyncio.AbstractEventLoop,
        max_body_bytes: int = MAX_BODY_BYTES,
        idle_limit_s: float = float("inf"),
    ) -> None:
        self.usable = False
        self.keep_alive_s = self._idle_limit_s = idle_limit_s  # idle, at most; less if its server promises less
        self.idle_since = self.idle_until = 0.0
        self.fileno = -1
        self._socket = select.poll()
        self.deadline = NO_DEADLINE  # of the request it carries, in loop time
        self._owner = owner
        self._label = label
        self._loop = loop
        self._max_body_bytes = max_body_bytes
        self._reused = False  # it carried a request before
        self._transport: asyncio.Transport
        self._parser = HttpResponseParser(self)
        self._answer: asyncio.Future[Response] | None = None
        self._unsent = b""  # the request, until it is written
        self._expect_response()

    def _expect_response(self) -> None:
        self._status = 0  # of the final response, once its headers are complete
        self._head: list[bytes] = []  # what came until the headers were complete, and perhaps some of the body
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

    def has_unread(self) -> bool:
        """Whether something came, or the end of the connection, that the loop has not read yet."""
        return bool(self._socket.poll(0))

    def send(self, has_unread: bool = False) -> None:
        """Write the request, unless it was ended meanwhile.

        What a kept connection has to read already cannot be the answer: it is left to the loop, which reads it in its
        next pass, and the request goes elsewhere.
        """
        if not self._unsent:
            return
        if has_unread and self._reused:
            self._leave_request(NotSentError(f"{self._label} sent data before any request"))
            self._loop.call_later(UNREAD_LIMIT_S, self._transport.abort)  # if it is nothing that reaches us
            return
        request, self._unsent = self._unsent, b""
        self._reused = True
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
        self._transport.abort()
        self._leave_request(error)

    # -- ends of an exchange ---------------------------------------------------------------------------------------

    def _broken(self, what: str) -> None:
        kind = NotSentError if self._unsent and self._reused else ConnectionBrokenError
        self.fail(kind(f"{self._label} {what}"))

    def _leave_request(self, error: DeliveryError) -> None:
        """Be unusable from now on; the request fails with `error`."""
        self.usable = False
        answer = self._answer
        if answer is None:
            return
        self._answer = None
        self._unsent = b""
        self.deadline = NO_DEADLINE
        self._owner.exchange_ended(self)
        if not answer.done():
            answer.set_exception(error)

    def _deliver(self, *, truncated: bool = False, framed: bool = True, reusable: bool = False) -> None:
        answer = self._answer
        assert answer is not None
        response = Response(self._status, RawHeaders(self._head), b"".join(self._body), truncated, framed)
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
        self.fileno = transport.get_extra_info("socket").fileno()
        self._socket.register(self.fileno, select.POLLIN)
        self._owner.connection_opened(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._unsent:
            if not data.strip(b"\r\n"):
                return  # some servers end a body with an empty line that belongs to nothing
            self._owner.sent_unasked()  # a late error response such as 408, a second answer, a confused server
            self._idle_ended("answered before the request was sent")
            return
        self._wire_bytes += len(data)
        if not self._status:
            self._head.append(data)
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            if not self._complete:
                # An error of ours from a parser callback comes wrapped, with itself as the context.
                self._broken(f"did not speak HTTP/1.1: {error.__context__ or error}")
                return
            self._owner.sent_unasked()  # something that is not HTTP came after the response
            self._reusable = False
        except HttpParserUpgrade:
            self._broken("switched protocols without being asked")
            return
        if self._body_bytes > self._max_body_bytes:
            self._body = [b"".join(self._body)[: self._max_body_bytes]]
            self._deliver(truncated=True)
        elif self._complete:
            self._deliver(reusable=self._reusable)
        elif self._wire_bytes > MAX_HEAD_BYTES and (
            not self._status or self._wire_bytes > MAX_HEAD_BYTES + WIRE_BYTES_PER_BODY_BYTE * self._max_body_bytes
        ):
            self._broken("sent too many header or framing bytes")

    def eof_received(self) -> None:
        if self._answer is None or self._unsent:
            self._idle_ended("closed the connection before the request was sent")
        elif self._status and not self._framed():
            self._deliver(framed=False)
        else:
            self._broken("closed the connection before its response was complete")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._unsent:
            self._broken(f"broke the connection before its response was complete: {exc or 'closed'}")
        else:
            self._idle_ended("broke the connection before the request was sent")
        self._owner.connection_closed(self)

    def _idle_ended(self, how: str) -> None:
        """The end came while no request was on the wire. One that waits to be written fails."""
        if self._answer is not None:
            self._broken(how)
        elif self.usable:
            self.discard()
            self._owner.idle_connection_ended(self)
        else:
            self._transport.abort()

    def _framed(self) -> bool:
        """Whether the response says itself where it ends; otherwise the end of the connection is its end."""
        for name, value in RawHeaders(self._head):
            if name == b"content-length" or (name == b"transfer-encoding" and b"chunked" in value.lower()):
                return True
        return False

    # -- called by the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            self._owner.sent_unasked()  # a second response to one request
        self._reusable = False

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 100 or status == 101:
            raise ValueError(f"status {status} is not expected here")
        if status < 200:
            return  # interim, such as 100 Continue or 103 Early Hints: the response is still to come
        if self._wire_bytes > MAX_HEAD_BYTES:
            size = sum(len(name) + len(value) + len(b": \r\n") for name, value in RawHeaders(self._head))
            if size > MAX_HEAD_BYTES:
                raise ValueError("its headers are too large")
        self._status = status
        head = b"".join(self._head)
        # By `find`: what `in` asks of bytes fails inside Python first, which takes longer than the search.
        if head.find(b"=") >= 0 and head.lower().find(b"timeout") >= 0:
            for name, value in RawHeaders(self._head):
                if name == b"keep-alive" and (timeout := _KEEP_ALIVE_TIMEOUT.search(value)):
                    self.keep_alive_s = min(self._idle_limit_s, int(timeout[1]) - KEEP_ALIVE_MARGIN_S)

    def on_body(self, chunk: bytes) -> None:
        if self._body_bytes <= self._max_body_bytes and not self._complete:
            self._body.append(chunk)
            self._body_bytes += len(chunk)

    def on_message_complete(self) -> None:
        if self._status and not self._complete:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()  # only the parser's flags of this moment can tell


class RawHeaders(msgspec.Struct, eq=False):
    """The headers of a final response, read when somebody asks for them: most answers mean the same without.

    A call of ours for each header took a twentieth of the time of a delivery.
    """

    head: Sequence[bytes]

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(_HeaderReader(self.head).headers)


class _HeaderReader:
    def __init__(self, head: Sequence[bytes]) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self._are_complete = False
        self._parser = HttpResponseParser(self)
        with suppress(HttpParserError, HttpParserUpgrade):  # of what follows the headers
            self._parser.feed_data(b"".join(head))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._are_complete:  # else it is a trailer
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._are_complete = self._are_complete or self._parser.get_status_code() >= 200
        if not self._are_complete:
            self.headers.clear()  # of an interim response
