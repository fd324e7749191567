"""Traces of a whole router, as a collector gets them."""

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.control.platform_settings import PlatformSettings
from flowcatalyst.control.settings import TracingSettings
from tests.api.running import Running, run_router, until
from tests.support.http_servers import Call, Gate, RawServer, always, in_turn, raw_server, reply

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")

from flowcatalyst.http.trace_export import FLUSHER
from tests.support.collector import Collector, SeenSpan, collector

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01"
CONSUMER, CLIENT = 5, 3
SAMPLED = 1  # of the flags of a traceparent; another one tells that the id is random


def tracing_to(traces: Collector, **more: Any) -> TracingSettings:
    return TracingSettings(enabled=True, endpoint=traces.url, **more)


def assert_names(call: Call, span: SeenSpan) -> None:
    version, trace, parent, flags = call.headers["traceparent"].split("-")
    assert (version, trace, parent, int(flags, 16) & SAMPLED) == ("00", span.trace, span.id, SAMPLED)


async def deliver(folder: Path, traces: Collector, target: RawServer, *messages: dict[str, Any], **more: Any) -> None:
    """Run a router until it delivered or gave up these messages, then stop it, which sends what is left."""
    async with run_router(folder, tracing=tracing_to(traces), **more) as router:
        for message in messages:
            assert (await router.send(mediationTarget=target.url("/orders?key=secret"), **message)).status < 300
        await router.until_settled()


async def test_a_message_is_a_span_with_its_attempt_below_it_and_the_request_names_the_attempt(tmp_path: Path) -> None:
    async with collector() as traces, raw_server() as target:
        await deliver(tmp_path, traces, target, {"id": "m1", "messageGroupId": "g"})
    (message,), (attempt,) = traces.of("m1")
    assert (message.name, message.kind, message.parent, message.failed) == ("process default", CONSUMER, "", False)
    assert (attempt.name, attempt.kind, attempt.parent, attempt.failed) == ("POST", CLIENT, message.id, False)
    assert attempt.trace == message.trace
    assert message.began <= attempt.began <= attempt.ended <= message.ended
    assert message.about == {
        "messaging.system": "flowcatalyst",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": "m1",
        "flowcatalyst.group": "g",
        "flowcatalyst.pool": "DEFAULT-POOL",
        "flowcatalyst.receive_count": 1,
        "flowcatalyst.verdict": "ack",
        "flowcatalyst.attempts": 1,
    }
    assert attempt.about == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.full": target.url("/orders"),
        "server.address": "127.0.0.1",
        "server.port": target.port,
        "messaging.message.id": "m1",
        "messaging.destination.name": "default",
        "flowcatalyst.group": "g",
        "flowcatalyst.pool": "DEFAULT-POOL",
        "flowcatalyst.attempt": 1,
        "flowcatalyst.verdict": "ack",
    }
    assert message.service["service.name"] == "flowcatalyst"
    assert traces.server.requests[0].path == "/v1/traces"
    assert_names(target.requests[0], attempt)


async def test_the_trace_that_a_producer_began_goes_on_to_the_endpoint(tmp_path: Path) -> None:
    headers = {"TraceParent": GIVEN, "TraceState": "vendor=1", "X-Tenant": "t1"}
    async with collector() as traces, raw_server() as target:
        await deliver(tmp_path, traces, target, {"id": "m1", "headers": headers})
    (message,), (attempt,) = traces.of("m1")
    assert (message.trace, message.parent, attempt.trace) == (TRACE, PARENT, TRACE)
    sent = target.requests[0].headers
    assert sent["traceparent"] == f"00-{TRACE}-{attempt.id}-01"
    assert (sent["tracestate"], sent["x-tenant"]) == ("vendor=1", "t1")


@pytest.mark.parametrize(
    "given", ["", "nonsense", f"ff-{TRACE}-{PARENT}-01", f"{GIVEN}-x", f"00-{'0' * 32}-{PARENT}-01"]
)
async def test_what_is_no_traceparent_starts_a_trace_and_delays_nothing(tmp_path: Path, given: str) -> None:
    async with collector() as traces, raw_server() as target:
        await deliver(tmp_path, traces, target, {"id": "m1", "headers": {"traceparent": given, "tracestate": "a=1"}})
    (message,), (attempt,) = traces.of("m1")
    assert message.parent == ""
    assert_names(target.requests[0], attempt)
    assert "tracestate" not in target.requests[0].headers


async def test_each_attempt_of_a_message_is_a_span_of_its_own_and_tells_how_it_failed(tmp_path: Path) -> None:
    failing = in_turn(always(reply(503, b"busy")), always(reply(200)))
    async with collector() as traces, raw_server(failing) as target:
        await deliver(tmp_path, traces, target, {"id": "m1"})
    (message,), (first, second) = traces.of("m1")
    assert (first.parent, second.parent) == (message.id, message.id)
    assert (first.failed, second.failed, message.failed) == (True, False, False)
    assert (first.about["error.type"], first.about["http.response.status_code"]) == ("503", 503)
    assert (first.about["flowcatalyst.verdict"], first.about["flowcatalyst.delay_s"]) == ("retry", 1.0)
    assert (second.about["flowcatalyst.attempt"], second.about["http.request.resend_count"]) == (2, 1)
    assert message.about["flowcatalyst.attempts"] == 2
    for call, span in zip(target.requests, (first, second), strict=True):
        assert_names(call, span)


async def test_a_message_that_is_nacked_ends_its_span_and_its_redelivery_is_another_one_of_the_same_trace(
    tmp_path: Path,
) -> None:
    later = in_turn(always(reply(429, b"", "Retry-After: 1")), always(reply(200)))
    async with collector() as traces, raw_server(later) as target:
        await deliver(tmp_path, traces, target, {"id": "m1", "headers": {"traceparent": GIVEN}})
    (first, second), attempts = traces.of("m1")
    assert [span.parent for span in attempts] == [first.id, second.id]
    assert {first.trace, second.trace} == {TRACE}
    assert (first.failed, first.about["error.type"], first.about["flowcatalyst.verdict"]) == (True, "429", "nack")
    assert (second.failed, second.about["flowcatalyst.receive_count"]) == (False, 2)


async def test_a_dead_letter_and_an_endpoint_that_is_not_there_are_errors_with_their_kind(tmp_path: Path) -> None:
    async with (
        collector() as traces,
        raw_server(always(reply(400, b"no"))) as target,
        run_router(tmp_path, tracing=tracing_to(traces)) as router,
    ):
        await router.send(id="dead", mediationTarget=target.url("/"))
        await router.send(id="away", mediationTarget="http://127.0.0.1:1/nobody", messageGroupId="other")
        await router.until_dead(1)
        await until(lambda: _failed_once(router, "away"))
    (message,), (attempt,) = traces.of("dead")
    assert (message.failed, message.about["flowcatalyst.verdict"], attempt.about["error.type"]) == (
        True,
        "dead_letter",
        "400",
    )
    (message,), (attempt, *_) = traces.of("away")
    assert (attempt.failed, attempt.about["error.type"]) == (True, "NETWORK_ERROR")
    assert "http.response.status_code" not in attempt.about
    # The stop came between two attempts: the message is back in its queue, and its span is not left open.
    assert message.about["flowcatalyst.verdict"] == "released"


async def _failed_once(router: Running, message: str) -> bool:
    delivery = router.app.tracker.get(message)
    return delivery is not None and delivery.failures > 0


async def test_an_attempt_that_a_stop_cuts_off_ends_its_span_and_that_of_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowcatalyst.router.engine.POOL_DRAIN_S", 0.05)
    async with (
        collector() as traces,
        raw_server(Gate()) as target,
        run_router(tmp_path, tracing=tracing_to(traces)) as router,
    ):
        await router.send(id="m1", mediationTarget=target.url("/"))
        await target.until(lambda server: len(server.requests) == 1)
    (message,), (attempt,) = traces.of("m1")
    assert (attempt.failed, attempt.about["error.type"], attempt.parent) == (True, "CancelledError", message.id)
    assert message.about["flowcatalyst.verdict"] == "released"


async def test_the_traceparent_of_an_event_reaches_the_webhooks_of_its_subscriptions(tmp_path: Path) -> None:
    event = {"specversion": "1.0", "id": "e1", "source": "shop", "type": "order.paid", "traceparent": GIVEN}
    async with collector() as traces, raw_server() as target:
        for tracing in (TracingSettings(), tracing_to(traces)):
            folder = tmp_path / str(tracing.enabled)
            async with run_router(folder, tracing=tracing, platform=PlatformSettings(enabled=True)) as router:
                subscription = {
                    "code": "billing",
                    "targetUrl": target.url("/"),
                    "eventTypes": [{"eventTypeCode": "**"}],
                }
                assert (await router.client.post("/api/subscriptions", subscription)).status < 300
                media = {"Content-Type": "application/cloudevents+json"}
                sent = await router.client.post("/api/events", event, headers=media)
                assert sent.status < 300, sent.text
                before = len(target.requests)
                await target.until(lambda server, before=before: len(server.requests) > before)  # type: ignore[misc]
                await router.until_settled()
    untraced, traced = (call.headers["traceparent"] for call in target.requests)
    assert untraced == GIVEN  # as it came, by a router that does not trace
    message, attempt = traces.spans()
    assert (message.trace, message.parent, attempt.parent) == (TRACE, PARENT, message.id)
    assert traced == f"00-{TRACE}-{attempt.id}-01"
    assert message.about["flowcatalyst.group"]


async def test_traces_that_are_not_sampled_are_not_sent_but_their_names_go_on(tmp_path: Path) -> None:
    async with (
        collector() as traces,
        raw_server() as target,
        run_router(tmp_path, tracing=tracing_to(traces, sample_ratio=0.0)) as router,
    ):
        await router.send(id="m1", mediationTarget=target.url("/"))
        await router.send(id="m2", mediationTarget=target.url("/"), headers={"traceparent": GIVEN})
        await router.until_settled()
    assert [int(call.headers["traceparent"][-2:], 16) & SAMPLED for call in target.requests] == [0, SAMPLED]
    assert {span.trace for span in traces.spans()} == {TRACE}  # its producer has decided


async def test_settings_of_the_environment_count_where_ours_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with collector() as traces, raw_server() as target:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", traces.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-router")
        async with run_router(tmp_path, tracing=TracingSettings(enabled=True)) as router:
            await router.send(id="m1", mediationTarget=target.url("/"))
            await router.until_settled()
    (message,), _ = traces.of("m1")
    assert message.service["service.name"] == "orders-router"


async def test_a_collector_that_is_away_or_hangs_costs_no_message_one_line_and_two_seconds_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with raw_server(Gate()) as hangs, raw_server() as target:
        for folder, url in ((tmp_path / "away", "http://127.0.0.1:1"), (tmp_path / "hangs", hangs.url(""))):
            async with asyncio.timeout(60):
                async with run_router(folder, tracing=TracingSettings(enabled=True, endpoint=url)) as router:
                    for number in range(20):
                        await router.send(id=f"m{number}", mediationTarget=target.url("/"))
                    await router.until_settled()
    for thread in threading.enumerate():
        if thread.name == FLUSHER:  # it was left behind, and may still say something
            await asyncio.to_thread(thread.join)
    assert len(target.requests) == 40
    said = "".join(capfd.readouterr())
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if "traces_not_sent" in line]
    assert 2 <= len(lines) <= 4, lines  # of each router: what the SDK said, and that the flush was given up


OFF = """
import asyncio, sys
from pathlib import Path
from flowcatalyst.app.router import App
from flowcatalyst.control.settings import Settings
from flowcatalyst.core.message import MessagePointer
from flowcatalyst.queues.intake import outgoing_of

async def main(folder, target):
    app = App(Settings(data_dir=Path(folder)))
    async with app.running():
        pointer = MessagePointer(id="m1", mediation_target=target, headers={"TRACEPARENT": sys.argv[3]})
        await app.queues["default"].publish([outgoing_of(one, None) for one in (pointer, MessagePointer("m2", target))])
        while app.router.pools["DEFAULT-POOL"].stats.delivered < 2:
            await asyncio.sleep(0.01)
    print([name for name in sys.modules if name.partition(".")[0] == "opentelemetry"])

asyncio.run(main(*sys.argv[1:3]))
"""


@pytest.mark.thorough
async def test_without_tracing_nothing_of_it_is_loaded_and_headers_go_as_they_came(tmp_path: Path) -> None:
    async with raw_server() as target:
        command = (sys.executable, "-c", OFF, str(tmp_path), target.url("/"), GIVEN)
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
    assert json.loads(out.splitlines()[-1]) == []
    assert sorted(call.headers.get("traceparent", "") for call in target.requests) == ["", GIVEN]
