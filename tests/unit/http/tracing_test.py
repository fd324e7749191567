"""The spans of a message, made by hand: what they say, what is sent on, and that none is left."""

import errno
import gc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, StatusCode

from flowcatalyst.core.errors import LocalShortageError
from flowcatalyst.core.message import ACK, Delivery, ErrorKind, Nack, Outcome, Reject, Result, Retry, Verdict
from flowcatalyst.core.targets import Target
from flowcatalyst.http.contract import Response
from flowcatalyst.http.interpret import DELIVERED, interpret
from flowcatalyst.http.mediator import Mediator
from flowcatalyst.http.tracing import TracedAttempts, TracedLog, Tracing
from tests.support.clocks import SetClock
from tests.support.deliveries import delivery

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01"
BUSY = interpret(503, None, b"", 0.0)


class Answers:
    """An HTTP client that keeps what it was asked to send."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.sent: list[str] = []
        self._error = error

    async def post(
        self, target: Target, headers: Any, body: bytes, timeout_s: float | None = None, lines: str = ""
    ) -> Response:
        self.sent.append("".join(f"{name}: {value}\r\n" for name, value in headers) + lines)
        if self._error is not None:
            raise self._error
        return Response(200, (), b"")

    async def close(self) -> None: ...

    def values_of(self, name: str) -> list[str]:
        """Of all headers that are called so, in the latest request."""
        lines = (line.partition(": ") for line in self.sent[-1].splitlines())
        return [value for key, _, value in lines if key.lower() == name]


class NoLog:
    def attempt(self, pool: str, delivery: Delivery, outcome: Outcome, verdict: Verdict, duration_s: float) -> None: ...


class Traced:
    """A mediator with tracing, and the spans that ended."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.clock = SetClock()
        self.http = Answers(error)
        self.ended = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.ended))
        self.tracing = Tracing(provider, self.clock, lambda queue: f"kind of {queue}")
        self.attempts = TracedAttempts(Mediator(self.http, self.http, self.clock), self.tracing)
        self.log = TracedLog(NoLog())

    async def attempt(self, one: Delivery, outcome: Outcome = DELIVERED, verdict: Verdict = ACK) -> None:
        one.tries += 1
        await self.attempts.attempt(one)
        self.log.attempt("P", one, outcome, verdict, 0.0)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.ended.get_finished_spans() if span.name == name]

    def message(self) -> ReadableSpan:
        (span,) = self.spans("process test-queue")
        return span


def message(headers: dict[str, str] | None = None, arrived_at: float = 0.0) -> Delivery:
    made = delivery("m1")
    made.pointer, made.arrived_at = msgspec.structs.replace(made.pointer, headers=headers), arrived_at
    return made


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT"])
async def test_a_request_has_one_traceparent_however_the_producer_wrote_its_own(name: str) -> None:
    traced = Traced()
    await traced.attempt(message({name: GIVEN, "TRACESTATE": "a=1", "X-Other": "stays"}))
    (parent,) = traced.http.values_of("traceparent")
    (attempt,) = traced.spans("POST")
    assert attempt.context is not None
    assert parent == f"00-{TRACE}-{attempt.context.span_id:016x}-01"
    assert traced.http.values_of("tracestate") == ["a=1"]
    assert traced.http.values_of("x-other") == ["stays"]


@given(parent=st.text(st.characters(min_codepoint=32, max_codepoint=126)), state=st.text(max_size=600))
async def test_whatever_stands_for_a_traceparent_never_fails_a_message(parent: str, state: str) -> None:
    traced = Traced()
    await traced.attempt(message({"traceparent": parent, "tracestate": state}))
    assert len(traced.http.values_of("traceparent")) == 1
    assert traced.message().status.status_code is StatusCode.UNSET


async def test_the_span_of_a_message_covers_its_wait_in_the_router() -> None:
    traced = Traced()
    arrived = message(arrived_at=traced.clock.now)
    traced.clock.now += 5.0
    await traced.attempt(arrived)
    began, ended = traced.message().start_time, traced.message().end_time
    assert began is not None
    assert ended is not None
    assert ended - began == 5_000_000_000


@pytest.mark.parametrize(
    ("verdict", "word", "delay"),
    [(Nack(30.0), "nack", 30.0), (Nack(float("inf")), "park", None), (Reject("no"), "dead_letter", None)],
)
async def test_the_span_of_a_message_tells_its_verdict(verdict: Verdict, word: str, delay: float | None) -> None:
    traced, one = Traced(), message()
    await traced.attempt(one, BUSY, Retry(1.0))
    assert traced.spans("process test-queue") == []  # it is still here
    await traced.attempt(one, BUSY, verdict)
    said = about(traced.message())
    assert (said["flowcatalyst.verdict"], said.get("flowcatalyst.delay_s")) == (word, delay)
    assert (said["flowcatalyst.attempts"], said["error.type"]) == (2, "503")
    assert said["messaging.system"] == "kind of test-queue"
    assert traced.message().status.status_code is StatusCode.ERROR


async def test_an_endpoint_that_asks_for_patience_in_a_200_is_an_error_with_that_kind() -> None:
    traced = Traced()
    refused = interpret(200, None, b'{"ack":false}', 0.0)
    await traced.attempt(message(), refused, Nack(10.0))
    (attempt,) = traced.spans("POST")
    assert about(attempt)["error.type"] == ErrorKind.NOT_ACKED
    assert about(attempt)["http.response.status_code"] == 200


async def test_a_message_that_leaves_between_two_attempts_ends_its_span_when_it_left() -> None:
    traced, one = Traced(), message()
    await traced.attempt(one, BUSY, Retry(1.0))
    traced.clock.now += 7.0
    left_at = traced.clock.now
    del one
    gc.collect()
    traced.clock.now += 7.0
    await traced.tracing.end_released()
    assert about(traced.message())["flowcatalyst.verdict"] == "released"
    assert traced.message().end_time == int(left_at * 1e9)
    await traced.tracing.end_released()
    assert len(traced.spans("process test-queue")) == 1


async def test_a_message_that_has_its_verdict_leaves_nothing_behind() -> None:
    traced, one = Traced(), message()
    await traced.attempt(one)
    assert one.trace is None
    del one
    gc.collect()
    assert not traced.tracing._released


async def test_an_attempt_that_this_machine_could_not_make_is_told_and_the_next_one_has_a_span_of_its_own() -> None:
    traced, one = Traced(LocalShortageError(errno.EMFILE)), message()
    with pytest.raises(LocalShortageError):
        await traced.attempt(one)
    traced.http._error = None
    await traced.attempt(one)
    first, second = traced.spans("POST")
    assert about(first)["error.type"] == "LocalShortageError"
    assert "EMFILE" in (first.status.description or "")
    assert first.parent is not None
    assert second.parent is not None
    assert first.parent.span_id == second.parent.span_id


async def test_an_attempt_that_nobody_judged_is_ended_by_the_next_one() -> None:
    traced, one = Traced(), message()
    await traced.attempts.attempt(one)
    await traced.attempt(one)
    assert [span.status.status_code for span in traced.spans("POST")] == [StatusCode.ERROR, StatusCode.UNSET]


async def test_a_message_tried_again_after_its_verdict_has_another_span() -> None:
    """Its dead letter could not be recorded."""
    traced, one = Traced(), message({"traceparent": GIVEN})
    await traced.attempt(one, BUSY, Reject("no"))
    await traced.attempt(one)
    spans = traced.spans("process test-queue")
    assert [about(span)["flowcatalyst.verdict"] for span in spans] == ["dead_letter", "ack"]
    assert {span.context.trace_id for span in spans if span.context} == {int(TRACE, 16)}


async def test_a_target_that_cannot_be_called_is_no_problem_of_tracing() -> None:
    traced, one = Traced(), delivery("m1", target="nonsense")
    await traced.attempt(one, Outcome(Result.ERROR_CONFIG, ErrorKind.NETWORK_ERROR), Reject("no"))
    assert "url.full" not in about(traced.spans("POST")[0])


class BrokenTracing(NoOpTracerProvider):
    """Whose tracers raise, as none should."""

    def get_tracer(self, *given: Any, **more: Any) -> Any:
        return self

    def start_span(self, *given: Any, **more: Any) -> Any:
        raise RuntimeError("no span today")


async def test_a_tracer_that_fails_costs_the_span_and_the_producers_header_goes_as_it_came() -> None:
    traced = Traced()
    attempts = TracedAttempts(
        Mediator(traced.http, traced.http, traced.clock), Tracing(BrokenTracing(), traced.clock, str)
    )
    one = message({"traceparent": GIVEN})
    assert await attempts.attempt(one) is DELIVERED
    assert traced.http.values_of("traceparent") == [GIVEN]
    traced.log.attempt("P", one, DELIVERED, ACK, 0.0)


async def test_without_tracing_the_producers_header_goes_as_it_came() -> None:
    http, clock = Answers(), SetClock()
    for said in ({"TraceParent": GIVEN, "tracestate": "a=1"}, {"traceparent": "nonsense"}, None):
        await Mediator(http, http, clock).attempt(message(said))
        sent = [http.values_of("traceparent"), http.values_of("tracestate")]
        assert [value for values in sent for value in values] == list((said or {}).values())
