"""The part of the suite of job stores about routers on other machines: what is published, claimed, and lost."""

import asyncio
from typing import Any, cast

import pytest

from flowcatalyst.core.message import DEFAULT_POOL, Delivery, Settled
from flowcatalyst.dispatch.job import Status
from flowcatalyst.dispatch.store.contract import Cancel, Change, Filter, InHandError, JobStateError, JobStore, Retry
from flowcatalyst.dispatch.store.platform_contract import PlatformStore, Refused, Ticket
from tests.conformance.job_bench import BLOCK, IMMEDIATE, NEXT, PARKED, JobBench, names, take

FAR = "FAR"
LIMIT_S = 900.0
STALE = Refused.STALE


async def open_store(bench: JobBench) -> PlatformStore:
    """With a pool whose jobs are for routers elsewhere."""
    store = cast(PlatformStore, await bench.store())
    store.set_elsewhere(frozenset({FAR}))
    return store


async def heads(store: PlatformStore, most: int = 100) -> list[Delivery]:
    return await store.take_heads({FAR: most}, 0.0)


async def publish(store: PlatformStore, most: int = 100) -> dict[str, Ticket]:
    """All that can be: their tickets, by their names."""
    taken = await heads(store, most)
    tickets = {one.pointer.id: store.ticket_of(one) for one in taken}
    assert await store.hand_over(taken, LIMIT_S) == [Settled.OK] * len(taken)
    return tickets


async def claim(store: PlatformStore, ticket: Ticket) -> Delivery:
    claimed = await store.claim(ticket)
    assert isinstance(claimed, Delivery), claimed
    return claimed


async def statuses(store: JobStore, *jobs: str) -> list[str]:
    return [(await store.find(job)).status.value for job in jobs]


class RemoteSuite:
    async def test_jobs_of_a_pool_elsewhere_are_not_handed_out_here(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR)
        await bench.create(store, "b1", "b2", mode=BLOCK)
        await bench.create(store, "b3", mode=BLOCK, pool=FAR)
        assert names(await take(store)) == ["b1", "b2"]
        assert names(await heads(store)) == ["a1"]  # b3 is behind what is in hand

    async def test_one_of_a_group_is_published_at_a_time_and_every_one_that_has_no_order(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", "a2", mode=BLOCK, pool=FAR)
        await bench.create(store, "b1", "b2", mode=NEXT, pool=FAR)
        await bench.create(store, "c1", "c2", mode=IMMEDIATE, pool=FAR)
        assert sorted(names(await heads(store))) == ["a1", "b1", "c1", "c2"]
        assert await heads(store) == []
        await bench.audit(store)

    async def test_nothing_of_a_group_starts_while_one_of_it_is_out(self, bench: JobBench) -> None:
        store, other = await open_store(bench), await open_store(bench)
        await bench.create(store, "a2", "a3", mode=BLOCK, pool=FAR)
        tickets = await publish(store)
        assert list(tickets) == ["a2"]
        await bench.create(store, "a1", mode=BLOCK, pool=FAR, sequence=1)  # in front of it
        await bench.create(store, "a4", mode=BLOCK)  # for a pool that is here
        assert await heads(other) == []
        assert await take(other) == []
        assert await statuses(store, "a1", "a2", "a3", "a4") == ["PENDING", "QUEUED", "PENDING", "PENDING"]
        await bench.audit(store)

    async def test_a_claim_gets_the_job_with_all_that_is_to_be_sent(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR, headers=(("X-One", "1"),), payload=b"[1]")
        delivery = await claim(store, (await publish(store))["a1"])
        assert (delivery.pointer.id, delivery.pointer.headers, delivery.body) == ("a1", {"X-One": "1"}, b"[1]")
        assert delivery.terms is not None
        assert delivery.position == 1
        assert delivery.stamp is not None
        assert await statuses(store, "a1") == ["QUEUED"]
        assert await bench.succeed(store, [delivery]) == [Settled.OK]
        assert await statuses(store, "a1") == ["COMPLETED"]
        assert len(await store.attempts_of("a1")) == 1
        await bench.audit(store)

    async def test_a_ticket_is_good_for_one_claim(self, bench: JobBench) -> None:
        store, other = await open_store(bench), await open_store(bench)
        await bench.create(store, "a1", "a2", mode=BLOCK, pool=FAR)
        ticket = (await publish(store))["a1"]
        results = await asyncio.gather(*(one.claim(ticket) for one in (store, other, store, other)))
        assert sorted(str(one) for one in results if isinstance(one, Refused)) == ["stale"] * 3
        (delivery,) = (one for one in results if isinstance(one, Delivery))
        owner = store if delivery is results[0] or delivery is results[2] else other
        assert await bench.succeed(owner, [delivery]) == [Settled.OK]
        assert await store.claim(ticket) is STALE
        assert list(await publish(store)) == ["a2"]
        await bench.audit(store)

    async def test_a_router_may_call_back_before_the_job_is_handed_over(self, bench: JobBench) -> None:
        store, other = await open_store(bench), await open_store(bench)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR)
        taken = await heads(store)
        delivery = await claim(other, store.ticket_of(taken[0]))
        assert await store.hand_over(taken, LIMIT_S) == [Settled.GONE]
        assert await statuses(store, "a1") == ["QUEUED"]
        assert await bench.succeed(other, [delivery]) == [Settled.OK]
        await bench.audit(store)

    async def test_a_failed_attempt_is_published_again_when_it_is_due(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", "a2", mode=BLOCK, pool=FAR)
        ticket = (await publish(store))["a1"]
        assert await bench.fail(store, [await claim(store, ticket)], bench.delay_s) == [Settled.OK]
        assert await statuses(store, "a1", "a2") == ["ERROR", "PENDING"]
        assert await publish(store) == {}
        await bench.pass_time(bench.delay_s + 0.1)
        again = await publish(store)
        assert list(again) == ["a1"]
        assert await store.claim(ticket) is STALE
        delivery = await claim(store, again["a1"])
        assert (delivery.failures, delivery.earlier, delivery.position) == (1, 1, 1)
        await bench.audit(store)

    async def test_a_failed_next_on_error_leaves_its_group_and_the_next_goes_out(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", "a2", mode=NEXT, pool=FAR)
        await bench.fail(store, [await claim(store, (await publish(store))["a1"])], bench.delay_s)
        assert list(await publish(store)) == ["a2"]
        await bench.pass_time(bench.delay_s + 0.1)
        assert list(await publish(store)) == ["a1"]
        await bench.audit(store)

    async def test_what_came_in_front_of_a_job_that_is_out_goes_after_it(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a5", mode=BLOCK, pool=FAR)
        ticket = (await publish(store))["a5"]
        await bench.create(store, "a1", mode=BLOCK, pool=FAR, sequence=1)
        delivery = await claim(store, ticket)
        await bench.audit(store)
        assert await heads(store) == []
        assert await bench.succeed(store, [delivery]) == [Settled.OK]
        assert list(await publish(store)) == ["a1"]
        await bench.audit(store)

    async def test_a_job_that_nobody_calls_back_for_is_published_anew(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", "a2", mode=BLOCK, pool=FAR)
        lost = (await publish(store))["a1"]
        await bench.pass_time(LIMIT_S - 1)
        assert await publish(store) == {}
        await bench.pass_time(2)
        assert await statuses(store, "a1") == ["PENDING"]
        assert await store.claim(lost) is STALE  # its time is over, and it may be published anew any moment
        again = await publish(store)
        assert list(again) == ["a1"]
        assert await store.claim(lost) is STALE
        await claim(store, again["a1"])
        await bench.audit(store)

    async def test_a_publisher_that_dies_before_it_handed_over_leaves_a_stale_pointer(self, bench: JobBench) -> None:
        store, other = await open_store(bench), await open_store(bench)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR)
        (taken,) = await heads(store)
        ticket = store.ticket_of(taken)
        await bench.crash(store)
        again = await publish(other)
        assert list(again) == ["a1"]
        assert await other.claim(ticket) is STALE
        await claim(other, again["a1"])
        await bench.audit(other)

    async def test_what_a_dead_publisher_published_can_be_claimed_until_it_is_found_dead(self, bench: JobBench) -> None:
        store, other = await open_store(bench), await open_store(bench)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR)
        (taken,) = await heads(store)
        delivery = await claim(other, store.ticket_of(taken))
        await bench.crash(store)
        assert await statuses(other, "a1") == ["QUEUED"]
        assert await bench.succeed(other, [delivery]) == [Settled.OK]

    async def test_a_process_that_dies_during_an_attempt_leaves_its_job_to_be_published_anew(
        self, bench: JobBench
    ) -> None:
        store, other = await open_store(bench), await open_store(bench)
        await bench.create(store, "a1", "a2", mode=BLOCK, pool=FAR)
        ticket = (await publish(store))["a1"]
        await claim(store, ticket)
        await bench.crash(store)
        await bench.pass_time(60)  # where such a lease has an end of its own
        assert await other.claim(ticket) is STALE
        assert list(await publish(other)) == ["a1"]
        await bench.audit(other)

    async def test_no_more_are_out_than_the_pool_may_have(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, *(f"a{n}" for n in range(5)), pool=FAR)
        first = await publish(store, 2)
        assert len(first) == 2
        assert await publish(store, 2) == {}
        delivery = await claim(store, next(iter(first.values())))
        assert len(await publish(store, 2)) == 1
        assert await bench.succeed(store, [delivery]) == [Settled.OK]
        await bench.pass_time(LIMIT_S + 1)  # all that are out are lost
        assert len(await publish(store, 2)) == 2
        await bench.audit(store)

    async def test_what_could_not_be_published_is_nacked_and_loses_nothing(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", "a2", mode=BLOCK, pool=FAR)
        taken = await heads(store)
        ticket = store.ticket_of(taken[0])
        assert await store.queue.nack(taken, bench.delay_s) == [Settled.OK]
        assert await statuses(store, "a1") == ["PENDING"]
        assert await store.claim(ticket) is STALE  # though its pointer may have got through
        await bench.pass_time(bench.delay_s + 0.1)
        assert list(await publish(store)) == ["a1"]
        assert await store.attempts_of("a1") == []
        await bench.audit(store)

    # What people do to jobs that are out

    async def test_a_cancelled_job_is_not_claimed_and_its_group_goes_on(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK, pool=FAR)
        ticket = (await publish(store))["a1"]
        await store.act("a3", Cancel(), "ann")  # it does not bring back the one that is out
        assert await publish(store) == {}
        await store.act("a1", Cancel(), "ann")
        assert await store.claim(ticket) is STALE
        assert list(await publish(store)) == ["a2"]
        assert await statuses(store, "a1", "a3") == ["CANCELLED", "CANCELLED"]
        await bench.audit(store)

    @pytest.mark.parametrize("change", [Change(payload=b"new"), Change(mode=NEXT), Change(mode=IMMEDIATE)])
    async def test_an_edited_job_is_published_anew_and_sent_as_it_is_now(self, bench: JobBench, change: Change) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR)
        ticket = (await publish(store))["a1"]
        await store.act("a1", change, "ann")
        assert await store.claim(ticket) is STALE
        again = await publish(store)
        delivery = await claim(store, again["a1"])
        assert delivery.body == (change.payload or b'{"n":1}')
        assert delivery.pointer.dispatch_mode == (change.mode or BLOCK)
        assert await bench.succeed(store, [delivery]) == [Settled.OK]
        await bench.audit(store)

    async def test_a_retry_publishes_a_job_anew_that_is_out(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", "a2", mode=BLOCK, pool=FAR)
        ticket = (await publish(store))["a1"]
        with pytest.raises(JobStateError):
            await store.act("a2", Retry(), "ann")
        await store.act("a1", Retry(), "ann")
        assert await store.claim(ticket) is STALE
        await claim(store, (await publish(store))["a1"])
        await bench.audit(store)

    async def test_a_job_that_was_claimed_is_in_hand(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR)
        await claim(store, (await publish(store))["a1"])
        with pytest.raises(InHandError):
            await store.act("a1", Cancel(), "ann")

    async def test_a_job_of_a_held_group_waits_with_its_ticket(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", "a2", mode=BLOCK, pool=FAR)
        ticket = (await publish(store))["a1"]
        await store.hold("a", "ann")
        assert await store.claim(ticket) is Refused.WAITS
        assert await heads(store) == []
        await store.release("a", "ann")
        assert await heads(store) == []  # it is still out
        await claim(store, ticket)
        await bench.audit(store)

    async def test_a_group_that_was_held_for_long_goes_on_when_it_is_released(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR)
        ticket = (await publish(store))["a1"]
        await store.hold("a", "ann")
        await bench.pass_time(LIMIT_S + 1)
        assert await store.claim(ticket) is STALE
        assert await heads(store) == []
        await store.release("a", "ann")
        assert list(await publish(store)) == ["a1"]

    async def test_a_job_of_a_paused_subscription_waits_with_its_ticket(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR, subscription="shop")
        ticket = (await publish(store))["a1"]
        await store.set_paused("shop", paused=True)
        assert await store.claim(ticket) is Refused.WAITS
        while await store.settle_pauses(10):
            pass
        assert await store.claim(ticket) is Refused.WAITS
        await store.set_paused("shop", paused=False)
        while await store.settle_pauses(10):
            pass
        await claim(store, ticket)
        await bench.audit(store)

    async def test_a_paused_job_is_not_published(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await store.set_paused("shop", paused=True)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR, subscription="shop")
        await bench.create(store, "b1", mode=IMMEDIATE, pool=FAR, subscription="shop")
        assert await heads(store) == []

    async def test_a_job_that_expires_while_it_is_out_is_not_claimed(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR, expires_at=bench.wall() + 10)
        await bench.create(store, "a2", mode=BLOCK, pool=FAR)
        ticket = (await publish(store))["a1"]
        await bench.pass_time(11)
        assert await store.claim(ticket) is STALE
        await store.expire(10)
        assert await statuses(store, "a1") == ["EXPIRED"]
        assert list(await publish(store)) == ["a2"]
        await bench.audit(store)

    async def test_one_that_cannot_be_published_waits_for_a_person(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR)
        taken = await heads(store)
        assert await bench.fail(store, taken, PARKED) == [Settled.OK]
        assert await statuses(store, "a1") == ["ERROR"]
        await store.act("a1", Retry(), "ann")
        assert list(await publish(store)) == ["a1"]

    # Looking

    async def test_jobs_that_are_out_are_listed_as_queued(self, bench: JobBench) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", "a2", mode=BLOCK, pool=FAR)
        await bench.create(store, "b1", mode=IMMEDIATE, pool=FAR)
        await publish(store)
        await bench.create(store, "c1", mode=BLOCK)

        async def listed(status: Status) -> list[str]:
            return sorted(one.job.id for one in (await store.page(Filter(status=status), 10)).items)

        assert await listed(Status.QUEUED) == ["a1", "b1"]
        assert await listed(Status.PENDING) == ["a2", "c1"]
        acted = await store.act_on_all(Filter(status=Status.QUEUED), Cancel(), "ann", 10)
        assert (acted.done, acted.refused) == (2, 0)
        assert list(await publish(store)) == ["a2"]
        await bench.audit(store)

    @pytest.mark.parametrize("wrong", [{"job": "b1"}, {"lane": 999_999}, {"place": 1}, {"epoch": 0}, {"epoch": 2}])
    async def test_a_ticket_that_never_was_is_stale(self, bench: JobBench, wrong: dict[str, Any]) -> None:
        store = await open_store(bench)
        await bench.create(store, "a1", mode=BLOCK, pool=FAR)
        ticket = (await publish(store))["a1"]
        assert await store.claim(ticket._replace(**wrong)) is STALE
        await claim(store, ticket)

    async def test_the_default_pool_may_be_elsewhere(self, bench: JobBench) -> None:
        store = cast(PlatformStore, await bench.store())
        store.set_elsewhere(frozenset({DEFAULT_POOL}))
        await bench.create(store, "a1", mode=BLOCK)
        await bench.create(store, "b1", mode=BLOCK, pool="UNKNOWN")  # which the default pool of a router takes
        assert names(await store.take_heads({DEFAULT_POOL: 5}, 0.0)) == ["a1"]
        assert names(await take(store)) == ["b1"]
