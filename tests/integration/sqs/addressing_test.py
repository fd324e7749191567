"""Where an SQS queue is, who we are there, and how it is set up."""

import asyncio
import json
import re

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.queues.address import SqsAddress
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.sqs.queue import SqsQueue
from tests.conformance.bench import bodies, take
from tests.integration.sqs.scene import (
    ACCOUNT,
    KEY,
    OK,
    SECRET,
    Clients,
    fresh,
    name_of,
    plain_client,
    scripted_sqs,
    url_of,
)
from tests.servers.elasticmq import ElasticMqServer
from tests.servers.moto import MotoServer
from tests.support.http_servers import closed_port

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
async def test_a_queue_is_created_as_its_name_says(client: Clients, elasticmq: ElasticMqServer, fifo: bool) -> None:
    uri = fresh(elasticmq, fifo=fifo)
    await (await client(uri)).receive(1, 0.0)
    async with plain_client(elasticmq) as plain:
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


# Advice and depth


@pytest.mark.parametrize(
    ("fifo", "receives", "advised"), [(True, 99, True), (True, 100, False), (False, 4, True), (False, 5, False)]
)
async def test_a_short_redrive_policy_is_advised_against(
    client: Clients, elasticmq: ElasticMqServer, fifo: bool, receives: int, advised: bool
) -> None:
    uri = fresh(elasticmq, fifo=fifo, create=False)
    settings = {"FifoQueue": "true"} if fifo else {}
    dead = name_of(fresh(elasticmq, fifo=fifo))
    policy = {"deadLetterTargetArn": f"arn:aws:sqs:{elasticmq.region}:{ACCOUNT}:{dead}", "maxReceiveCount": receives}
    async with plain_client(elasticmq) as plain:
        await plain.create_queue(QueueName=dead, Attributes=settings)
        redrive = {"RedrivePolicy": json.dumps(policy)}
        await plain.create_queue(QueueName=name_of(uri), Attributes={**settings, **redrive})
    queue = await client(uri)
    assert list(queue.setup_warnings) == []
    await queue.receive(1, 0.0)
    assert [f"after {receives} receives" in text for text in queue.setup_warnings] == ([True] if advised else [])


async def test_a_short_retention_is_advised_against(client: Clients, moto: MotoServer) -> None:
    """On moto: ElasticMQ tells no retention."""
    uri = fresh(moto, create=False)
    async with plain_client(moto) as plain:
        settings = {"FifoQueue": "true", "MessageRetentionPeriod": "600"}
        await plain.create_queue(QueueName=name_of(uri), Attributes=settings)
    queue = await client(uri)
    await queue.receive(1, 0.0)
    assert ["600 seconds" in text for text in queue.setup_warnings] == [True]


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
        with pytest.raises(
            QueueUnavailableError, match=r"does not speak SQS: correct its queueUri or sqs\.endpoint_override$"
        ):
            await queue.receive(1, 0.0)
    finally:
        await queue.close()
        server.close()
        await server.wait_closed()
