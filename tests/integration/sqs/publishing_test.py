"""What is sent to SQS: names of groups, bodies, duplicates, and sends that fail in part."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.queues.contract import Outgoing
from tests.conformance.bench import take
from tests.integration.sqs.scene import (
    ACCOUNT,
    OK,
    Answer,
    Clients,
    fresh,
    plain_client,
    requests_of,
    scripted_sqs,
    url_of,
)
from tests.servers.elasticmq import ElasticMqServer
from tests.servers.moto import MotoServer
from tests.support.clocks import SetClock
from tests.support.http_servers import Call, RawServer, raw_server, reply


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
    """moto takes it, as Amazon does; ElasticMQ refuses it."""
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
        with pytest.raises(InvalidMessageError, match="SQS does not accept"):
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
