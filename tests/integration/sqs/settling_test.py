"""Acks, delays and leases on SQS, and failed messages that let their group go on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import MAX_BODY_BYTES, Delivery
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.router.settler import Settler
from flowcatalyst.router.tracker import InFlightTracker
from tests.conformance.bench import bodies, nothing_comes, take
from tests.integration.sqs.scene import (
    ACCOUNT,
    FAILED,
    GONE,
    OK,
    Answer,
    Clients,
    fresh,
    messages,
    plain_client,
    requests_of,
    scripted_sqs,
    url_of,
)
from tests.servers.elasticmq import ElasticMqServer
from tests.support.clocks import SetClock, SteppedClock
from tests.support.http_servers import Call, RawServer, raw_server, reply

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
