"""One connection to the API: bounded in all that a client can do before its credentials are looked at.

It stands between the loop and uvicorn's protocol: a protocol to the one, a transport to the other. What comes is kept
until the `Reception` gives it a turn, and uvicorn parses it piece by piece.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from math import inf
from typing import Any, Final, cast

import msgspec
from httptools import HttpParserError, HttpParserUpgrade
from uvicorn import Config
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from flowcatalyst.api.problems import PROBLEM_MEDIA_TYPE, ProblemError
from flowcatalyst.api.reception import READ_BYTES, ConnectionLimits, Reception

PIECE_BYTES: Final = 8 * 1024  # parsed in one go: chunks of one byte make a millisecond of it
MOST_UNSENT_BYTES: Final = 64 * 1024  # beyond it no further request of the connection is looked at


class Connection(asyncio.BufferedProtocol):
    """See the module."""

    def __init__(self, reception: Reception, config: Config, server_state: ServerState) -> None:
        self._reception = reception
        self._limits = reception.limits
        self._http = _Http(self, self._limits, config, server_state)
        self._transport: asyncio.Transport
        self._unparsed: deque[memoryview] = deque()
        self._unparsed_bytes = 0
        self._is_in_line = False
        self._is_welcome = False
        self._is_held = False  # uvicorn wants no more for now
        self._read_paused = False
        self._ending = False  # it got its last answer: what still comes is thrown away
        self._deadline = inf  # for what the client has to send next
        self._received_bytes = 0  # of the head, of the body, or since the last answer; by whole pieces
        self._piece_bytes = 0
        self._written_bytes = 0
        self._unsent_since: float | None = None
        self._sent_by_then = 0

    # -- called by the loop ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._is_welcome = self._reception.welcome(self)
        if not self._is_welcome:
            self._transport.abort()
            return
        self._deadline = self._reception.now() + self._limits.head_s
        self._http.connection_made(cast(asyncio.Transport, self))

    def connection_lost(self, exc: Exception | None) -> None:
        self._unparsed.clear()
        self._ending = True
        self._reception.farewell(self)
        self._reception.socket_closed()
        if self._is_welcome:
            self._http.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reception.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._unparsed.append(memoryview(bytes(self._reception.buffer[:nbytes])))
        self._unparsed_bytes += nbytes
        if self._unparsed_bytes >= READ_BYTES and not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()
        self._ask_for_turn()

    def eof_received(self) -> None:
        """The transport closes itself."""

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()
        self._ask_for_turn()

    # -- called by the reception (Guest) ---------------------------------------------------------------------------

    def _ask_for_turn(self) -> None:
        if not self._is_in_line and self._unparsed and not self._has_to_wait():
            self._is_in_line = True
            self._reception.join_line(self)

    def _has_to_wait(self) -> bool:
        """Whether it is not the client's turn: the answer before comes first, and has to be taken."""
        if self._ending:
            return False
        return self._is_held or self._http.is_answering or self.get_write_buffer_size() > MOST_UNSENT_BYTES

    def take_turn(self) -> bool:
        if self._unparsed and not self._has_to_wait():
            piece = self._next_piece()
            self._piece_bytes = len(piece)
            self._received_bytes += len(piece)
            unwanted = self._ending or self._http.is_answered_early
            if unwanted and self._received_bytes > self._limits.linger_bytes:
                self.abort()
            if not self._ending:
                self._parse(piece)
            if self._read_paused and self._unparsed_bytes < READ_BYTES and not self._transport.is_closing():
                self._read_paused = False
                self._transport.resume_reading()
        self._is_in_line = bool(self._unparsed) and not self._has_to_wait()
        if not self._is_in_line and not self._http.has_request:
            self._reception.is_idle(self)
        return self._is_in_line

    def _next_piece(self) -> memoryview:
        most = PIECE_BYTES
        if self._http.is_in_head:  # exactly to its limit
            most = min(most, max(1, self._limits.head_bytes - self._received_bytes))
        chunk = self._unparsed[0]
        piece, rest = chunk[:most], chunk[most:]
        if rest:
            self._unparsed[0] = rest
        else:
            self._unparsed.popleft()
        self._unparsed_bytes -= len(piece)
        return piece

    def _parse(self, piece: memoryview) -> None:
        try:
            self._http.parser.feed_data(piece)
        except HttpParserUpgrade:
            self._end_after_answer()  # there is nothing to upgrade to: it is answered as if it had not asked
        except HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, ProblemError) else _NOT_HTTP)
        else:
            if self._http.is_in_head and self._received_bytes >= self._limits.head_bytes:
                most = self._limits.head_bytes // 1024
                detail = f"the request line and headers are larger than {most} KiB: send fewer or shorter ones"
                self._refuse(ProblemError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail))

    def late(self, now: float) -> str:
        if self._answer_is_stuck(now):
            self.abort()
            return "answer not read"
        if self._http.is_answering or now < self._deadline + self._earned_s():
            return ""
        if self._ending:
            self.abort()
            return ""
        if self._http.is_answered_early:
            self.abort()
            return "request not needed"
        if self._http.is_in_head and not self._http.has_begun:
            self.close()
            return "no request"
        what, limit_s = ("headers", self._limits.head_s) if self._http.is_in_head else ("body", self._limits.transfer_s)
        detail = f"the {what} of the request did not arrive within {limit_s:g} s: send it without pauses"
        self._refuse(ProblemError(HTTPStatus.REQUEST_TIMEOUT, detail))
        return f"slow {what}"

    def _earned_s(self) -> float:
        """A body that comes at a fair pace gets more time."""
        if self._http.is_in_head or self._ending or self._http.is_answered_early:
            return 0.0
        earned_s = self._received_bytes / self._limits.transfer_bytes_per_s
        return min(earned_s, self._limits.longest_transfer_s - self._limits.transfer_s)

    def _answer_is_stuck(self, now: float) -> bool:
        unsent = self.get_write_buffer_size()
        if not unsent:
            self._unsent_since = None
            return False
        sent = self._written_bytes - unsent
        if self._unsent_since is None:
            self._unsent_since, self._sent_by_then = now, sent
        earned_s = (sent - self._sent_by_then) / self._limits.transfer_bytes_per_s
        return now >= self._unsent_since + min(self._limits.transfer_s + earned_s, self._limits.longest_transfer_s)

    def _refuse(self, problem: ProblemError) -> None:
        """The last answer of this connection, unless one is on its way: that is the last one then."""
        self._reception.count_end(HTTPStatus(problem.status_code).phrase.lower())
        if self._http.cut_off():
            self._end_after_answer()
            return
        body = msgspec.json.encode(problem.body())
        status = HTTPStatus(problem.status_code)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {PROBLEM_MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.write(head.encode("ascii") + body)
        self._linger()

    def _end_after_answer(self) -> None:
        self._http.end_after_answer()
        self._linger(closes=False)

    def _linger(self, *, closes: bool = True) -> None:
        """Throw away what comes for a moment: bytes that nobody read would destroy the answer on its way."""
        self._ending = True
        self._received_bytes = 0
        if closes:
            self._deadline = self._reception.now() + self._limits.linger_s
            self._reception.is_idle(self)
            if self._transport.can_write_eof() and not self._transport.is_closing():
                self._transport.write_eof()

    # -- called by uvicorn, to which this is a transport -----------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._written_bytes += len(data)
        self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        if self._http.is_answered_early and not self._ending:
            self._linger()
        else:
            self._transport.close()

    def abort(self) -> None:
        self._ending = True
        self._unparsed.clear()
        self._transport.abort()

    def pause_reading(self) -> None:
        self._is_held = True

    def resume_reading(self) -> None:
        self._is_held = False
        self._ask_for_turn()

    # -- called by the parser, through `_Http` ---------------------------------------------------------------------

    def request_began(self) -> None:
        self._received_bytes = self._piece_bytes
        self._deadline = self._reception.now() + self._limits.head_s

    def head_ended(self) -> None:
        self._received_bytes = self._piece_bytes
        self._deadline = self._reception.now() + self._limits.transfer_s

    def request_ended(self) -> None:
        # Nothing of its body counts for the next head, not even what came in one piece with that.
        self._received_bytes = self._piece_bytes = 0
        self._deadline = inf  # the answer is ours to give, then uvicorn's keep-alive timeout counts

    def start_soon(self, start: Callable[[], None]) -> None:
        self._reception.start_soon(start)

    def answered(self) -> None:
        """An answer was written."""
        if self._transport.is_closing():
            return
        self._received_bytes = 0
        if self._http.is_answered_early:
            self._deadline = self._reception.now() + self._limits.linger_s
        elif self._http.has_begun:
            self._deadline = self._reception.now() + self._limits.head_s
        self._reception.is_idle(self)
        self._ask_for_turn()


class _Http(HttpToolsProtocol):
    """uvicorn's protocol, which knows where its client is and says so."""

    def __init__(
        self, connection: Connection, limits: ConnectionLimits, config: Config, server_state: ServerState
    ) -> None:
        super().__init__(config, server_state, app_state={})
        self._connection = connection
        self._is_lost = False
        self._limits = limits
        self.is_in_head = True  # of a request, or waits for one
        self.has_begun = False  # something of a request came, and not all of it
        self._unanswered = 0  # requests whose head is complete

    @property
    def has_request(self) -> bool:
        """A request whose answer did not go yet."""
        return self._unanswered > 0

    @property
    def is_answering(self) -> bool:
        """A request came completely and its answer did not go yet."""
        return self._unanswered > 0 and not (self._unanswered == 1 and self.has_begun and not self.is_in_head)

    @property
    def is_answered_early(self) -> bool:
        """The answer went before the whole request had come."""
        return self.has_begun and not self.is_in_head and not self._unanswered

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        # Nothing is left to the garbage collector: after a flood of connections it would stop the loop.
        self._is_lost = True
        self.pipeline.clear()
        del self.transport, self.flow, self.cycle, self._connection

    def cut_off(self) -> bool:
        """The client has to go. Whether an answer is on its way; one that waits for the client is not."""
        cycle = self.cycle
        if cycle is None or not self._unanswered:
            return False
        if self.is_answering or cycle.response_started:
            return True
        cycle.disconnected = True
        cycle.message_event.set()
        return False

    def end_after_answer(self) -> None:
        self.cycle.keep_alive = False  # the newest; those before it are answered first

    # -- called by the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._unanswered >= self._limits.pipelined:
            detail = "too many requests were sent without waiting for an answer: wait for each"
            raise ProblemError(HTTPStatus.TOO_MANY_REQUESTS, detail)
        self._unset_keepalive_if_required()
        self.is_in_head = self.has_begun = True
        self._connection.request_began()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.url_bytes:
            raise ProblemError(
                HTTPStatus.REQUEST_URI_TOO_LONG,
                f"the URL is longer than {self._limits.url_bytes} bytes: put large values into the body",
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= self._limits.headers:
            raise ProblemError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the request has more than {self._limits.headers} headers: send fewer",
            )
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.is_in_head = False
        self._unanswered += 1
        self._connection.head_ended()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.is_in_head, self.has_begun = True, False
        self._connection.request_ended()
        super().on_message_complete()

    # -- called by the cycles of requests --------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._connection.start_soon(partial(self._start, cycle, app))

    def _start(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if not self._is_lost:
            super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._unanswered -= 1
        if not self._is_lost:
            super().on_response_complete()
            self._connection.answered()


_NOT_HTTP: Final = ProblemError(HTTPStatus.BAD_REQUEST, "this is not HTTP/1.1 and could not be read")
