"""The conformance suite: what every queue has to do, and whether it does what its capabilities claim.

A broker's test module subclasses `QueueSuite` and gives it a `bench` fixture. What a broker cannot do is a capability;
the suite then checks that it really cannot, so that the table in docs/queues.md is measured.
"""

import asyncio
import math
import random
from collections import Counter

import pytest

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import MAX_BODY_BYTES, Delivery, Settled
from flowcatalyst.queues.contract import Outgoing
from tests.conformance.bench import (
    SHORT_LEASE_S,
    Bench,
    bodies,
    grouped,
    in_order,
    nothing_comes,
    take,
)
from tests.conformance.crash_suite import CrashSuite
from tests.conformance.order_suite import OrderSuite

PAST_A_LEASE_S = SHORT_LEASE_S + 3.0  # brokers look for expired leases now and then
OK = Settled.OK


class QueueSuite(OrderSuite, CrashSuite):
    # Publish and receive

    async def test_a_message_comes_as_it_was_published(self, bench: Bench) -> None:
        queue = await bench.client()
        published = await queue.publish([Outgoing('{"id": "größe 漢字"}', "order-1")])
        [delivery] = await take(queue, 1)
        assert bodies([delivery]) == ['{"id": "größe 漢字"}']
        assert delivery.group == "order-1"
        assert delivery.receive_count == 1
        assert delivery.broker_id
        assert [one.duplicate for one in published] == [False]

    async def test_lease_of_a_received_message_is_told(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1"))
        before = bench.clock.monotonic()
        [delivery] = await take(queue, 1)
        if bench.capabilities.extends:
            assert before + 50 < delivery.lease_until < bench.clock.monotonic() + 61
        else:
            assert delivery.lease_until == 0
            assert bench.capabilities.visibility_s == math.inf

    async def test_a_message_says_when_it_was_published(self, bench: Bench) -> None:
        queue = await bench.client()
        before = bench.clock.wall()
        await queue.publish([*grouped("a1"), Outgoing("alone")])
        deliveries = await take(queue, 2)
        after = bench.clock.wall()
        assert all(before - 2 < delivery.due_at < after + 2 for delivery in deliveries)  # by the clocks of two machines

    async def test_the_age_of_the_oldest_message_is_told_where_the_storage_is_ours(self, bench: Bench) -> None:
        queue = await bench.client()
        before = bench.clock.wall()
        await queue.publish(grouped("a1", "b1"))
        after = bench.clock.wall()
        depth = await queue.depth()
        if not bench.capabilities.selects_pools or depth is None:
            return
        assert depth.oldest_at is not None
        assert before - 2 < depth.oldest_at < after + 2
        await queue.ack(await take(queue, 2))
        emptied = await queue.depth()
        assert emptied is not None
        assert emptied.oldest_at is None

    async def test_a_receive_brings_no_more_than_asked_for(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1", "b1", "c1", "d1", "e1"))
        first = await queue.receive(2, 5.0)
        assert 1 <= len(first) <= 2
        rest = await take(queue, 5 - len(first))
        assert sorted(bodies([*first, *rest])) == ["a1", "b1", "c1", "d1", "e1"]

    async def test_messages_of_a_group_come_in_order_if_that_is_claimed(self, bench: Bench) -> None:
        queue = await bench.client()
        names = [f"{group}{number}" for number in range(1, 16) for group in "abcd"]
        await queue.publish(grouped(*names))
        seen: list[str] = []
        while len(seen) < len(names):
            batch = await take(queue, 1)
            batch += await queue.receive(queue.batching.max_batch, 0.0)
            assert batch, f"only {len(seen)} came"
            seen += bodies(batch)
            assert set(await queue.ack(batch)) == {OK}
        assert sorted(seen) == sorted(names)
        assert in_order(seen) or not bench.capabilities.ordered_receive

    async def test_an_empty_queue_is_waited_for(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.receive(10, 0.0)  # connects
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert await nothing_comes(queue, 1.0)
        assert loop.time() - started > 0.7

    async def test_a_message_ends_the_wait_for_one(self, bench: Bench) -> None:
        queue, sender = await bench.client(), await bench.client()
        receiving = asyncio.gather(queue.receive(10, 15.0))
        await asyncio.sleep(0.3)
        await sender.publish(grouped("a1"))
        started = asyncio.get_running_loop().time()
        [batch] = await receiving
        assert bodies(batch) == ["a1"]
        assert asyncio.get_running_loop().time() - started < 10

    async def test_an_empty_poll_costs_one_or_two_requests(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.receive(10, 0.0)
        if bench.counts_calls:
            before = bench.calls(queue)
            assert await nothing_comes(queue, 3.0)
            assert bench.calls(queue) - before <= 2

    async def test_many_messages_none_lost_none_shown_after_its_ack(self, bench: Bench) -> None:
        rng = random.Random(5)
        queue = await bench.client()
        names = [f"{rng.choice('abcdefgh')}{number}" for number in range(200)]
        await queue.publish(grouped(*names))
        acked: Counter[str] = Counter()
        while len(acked) < len(names):
            batch = await take(queue, 1)
            batch += await queue.receive(queue.batching.max_batch, 0.0)
            assert batch, f"only {len(acked)} of {len(names)} came"
            keep = [delivery for delivery in batch if rng.random() < 0.8]
            results = await queue.ack(keep)
            acked.update(bodies([one for one, result in zip(keep, results, strict=True) if result is OK]))
            await queue.nack([delivery for delivery in batch if delivery not in keep], 0.0)
        assert set(acked.values()) == {1}
        assert await nothing_comes(queue, 1.0)

    # Settling

    async def test_a_received_message_is_hidden(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1"))
        await take(queue, 1)
        assert await nothing_comes(queue, 1.0)

    async def test_acked_messages_never_come_again(self, bench: Bench) -> None:
        queue = await bench.client(SHORT_LEASE_S)
        names = [f"{chr(97 + number)}1" for number in range(25)]  # more than a broker settles in one call
        await queue.publish(grouped(*names))
        taken = await take(queue, 25)
        assert await queue.ack(taken) == [OK] * 25
        assert await nothing_comes(queue, PAST_A_LEASE_S)
        await queue.close()
        assert await nothing_comes(await bench.client(), 1.0)

    async def test_an_ack_of_what_is_gone_is_fine(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1", "b1"))
        first, second = await take(queue, 2)
        assert await queue.ack([first]) == [OK]
        assert await queue.ack([first, second]) == [OK, OK]

    async def test_a_batch_of_acks_fails_in_part(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped(*(f"{letter}1" for letter in "abcdefghijkl")))
        taken = await take(queue, 12)
        bench.spoil(taken[3])
        results = await queue.ack(taken)
        assert len(results) == 12
        assert results[3] is not OK
        assert [result for result in results if result is not results[3]] == [OK] * 11
        await queue.close()  # shows the one again, at once or when its lease ends

    async def test_a_message_given_back_comes_again(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1"))
        [first] = await take(queue, 1)
        assert await queue.nack([first], 0.0) == [OK]
        [again] = await take(queue, 1)
        assert bodies([again]) == ["a1"]
        assert again.group == "a"
        assert again.broker_id == first.broker_id
        assert await queue.ack([again]) == [OK]
        assert await nothing_comes(queue, 0.5)

    async def test_a_message_given_back_with_a_delay_comes_after_it_if_that_is_claimed(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1"))
        [first] = await take(queue, 1)
        assert await queue.nack([first], 3.0) == [OK]
        assert await nothing_comes(queue, 1.0) is bench.capabilities.delayed_nack
        if bench.capabilities.delayed_nack:
            [again] = await take(queue, 1)
            assert bodies([again]) == ["a1"]
            assert again.group == "a"
            assert await queue.ack([again]) == [OK]
            assert await nothing_comes(queue, 0.5)

    async def test_what_was_given_back_with_a_delay_can_be_had_at_once_if_that_is_claimed(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1", "a2"))
        [first] = await take(queue, 1)
        assert await queue.nack([first], 60.0) == [OK]
        assert await queue.hurry(first) is bench.capabilities.hurries
        if bench.capabilities.hurries:
            in_order = bench.capabilities.ordered_redelivery
            shown = await take(queue, 1 if in_order else 2)
            assert "a1" in bodies(shown)
            assert not await queue.hurry(first)  # somebody has it
            assert await queue.ack(shown) == [OK] * len(shown)
            assert not in_order or bodies(await take(queue, 1)) == ["a2"]

    async def test_failures_are_handed_out_with_a_message_that_comes_again(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1"))
        [first] = await take(queue, 1)
        first.failures = 3
        await queue.nack([first], 1.0)
        [again] = await take(queue, 1)
        assert again.failures == 3

    # Leases

    async def test_a_lease_that_ends_shows_the_message_again(self, bench: Bench) -> None:
        queue = await bench.client(SHORT_LEASE_S)
        await queue.publish(grouped("a1"))
        [first] = await take(queue, 1)
        if not bench.capabilities.extends:
            assert await nothing_comes(queue, PAST_A_LEASE_S)
            return
        [again] = await take(queue, 1, PAST_A_LEASE_S)
        assert again.broker_id == first.broker_id
        assert again.receive_count >= 2  # on a machine that stalls for longer than a lease a second one ends, too

    async def test_an_extended_lease_keeps_the_message_hidden(self, bench: Bench) -> None:
        if not bench.capabilities.extends:
            queue = await bench.client()
            await queue.publish(grouped("a1"))
            assert await queue.extend(await take(queue, 1), 60.0) == [OK]
            return
        queue = await bench.client(SHORT_LEASE_S)
        await queue.publish(grouped("a1"))
        [delivery] = await take(queue, 1)
        for _ in range(5):
            before = delivery.lease_until
            assert await nothing_comes(queue, SHORT_LEASE_S / 2)
            assert await queue.extend([delivery], SHORT_LEASE_S) == [OK]
            assert delivery.lease_until > before
        assert await queue.ack([delivery]) == [OK]

    async def test_the_receipt_of_a_redelivery_settles_the_message(self, bench: Bench) -> None:
        if not bench.capabilities.extends:
            return  # no redelivery while connected: `test_a_lease_that_ends_shows_the_message_again` checked that
        queue = await bench.client(SHORT_LEASE_S)
        await queue.publish(grouped("a1"))
        [first] = await take(queue, 1)
        [again] = await take(queue, 1, PAST_A_LEASE_S)
        first.receipt = again.receipt
        assert await queue.ack([first]) == [OK]
        assert await nothing_comes(queue, PAST_A_LEASE_S)

    async def test_a_stale_receipt_is_ok_only_if_it_removes_the_message(self, bench: Bench) -> None:
        if not bench.capabilities.extends:
            return  # receipts end with their connection there: see the tests of reconnecting
        queue = await bench.client(SHORT_LEASE_S)
        await queue.publish(grouped("a1"))
        [first] = await take(queue, 1)
        [again] = await take(queue, 1, PAST_A_LEASE_S)
        [result] = await queue.ack([first])
        if result is OK:
            assert await nothing_comes(queue, PAST_A_LEASE_S)
        else:
            assert await queue.ack([again]) == [OK]

    # Publishing

    async def test_a_deduplication_id_counts_once_if_that_is_claimed(self, bench: Bench) -> None:
        queue = await bench.client()
        first = await queue.publish([Outgoing("a1", "a", "once"), Outgoing("a2", "a", "other")])
        second = await queue.publish([Outgoing("a1", "a", "once")])
        assert [one.duplicate for one in first] == [False, False]
        duplicates = bench.capabilities.deduplicates
        assert [one.duplicate for one in second] == [duplicates]
        if duplicates:
            assert second[0].broker_id == first[0].broker_id
        taken = await take(queue, 3, 2.0)
        assert sorted(bodies(taken)) == (["a1", "a2"] if duplicates else ["a1", "a1", "a2"])

    async def test_equal_bodies_without_a_deduplication_id_are_two_messages(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish([Outgoing("same", "a"), Outgoing("same", "b")])
        await queue.publish([Outgoing("same", "a")])
        seen: list[Delivery] = []
        while len(seen) < 3:
            batch = await take(queue, 1)
            assert batch, f"only {len(seen)} came"
            seen += batch
            await queue.ack(batch)
        assert len({delivery.broker_id for delivery in seen}) == 3

    async def test_the_largest_body_passes_and_a_larger_one_is_refused(self, bench: Bench) -> None:
        queue = await bench.client()
        with pytest.raises(InvalidMessageError, match=str(MAX_BODY_BYTES + 1)):
            await queue.publish([Outgoing("small", "a"), Outgoing("x" * (MAX_BODY_BYTES + 1), "a")])
        assert await nothing_comes(queue, 0.5)
        largest = "y" * MAX_BODY_BYTES
        await queue.publish([Outgoing(largest, "a"), Outgoing(largest, "b")])
        taken = await take(queue, 2)
        assert [delivery.body in (largest, largest.encode()) for delivery in taken] == [True, True]
        assert await queue.ack(taken) == [OK, OK]

    @pytest.mark.parametrize("body", [b"not json", b'{"id": ', b"[]", b"\xff\xfe broken"], ids=repr)
    async def test_a_malformed_body_is_handed_over_as_it_is(self, bench: Bench, body: bytes) -> None:
        queue = await bench.client()
        await bench.publish_foreign(body, "a")
        [delivery] = await take(queue, 1)
        handed = delivery.body if isinstance(delivery.body, bytes) else delivery.body.encode()
        assert handed == body or "\ufffd" in handed.decode()  # or the broker itself knows only valid text
        assert await queue.ack([delivery]) == [OK]

    async def test_depth_is_told_or_not_known(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1", "b1", "c1"))
        await take(queue, 1)
        depth = await queue.depth()
        assert depth is None or (depth.waiting, depth.leased) == (2, 1)

    async def test_capacity_bounds_nothing_that_was_asked_for(self, bench: Bench) -> None:
        queue = await bench.client()
        queue.fit(5)
        await queue.publish(grouped(*(f"{letter}1" for letter in "abcde")))
        assert len(await take(queue, 5)) == 5

    async def test_a_queue_has_no_advice_if_it_is_set_up_well(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.receive(1, 0.0)
        assert list(queue.setup_warnings) == []
