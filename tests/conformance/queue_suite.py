"""The conformance suite: what every queue has to do, and whether it does what its capabilities claim.

A broker's test module subclasses `QueueSuite` and gives it a `bench` fixture. What a broker cannot do is a capability;
the suite then checks that it really cannot, so that the table in docs/queues.md is measured.
"""

import asyncio
import math
import random
from collections import Counter

import pytest

from flowcatalyst.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.message import MAX_BODY_BYTES, Delivery, Settled
from flowcatalyst.queues.contract import BrokerQueue, Outgoing
from tests.conformance.bench import (
    SHORT_LEASE_S,
    Bench,
    bodies,
    for_pool,
    grouped,
    ids,
    in_order,
    nothing_comes,
    take,
)
from tests.conformance.random_walk import Walk
from tests.support.demands import SetDemand

PAST_A_LEASE_S = SHORT_LEASE_S + 3.0  # brokers look for expired leases now and then
OK, GONE = Settled.OK, Settled.GONE


class QueueSuite:
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
            batch += await queue.receive(queue.capabilities.max_batch, 0.0)
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
            batch += await queue.receive(queue.capabilities.max_batch, 0.0)
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

    # Order and groups

    async def test_redelivery_is_in_order_if_and_only_if_that_is_claimed(self, bench: Bench) -> None:
        """The head waits for long, its followers for less, as after a failure: who is first?"""
        queue = await bench.client()
        await queue.publish(grouped("a1", "a2", "a3"))
        head, *followers = await _all_of_a_group(queue, 3)
        await queue.nack([head], 2.0)
        await queue.nack(followers, 0.2)
        first = await take(queue, 1)
        assert (bodies(first) == ["a1"]) is bench.capabilities.ordered_redelivery
        await queue.ack(first)

    async def test_order_survives_a_failure_and_its_cascade_again_and_again(self, bench: Bench) -> None:
        if not bench.capabilities.ordered_redelivery:
            return  # the router never gives such messages back: tests/integration/broker_router_test.py
        queue = await bench.client()
        left = ["a1", "a2", "a3", "a4", "a5"]
        await queue.publish(grouped(*left))
        for failures in (2, 0, 1, 1, 0):
            for remaining in range(failures, -1, -1):
                batch = await take(queue, 1)
                batch += await queue.receive(queue.capabilities.max_batch, 0.0)
                assert bodies(batch) == left[: len(batch)]
                head, *followers = batch
                if remaining:
                    await queue.nack([head], 1.0)
                    await queue.nack(followers, 0.2)
                else:
                    await queue.ack([head])
                    await queue.nack(followers, 0.0)
                    del left[0]
        assert left == []

    async def test_a_group_in_flight_is_locked_if_and_only_if_that_is_claimed(self, bench: Bench) -> None:
        one, other = await bench.client(), await bench.client()
        await one.receive(1, 0.0)  # both are there before the first message
        await other.receive(1, 0.0)
        await one.publish(grouped("a1"))
        holder, bystander = (one, other) if (held := await take(one, 1, 2.0)) else (other, one)
        held = held or await take(other, 1)
        assert bodies(held) == ["a1"]
        await one.publish(grouped("a2"))
        shown = await bystander.receive(10, 1.0)
        assert (shown == []) is bench.capabilities.locks_groups
        if bench.capabilities.locks_groups:
            await holder.ack(held)
            await holder.close()
            assert bodies(await take(bystander, 1)) == ["a2"]

    async def test_a_message_that_unlocks_its_group_lets_the_others_pass_and_comes_later(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1", "a2"))
        head, *rest = await _all_of_a_group(queue, 2)
        await queue.nack(rest, 0.0)
        head.failures = 1
        assert await queue.nack([head], 3.0, unlock=True) == [OK]
        second = await take(queue, 1, 2.5)
        assert bodies(second) == ["a2"]
        await queue.ack(second)
        [first] = await take(queue, 1)
        assert (bodies([first]), first.group, first.failures) == (["a1"], "a", 1)
        assert await queue.ack([first]) == [OK]
        assert await nothing_comes(queue, 1.0)

    async def test_messages_without_a_group_wait_for_nobody(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish([Outgoing("first"), Outgoing("second"), Outgoing("third")])
        await take(queue, 1)
        rest = await take(queue, 2)
        assert len(rest) == 2

    @pytest.mark.parametrize("group", ["with blanks and größe 漢字", "x" * 300, "a.b/c:d*e>f", " "])
    async def test_any_name_of_a_group_comes_back_as_it_was(self, bench: Bench, group: str) -> None:
        queue = await bench.client()
        await queue.publish([Outgoing("1", group), Outgoing("2", group)])
        taken = await _all_of_a_group(queue, 2)
        assert [delivery.group for delivery in taken] == [group, group]
        assert in_order([f"x{body}" for body in bodies(taken)]) or not bench.capabilities.ordered_receive

    # Pools

    async def test_a_queue_brings_what_pools_have_room_for_if_and_only_if_that_is_claimed(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(
            [*for_pool("FULL", *(f"{letter}1" for letter in "abcdefghijkl")), *for_pool("A", "x1", "y1")]
        )
        demand = SetDemand(FULL=0, A=1)
        if bench.capabilities.selects_pools:
            assert ids(await queue.receive(10, 5.0, demand)) == ["x1"]
            assert ids(await queue.receive(10, 0.0, demand)) == ["y1"]
            assert await queue.receive(10, 1.0, demand) == []
        else:
            shown: list[str] = []
            while len(shown) < 3:
                batch = await queue.receive(10, 5.0, demand)
                assert batch
                shown += ids(batch)
            assert set(shown) - {"x1", "y1"}
            assert demand.listeners == []

    async def test_messages_behind_a_large_backlog_of_a_full_pool_are_found(self, bench: Bench) -> None:
        if not bench.capabilities.selects_pools:
            return  # the test before this one checked that it cannot
        queue = await bench.client()
        await queue.publish(for_pool("FULL", *(f"{chr(200 + number % 500)}{number}" for number in range(5000))))
        await queue.publish(for_pool("A", "x1"))
        assert ids(await queue.receive(10, 5.0, SetDemand(FULL=0, A=10))) == ["x1"]

    async def test_codes_that_no_pool_has_share_the_room_of_the_default_pool(self, bench: Bench) -> None:
        if not bench.capabilities.selects_pools:
            return
        queue = await bench.client()
        await queue.publish([*for_pool("X", "a1", "b1"), *for_pool("Y", "c1"), *grouped("d1"), *for_pool("A", "e1")])
        assert ids(await queue.receive(10, 5.0, SetDemand(others=0, A=5))) == ["e1"]
        assert len(await queue.receive(10, 5.0, SetDemand(others=3, A=5))) == 3
        assert len(await queue.receive(10, 5.0, SetDemand(others=3, A=5))) == 1

    async def test_groups_come_in_the_order_in_which_they_became_ready(self, bench: Bench) -> None:
        if not bench.capabilities.selects_pools:
            return
        queue = await bench.client()
        demand = SetDemand(A=9)
        await queue.publish(for_pool("A", "a1", "b1", "c1"))
        failing = await queue.receive(2, 5.0, demand)
        assert ids(failing) == ["a1", "b1"]
        await queue.nack(failing, 0.0)
        await queue.publish(for_pool("A", "d1"))
        assert ids(await queue.receive(1, 5.0, demand)) == ["c1"]
        assert ids(await queue.receive(2, 5.0, demand)) == ["a1", "b1"]
        assert ids(await queue.receive(2, 5.0, demand)) == ["d1"]

    async def test_a_group_that_names_two_pools_stays_in_order(self, bench: Bench) -> None:
        if not bench.capabilities.selects_pools:
            return
        queue = await bench.client()
        await queue.publish([*for_pool("A", "g1", "g2"), *for_pool("B", "g3"), *for_pool("A", "g4")])
        demand = SetDemand(A=9, B=9)
        for expected in (["g1", "g2"], ["g3"], ["g4"]):
            batch = await queue.receive(10, 5.0, demand)
            assert ids(batch) == expected
            assert await queue.receive(10, 0.0, demand) == []
            await queue.ack(batch)

    async def test_room_that_comes_while_a_receive_waits_ends_the_wait(self, bench: Bench) -> None:
        if not bench.capabilities.selects_pools:
            return
        queue = await bench.client()
        await queue.publish(for_pool("A", "a1"))
        demand = SetDemand(A=0)
        receiving = asyncio.gather(queue.receive(10, 15.0, demand))
        await asyncio.sleep(0.3)
        started = asyncio.get_running_loop().time()
        demand.grow(A=1)
        [batch] = await receiving
        assert ids(batch) == ["a1"]
        assert asyncio.get_running_loop().time() - started < 10
        assert demand.listeners == []

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
        assert list(queue.advice) == []

    # Crashes, restarts and shutdown

    async def test_after_a_crash_everything_comes_again_in_order_if_that_is_claimed(self, bench: Bench) -> None:
        names = [f"{group}{number}" for number in range(1, 5) for group in "ab"]
        crashing = await bench.client(SHORT_LEASE_S)
        await crashing.publish(grouped(*names))
        held = await take(crashing, 3)
        await crashing.ack(held[:1])
        await bench.crash(crashing)
        survivor = await bench.client(SHORT_LEASE_S)
        seen = await _drained(survivor, len(names) - 1)
        assert sorted([*bodies(held[:1]), *seen]) == sorted(names)
        assert in_order(seen) or not bench.capabilities.ordered_takeover
        assert await nothing_comes(survivor, 1.0)

    async def test_crashes_in_a_row_keep_the_order_if_that_is_claimed(self, bench: Bench) -> None:
        seen = await crashed_twice(bench)
        assert in_order(seen) or not bench.capabilities.ordered_takeover

    async def test_messages_in_hand_come_again_in_order_after_a_close(self, bench: Bench) -> None:
        names = [f"{group}{number}" for number in range(1, 5) for group in "ab"]
        leaving = await bench.client(SHORT_LEASE_S)
        await leaving.publish(grouped(*names))
        held = await take(leaving, 4)
        await leaving.ack(held[:1])
        await leaving.nack(held[2:], 0.0)  # a router that stops gives back what it has, in any order
        await leaving.nack(held[1:2], 0.0)
        await leaving.close()
        seen = await _drained(await bench.client(SHORT_LEASE_S), len(names) - 1)
        assert sorted([*bodies(held[:1]), *seen]) == sorted(names)
        assert in_order(seen) or not bench.capabilities.ordered_receive

    async def test_a_client_that_was_closed_can_be_closed_again(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.receive(1, 0.0)
        await queue.close()
        await queue.close()
        another = await bench.client()
        await another.publish(grouped("a1"))
        assert bodies(await take(another, 1)) == ["a1"]

    @pytest.mark.parametrize("seed", range(3))
    async def test_on_a_random_walk_nothing_is_lost_nor_shown_after_its_ack_nor_out_of_order(
        self, bench: Bench, seed: int
    ) -> None:
        claims = bench.capabilities
        await Walk(bench, seed, ordered=claims.ordered_receive and claims.ordered_takeover).go()

    async def test_after_a_restart_of_the_broker_everything_is_there_in_order(self, bench: Bench) -> None:
        if not (bench.has_server and bench.durable):
            return  # nothing to restart, or a test server that keeps nothing: docs/queues.md says so
        names = [f"{group}{number}" for number in range(1, 6) for group in "ab"]
        queue = await bench.client(SHORT_LEASE_S)
        await queue.publish(grouped(*names))
        held = await take(queue, 4)
        await queue.ack(held[:2])
        bench.kill_server()
        with pytest.raises(QueueUnavailableError):
            await _until_it_fails(queue)
        bench.start_server()
        await queue.ack(held[2:])  # may be too late; then it comes again
        seen = await _drained(queue, len(names) - 4)
        assert {*bodies(held), *seen} == set(names)
        assert not set(bodies(held[:2])) & set(seen)
        assert in_order(seen) or not bench.capabilities.ordered_receive

    async def test_a_broker_that_goes_away_is_an_error_and_its_return_is_noticed(self, bench: Bench) -> None:
        if not bench.has_server:
            return  # it cannot go away
        queue = await bench.client()
        await queue.receive(1, 0.0)
        bench.kill_server()
        with pytest.raises(QueueUnavailableError) as raised:
            await _until_it_fails(queue)
        assert "\n" not in str(raised.value)
        assert "Traceback" not in str(raised.value)
        with pytest.raises(QueueUnavailableError):
            await queue.publish(grouped("a1"))
        bench.start_server()
        await _until_it_works(queue)
        await queue.publish(grouped("a2"))
        assert "a2" in bodies(await take(queue, 2, 5.0))

    async def test_a_broker_that_is_not_there_yet_is_no_error_at_open(self, bench: Bench) -> None:
        if not bench.has_server:
            return  # it cannot be absent
        bench.kill_server()
        try:
            queue = await bench.client()
            with pytest.raises(QueueUnavailableError):
                await queue.receive(1, 0.0)
        finally:
            bench.start_server()
        await _until_it_works(queue)


async def crashed_twice(bench: Bench) -> list[str]:
    """What is received, all in all, when the first two receivers vanish with messages in hand."""
    names = [f"{group}{number}" for number in range(1, 16) for group in "ab"]
    first = await bench.client(SHORT_LEASE_S)
    await first.publish(grouped(*names))
    await take(first, 25, 3.0)  # fewer, where a group is locked after its first batch
    await bench.crash(first)
    second = await bench.client(SHORT_LEASE_S)
    await take(second, 10, 5.0)
    await bench.crash(second)
    seen = await _drained(await bench.client(SHORT_LEASE_S), len(names))
    assert sorted(seen) == sorted(names)
    return seen


async def _all_of_a_group(queue: BrokerQueue, count: int) -> list[Delivery]:
    """So many messages of the only group there is, in one batch or several."""
    taken = await take(queue, count)
    assert len(taken) == count
    return taken


async def _drained(queue: BrokerQueue, least: int) -> list[str]:
    """Receive and ack until nothing more comes; the bodies, in order of arrival. At least so many have to come."""
    seen: list[str] = []
    while batch := await take(queue, 1, 20.0 if len(set(seen)) < least else 1.0):
        batch += await queue.receive(queue.capabilities.max_batch, 0.0)
        seen += bodies(batch)
        await queue.ack(batch)
    return seen


async def _until_it_fails(queue: BrokerQueue) -> None:
    """A client notices a broker that went away within a few polls."""
    for _ in range(20):
        await queue.receive(10, 0.5)


async def _until_it_works(queue: BrokerQueue) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await queue.receive(1, 0.0)
            except QueueUnavailableError:
                await asyncio.sleep(0.2)
            else:
                return
