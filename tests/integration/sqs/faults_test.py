"""What SQS refuses, throttles or never answers, and a receive or close that ends in the middle of a poll."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.sqs import connection as sqs_connection
from flowcatalyst.queues.sqs import queue as sqs
from tests.conformance.bench import take
from tests.integration.sqs.scene import (
    ACCOUNT,
    FAILED,
    GONE,
    KEY,
    OK,
    SECRET,
    Answer,
    Clients,
    fresh,
    messages,
    requests_of,
    scripted_sqs,
)
from tests.servers.elasticmq import ElasticMqServer
from tests.support.http_servers import Call, Gate, PrivateCa, always, closed_port, raw_server, reply

# Faults


async def test_an_endpoint_that_cannot_be_reached_is_told_in_one_sentence(client: Clients) -> None:
    port = closed_port()
    queue = await client(f"http://127.0.0.1:{port}/{ACCOUNT}/q.fifo")
    with pytest.raises(QueueUnavailableError) as raised:
        await queue.receive(1, 0.0)
    assert str(raised.value) == f"SQS queue q.fifo at 127.0.0.1:{port} cannot be reached: Connection refused"
    queue = await client(f"http://nowhere.invalid/{ACCOUNT}/q.fifo")
    with pytest.raises(QueueUnavailableError, match=r"SQS queue q\.fifo at nowhere\.invalid cannot be reached: .+"):
        await queue.receive(1, 0.0)


async def test_a_certificate_that_is_not_trusted_is_told_and_one_that_is_works(
    client: Clients, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = PrivateCa()
    async with raw_server(always(reply(200, b"{}")), tls=authority.server_context("127.0.0.1")) as server:
        uri = server.url(f"/{ACCOUNT}/q.fifo")
        with pytest.raises(QueueUnavailableError, match="cannot be reached: certificate verify failed") as raised:
            await (await client(uri)).receive(1, 0.0)
        assert "\n" not in str(raised.value)
        (tmp_path / "root.pem").write_bytes(authority.root_pem)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "root.pem"))
        assert await (await client(uri)).receive(1, 0.0) == []
        await client.close()


async def test_a_server_that_never_answers_ends_no_call_late(client: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqs_connection, "CONNECT_LIMIT_S", 0.3)
    async with raw_server(Gate()) as server:
        queue = await client(server.url(f"/{ACCOUNT}/q.fifo"))
        with pytest.raises(QueueUnavailableError, match=r"no answer within 0\.3 s"):
            await queue.receive(1, 0.0)
        await queue.close()


async def test_a_poll_that_hangs_is_given_up(client: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqs, "POLL_SLACK_S", 0.3)
    hangs = Gate()

    async def script(call: Call) -> None:
        if call.headers["x-amz-target"].endswith("ReceiveMessage"):
            await hangs(call)
        await call.send(reply(200, b"{}"))

    async with raw_server(script) as server:
        queue = await client(server.url(f"/{ACCOUNT}/q.fifo"))
        with pytest.raises(QueueUnavailableError, match=r"no answer within 0\.3 s"):
            await queue.receive(1, 0.0)
        await queue.close()


THROTTLES = ["RequestThrottled", "ThrottlingException", "OverLimit", "Throttling"]


@pytest.mark.parametrize("code", THROTTLES)
async def test_throttling_is_an_error_at_once_and_nothing_is_repeated_behind_our_back(
    client: Clients, code: str
) -> None:
    def answers(operation: str, parameters: dict[str, Any]) -> Answer | None:
        return None if operation == "GetQueueAttributes" else (400, code, "slow down")

    async with scripted_sqs(answers) as server:
        queue = await client(server.url(f"/{ACCOUNT}/q.fifo"))
        with pytest.raises(QueueUnavailableError, match=rf"throttles us \({code}\)"):
            await queue.receive(1, 0.0)
        with pytest.raises(QueueUnavailableError, match="throttles us"):
            await queue.publish([Outgoing("1", "a")])
        assert queue.calls == {"GetQueueAttributes": 1, "ReceiveMessage": 1, "SendMessageBatch": 1}
        assert len(server.requests) == 3
        await queue.close()


async def test_settling_reports_each_message_on_its_own(client: Clients) -> None:
    """One batch is throttled; in the other, each failure has its meaning."""
    failures = {
        "handle-2": ("ReceiptHandleIsInvalid", "no", GONE),
        "handle-3": ("InvalidParameterValue", "Reason: The receipt handle has expired.", GONE),
        "handle-4": ("AWS.SimpleQueueService.MessageNotInflight", "", GONE),
        "handle-5": ("RequestThrottled", "slow down", FAILED),
        "handle-6": ("InternalError", "", FAILED),
    }

    def answers(operation: str, parameters: dict[str, Any]) -> Answer | None:
        if operation == "ReceiveMessage":
            return messages(*(str(number) for number in range(1, 13)))
        entries = parameters.get("Entries", [])
        handles = {entry["ReceiptHandle"]: entry["Id"] for entry in entries}
        if "handle-11" in handles:
            return 400, "RequestThrottled", "slow down"
        failed = [
            {"Id": handles[handle], "Code": code, "Message": words, "SenderFault": True}
            for handle, (code, words, _) in failures.items()
            if handle in handles
        ]
        fine = [{"Id": number} for handle, number in handles.items() if handle not in failures and handle != "handle-7"]
        return {"Successful": fine, "Failed": failed}

    async with scripted_sqs(answers) as server:
        queue = await client(server.url(f"/{ACCOUNT}/q.fifo"))
        taken = await queue.receive(10, 0.0)
        expected = [OK, GONE, GONE, GONE, FAILED, FAILED, FAILED, OK, OK, OK, FAILED, FAILED]
        with capture_logs() as logs:
            assert await queue.extend(taken, 30.0) == expected
            assert await queue.nack(taken, 0.0) == expected
            assert await queue.ack(taken) == expected
        assert {line["event"] for line in logs} == {"settle_failed"}
        await queue.close()


async def test_what_is_not_allowed_is_named(client: Clients) -> None:
    def answers(operation: str, parameters: dict[str, Any]) -> Answer | None:
        return (403, "AccessDeniedException", f"not authorized to perform: sqs:{operation.lower()}")

    async with scripted_sqs(answers) as server:
        queue = await client(server.url(f"/{ACCOUNT}/q.fifo"))
        with pytest.raises(QueueUnavailableError, match="grant sqs:ReceiveMessage to the router"):
            await queue.receive(1, 0.0)
        assert await queue.depth() is None
        assert list(queue.setup_warnings) == []
        await queue.close()


async def test_credentials_are_in_no_error_and_are_read_again_after_one(
    client: Clients, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server repeats in its words what we sent, as Amazon does when a signature is wrong."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    caplog.set_level(logging.DEBUG)

    async def script(call: Call) -> None:
        signed = call.headers["authorization"]
        if KEY not in signed:
            await call.send(reply(200, b"{}"))
            return
        body = {"__type": "SignatureDoesNotMatch", "message": f"The Canonical String was\n{signed}\n{SECRET}"}
        await call.send(reply(403, json.dumps(body).encode()))

    async with raw_server(script) as server:
        queue = await client(server.url(f"/{ACCOUNT}/q.fifo"))
        texts: list[str] = []
        with capture_logs() as logs:
            for call in (queue.receive(1, 0.0), queue.publish([Outgoing("1", "a")]), queue.depth()):
                with pytest.raises(QueueUnavailableError, match="does not accept our AWS credentials") as raised:
                    await call
                texts.append(str(raised.value))
        everything = " ".join([*texts, str(logs), caplog.text, repr(queue)])
        assert KEY not in everything
        assert SECRET not in everything
        assert "\n" not in "".join(texts)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ANOTHERKEY")
        assert await queue.receive(1, 0.0) == []
        await queue.close()


# Cancelling and closing


async def test_what_a_cancelled_poll_still_brings_is_nacked(client: Clients, elasticmq: ElasticMqServer) -> None:
    uri = fresh(elasticmq)
    queue, other = await client(uri), await client(uri)
    await queue.receive(1, 0.0)
    polling = asyncio.gather(queue.receive(10, 5.0))
    while queue.calls["ReceiveMessage"] < 2:
        await asyncio.sleep(0.01)
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    await other.publish([Outgoing("1", "a")])
    [delivery] = await take(other, 1, 10.0)
    assert delivery.body == "1"


async def test_what_came_in_the_moment_of_the_cancellation_is_nacked(
    client: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(operation: str, parameters: dict[str, Any]) -> Answer | None:
        return messages("1") if operation == "ReceiveMessage" else None

    async with scripted_sqs(answers) as server:
        queue = await client(server.url(f"/{ACCOUNT}/q.fifo"))
        poll = queue._poll

        async def poll_then_cancel(limit: int, wait_s: float, arrived: "asyncio.Future[list[Delivery]]") -> None:
            await poll(limit, wait_s, arrived)
            receiving.cancel()  # the result is there, but nobody had a turn to take it

        monkeypatch.setattr(queue, "_poll", poll_then_cancel)
        receiving = asyncio.gather(queue.receive(1, 0.0))
        with pytest.raises(asyncio.CancelledError):
            await receiving
        await queue.close()
        [nacked] = requests_of(server, "ChangeMessageVisibilityBatch")
        assert [entry["VisibilityTimeout"] for entry in nacked["Entries"]] == [0]


async def test_a_close_ends_a_poll_under_way(
    client: Clients, elasticmq: ElasticMqServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqs, "CLOSE_LIMIT_S", 0.1)
    queue = await client(fresh(elasticmq))
    await queue.receive(1, 0.0)
    polling = asyncio.gather(queue.receive(10, 20.0), return_exceptions=True)
    await asyncio.sleep(0.1)
    await queue.close()
    [error] = await polling
    assert isinstance(error, QueueUnavailableError)
    with pytest.raises(QueueUnavailableError, match="closed"):
        await queue.publish([Outgoing("1", "a")])
