"""Spans of OpenTelemetry: one for a message while it is here, and one below it for each of its attempts.

A message's span begins when the router received it and ends with its verdict. It is kept in the delivery and nowhere
else, so that whatever becomes of the message, nothing of it is left.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import structlog
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from flowcatalyst import __version__
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import LocalShortageError, TargetRefusedError
from flowcatalyst.core.headers import names_trace
from flowcatalyst.core.logs import told_as
from flowcatalyst.core.message import Delivery, Headers, Outcome, Result, Retry, Verdict
from flowcatalyst.core.outage_log import OutageLog
from flowcatalyst.core.targets import endpoint_of, parse_target

RELEASED: Final = "released"  # in place of a verdict: the router let go of the message between two attempts

_NO_CONTEXT: Final = Context()  # spans of messages belong to nothing that runs here
_w3c: Final = TraceContextTextMapPropagator()

log = structlog.get_logger("flowcatalyst.tracing")


class Attempts(Protocol):
    async def attempt(self, delivery: Delivery, timeout_s: float | None = None) -> Outcome: ...


class AttemptLog(Protocol):
    def attempt(self, pool: str, delivery: Delivery, outcome: Outcome, verdict: Verdict, duration_s: float) -> None: ...


class Tracing:
    """Makes the spans of a process. Whatever fails here costs a span and never a message."""

    def __init__(self, provider: TracerProvider, clock: Clock, system_of: Callable[[str], str]) -> None:
        """`system_of` tells what kind of broker a queue belongs to, by the name of the queue."""
        self.clock = clock
        self._tracer = provider.get_tracer("flowcatalyst", __version__)
        self._system_of = system_of
        self._released: deque[tuple[Span, float]] = deque()
        self._failures = OutageLog(clock, log, "tracing_failed", "tracing_recovered")

    def begin_attempt(self, delivery: Delivery) -> "MessageTrace | None":
        """None if it cannot be traced. Then what its producer said of a trace is sent on as it is."""
        try:
            trace = delivery.trace if isinstance(delivery.trace, MessageTrace) else self._begin_message(delivery)
            trace.begin_attempt(delivery)
        except Exception as error:
            delivery.trace = None
            self._failures.failed(error)
            return None
        self._failures.succeeded()
        delivery.trace = trace
        return trace

    def _begin_message(self, delivery: Delivery) -> "MessageTrace":
        pointer, queue = delivery.pointer, delivery.source.name
        own = {name.lower(): value for name, value in (pointer.headers or {}).items() if names_trace(name)}
        began_at = self.clock.wall()
        if delivery.arrived_at:
            began_at -= max(0.0, self.clock.monotonic() - delivery.arrived_at)
        span = self._tracer.start_span(
            f"process {queue}",
            _w3c.extract(own or dict(delivery.trace_context), _NO_CONTEXT),
            SpanKind.CONSUMER,
            {
                "messaging.system": self._system_of(queue),
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": queue,
                "messaging.message.id": pointer.id,
                "flowcatalyst.group": delivery.group or "",
                "flowcatalyst.pool": delivery.pool,
                "flowcatalyst.receive_count": delivery.receive_count,
            },
            start_time=_nanoseconds(began_at),
        )
        return MessageTrace(self, span)

    def start_attempt(self, message: Span, delivery: Delivery) -> Span:
        return self._tracer.start_span(
            "POST",
            set_span_in_context(message, _NO_CONTEXT),
            SpanKind.CLIENT,
            _of_attempt(delivery),
            start_time=_nanoseconds(self.clock.wall()),
        )

    def note_release(self, span: Span) -> None:
        """Called by a destructor, which may run at any moment, in any thread, so that no lock may be taken."""
        self._released.append((span, self.clock.wall()))

    async def end_released(self) -> None:
        """End the spans of messages that left without a verdict; to be called now and then, and at the end."""
        while self._released:
            span, ended_at = self._released.popleft()
            span.set_attribute("flowcatalyst.verdict", RELEASED)
            span.end(_nanoseconds(ended_at))


class MessageTrace:
    """Of one message, from its first attempt on until its verdict."""

    __slots__ = ("_attempt", "_message", "_tracing")

    def __init__(self, tracing: Tracing, message: Span) -> None:
        self._tracing = tracing
        self._message: Span | None = message
        self._attempt: Span | None = None

    def __del__(self) -> None:
        if self._message is not None:
            self._tracing.note_release(self._message)

    def begin_attempt(self, delivery: Delivery) -> None:
        assert self._message is not None, "it has not ended"
        self.cut_off(None)  # an attempt that nobody judged
        self._attempt = self._tracing.start_attempt(self._message, delivery)

    def passed_on(self, headers: Headers) -> tuple[Headers, str]:
        assert self._attempt is not None, "an attempt is being made"
        carrier: dict[str, str] = {}
        _w3c.inject(carrier, set_span_in_context(self._attempt, _NO_CONTEXT))
        if any(names_trace(name) for name, _ in headers):
            headers = tuple(header for header in headers if not names_trace(header[0]))
        return headers, "".join(f"{name}: {value}\r\n" for name, value in carrier.items())

    def cut_off(self, error: BaseException | None) -> None:
        """The attempt ended without an outcome."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            said = str(error) if isinstance(error, LocalShortageError) else "it ended without an outcome"
            attempt.set_attribute("error.type", "_OTHER" if error is None else type(error).__qualname__)
            attempt.set_status(Status(StatusCode.ERROR, said))
            attempt.end(_nanoseconds(self._tracing.clock.wall()))

    def judged(self, delivery: Delivery, outcome: Outcome, verdict: Verdict) -> bool:
        """The attempt ended, and with any verdict but a retry the message's span does, which is then told."""
        now = _nanoseconds(self._tracing.clock.wall())
        attributes = _of_verdict(verdict)
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            if outcome.status is not None:
                attempt.set_attribute("http.response.status_code", outcome.status)
            _end(attempt, outcome, attributes, now)
        if isinstance(verdict, Retry):
            return False
        message, self._message = self._message, None
        if message is not None:
            _end(message, outcome, {**attributes, "flowcatalyst.attempts": delivery.number}, now)
        return True


class TracedAttempts:
    """Attempts with a span each, which the request names as its parent."""

    def __init__(self, attempts: Attempts, tracing: Tracing) -> None:
        self._attempts = attempts
        self._tracing = tracing

    async def attempt(self, delivery: Delivery, timeout_s: float | None = None) -> Outcome:
        trace = self._tracing.begin_attempt(delivery)
        try:
            return await self._attempts.attempt(delivery, timeout_s)
        except (Exception, asyncio.CancelledError) as error:
            if trace is not None:
                trace.cut_off(error)
            raise


class TracedLog:
    """An attempt log that ends the spans of what it is told of."""

    def __init__(self, attempts: AttemptLog) -> None:
        self._log = attempts

    def attempt(self, pool: str, delivery: Delivery, outcome: Outcome, verdict: Verdict, duration_s: float) -> None:
        self._log.attempt(pool, delivery, outcome, verdict, duration_s)
        trace = delivery.trace
        if isinstance(trace, MessageTrace) and trace.judged(delivery, outcome, verdict):
            delivery.trace = None  # if it is tried again all the same, that is another span


def _of_attempt(delivery: Delivery) -> dict[str, Any]:
    """By the conventions for HTTP clients. No query: it may hold secrets."""
    url, number = delivery.pointer.mediation_target, delivery.number
    attributes: dict[str, Any] = {
        "http.request.method": "POST",
        "messaging.message.id": delivery.pointer.id,
        "messaging.destination.name": delivery.source.name,
        "flowcatalyst.group": delivery.group or "",
        "flowcatalyst.pool": delivery.pool,
        "flowcatalyst.attempt": number,
    }
    if number > 1:
        attributes["http.request.resend_count"] = number - 1
    try:
        target = parse_target(url)
    except TargetRefusedError:  # the outcome will say so
        return attributes
    attributes |= {"url.full": endpoint_of(url), "server.address": target.host, "server.port": target.port}
    return attributes


def _of_verdict(verdict: Verdict) -> dict[str, Any]:
    word, delay_s = told_as(verdict)
    delay = {} if delay_s is None else {"flowcatalyst.delay_s": delay_s}
    return {"flowcatalyst.verdict": word, **delay}


def _end(span: Span, outcome: Outcome, attributes: Mapping[str, Any], now: int) -> None:
    span.set_attributes(attributes)
    if outcome.result is not Result.SUCCESS:
        refused = outcome.status is not None and outcome.status >= 400
        span.set_attribute("error.type", str(outcome.status) if refused else outcome.error)
        span.set_status(Status(StatusCode.ERROR, outcome.detail))
    span.end(now)


def _nanoseconds(wall: float) -> int:
    return int(wall * 1e9)
