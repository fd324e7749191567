"""One connection to NATS: requests with answers, many at a time. When it breaks it stays broken.

nats-py can reconnect by itself, but it then buffers what is sent meanwhile and hides the break from us, who have to
look after the messages that were on their way. So that is off: whoever needs a connection makes a new one.
"""

import asyncio
import itertools
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.tasks import Tasks

CONNECT_LIMIT_S: Final = 5.0
ANSWER_LIMIT_S: Final = 3.0
CLOSE_LIMIT_S: Final = 2.0
ABORT_LIMIT_S: Final = 0.1  # nats-py waits for the end of a connection that it does not notice when TLS failed
FLUSH_LIMIT_S: Final = 2.0
PING_PERIOD_S: Final = 10
API: Final = "$JS.API."
NO_RESPONDERS: Final = "503"
NOT_FOUND: Final = 404
_CREDENTIAL_MARKS: Final = (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")

Headers = Mapping[str, str]
Request = tuple[str, bytes, Headers | None]  # subject, payload, headers
OnMessage = Callable[[Msg], Awaitable[None]]


@dataclass(slots=True, frozen=True)
class NatsLogin:
    """Who we are to a NATS server, and whom we trust."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials_file: Path | None = None
    ca_file: Path | None = None


class ApiError(Exception):
    """JetStream refused a request."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(description)
        self.code = code


class _Connection(Client):
    """nats-py's client, with what it lacks."""

    needs_tls = False

    def _connect_command(self) -> bytes:
        """The first thing that is sent, credentials included. A tls:// address must not send them in the clear."""
        if self.needs_tls and not self._server_info.get("tls_required"):
            raise errors.SecureConnWantedError
        if (transport := self._socket()) is not None and transport.get_extra_info("sslcontext"):
            # nats-py does not tell its reader about TLS, and asyncio then warns at the end of each connection.
            setattr(transport.get_protocol(), "_over_ssl", True)  # noqa: B010 - unknown to mypy
        return super()._connect_command()

    def abort(self) -> None:
        """Close the socket at once, whatever is still to be sent."""
        if (transport := self._socket()) is not None:
            transport.abort()

    def _socket(self) -> asyncio.WriteTransport | None:
        writer: asyncio.StreamWriter | None = getattr(self._transport, "_io_writer", None)
        return writer.transport if writer else None


class _Batch:
    """Requests whose answers somebody waits for together."""

    def __init__(self, size: int) -> None:
        self.answers: list[Msg | None] = [None] * size
        self.left = size
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Link:
    """One connection. `alive` until it breaks or is closed."""

    def __init__(self, where: str) -> None:
        self.alive = True
        self.calls = 0  # requests made so far
        self.last_error = ""  # what the server or the socket said last
        self._where = where
        self._connection = _Connection()
        self._inbox = ""
        self._tokens = itertools.count()
        self._batches: dict[str, tuple[_Batch, int]] = {}
        self._on_break: list[Callable[[], None]] = []
        self._tasks = Tasks()

    @property
    def max_payload(self) -> int:
        return self._connection.max_payload

    async def connect(self, servers: Sequence[str], login: NatsLogin, name: str) -> None:
        """One attempt at each of the servers."""
        try:
            options = _login_options(login)
            self._connection.needs_tls = any(server.startswith("tls:") for server in servers)
            async with asyncio.timeout(CONNECT_LIMIT_S):
                await self._connection.connect(
                    servers=list(servers),
                    name=f"flowcatalyst {name}",
                    error_cb=self._on_error,
                    closed_cb=self._on_closed,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=2,
                    ping_interval=PING_PERIOD_S,
                    flush_timeout=FLUSH_LIMIT_S,
                    **options,
                )
                self._inbox = self._connection.new_inbox()
                await self._connection.subscribe(f"{self._inbox}.*", cb=self._on_answer)
        except (errors.Error, OSError, ValueError, ImportError) as error:
            reason = self.last_error if isinstance(error, errors.NoServersError) else _in_words(error)
            await self.close(politely=False)
            raise QueueUnavailableError(f"NATS at {self._where} cannot be reached: {reason}") from None
        except BaseException:
            await self.close(politely=False)
            raise

    def when_it_breaks(self, call: Callable[[], None]) -> None:
        self._on_break.append(call)

    async def subscribe(self, on_message: OnMessage) -> tuple[str, Subscription]:
        """A subject that only we listen on, with one more word at its end."""
        inbox = self._connection.new_inbox()
        # No limits: nats-py drops what is above them. Nobody sends more here than was asked for.
        try:
            listening = await self._connection.subscribe(
                f"{inbox}.*", cb=on_message, pending_msgs_limit=0, pending_bytes_limit=0
            )
        except (errors.Error, OSError):
            raise self.broken() from None
        return inbox, listening

    async def send(self, subject: str, payload: bytes, reply: str = "", headers: Headers | None = None) -> None:
        if not self.alive:
            raise self.broken()
        self.calls += 1
        try:
            await self._connection.publish(subject, payload, reply, dict(headers) if headers else None)
        except errors.BadHeaderError as error:
            raise QueueUnavailableError(f"NATS does not allow a header of this name: {_in_words(error)}") from None
        except (errors.Error, OSError) as error:
            raise self.give_up(_in_words(error)) from None

    async def ask_all(self, requests: Sequence[Request], limit_s: float = ANSWER_LIMIT_S) -> list[Msg | None]:
        """Send all, then wait for the answers. None: no answer came in time."""
        batch, tokens = _Batch(len(requests)), []
        try:
            for position, (subject, payload, headers) in enumerate(requests):
                token = str(next(self._tokens))
                tokens.append(token)
                self._batches[token] = (batch, position)
                await self.send(subject, payload, f"{self._inbox}.{token}", headers)
            if requests:
                await asyncio.wait([batch.done], timeout=limit_s)
        finally:
            if batch.left:
                for token in tokens:
                    self._batches.pop(token, None)
        return batch.answers

    async def api(self, subject: str, request: object = None) -> Any:
        """What the JetStream API answers. Raises `ApiError` if it refuses."""
        payload = b"" if request is None else msgspec.json.encode(request)
        [answer] = await self.ask_all([(f"{API}{subject}", payload, None)])
        if answer is None:
            raise self.give_up(self.last_error or "it does not answer")
        if status_of(answer) == NO_RESPONDERS:
            raise ApiError(0, f"JetStream is not enabled at {self._where}, or not for this account")
        result = msgspec.json.decode(answer.data)
        if error := result.get("error"):
            raise ApiError(error.get("code", 0), error.get("description", "no reason given"))
        return result

    def broken(self) -> QueueUnavailableError:
        return QueueUnavailableError(
            f"the connection to NATS at {self._where} broke: {self.last_error or 'it was closed'}"
        )

    def give_up(self, why: str) -> QueueUnavailableError:
        """It hangs: nobody should use it any more. Returns the error to raise."""
        self._break(why)
        return self.broken()

    async def close(self, *, politely: bool = True) -> None:
        """Close it, by force if the server does not take part."""
        self._break("it was closed")
        closing = self._tasks.spawn(self._close_politely(), "close nats connection")
        if politely:
            await asyncio.wait([closing], timeout=CLOSE_LIMIT_S)
        if not closing.done():
            self._connection.abort()
            await asyncio.wait([closing], timeout=ABORT_LIMIT_S)
        await self._tasks.cancel()

    async def _close_politely(self) -> None:
        with suppress(errors.Error, OSError, AssertionError):  # asserts that it had begun to connect
            await self._connection.close()

    def _break(self, why: str) -> None:
        if not self.alive:
            return
        self.alive = False
        self.last_error = self.last_error or why
        for batch, _ in list(self._batches.values()):
            batch.end()
        self._batches.clear()
        for call in self._on_break:
            call()

    async def _on_answer(self, answer: Msg) -> None:
        entry = self._batches.pop(answer.subject.rpartition(".")[2], None)
        if entry is None:
            return  # too late
        batch, position = entry
        batch.answers[position] = answer
        batch.left -= 1
        if not batch.left:
            batch.end()

    async def _on_error(self, error: Exception) -> None:
        self.last_error = _in_words(error)
        if isinstance(error, errors.FlushTimeoutError):
            self._break("it accepts no more data")
            self._connection.abort()

    async def _on_closed(self) -> None:
        self._break("the server closed it")


def status_of(message: Msg) -> str | None:
    """The status in a message that carries nothing else."""
    headers = message.headers
    return headers.get("Status") if headers and not message.data else None


def where_of(servers: Sequence[str]) -> str:
    return ", ".join(urlsplit(server).netloc for server in servers)


def _login_options(login: NatsLogin) -> dict[str, Any]:
    options: dict[str, Any] = {"user": login.user, "password": login.password, "token": login.token}
    if login.credentials_file is not None:
        content = login.credentials_file.read_bytes()
        if not all(mark in content for mark in _CREDENTIAL_MARKS):  # nats-py would look for them for ever
            raise ValueError(f"{login.credentials_file} is not a credentials file: it has no JWT or no key seed")
        options["user_credentials"] = login.credentials_file
    if login.ca_file is not None:
        options["tls"] = ssl.create_default_context()
        options["tls"].load_verify_locations(cafile=login.ca_file)
    return options


def _in_words(error: BaseException) -> str:
    """One line."""
    if isinstance(error, ModuleNotFoundError) and error.name == "nkeys":
        return "a credentials file needs the package nkeys: pip install nkeys"
    if isinstance(error, errors.SecureConnWantedError):
        return "the address is tls://, but the server does not ask for TLS"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError) and not str(error).strip("nats: "):
        return "no answer in time"
    text = str(error) or "it failed without saying why"
    return " ".join(text.removeprefix("nats: ").split()).strip("'")
