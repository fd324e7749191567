"""Whose messages come from ActiveMQ, in which order, and what a delay costs."""

import asyncio
from typing import Any

import pytest
from proton import Message, symbol

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.queues.address import AmqpAddress
from flowcatalyst.queues.amqp import message as amqp_message
from flowcatalyst.queues.amqp import queue as activemq
from flowcatalyst.queues.amqp import takeover as activemq_takeover
from flowcatalyst.queues.amqp.connection import AmqpConnection, AmqpRefusedError
from flowcatalyst.queues.contract import Outgoing
from tests.conformance.bench import bodies, grouped, in_order, nothing_comes, take
from tests.integration.activemq.scene import GONE, OK, Client, Server, cut, send
from tests.servers.activemq import ActiveMqServer, send_by_jms

# Producers


async def test_messages_of_a_jms_application_come_in_order_with_their_group(
    classic: ActiveMqServer, queue_name: str, client: Client
) -> None:
    names = [f"{group}{number}" for number in range(1, 21) for group in "abc"]
    await asyncio.to_thread(send_by_jms, classic.openwire_url, queue_name, [(name[0], name) for name in names])
    queue = client(classic)
    taken = await take(queue, len(names))
    assert sorted(bodies(taken)) == sorted(names)
    assert in_order(bodies(taken))
    assert all(one.group == one.body[:1] for one in taken)
    assert len({one.broker_id for one in taken}) == len(names)
    cut(queue)
    again = await take(queue, len(names))
    assert [(one.broker_id, one.body) for one in again] == [(one.broker_id, one.body) for one in taken]


async def test_a_message_without_an_id_has_the_same_identity_on_each_connection(
    broker: Server, queue_name: str, client: Client
) -> None:
    await send(broker, queue_name, Message(body="one", durable=True), Message(body="two", durable=True, group_id="g"))
    queue = client(broker)
    first = await take(queue, 2)
    cut(queue)
    second = await take(queue, 2)
    assert [one.broker_id for one in first] == [one.broker_id for one in second]
    assert len({one.broker_id for one in first}) == 2


async def test_ids_that_a_producer_begins_anew_are_not_mistaken_for_old_ones(
    broker: Server, queue_name: str, client: Client
) -> None:
    queue = client(broker)
    await send(broker, queue_name, Message(body="yesterday", id=1, durable=True))
    [first] = await take(queue, 1)
    await queue.ack([first])
    await send(broker, queue_name, Message(body="today", id=1, durable=True))
    [second] = await take(queue, 1)
    assert first.broker_id != second.broker_id


async def test_every_kind_of_body_is_handed_over(broker: Server, queue_name: str, client: Client) -> None:
    kinds: list[Any] = ["text", b"\x00bytes\xff", {"id": "x", "n": 1}, ["a", 2], None, 7, symbol("s")]
    queue = client(broker)
    await send(broker, queue_name, *(Message(body=kind, id=f"{n:032}", durable=True) for n, kind in enumerate(kinds)))
    await send(broker, queue_name, Message(body=b"data section", inferred=True, durable=True))
    taken = await take(queue, len(kinds) + 1)
    handed = [one.body for one in taken]
    assert handed[:2] == ["text", b"\x00bytes\xff"]
    assert handed[-1] == b"data section"
    assert all(isinstance(body, str | bytes) for body in handed)
    assert len(handed) == len(kinds) + 1
    assert await queue.ack(taken) == [OK] * len(taken)


def test_what_is_no_amqp_message_is_handed_over_as_it_came() -> None:
    assert amqp_message.read(b"\x00Sgarbage").body == b"\x00Sgarbage"


# Order


async def test_order_survives_a_connection_that_breaks_with_messages_in_hand(broker: Server, client: Client) -> None:
    names = [f"{group}{number}" for number in range(1, 31) for group in "ab"]
    queue = client(broker)
    await queue.publish(grouped(*names))
    held = await take(queue, 20)
    assert await queue.ack(held[:3]) == [OK] * 3
    cut(queue)
    assert await queue.ack(held[3:5]) == [GONE, GONE]
    assert await queue.nack(held[5:6], 0.0) == [GONE]
    assert await queue.nack(held[5:6], 1.0) == [GONE]
    assert await queue.extend(held[6:7], 60.0) == [GONE]
    again = await take(queue, len(names) - 3)
    assert bodies(again) == names[3:]
    assert [one.broker_id for one in again[:17]] == [one.broker_id for one in held[3:]]
    assert await queue.ack(held[3:5]) == [GONE, GONE]
    assert await queue.ack(again) == [OK] * len(again)
    assert await nothing_comes(queue, 0.5)


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "with another receiver"])
async def test_order_survives_receivers_that_die_while_they_take_over(
    broker: Server, client: Client, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes over a part of what the one before it left behind, and dies of it."""
    names = [f"a{number}" for number in range(1, 31)]
    first = client(broker)
    await first.publish(grouped(*names))
    held = await take(first, 25)
    await first.ack(held[:2])
    bystanders = [client(broker) for _ in range(others)]
    for bystander in bystanders:
        await bystander._receiving()
    cut(first)
    for count_taken in (10, 7, 12):
        with monkeypatch.context() as patched:
            patched.setattr(activemq_takeover, "QUIET_S", 0.0)  # it is dead before it has fetched all
            victim = client(broker)
            await take(victim, count_taken)
            cut(victim)
            await asyncio.sleep(0.3)  # until the broker knows
    survivor = client(broker)
    assert bodies(await take(survivor, 28)) == names[2:]


async def test_a_group_goes_over_in_order_when_its_receiver_dies(broker: Server, client: Client) -> None:
    first, second, sender = client(broker), client(broker), client(broker)
    await first.receive(1, 0.0)
    await second.receive(1, 0.0)
    await sender.publish(grouped("a1"))
    owner, other = (first, second) if (held := await take(first, 1, 2.0)) else (second, first)
    held = held or await take(second, 1)
    await sender.publish(grouped(*(f"a{number}" for number in range(2, 11))))
    held += await take(owner, 4)
    assert bodies(held) == ["a1", "a2", "a3", "a4", "a5"]
    assert await nothing_comes(other, 0.5)
    await owner.ack(held[:2])
    cut(owner)
    assert bodies(await take(other, 8)) == [f"a{number}" for number in range(3, 11)]


async def test_what_is_given_back_at_once_keeps_its_place(broker: Server, client: Client) -> None:
    queue = client(broker)
    await queue.publish(grouped(*(f"a{number}" for number in range(1, 9))))
    held = await take(queue, 4)
    held[1].failures = 2
    assert await queue.nack([held[3], held[1]], 0.0) == [OK, OK]
    assert await queue.ack(held[1:2]) == [GONE]
    again = await take(queue, 6)
    assert bodies(again) == ["a2", "a4", "a5", "a6", "a7", "a8"]
    assert [(one.failures, one.receive_count) for one in again[:3]] == [(2, 2), (0, 2), (0, 1)]
    assert await queue.ack([held[0], held[2], *again]) == [OK] * 8


async def test_a_receiver_takes_no_more_from_the_others_than_it_asked_for(broker: Server, client: Client) -> None:
    modest, other = client(broker), client(broker)
    await modest.publish([Outgoing(str(number)) for number in range(10)])
    await modest.receive(2, 5.0)
    assert len(await take(other, 9, 3.0)) >= 8


async def test_what_comes_after_a_receive_was_cancelled_is_there_for_the_next(broker: Server, client: Client) -> None:
    queue, sender = client(broker), client(broker)
    receiving = asyncio.gather(queue.receive(10, 10.0))
    await asyncio.sleep(0.5)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    await sender.publish(grouped("a1", "a2"))
    assert bodies(await take(queue, 2)) == ["a1", "a2"]


# Giving back with a delay


async def test_a_delayed_copy_is_the_same_message(broker: Server, queue_name: str, client: Client) -> None:
    properties = {"tenant": "x", "n": 1}
    await send(
        broker,
        queue_name,
        Message(body=b"\x01", inferred=True, group_id="g", durable=True, id=5, properties=properties),
    )
    queue = client(broker)
    [first] = await take(queue, 1)
    for failures in (1, 2, 3):  # a copy of a copy, too
        first.failures = failures
        assert await queue.nack([first], 0.6) == [OK]
        assert await nothing_comes(queue, 0.3)
        [again] = await take(queue, 1)
        assert (again.broker_id, again.body, again.group) == (first.broker_id, b"\x01", "g")
        assert again.failures == failures
        sent = Message()
        sent.decode(again.receipt.arrival.raw)
        assert properties.items() <= (sent.properties or {}).items()
        first = again
    assert await queue.ack([first]) == [OK]
    assert await nothing_comes(queue, 1.0)
    assert list(queue.setup_warnings) == []


async def test_a_crash_after_the_copy_was_sent_leaves_two_never_none(
    broker: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_instead(connection: AmqpConnection, *_: object) -> None:
        connection.abort()

    queue = client(broker)
    await queue.publish(grouped("a1"))
    [first] = await take(queue, 1)
    first.failures = 1
    with monkeypatch.context() as patched:
        patched.setattr(AmqpConnection, "accept", break_instead)
        assert await queue.nack([first], 1.5) == [GONE]
    [original] = await take(queue, 1)
    [copy] = await take(queue, 1)
    assert (original.broker_id, copy.broker_id) == (first.broker_id, first.broker_id)
    assert (original.failures, copy.failures) == (0, 1)
    assert await queue.ack([copy]) == [OK]  # the router knows one message and settles its newest receipt
    cut(queue)
    assert await nothing_comes(queue, 1.0)


async def test_without_a_scheduler_a_delayed_message_waits_here_and_there_is_advice(
    broker: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_message, "_DELIVERY_DELAY", symbol("x-opt-unknown"))  # as a broker that ignores it
    queue = client(broker)
    await queue.publish(grouped("a1", "b1"))
    first, second = await take(queue, 2)
    first.failures = 4
    assert await queue.nack([first], 1.5) == [OK]
    assert await nothing_comes(queue, 1.0)
    assert list(queue.setup_warnings) == [activemq.NO_SCHEDULER]
    [again] = await take(queue, 1)
    assert (again.broker_id, again.failures) == (first.broker_id, 4)
    assert await queue.ack([again, second]) == [OK, OK]


async def test_a_message_that_cannot_be_sent_again_waits_here(
    broker: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise AmqpRefusedError("amqp:unauthorized-access", "not allowed to write")

    queue = client(broker)
    await queue.publish(grouped("a1"))
    [first] = await take(queue, 1)
    monkeypatch.setattr(AmqpConnection, "send", refuse)
    assert await queue.nack([first], 1.0) == [OK]
    assert await nothing_comes(queue, 0.6)
    assert "not allowed to write" in queue.setup_warnings[0]
    [again] = await take(queue, 1)
    assert (again.body, again.receive_count) == ("a1", 2)
    assert await queue.ack([again]) == [OK]


async def test_activemq_is_handed_no_group_that_proton_would_cut_off() -> None:
    queue = activemq.ActiveMqQueue(
        "q", AmqpAddress((("127.0.0.1", 9),), "q"), SystemClock(), login=activemq.AmqpLogin()
    )
    with pytest.raises(InvalidMessageError, match=r"^group has a NUL character"):
        await queue.publish([Outgoing("{}", "a\0b")])
