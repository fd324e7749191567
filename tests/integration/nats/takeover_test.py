"""What comes, and in which order, when one client of a JetStream consumer takes over from another."""

import asyncio
import json
import random
from typing import Any

import pytest

from flowcatalyst.queues.nats import takeover as nats_takeover
from flowcatalyst.queues.nats.queue import NatsQueue
from tests.conformance.bench import bodies, grouped, in_order, nothing_comes, take
from tests.integration.nats.scene import NANO, OK, SHORT_S, Scene, crash, drained, names


@pytest.mark.parametrize("seed", range(8))
async def test_after_a_crash_all_that_was_not_acked_comes_at_once_and_in_order(scene: Scene, seed: int) -> None:
    rng = random.Random(seed)
    first = scene.queue()
    everything = names("abc", 20)
    await first.publish(grouped(*everything))
    held = await take(first, rng.randint(1, 55))
    acked = [delivery for delivery in held if rng.random() < 0.4]
    rng.shuffle(acked)
    assert set(await first.ack(acked)) <= {OK}
    await crash(first)
    seen = await drained(scene.queue())
    assert sorted(seen) == sorted(set(everything) - set(bodies(acked)))
    assert in_order(seen)


async def test_what_was_published_since_the_crash_comes_after_what_was_hidden(scene: Scene) -> None:
    first, second = scene.queue(), scene.queue()
    await first.publish(grouped(*names("ab", 5)))
    assert len(await take(first, 6)) == 6
    await crash(first)
    await second.publish(grouped("a6", "b6", "a7"))
    assert await drained(second) == [*names("ab", 5), "a6", "b6", "a7"]


async def test_leases_that_ended_before_the_takeover_do_not_disturb_the_order(scene: Scene) -> None:
    first = scene.queue(SHORT_S)
    await first.publish(grouped(*names("ab", 6)))
    early = await take(first, 4)
    later = await take(first, 4)
    for _ in range(3):
        await asyncio.sleep(SHORT_S / 2)
        assert set(await first.extend(later, SHORT_S)) == {OK}
    assert await first.nack(later[-1:], 30.0) == [OK]
    await crash(first)  # the leases of `early` ended, in the server's redelivery queue they are first
    seen = await drained(scene.queue(SHORT_S))
    assert seen == names("ab", 6)
    assert len(early) == 4


async def test_a_restart_after_all_leases_ended_keeps_the_order_too(scene: Scene) -> None:
    first = scene.queue(SHORT_S)
    await first.publish(grouped(*names("ab", 5)))
    held = await take(first, 7)
    await first.ack([held[5], held[1]])
    await crash(first)
    await asyncio.sleep(SHORT_S + 1.0)
    assert await drained(scene.queue(SHORT_S)) == ["a1", "a2", "b2", "a3", "a4", "b4", "a5", "b5"]


async def test_a_takeover_of_a_very_long_span_waits_until_the_leases_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_takeover, "LARGEST_SPAN", 2)
    first = scene.queue(SHORT_S)
    await first.publish(grouped(*names("a", 8)))
    await take(first, 5)
    await crash(first)
    second = scene.queue(SHORT_S)
    assert await nothing_comes(second, 0.5)
    assert bodies(await take(second, 8)) == names("a", 8)


async def test_a_takeover_that_brings_too_little_waits_until_the_leases_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_takeover, "NAK", b"+WPI")  # a server that does not heed our give-backs
    first = scene.queue(SHORT_S)
    await first.publish(grouped(*names("a", 8)))
    await take(first, 5)
    await crash(first)
    second = scene.queue(SHORT_S)
    assert await nothing_comes(second, 0.2)
    assert bodies(await take(second, 8)) == names("a", 8)


async def test_a_takeover_waits_for_a_pull_that_somebody_left_open(scene: Scene) -> None:
    queue = scene.queue()
    await queue.receive(1, 0.0)
    await crash(queue)
    connection = await scene.plain()
    taken: list[bytes] = []

    async def keep(message: Any) -> None:
        taken.append(message.data)

    inbox = connection.new_inbox()
    await connection.subscribe(inbox, cb=keep)
    where = f"$JS.API.CONSUMER.MSG.NEXT.{scene.address.stream}.{scene.address.consumer}"
    await connection.publish(where, json.dumps({"batch": 2, "expires": 2 * NANO}).encode(), inbox)
    await connection.flush()
    second = scene.queue()
    assert await nothing_comes(second, 0.0)
    await second.publish(grouped("a1", "a2", "a3"))
    assert bodies(await take(second, 3)) == ["a1", "a2", "a3"]
    assert taken[:2] == [b"a1", b"a2"]


async def test_a_broken_connection_costs_neither_order_nor_what_is_in_hand(scene: Scene) -> None:
    """Two messages were on the wire to nobody when the connection broke; two are in hand and must not come again."""
    queue = scene.queue()
    await queue.publish(grouped(*names("a", 8)))
    held = await take(queue, 2)
    await scene.pull_elsewhere(2)
    assert queue._session is not None
    queue._session.link._connection.abort()
    while queue._session.link.alive:
        await asyncio.sleep(0.01)
    rest = await take(queue, 6)
    assert bodies(rest) == names("a", 8)[2:]
    assert await queue.ack([*held, *rest]) == [OK] * 8
    assert (await scene.state())["num_ack_pending"] == 0


async def test_deliveries_to_somebody_else_are_noticed_by_the_gap_in_their_numbers(
    scene: Scene,
) -> None:
    queue = scene.queue()
    await queue.publish(grouped(*names("a", 9)))
    held = await take(queue, 2)
    await scene.pull_elsewhere(3)
    rest = await take(queue, 7)
    assert bodies([*held, *rest]) == names("a", 9)
    assert [delivery.receive_count for delivery in rest] == [2, 2, 2, 1, 1, 1, 1]


async def test_two_that_receive_from_one_consumer_are_told(scene: Scene) -> None:
    one, other = scene.queue(), scene.queue()
    await one.publish(grouped(*names("ab", 20)))
    async with asyncio.timeout(60):
        while not (one.setup_warnings and other.setup_warnings):
            for queue in (one, other):
                await queue.receive(1, 0.1)
    for queue in (one, other):
        assert "another client receives from consumer router" in queue.setup_warnings[0]


async def test_one_that_follows_another_is_told_nothing(scene: Scene) -> None:
    queue = scene.queue()
    await queue.publish(grouped(*names("ab", 20)))
    for leave in (NatsQueue.close, crash):
        assert len(await queue.receive(5, 1.0)) == 5
        await leave(queue)
        queue = scene.queue()
    assert len(await drained(queue)) == 40
    assert list(queue.setup_warnings) == []
