"""The notifier over a real socket, with the HTTP client that the router has."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest
from structlog.testing import capture_logs

from flowcatalyst.control import notify
from flowcatalyst.control.notify import Notifier, log_warning
from flowcatalyst.control.settings import NotificationSettings
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import Severity
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningLog
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.http1.client import Http1Client
from tests.support.http_servers import Gate, always, closed_port, in_turn, raw_server, reply
from tests.support.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "RETRY_PAUSES_S", (0.01, 0.01, 0.01))


@asynccontextmanager
async def notifying(
    url: str, batch_s: float = 3600.0, form: Literal["json", "slack"] = "json"
) -> AsyncIterator[WarningLog]:
    """A notifier at work; afterwards it is stopped and flushed as the router does it."""
    clock = SystemClock()
    client = Http1Client(guard=EgressGuard(allow_private=True), clock=clock)
    log = WarningLog(clock)
    settings = NotificationSettings(webhook_url=url, batch_s=batch_s, format=form)
    notifier = Notifier(settings, client, clock, log, "here")
    tasks = Tasks()
    tasks.spawn(notifier.run())
    yield log
    await tasks.cancel()
    await notifier.flush(limit_s=0.2)
    await client.close()


def add(log: WarningLog, message: str, severity: Severity = Severity.WARN) -> None:
    log.add(WarningCode.CONFIGURATION, severity, message, "mediator")


async def test_a_critical_warning_arrives_at_once_with_what_waits() -> None:
    async with raw_server(always(reply(204))) as server, notifying(server.url("/hook?key=1")) as log:
        add(log, "a ≠ b")
        add(log, "fire", Severity.CRITICAL)
        await server.until(lambda seen: len(seen.requests) == 1)
        [call] = server.requests
        assert (call.method, call.path, call.headers["content-type"]) == ("POST", "/hook?key=1", "application/json")
        body = json.loads(call.body)
        assert body["router"] == "here"
        assert body["sentAt"].endswith("Z")
        assert [one["message"] for one in body["warnings"]] == ["a ≠ b", "fire"]


async def test_what_waits_arrives_at_the_stop() -> None:
    async with raw_server() as server:
        async with notifying(server.url()) as log:
            add(log, "a")
            add(log, "b")
        [call] = server.requests
    assert [one["message"] for one in json.loads(call.body)["warnings"]] == ["a", "b"]


async def test_a_batch_arrives_when_its_time_is_over() -> None:
    async with raw_server() as server, notifying(server.url(), batch_s=0.05) as log:
        add(log, "a")
        add(log, "b")
        await server.until(lambda seen: len(seen.requests) == 1)
        assert len(json.loads(server.requests[0].body)["warnings"]) == 2


async def test_a_webhook_of_slack_gets_a_message_that_it_can_show() -> None:
    async with raw_server(always(reply(200, b"ok"))) as server, notifying(server.url(), form="slack") as log:
        add(log, "<!channel> a & b")
        add(log, "fire", Severity.CRITICAL)
        await server.until(lambda seen: len(seen.requests) == 1)
        [call] = server.requests
    assert call.headers["content-type"] == "application/json"
    body = json.loads(call.body)
    lines = [
        "FlowCatalyst router here: 2 warnings",
        "*WARN CONFIGURATION* &lt;!channel&gt; a &amp; b",
        "*CRITICAL CONFIGURATION* fire",
    ]
    assert body == {
        "text": "\n".join(lines),
        "blocks": [{"type": "section", "text": {"type": "mrkdwn", "verbatim": True, "text": line}} for line in lines],
    }


async def test_a_webhook_that_recovers_gets_what_it_refused() -> None:
    script = in_turn(always(reply(503)), always(b"nonsense\r\n\r\n"), always(reply(200)))
    async with raw_server(script) as server, notifying(server.url()) as log:
        add(log, "fire", Severity.CRITICAL)
        await server.until(lambda seen: len(seen.requests) == 3)
        assert len({request.body.partition(b'"warnings"')[2] for request in server.requests}) == 1


async def test_a_webhook_nobody_listens_at_leaves_a_warning() -> None:
    port = closed_port()
    async with notifying(f"http://127.0.0.1:{port}/s3cret") as log:
        add(log, "fire", Severity.CRITICAL)
        async with asyncio.timeout(PATIENCE_S):
            while len(log.recent()) < 2:
                await asyncio.sleep(0.01)
        failed = log.recent()[0]
    assert failed.code is WarningCode.NOTIFICATION_FAILED
    assert f"127.0.0.1:{port}" in failed.message
    assert "s3cret" not in failed.message


async def test_a_webhook_that_never_answers_does_not_hold_up_the_stop() -> None:
    async with raw_server(Gate()) as server:
        async with asyncio.timeout(5), notifying(server.url()) as log:
            add(log, "fire", Severity.CRITICAL)
            await server.until(lambda seen: len(seen.requests) == 1)
        assert len(server.requests) == 2


def test_each_warning_that_is_news_is_a_line_of_the_log() -> None:
    with capture_logs() as lines:
        log = WarningLog(SystemClock(), record=log_warning)
        for _ in range(2):
            add(log, "fire", Severity.CRITICAL)
        log.acknowledge_all()
        add(log, "fire", Severity.CRITICAL)
        add(log, "smoke")
    told = [(line["log_level"], line["code"], line["source"], line["text"]) for line in lines]
    fire = ("error", WarningCode.CONFIGURATION, "mediator", "fire")
    assert told == [fire, fire, ("warning", WarningCode.CONFIGURATION, "mediator", "smoke")]
