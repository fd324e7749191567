"""HTTP/1.1 to one server by the standard library: connections are kept, shared by threads, and opened when needed."""

import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from urllib.parse import urlsplit

from flowcatalyst.core.clock import Clock

_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: HTTPMessage
    body: bytes


class Connections:
    """Those to one server that are idle. A request takes one, and puts it back when its answer was read in full."""

    def __init__(
        self, url: str, headers: Mapping[str, str], timeout_s: float, tls: ssl.SSLContext | None, clock: Clock
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("the address of the platform has to be like http://host:8080, without ? and #")
        if parts.username is not None:
            raise ValueError("credentials do not belong into the address: give an api_key")
        self.url = url.rstrip("/")
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._headers, self._timeout_s, self._clock = dict(headers), timeout_s, clock
        self._idle: list[HTTPConnection] = []
        self._lock = threading.Lock()

    def post(self, path: str, body: bytes) -> Answer:
        return self.ask("POST", path, body)

    def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """Raises `OSError` or `HTTPException`. The time allowed is that of the whole request."""
        while (connection := self._take()) is not None:
            try:
                return self._ask(connection, method, path, body)
            except (ConnectionError, HTTPException):
                pass  # the server closed it while it was idle: nobody is to blame, and another one will do
        return self._ask(self._new(), method, path, body)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _new(self) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)

    def _ask(self, connection: HTTPConnection, method: str, path: str, body: bytes | None) -> Answer:
        deadline = self._clock.monotonic() + self._timeout_s
        try:
            connection.request(method, self._path + path, body, self._headers)
            response = connection.getresponse()
            chunks = []
            while chunk := response.read1(_CHUNK):
                chunks.append(chunk)
                if self._clock.monotonic() > deadline:
                    raise TimeoutError("timed out")
            if response.length:
                raise HTTPException("the answer ended before its time")
            response.close()  # read1 leaves it open, and an open one keeps the connection from its next request
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            with self._lock:
                self._idle.append(connection)
        return Answer(response.status, response.headers, b"".join(chunks))
