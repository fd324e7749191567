"""A connection between the moment it takes a request and the moment the request is written."""

import asyncio
from typing import cast

import pytest

from flowcatalyst.core.errors import ConnectionBrokenError
from flowcatalyst.http.http1.connection import Connection, NotSentError
from tests.support.http_servers import reply

RESPONSE = b"HTTP/1.1 408 Too late\r\nContent-Length: 0\r\n\r\n"


class Owner:
    def __init__(self) -> None:
        self.to_send: list[Connection] = []
        self.ended = 0
        self.unasked = 0

    def send_soon(self, connection: Connection) -> None:
        self.to_send.append(connection)

    def exchange_ended(self, connection: Connection) -> None:
        self.ended += 1

    def idle_connection_ended(self, connection: Connection) -> None:
        raise AssertionError("it was not idle")

    def sent_unasked(self) -> None:
        self.unasked += 1

    def connection_opened(self, connection: Connection) -> None: ...

    def connection_closed(self, connection: Connection) -> None: ...


class Wire:
    """A transport that remembers what was written."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = False

    def get_extra_info(self, name: str) -> "Wire":
        return self

    def fileno(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return 0


@pytest.fixture
async def taken() -> "Taken":
    """A connection that took a request which is not written yet."""
    owner, wire = Owner(), Wire()
    connection = Connection(owner, "test", asyncio.get_running_loop())
    connection.connection_made(cast(asyncio.Transport, wire))
    answer = connection.start(b"POST", deadline=1.0)
    assert owner.to_send == [connection]
    assert wire.written == b""
    return connection, owner, wire, cast("asyncio.Future[object]", answer)


Taken = tuple[Connection, Owner, Wire, asyncio.Future[object]]


async def test_a_response_that_comes_before_the_request_was_written_is_not_taken_for_its_answer(taken: Taken) -> None:
    connection, owner, wire, answer = taken
    connection.data_received(RESPONSE)
    with pytest.raises(ConnectionBrokenError, match="before the request was sent"):
        await answer
    connection.send()
    assert (wire.written, wire.aborted, owner.ended) == (b"", True, 1)


async def test_a_request_abandoned_before_it_was_written_is_never_written(taken: Taken) -> None:
    connection, owner, wire, answer = taken
    connection.abandon(answer)  # type: ignore[arg-type]
    connection.send()
    assert (wire.written, wire.aborted, owner.ended) == (b"", True, 1)


async def test_a_request_is_written_once_however_often_it_is_sent(taken: Taken) -> None:
    connection, _, wire, answer = taken
    connection.send()
    connection.send()
    assert wire.written == b"POST"
    connection.data_received(RESPONSE)
    assert answer.done()


async def test_a_request_is_not_written_to_a_kept_connection_that_has_unread_bytes(taken: Taken) -> None:
    connection, owner, wire, answer = taken
    connection.send()
    connection.data_received(reply(200))
    await answer
    again = connection.start(b"POST again", deadline=1.0)
    connection.send(has_unread=True)
    assert (wire.written, connection.usable, owner.ended, owner.unasked) == (b"POST", False, 2, 0)
    with pytest.raises(NotSentError):
        await again
    connection.data_received(reply(200))
    assert (wire.aborted, owner.unasked) == (True, 1)


async def test_a_request_is_not_written_to_a_kept_connection_that_the_server_closed(taken: Taken) -> None:
    connection, owner, wire, answer = taken
    connection.send()
    connection.data_received(reply(200))
    await answer
    again = connection.start(b"POST again", deadline=1.0)
    connection.eof_received()
    connection.send()
    with pytest.raises(NotSentError):
        await again
    assert (wire.written, wire.aborted, owner.ended, owner.unasked) == (b"POST", True, 2, 0)
