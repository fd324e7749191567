"""Streams and consumers: their set-up and its check, groups, duplicates and sizes."""

import asyncio
from typing import Any

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.nats.format import GROUP_HEADER
from tests.conformance.bench import bodies, grouped, nothing_comes, take
from tests.integration.nats.scene import MINUTE_S, NANO, OK, Scene, drained, names
from tests.support.patience import PATIENCE_S

BODY = '{"id": "1", "mediationTarget": "http://127.0.0.1/"}'


# Set-up


async def test_without_create_what_is_missing_is_told_with_what_to_do(scene: Scene) -> None:
    queue = scene.queue(create=False)
    for call in (lambda: queue.receive(1, 0.0), lambda: queue.publish(grouped("a1")), queue.depth):
        with pytest.raises(QueueUnavailableError, match=r"stream S\d+ does not exist: .*create=true"):
            await call()
    await scene.stream()
    await queue.publish(grouped("a1"))
    with pytest.raises(QueueUnavailableError, match=r"no consumer router: .*create=true"):
        await queue.receive(1, 0.0)
    await scene.consumer()
    assert bodies(await take(queue, 1)) == ["a1"]
    assert queue.setup_warnings == []


async def test_what_a_producer_says_of_its_trace_is_in_the_headers(scene: Scene) -> None:
    await scene.stream()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    subject, plain = f"{scene.address.stream}.a", (await scene.plain()).jetstream()
    for headers in ({"traceparent": parent, "tracestate": "a=1"}, {"traceparent": "nonsense"}, None):
        await plain.publish(subject, BODY.encode(), headers=headers)
    told, *untold = await take(scene.queue(), 3)
    assert told.trace_context == (("traceparent", parent), ("tracestate", "a=1"))
    assert [one.trace_context for one in untold] == [(), ()]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"deliver_subject": "somewhere"}, "is a push consumer"),
        ({"ack_policy": "none"}, "ack policy none"),
        ({"ack_policy": "all"}, "ack policy all"),
        ({"headers_only": True}, "headers without bodies"),
    ],
)
@pytest.mark.parametrize("create", [True, False])
async def test_a_consumer_that_cannot_serve_is_refused(
    scene: Scene, config: dict[str, Any], sentence: str, create: bool
) -> None:
    await scene.stream()
    await scene.consumer(**config)
    with pytest.raises(QueueUnavailableError, match=sentence):
        await scene.queue(create=create).receive(1, 0.0)


async def test_a_set_up_that_asks_for_trouble_is_told(scene: Scene) -> None:
    await scene.stream(storage="memory", duplicate_window=NANO * 30, max_age=NANO * 3600)
    await scene.consumer(ack_wait=NANO * 3, max_deliver=5, max_ack_pending=10)
    queue = scene.queue(create=False)
    queue.fit(5000)
    before = SystemClock().monotonic()
    await queue.publish(grouped("a1"))
    [delivery] = await take(queue, 1)
    told = " / ".join(queue.setup_warnings)
    for word in ("in memory", "duplicate_window", "max_age", "ack_wait of 3 s", "max_deliver", "max_ack_pending"):
        assert word in told, word
    assert len(queue.setup_warnings) == 6
    assert delivery.lease_until < before + 10
    assert await queue.extend([delivery], MINUTE_S) == [OK]
    assert delivery.lease_until < before + 10


async def test_with_create_a_consumer_is_made_to_fit(scene: Scene) -> None:
    await scene.stream()
    await scene.consumer(ack_wait=NANO * 3, max_deliver=5, max_ack_pending=10)
    queue = scene.queue()
    queue.fit(3000)
    await queue.receive(1, 0.0)
    assert queue.setup_warnings == []
    config = (await scene.state())["config"]
    assert (config["ack_wait"], config["max_deliver"], config["max_ack_pending"]) == (60 * NANO, -1, 3512)
    queue.fit(9000)
    await queue.receive(1, 0.0)
    assert (await scene.state())["config"]["max_ack_pending"] == 9512


async def test_a_consumer_that_lets_few_be_in_flight_neither_hangs_nor_fails(scene: Scene) -> None:
    await scene.stream()
    await scene.consumer(max_ack_pending=3)
    queue = scene.queue(create=False)
    await queue.publish(grouped(*names("a", 7)))
    seen: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(seen) < 7:
            batch = await queue.receive(5, 1.0)
            seen += bodies(batch)
            assert await queue.receive(5, 0.0) == []
            await queue.ack(batch)
    assert seen == names("a", 7)


@pytest.mark.parametrize(("subject", "published_to"), [("shop.*.new", "shop.messages.new"), ("shop.one", "shop.one")])
async def test_a_subject_is_filtered_by_and_published_to(scene: Scene, subject: str, published_to: str) -> None:
    prefix = scene.address.stream.lower()
    subject, published_to = f"{prefix}.{subject}", f"{prefix}.{published_to}"
    queue = scene.queue(subject=subject)
    await queue.publish(grouped("a1"))
    assert bodies(await take(queue, 1)) == ["a1"]
    assert (await scene.state())["config"]["filter_subject"] == subject
    stream = await scene.api(f"STREAM.INFO.{scene.address.stream}", {"subjects_filter": ">"})
    assert list(stream["state"]["subjects"]) == [published_to]


# Groups, duplicates and sizes


@pytest.mark.parametrize(
    ("headers", "body", "group"),
    [
        ({GROUP_HEADER: "by-header"}, '{"messageGroupId": "by-body"}', "by-header"),
        ({GROUP_HEADER: "50%25 off"}, "{}", "50%25 off"),
        ({}, '{"messageGroupId": "by-body"}', None),  # the router reads it
        ({}, '{"messageGroupId": " "}', "by-token"),
        ({}, '{"messageGroupId": 5}', None),  # nor is it a string there, but it is read as one
        ({}, "no json", "by-token"),
    ],
)
async def test_a_group_comes_from_the_header_else_the_body_else_the_subject(
    scene: Scene, headers: dict[str, str], body: str, group: str | None
) -> None:
    queue = scene.queue(group_token=3)
    await queue.receive(1, 0.0)
    connection = await scene.plain()
    subject = f"{scene.address.stream}.x.by-token"
    await connection.jetstream().publish(subject, body.encode(), headers=headers or None)
    [delivery] = await take(queue, 1)
    assert delivery.group == group


async def test_a_message_published_without_a_group_gets_none_from_its_subject(scene: Scene) -> None:
    queue = scene.queue(group_token=1)
    await queue.publish([Outgoing("{}"), Outgoing("{}", "with one")])
    assert [delivery.group for delivery in await take(queue, 2)] == [None, "with one"]


async def test_the_header_that_names_the_group_can_be_chosen(scene: Scene) -> None:
    queue = scene.queue(group_header="X-Order")
    await queue.publish([Outgoing("1", "größe"), Outgoing("2", "plain")])
    assert [delivery.group for delivery in await take(queue, 2)] == ["größe", "plain"]


async def test_any_deduplication_id_counts_once(scene: Scene) -> None:
    queue = scene.queue()
    ids = ["plain", "größe 漢字", "line\nbreak", "100%", "100%25", " blank", "", "x" * 2000]
    once = await queue.publish([Outgoing(BODY, "a", one) for one in ids])
    again = await queue.publish([Outgoing(BODY, "a", one) for one in ids])
    assert [one.duplicate for one in once] == [False] * len(ids)
    assert [one.duplicate for one in again] == [True] * len(ids)
    assert [one.broker_id for one in once] == [one.broker_id for one in again]
    assert [delivery.broker_id for delivery in await take(queue, 8)] == [one.broker_id for one in once]


async def test_what_the_server_could_never_take_is_refused_before_anything_is_published(scene: Scene) -> None:
    queue = scene.queue()
    with pytest.raises(InvalidMessageError, match="1048576"):
        await queue.publish([Outgoing("1", "a"), Outgoing("2", "g" * 1_100_000)])
    assert await nothing_comes(queue, 0.3)


async def test_no_later_message_of_a_group_is_published_after_one_that_failed(scene: Scene) -> None:
    await scene.stream(max_msg_size=200)
    await scene.consumer()
    queue = scene.queue()
    messages = [Outgoing("a1", "a"), Outgoing("b1", "b"), Outgoing("x" * 300, "a"), Outgoing("a3", "a")]
    with pytest.raises(InvalidMessageError, match="exceeds"):
        await queue.publish(messages)
    assert await drained(queue, 0.3) == ["a1", "b1"]


async def test_a_stream_that_takes_no_more_is_told(scene: Scene) -> None:
    await scene.stream(max_msgs=1, discard="new")
    queue = scene.queue(create=False)
    await queue.publish(grouped("a1"))
    with pytest.raises(QueueUnavailableError, match="maximum messages exceeded"):
        await queue.publish(grouped("a2"))
