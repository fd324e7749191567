"""What is special to SQS. On real servers, but for faults that a real one cannot be asked for."""

import asyncio
import json
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiobotocore.session import get_session  # type: ignore[import-untyped]
from structlog.testing import capture_logs

from flowcatalyst.clock import Clock, SystemClock
from flowcatalyst.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.message import MAX_BODY_BYTES, Delivery, Settled
from flowcatalyst.queues import sqs, sqs_connection
from flowcatalyst.queues.address import SqsAddress, parse_queue_uri
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.settle import Settler
from flowcatalyst.queues.sqs import SqsQueue
from flowcatalyst.routing.tracker import InFlightTracker
from tests.conformance.bench import bodies, nothing_comes, take
from tests.servers.elasticmq import ElasticMqServer, elasticmq_server
from tests.servers.moto import MotoServer, moto_server
from tests.support.clocks import SetClock, SteppedClock
from tests.support.http_servers import Call, Gate, PrivateCa, RawServer, always, closed_port, raw_server, reply

OK, GONE, FAILED = Settled.OK, Settled.GONE, Settled.FAILED
ACCOUNT = "123456789012"
KEY, SECRET = "AKIAVERYSECRETKEY", "this/is+the/secret"
Answer = dict[str, Any] | tuple[int, str, str]  # the body of a success, or status, code and message of an error
Answers = Callable[[str, dict[str, Any]], Answer | None]


@pytest.fixture(scope="module")
def elasticmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElasticMqServer]:
    with elasticmq_server(tmp_path_factory.mktemp("elasticmq")) as server:
        yield server


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(autouse=True)
def no_aws_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the machine knows of AWS is not known to the tests."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


class Clients:
    """Makes queues and closes them in the end."""

    def __init__(self) -> None:
        self._queues: list[SqsQueue] = []

    async def __call__(
        self,
        uri: str,
        *,
        clock: Clock | None = None,
        visibility_s: float = 60.0,
        endpoint_override: str | None = None,
        default_region: str | None = None,
    ) -> SqsQueue:
        address = parse_queue_uri(uri)
        assert isinstance(address, SqsAddress)
        queue = SqsQueue(
            "orders",
            address,
            clock or SystemClock(),
            visibility_s=visibility_s,
            endpoint_override=endpoint_override,
            default_region=default_region,
        )
        await queue.open()
        self._queues.append(queue)
        return queue

    async def close(self) -> None:
        for queue in self._queues:
            await queue.close()


@pytest.fixture
async def client() -> AsyncIterator[Clients]:
    clients = Clients()
    yield clients
    await clients.close()


def fresh(server: ElasticMqServer | MotoServer, *, fifo: bool = True, create: bool = True) -> str:
    """The queueUri of a queue that nobody used before."""
    name = f"orders-{secrets.token_hex(6)}{'.fifo' if fifo else ''}"
    return f"{server.url}/{ACCOUNT}/{name}?region={server.region}{'&create=true' if create else ''}"


@asynccontextmanager
async def plain_client(server: ElasticMqServer | MotoServer) -> AsyncIterator[Any]:
    """The client of AWS, as any other program has it."""
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    async with get_session().create_client("sqs", region_name=server.region, endpoint_url=server.url, **keys) as plain:
        yield plain


def url_of(uri: str) -> str:
    return uri.partition("?")[0]


def name_of(uri: str) -> str:
    return url_of(uri).rpartition("/")[2]


@asynccontextmanager
async def scripted_sqs(answers: Answers) -> AsyncIterator[RawServer]:
    """Speaks SQS: by `answers` where that has one, and as if all went well elsewhere."""

    async def script(call: Call) -> None:
        operation, parameters = call.headers["x-amz-target"].rpartition(".")[2], json.loads(call.body)
        answer = answers(operation, parameters)
        if isinstance(answer, tuple):
            status, code, message = answer
            body = {"__type": f"com.amazonaws.sqs#{code}", "message": message}
        else:
            status, body = 200, _success(parameters) if answer is None else answer
        await call.send(reply(status, json.dumps(body).encode(), "Content-Type: application/x-amz-json-1.0"))

    async with raw_server(script) as server:
        yield server


def _success(parameters: dict[str, Any]) -> dict[str, Any]:
    entries = parameters.get("Entries", [])
    return {"Successful": [{"Id": entry["Id"], "MessageId": f"m-{secrets.token_hex(4)}"} for entry in entries]}


def messages(*names: str, group: str = "a") -> dict[str, Any]:
    """What a poll brings."""
    system = {"ApproximateReceiveCount": "1", "MessageGroupId": group}
    return {
        "Messages": [
            {"MessageId": f"id-{name}", "ReceiptHandle": f"handle-{name}", "Body": name, "Attributes": system}
            for name in names
        ]
    }


def requests_of(server: RawServer, operation: str) -> list[dict[str, Any]]:
    return [json.loads(call.body) for call in server.requests if call.headers["x-amz-target"].endswith(operation)]


# Where the queue is, and who we are


async def test_a_missing_queue_is_named_with_the_way_out(client: Clients, elasticmq: ElasticMqServer) -> None:
    uri = fresh(elasticmq, create=False)
    queue = await client(uri)
    for call in (queue.receive(1, 0.0), queue.publish([Outgoing("1", "a")]), queue.depth()):
        with pytest.raises(
            QueueUnavailableError, match=re.escape("does not exist: create it, or add ?create=true")
        ) as raised:
            await call
        assert name_of(uri) in str(raised.value)
    async with plain_client(elasticmq) as plain:
        await plain.create_queue(QueueName=name_of(uri), Attributes={"FifoQueue": "true"})
    assert await queue.receive(1, 0.0) == []


@pytest.mark.parametrize("fifo", [True, False])
async def test_a_queue_is_created_as_its_name_says(client: Clients, moto: MotoServer, fifo: bool) -> None:
    uri = fresh(moto, fifo=fifo)
    await (await client(uri)).receive(1, 0.0)
    async with plain_client(moto) as plain:
        found = await plain.get_queue_attributes(QueueUrl=url_of(uri), AttributeNames=["All"])
    assert (found["Attributes"].get("FifoQueue") == "true") is fifo


async def test_a_queue_that_the_server_lost_is_created_again(client: Clients, elasticmq: ElasticMqServer) -> None:
    uri = fresh(elasticmq)
    queue = await client(uri)
    await queue.publish([Outgoing("1", "a", "once")])
    async with plain_client(elasticmq) as plain:
        await plain.delete_queue(QueueUrl=url_of(uri))
    with pytest.raises(QueueUnavailableError, match="does not exist"):
        await queue.receive(1, 0.0)
    assert await queue.receive(1, 0.0) == []
    [published] = await queue.publish([Outgoing("1", "a", "once")])
    assert not published.duplicate
    assert bodies(await take(queue, 1)) == ["1"]


async def test_the_override_wins_over_the_address(client: Clients, elasticmq: ElasticMqServer) -> None:
    name = name_of(fresh(elasticmq))
    for uri in (
        f"http://127.0.0.1:{closed_port()}/{ACCOUNT}/{name}?create=true",
        f"https://sqs.eu-west-1.amazonaws.com/999999999999/{name}?create=true",
        f"sqs://{name}?create=true",
    ):
        queue = await client(uri, endpoint_override=f"{elasticmq.url}/")
        await queue.publish([Outgoing("1", "a")])
        taken = await take(queue, 1)
        assert bodies(taken) == ["1"]
        assert await queue.ack(taken) == [OK]


@pytest.mark.parametrize(
    ("option", "default", "environment", "region"),
    [
        ("?region=eu-west-1", "eu-west-2", {"AWS_REGION": "eu-west-3"}, "eu-west-1"),
        ("", "eu-west-2", {"AWS_REGION": "eu-west-3"}, "eu-west-2"),
        ("", None, {"AWS_REGION": "eu-west-3", "AWS_DEFAULT_REGION": "eu-north-1"}, "eu-west-3"),
        ("", None, {"AWS_DEFAULT_REGION": "eu-north-1"}, "eu-north-1"),
        ("", None, {}, "us-east-1"),
    ],
)
async def test_the_region_is_the_nearest_one_that_is_given(
    client: Clients,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    default: str | None,
    environment: dict[str, str],
    region: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    async with scripted_sqs(lambda *_: None) as server:
        queue = await client(f"{server.url(f'/{ACCOUNT}/q.fifo')}{option}", default_region=default)
        await queue.receive(1, 0.0)
        await queue.close()
        assert f"/{region}/sqs/" in server.requests[0].headers["authorization"]


async def test_a_server_that_is_not_amazons_needs_no_credentials_but_gets_those_there_are(
    client: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted_sqs(lambda *_: None) as server:
        uri = server.url(f"/{ACCOUNT}/q.fifo")
        await (await client(uri)).receive(1, 0.0)
        assert "Credential=local/" in server.requests[-1].headers["authorization"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        await (await client(uri)).receive(1, 0.0)
        assert f"Credential={KEY}/" in server.requests[-1].headers["authorization"]
        await client.close()


async def test_amazon_without_a_region_or_credentials_is_explained(client: Clients) -> None:
    with pytest.raises(QueueUnavailableError, match=r"has no region: add \?region=NAME"):
        await (await client("sqs://orders.fifo")).receive(1, 0.0)
    with pytest.raises(QueueUnavailableError, match="needs AWS credentials, and none were found"):
        await (await client("sqs://orders.fifo?region=eu-west-1")).receive(1, 0.0)


async def test_the_endpoint_of_the_aws_environment_is_used(
    client: Clients, monkeypatch: pytest.MonkeyPatch, elasticmq: ElasticMqServer
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", elasticmq.url)
    queue = await client(f"sqs://{name_of(fresh(elasticmq))}?create=true")
    await queue.publish([Outgoing("1", "a")])
    assert bodies(await take(queue, 1)) == ["1"]


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
        assert list(queue.advice) == []
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


# Settling


async def test_a_message_whose_receipt_expired_is_deleted_when_it_is_seen_again(
    client: Clients, elasticmq: ElasticMqServer
) -> None:
    uri = fresh(elasticmq)
    slow, other = await client(uri, visibility_s=1.0), await client(uri)
    settler = Settler(slow, InFlightTracker())
    await slow.publish([Outgoing("1", "a")])
    [delivery] = await take(slow, 1)
    [theirs] = await take(other, 1)
    settler.ack(delivery)
    await settler.settle()
    assert "remembered=1" in repr(settler)
    await other.nack([theirs], 0.0)
    [again] = await take(slow, 1)
    assert settler.ends_already(again)
    await settler.settle()
    assert "remembered=0" in repr(settler)
    assert await nothing_comes(other, 2.0)


async def test_an_ok_for_a_lease_that_ended_is_not_believed(client: Clients, elasticmq: ElasticMqServer) -> None:
    queue = await client(fresh(elasticmq), visibility_s=1.0)
    await queue.publish([Outgoing("1", "a")])
    taken = await take(queue, 1)
    await asyncio.sleep(1.2)
    assert await queue.ack(taken) == [GONE]


async def test_delays_are_whole_seconds_never_shorter_and_end_twelve_hours_after_the_receive(client: Clients) -> None:
    def answers(operation: str, parameters: dict[str, Any]) -> Answer | None:
        return messages("1") if operation == "ReceiveMessage" else None

    clock = SetClock()
    async with scripted_sqs(answers) as server:
        queue = await client(server.url(f"/{ACCOUNT}/q.fifo"), clock=clock)
        taken = await queue.receive(1, 0.0)
        await queue.nack(taken, 0.2)
        await queue.nack(taken, 30.0)
        await queue.nack(taken, 43_200.0)
        clock.now += 43_000.0
        assert await queue.extend(taken, 600.0) == [OK]
        assert taken[0].lease_until == clock.now + 199
        clock.now += 300.0
        assert await queue.extend(taken, 60.0) == [FAILED]
        await queue.nack(taken, 60.0)
        asked = requests_of(server, "ChangeMessageVisibilityBatch")
        assert [one["Entries"][0]["VisibilityTimeout"] for one in asked] == [1, 30, 43_199, 199, 0]
        await queue.close()


# A failed message that lets its group go on


async def test_a_message_that_unlocks_its_group_waits_as_a_copy_of_its_own(
    client: Clients, elasticmq: ElasticMqServer
) -> None:
    uri = fresh(elasticmq)
    queue, other = await client(uri), await client(uri)
    await queue.publish([Outgoing("1", "größe")])
    [first] = await take(queue, 1)
    first.failures = 2
    assert await queue.nack([first], 3.0, unlock=True) == [OK]
    assert await nothing_comes(other, 1.0)  # which hid it until its time
    [copy] = await take(other, 1)
    assert (copy.body, copy.group, copy.failures) == ("1", "größe", 2)
    assert copy.broker_id != first.broker_id
    copy.failures = 3
    assert await other.nack([copy], 1.0, unlock=True) == [OK]  # it holds nobody back: no need for another copy
    [again] = await take(other, 1)
    assert (again.broker_id, again.group, again.failures) == (copy.broker_id, "größe", 3)
    assert await other.ack([again]) == [OK]
    assert await nothing_comes(queue, 1.0)


async def test_a_copy_made_while_the_clock_was_a_year_ahead_waits_no_longer_than_it_was_to(
    client: Clients, elasticmq: ElasticMqServer
) -> None:
    clock = SteppedClock()
    uri = fresh(elasticmq)
    queue = await client(uri, clock=clock)
    await queue.publish([Outgoing("1", "a")])
    clock.step(365 * 86400.0)
    assert await queue.nack(await take(queue, 1), 1.0, unlock=True) == [OK]
    clock.step(-365 * 86400.0)
    assert bodies(await take(queue, 1)) == ["1"]


async def test_a_crash_between_copy_and_delete_doubles_a_message_and_loses_none(
    client: Clients, elasticmq: ElasticMqServer
) -> None:
    uri = fresh(elasticmq)

    def lose(operation: str) -> bool:
        return operation == "DeleteMessageBatch"

    async with lossy_proxy(elasticmq.url, before=lose) as proxy:
        crashing = await client(uri, endpoint_override=proxy.url().rstrip("/"), visibility_s=2.0)
        await crashing.publish([Outgoing("1", "a")])
        with pytest.raises(QueueUnavailableError):
            await crashing.nack(await take(crashing, 1), 1.0, unlock=True)
        await crashing.close()
    survivor = await client(uri)
    seen: list[Delivery] = []
    while len(seen) < 2:
        batch = await take(survivor, 1)
        assert batch
        seen += batch
        await survivor.ack(batch)
    assert [(delivery.body, delivery.group) for delivery in seen] == [("1", "a"), ("1", "a")]
    assert await nothing_comes(survivor, 1.0)


@pytest.mark.parametrize("lost", ["SendMessageBatch", "DeleteMessageBatch"])
async def test_giving_back_again_after_a_lost_answer_doubles_nothing(
    client: Clients, elasticmq: ElasticMqServer, lost: str
) -> None:
    uri = fresh(elasticmq)
    publisher = await client(uri)
    await publisher.publish([Outgoing("1", "a")])
    lose_once = iter([True])

    def lose(operation: str) -> bool:
        return operation == lost and next(lose_once, False)

    async with lossy_proxy(elasticmq.url, after=lose) as proxy:
        queue = await client(uri, endpoint_override=proxy.url().rstrip("/"))
        taken = await take(queue, 1)
        with pytest.raises(QueueUnavailableError):
            await queue.nack(taken, 1.0, unlock=True)
        assert await queue.nack(taken, 1.0, unlock=True) in ([OK], [GONE])  # ElasticMQ does not know it deleted it
        await queue.close()
    assert await publisher.ack(await take(publisher, 2, 4.0)) == [OK]
    assert await nothing_comes(publisher, 1.0)


async def test_a_copy_that_is_refused_leaves_the_message_where_it_was(client: Clients) -> None:
    def answers(operation: str, parameters: dict[str, Any]) -> Answer | None:
        if operation == "ReceiveMessage":
            return messages("1", "2")
        if operation == "SendMessageBatch":
            return {"Failed": [{"Id": "0", "Code": "InternalError", "SenderFault": False}], "Successful": [{"Id": "1"}]}
        return None

    async with scripted_sqs(answers) as server:
        queue = await client(server.url(f"/{ACCOUNT}/q.fifo"))
        taken = await queue.receive(10, 0.0)
        assert await queue.nack(taken, 5.0, unlock=True) == [FAILED, OK]
        [deleted] = requests_of(server, "DeleteMessageBatch")
        assert [entry["ReceiptHandle"] for entry in deleted["Entries"]] == ["handle-2"]
        await queue.close()


async def test_a_message_too_large_for_a_copy_waits_at_the_head_of_its_group(
    client: Clients, elasticmq: ElasticMqServer
) -> None:
    queue = await client(fresh(elasticmq))
    await queue.publish([Outgoing("x" * MAX_BODY_BYTES, "a")])
    [first] = await take(queue, 1)
    assert await queue.nack([first], 1.0, unlock=True) == [OK]
    [again] = await take(queue, 1)
    assert again.broker_id == first.broker_id


@pytest.mark.parametrize("count", [9, 10])
async def test_a_copy_has_the_attributes_of_the_message_or_there_is_none(
    client: Clients, elasticmq: ElasticMqServer, count: int
) -> None:
    uri = fresh(elasticmq)
    queue = await client(uri)
    await queue.receive(1, 0.0)
    theirs = {f"attribute{number}": {"DataType": "String", "StringValue": "x"} for number in range(count)}
    async with plain_client(elasticmq) as plain:
        message = {"MessageBody": "1", "MessageGroupId": "a", "MessageDeduplicationId": "1"}
        await plain.send_message(QueueUrl=url_of(uri), MessageAttributes=theirs, **message)
        [first] = await take(queue, 1)
        assert await queue.nack([first], 1.0, unlock=True) == [OK]
        [again] = await take(queue, 1)
    assert (again.broker_id == first.broker_id) is (count == 10)
    assert theirs.keys() <= again.receipt.attributes.keys()


# Names, bodies, duplicates


@pytest.mark.parametrize("fifo", [True, False])
@pytest.mark.parametrize("group", ["", "flowcatalyst.alone.1", "flowcatalyst.retry.x", "a\x01b\uffff", "x" * 128, "ü"])
async def test_odd_names_of_groups_come_back(
    client: Clients, elasticmq: ElasticMqServer, group: str, fifo: bool
) -> None:
    queue = await client(fresh(elasticmq, fifo=fifo))
    await queue.publish([Outgoing("1", group)])
    [delivery] = await take(queue, 1)
    assert delivery.group == group


@pytest.mark.parametrize("fifo", [True, False])
async def test_a_message_without_a_group_has_none_when_it_comes(
    client: Clients, elasticmq: ElasticMqServer, fifo: bool
) -> None:
    uri = fresh(elasticmq, fifo=fifo)
    queue = await client(uri)
    await queue.publish([Outgoing("1")])
    [delivery] = await take(queue, 1)
    assert delivery.group is None
    assert await queue.nack([delivery], 1.0, unlock=True) == [OK]
    [again] = await take(queue, 1)
    assert (again.group, again.broker_id) == (None, delivery.broker_id)


async def test_a_plain_message_on_a_standard_queue_has_no_group(client: Clients, elasticmq: ElasticMqServer) -> None:
    uri = fresh(elasticmq, fifo=False)
    queue = await client(uri)
    await queue.receive(1, 0.0)
    async with plain_client(elasticmq) as plain:
        await plain.send_message(QueueUrl=url_of(uri), MessageBody="1")
    [delivery] = await take(queue, 1)
    assert delivery.group is None


async def test_a_group_on_a_standard_queue_is_its_group_id_where_the_server_takes_one(
    client: Clients, elasticmq: ElasticMqServer, moto: MotoServer
) -> None:
    for server, expected in ((moto, "a"), (elasticmq, None)):
        queue = await client(fresh(server, fifo=False))
        await queue.publish([Outgoing("1", "a"), Outgoing("2")])
        await queue.publish([Outgoing("3", "a")])
        taken = sorted(await take(queue, 3), key=lambda delivery: str(delivery.body))
        assert [delivery.group for delivery in taken] == ["a", None, "a"]
        assert [delivery.receipt.group_id for delivery in taken] == [expected, None, expected]


async def test_odd_deduplication_ids_count_once(client: Clients, elasticmq: ElasticMqServer) -> None:
    queue = await client(fresh(elasticmq))
    odd = ["with blanks", "größe", "x" * 200, "x" * 201]
    first = await queue.publish([Outgoing(name, "a", name) for name in odd])
    second = await queue.publish([Outgoing(name, "a", name) for name in odd])
    assert [one.duplicate for one in first] == [False] * 4
    assert [one.duplicate for one in second] == [True] * 4
    assert len(await take(queue, 5, 2.0)) == 4


async def test_deduplication_ends_after_five_minutes_and_counts_by_group_where_the_queue_is_set_up_so(
    client: Clients,
) -> None:
    def answers(operation: str, parameters: dict[str, Any]) -> Answer | None:
        return {"Attributes": {"DeduplicationScope": "messageGroup"}} if operation == "GetQueueAttributes" else None

    clock = SetClock()
    async with scripted_sqs(answers) as server:
        queue = await client(server.url(f"/{ACCOUNT}/q.fifo"), clock=clock)
        published = await queue.publish([Outgoing("1", "a", "x"), Outgoing("2", "b", "x"), Outgoing("3", "a", "x")])
        assert [one.duplicate for one in published] == [False, False, True]
        assert published[2].broker_id == published[0].broker_id
        clock.now += 301
        [later] = await queue.publish([Outgoing("1", "a", "x")])
        assert not later.duplicate
        await queue.close()


@pytest.mark.parametrize("body", ["", "a\x01b", "a\ufffeb"], ids=repr)
async def test_a_body_that_sqs_does_not_take_is_refused_before_anything_is_sent(client: Clients, body: str) -> None:
    async with scripted_sqs(lambda *_: None) as server:
        queue = await client(server.url(f"/{ACCOUNT}/q.fifo"))
        with pytest.raises(InvalidMessageError, match="SQS does not take"):
            await queue.publish([Outgoing("fine", "a"), Outgoing(body, "a")])
        assert server.requests == []
        await queue.close()


@pytest.mark.parametrize(
    ("code", "expected"), [("InternalError", QueueUnavailableError), ("InvalidMessageContents", InvalidMessageError)]
)
async def test_a_send_that_fails_in_part_tells_how_many_were_published(
    client: Clients, code: str, expected: type[Exception]
) -> None:
    def answers(operation: str, parameters: dict[str, Any]) -> Answer | None:
        entries = parameters.get("Entries", [])
        if any(entry["MessageBody"] == "13" for entry in entries):
            failed = [{"Id": "3", "Code": code, "Message": "because", "SenderFault": True}]
            return {
                "Successful": [{"Id": e["Id"], "MessageId": e["Id"]} for e in entries if e["Id"] != "3"],
                "Failed": failed,
            }
        return None

    async with scripted_sqs(answers) as server:
        queue = await client(server.url(f"/{ACCOUNT}/q.fifo"))
        with pytest.raises(expected, match=f"19 of 25 messages were published: .*{code}: because"):
            await queue.publish([Outgoing(str(number), f"group-{number}") for number in range(25)])
        assert len(requests_of(server, "SendMessageBatch")) == 2
        await queue.close()


@pytest.mark.parametrize("groups", [1, 2, 7, 25])
async def test_order_is_kept_when_messages_of_a_send_are_refused_and_it_is_repeated(
    client: Clients, elasticmq: ElasticMqServer, groups: int
) -> None:
    uri, names = fresh(elasticmq), [f"m{number}" for number in range(25)]
    refused_once = {"m1", "m12", "m13", "m24"}
    async with refusing_proxy(elasticmq.url, refused_once) as proxy:
        publisher = await client(uri, endpoint_override=proxy.url().rstrip("/"))
        outgoing = [Outgoing(name, f"group-{number % groups}", name) for number, name in enumerate(names)]
        sent = None
        while sent is None:
            try:
                sent = await publisher.publish(outgoing)
            except QueueUnavailableError as error:
                assert "refused" in str(error)  # noqa: PT017 - the caller repeats the call, as the contract says
        assert len(sent) == len(names)
        await publisher.close()
    assert refused_once == set()
    router = await client(uri)
    came: dict[str | None, list[str]] = {}
    while sum(map(len, came.values())) < len(names):
        for delivery in await take(router, 1):
            came.setdefault(delivery.group, []).append(str(delivery.body))
            await router.ack([delivery])
    assert came == {f"group-{group}": names[group::groups] for group in range(groups)}


async def test_results_of_a_send_are_in_the_order_of_its_messages(client: Clients, elasticmq: ElasticMqServer) -> None:
    queue = await client(fresh(elasticmq))
    first = await queue.publish([Outgoing(str(number), "ab"[number > 3], str(number)) for number in range(12)])
    again = await queue.publish([Outgoing(str(number), "ab"[number > 3], str(number)) for number in range(12)])
    assert [one.broker_id for one in again] == [one.broker_id for one in first]
    assert all(one.duplicate for one in again)
    by_id = {one.broker_id: str(number) for number, one in enumerate(first)}
    for _ in range(12):
        [delivery] = await take(queue, 1)
        assert by_id[delivery.broker_id] == delivery.body
        await queue.ack([delivery])


# Advice and depth


@pytest.mark.parametrize(
    ("fifo", "receives", "advised"), [(True, 99, True), (True, 100, False), (False, 4, True), (False, 5, False)]
)
async def test_a_short_redrive_policy_is_advised_against(
    client: Clients, moto: MotoServer, fifo: bool, receives: int, advised: bool
) -> None:
    uri = fresh(moto, fifo=fifo, create=False)
    settings = {"FifoQueue": "true"} if fifo else {}
    dead = name_of(fresh(moto, fifo=fifo))
    policy = {"deadLetterTargetArn": f"arn:aws:sqs:{moto.region}:{ACCOUNT}:{dead}", "maxReceiveCount": receives}
    async with plain_client(moto) as plain:
        await plain.create_queue(QueueName=dead, Attributes=settings)
        redrive = {"RedrivePolicy": json.dumps(policy)}
        await plain.create_queue(QueueName=name_of(uri), Attributes={**settings, **redrive})
    queue = await client(uri)
    assert list(queue.advice) == []
    await queue.receive(1, 0.0)
    assert [f"after {receives} receives" in text for text in queue.advice] == ([True] if advised else [])


async def test_a_short_retention_is_advised_against(client: Clients, moto: MotoServer) -> None:
    uri = fresh(moto, create=False)
    async with plain_client(moto) as plain:
        settings = {"FifoQueue": "true", "MessageRetentionPeriod": "600"}
        await plain.create_queue(QueueName=name_of(uri), Attributes=settings)
    queue = await client(uri)
    await queue.receive(1, 0.0)
    assert ["600 seconds" in text for text in queue.advice] == [True]


async def test_the_depth_of_an_idle_queue_costs_nothing(client: Clients, elasticmq: ElasticMqServer) -> None:
    uri = fresh(elasticmq)
    queue, sender = await client(uri), await client(uri)
    await queue.receive(10, 1.0)
    before = queue.calls["GetQueueAttributes"]
    for _ in range(3):
        depth = await queue.depth()
        assert depth is not None
        assert depth.waiting == 0
    assert queue.calls["GetQueueAttributes"] == before
    await sender.publish([Outgoing(str(number), "a") for number in range(3)])
    taken = await take(queue, 1)
    depth = await queue.depth()
    assert depth is not None
    assert (depth.waiting, depth.leased) == (2, 1)
    assert await queue.depth() == depth
    assert queue.calls["GetQueueAttributes"] == before + 1
    await queue.ack(taken)


# Cancelling and closing


async def test_what_a_cancelled_poll_still_brings_is_given_back(client: Clients, elasticmq: ElasticMqServer) -> None:
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


async def test_what_came_in_the_moment_of_the_cancellation_is_given_back(
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
        [given_back] = requests_of(server, "ChangeMessageVisibilityBatch")
        assert [entry["VisibilityTimeout"] for entry in given_back["Entries"]] == [0]


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


@asynccontextmanager
async def lossy_proxy(
    target: str, *, before: Callable[[str], bool] | None = None, after: Callable[[str], bool] | None = None
) -> AsyncIterator[RawServer]:
    """Hands requests on. Loses those that `before` says, and the answers to those that `after` says."""
    async with aiohttp.ClientSession() as session:

        async def script(call: Call) -> None:
            operation = call.headers["x-amz-target"].rpartition(".")[2]
            if before is not None and before(operation):
                call.reset()
                return
            headers = {name: call.headers[name] for name in ("content-type", "x-amz-target", "authorization")}
            async with session.post(target, data=call.body, headers=headers) as answer:
                body = await answer.read()
                if after is not None and after(operation):
                    call.reset()
                    return
                await call.send(reply(answer.status, body, "Content-Type: application/x-amz-json-1.0"))

        async with raw_server(script) as server:
            yield server


@asynccontextmanager
async def refusing_proxy(target: str, refused: set[str]) -> AsyncIterator[RawServer]:
    """Hands requests on, but for entries with these bodies, each of which fails once, as Amazon may answer."""
    async with aiohttp.ClientSession() as session:

        async def script(call: Call) -> None:
            request = json.loads(call.body)
            entries = request.get("Entries", [])
            failing = [entry for entry in entries if entry.get("MessageBody") in refused]
            refused.difference_update(entry["MessageBody"] for entry in failing)
            failed = [{"Id": entry["Id"], "Code": "InternalError", "SenderFault": False} for entry in failing]
            passing = [entry for entry in entries if entry not in failing]
            headers = {name: call.headers[name] for name in ("content-type", "x-amz-target", "authorization")}
            status, answer = 200, {}
            if passing or not entries:
                asked = {**request, "Entries": passing} if entries else request
                async with session.post(target, json=asked, headers=headers) as given:
                    status, answer = given.status, await given.json(content_type=None)
            if failed:
                answer["Failed"] = failed
            await call.send(reply(status, json.dumps(answer).encode(), "Content-Type: application/x-amz-json-1.0"))

        async with raw_server(script) as server:
            yield server


@pytest.mark.parametrize("answer", [b"[1]"])
async def test_what_answers_but_is_no_sqs_is_said_to_be_none(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    queue = SqsQueue("orders", SqsAddress("q.fifo", f"{url}/1/q.fifo", "eu-west-1", url), SystemClock())
    await queue.open()
    try:
        with pytest.raises(QueueUnavailableError, match="does not speak SQS"):
            await queue.receive(1, 0.0)
    finally:
        await queue.close()
        server.close()
        await server.wait_closed()
