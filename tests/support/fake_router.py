"""A router that answers what a test says, and commands that talk to it, as a person at a terminal sees them."""

import io
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol

import pytest

from flowcatalyst.cli.main import main
from flowcatalyst.core.message import Result
from tests.support.api_forms import check_answer

WIDTH = 80


class Request(NamedTuple):
    method: str
    path: str  # with its query, as it came
    body: Any
    headers: Mapping[str, str]


class FakeRouter:
    """Answers by method and path, with a status and JSON; 404 where it was told nothing."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, tuple[int, Any]] = {}
        self._overviews: list[Any] = []
        self.stays_open = threading.Event()
        self.requests: list[Request] = []
        self.connections = 0

    def answer(self, what: str, body: Any, status: int = 200) -> None:
        """`what` is like "GET /monitoring/groups?blocked=true". Only what a router may say: `check_answer`."""
        if status < 300 and not isinstance(body, bytes):  # bytes are what something else says that is no router
            check_answer(what, body)
        self.answers[what] = (status, body)

    @property
    def overviews(self) -> list[Any]:
        """Sent one after the other; then the stream ends, unless it is to stay open."""
        return self._overviews

    @overviews.setter
    def overviews(self, overviews: list[Any]) -> None:
        for one in overviews:
            check_answer("GET /monitoring/live", one)
        self._overviews = overviews

    @property
    def asked(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.requests]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    router: FakeRouter

    def setup(self) -> None:
        super().setup()
        self.router.connections += 1

    def _reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        given = json.loads(body) if body else None
        self.router.requests.append(Request(self.command, self.path, given, dict(self.headers)))
        if self.path == "/monitoring/live" and self.router.overviews:
            self._stream()
            return
        unknown = (404, {"detail": f"there is no {self.command} {self.path}"})
        status, answer = self.router.answers.get(f"{self.command} {self.path}", unknown)
        text = b"" if answer is None else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for overview in self.router.overviews:
            self.wfile.write(f"event: overview\ndata: {json.dumps(overview)}\n\n".encode())
            self.wfile.flush()
        self.router.stays_open.wait()

    do_GET = do_POST = do_DELETE = _reply  # noqa: N815 - the names that http.server looks for

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@contextmanager
def fake_router(port: int = 0) -> Iterator[FakeRouter]:
    class Handler(_Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    Handler.router = router = FakeRouter(f"http://127.0.0.1:{server.server_port}")
    router.stays_open.set()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield router
    finally:
        router.stays_open.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Keyboard(io.StringIO):
    def __init__(self, typed: str | None) -> None:
        super().__init__(typed or "")
        self._is_person = typed is not None

    def isatty(self) -> bool:
        return self._is_person


class Asked(Protocol):
    """A router that commands are to ask."""

    @property
    def url(self) -> str: ...


class Commands:
    """Runs a command in this process: a real one takes most of its time to start."""

    def __init__(self, asked: Asked, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self._asked = asked
        self._patch = patch
        self._captured = captured
        patch.setenv("COLUMNS", str(WIDTH))
        patch.delenv("MESSAGE_ROUTER_API_KEY", raising=False)

    def run(self, *args: object, typed: str | None = None) -> tuple[int, str, str]:
        """Exit code, output, errors. What is `typed` comes from a person; None: nobody is there."""
        self._patch.setattr(sys, "argv", ["flowcatalyst", *map(str, args), "--router", self._asked.url])
        self._patch.setattr(sys, "stdin", _Keyboard(typed))
        with pytest.raises(SystemExit) as ended:
            main()
        output, errors = self._captured.readouterr()
        return int(ended.value.code or 0), output, errors

    def works(self, *args: object, typed: str | None = None) -> str:
        code, output, errors = self.run(*args, typed=typed)
        assert (code, errors) == (0, ""), errors
        return output

    def fails(self, *args: object, code: int = 1, typed: str | None = None) -> str:
        """The one sentence it said."""
        found, output, errors = self.run(*args, typed=typed)
        assert found == code, (output, errors)
        assert errors.startswith("flowcatalyst: "), errors
        assert errors.count("\n") == 1
        return errors

    def misused(self, *args: object) -> str:
        code, output, errors = self.run(*args)
        assert (code, output) == (2, "")
        assert errors.startswith("Usage: ")
        return errors


class Terminal(Commands):
    """Of a router that answers what a test says."""

    def __init__(self, router: FakeRouter, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        super().__init__(router, patch, captured)
        self.router = router


# What the API answers, to be changed by tests.


def head(**changes: Any) -> dict[str, Any]:
    return {
        "id": "order-1",
        "brokerId": "embedded-x-1",
        "where": "ON_HOLD",
        "failures": 3,
        "endpoint": "http://shop.test/hook",
        **changes,
    }


def last_answer(**changes: Any) -> dict[str, Any]:
    return {"status": 500, "detail": "server error", "excerpt": "no stock", "agoMs": 12_000, **changes}


def group(**changes: Any) -> dict[str, Any]:
    return {
        "group": "customer-7",
        "pool": "ORDERS",
        "queue": "default",
        "state": "BLOCKED",
        "blockedForMs": 320_000,
        "head": head(),
        "lastAnswer": last_answer(),
        "nextAttemptInMs": 15_000,
        "waitingBehind": 41,
        "waitingBehindExact": False,
        "waitsFor": "the next attempt at order-1, in 15 s",
        "heldBy": None,
        "heldForMs": None,
        **changes,
    }


def endpoint(**changes: Any) -> dict[str, Any]:
    return {
        "endpoint": "http://shop.test/hook",
        "state": "OPEN",
        "pausedBy": None,
        "pausedForMs": None,
        "inFlight": 1,
        "slots": 10,
        "pools": ["ORDERS"],
        "waiting": 12,
        "delivered": 1000,
        "failed": 30,
        "meanMs": 20.0,
        "p95Ms": 80.0,
        "lastError": "500 server error",
        "downForMs": 600_000,
        **changes,
    }


def pool(code: str = "ORDERS", **changes: Any) -> dict[str, Any]:
    numbers = {"slots": 10, "inFlight": 4, "queued": 30, "parked": 2, "delivered": 12_345}
    return {"code": code, **numbers, "paused": False, **changes}


def pool_view(code: str = "ORDERS", **changes: Any) -> dict[str, Any]:
    attempts = {result.value: 0 for result in Result}
    times = {"meanAttemptMs": None, "p95AttemptMs": None, "p50LagMs": None, "p95LagMs": None}
    counts = {"delivered": 0, "deadLettered": 0, "nacked": 0, "retried": 0, "rateLimitWaits": 0, "attempts": attempts}
    window = {"seconds": 60.0, **counts, **times}
    return {
        "code": code,
        "concurrency": 10,
        "rateLimitPerMinute": None,
        "share": None,
        "failureScope": "group",
        "maxDeliveryAttempts": None,
        "capacity": 100,
        "parkedLimit": 1000,
        "retryStatuses": [],
        "ackBeforeNext": False,
        "success": "2xx",
        "queued": 0,
        "parked": 0,
        "inFlight": 0,
        "groups": 0,
        "heldGroups": 0,
        "oldestWaitingMs": None,
        "blockedGroups": 0,
        "longestBlockedMs": None,
        **counts,
        **times,
        "draining": False,
        "pausedBy": None,
        "pausedForMs": None,
        "last5Minutes": window,
        "last30Minutes": window,
        **changes,
    }


def overview(**changes: Any) -> dict[str, Any]:
    return {
        "at": "2027-01-31T12:34:56Z",
        "level": "WARNING",
        "reasons": [{"level": "WARNING", "part": "endpoint", "text": "http://shop.test/hook is down for 10 min"}],
        "role": "primary",
        "deliveredPerSecond": 1204.0,
        "failedPerSecond": 0.5,
        "inFlight": 4,
        "buffered": 30,
        "queued": 12_000,
        "queuedExact": True,
        "lagMs": {"p50": 12.0, "p95": 2_300.0},
        "warnings": 2,
        "deadLetters": 5,
        "blockedGroups": 1,
        "pools": [pool(), pool("MAIL", inFlight=9, queued=1, delivered=7)],
        **changes,
    }


def explanation(**changes: Any) -> dict[str, Any]:
    return {
        "id": "order-2",
        "kind": "MESSAGE",
        "state": "WAITING",
        "cause": "BEHIND_HEAD",
        "summary": "Message order-2 waits behind order-1, which fails.",
        "chain": ["order-1 is the head of group customer-7.", "It failed 3 times: 500 server error."],
        "looked": ["this router", "its dead letters", "what it delivered in the last minutes"],
        "pool": "ORDERS",
        "group": "customer-7",
        "queue": "default",
        "head": head(),
        "lastAnswer": last_answer(),
        "nextAttemptInMs": 15_000,
        "estimateInMs": 15_000,
        "estimateText": "not before order-1 is delivered",
        "safeToSendAgain": False,
        "sendAgainText": "No: it is not lost, and is tried without that.",
        "facts": {"slots": 10, "breaker": "CLOSED", "paused": False, "permits": None},
        "actions": [
            {
                "what": "skip-head",
                "method": "POST",
                "path": "/monitoring/groups/customer-7/skip-head",
                "text": "give up message order-1: it becomes a dead letter",
            }
        ],
        **changes,
    }
