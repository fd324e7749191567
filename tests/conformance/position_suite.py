"""The part of the suite of platform stores about positions in groups, as docs/receivers.md promises them, and about
jobs that go behind all that their groups have waiting."""

from typing import Any

import pytest

from flowcatalyst.core import webhook
from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.dispatch.job import MAX_SEQUENCE
from flowcatalyst.dispatch.stamp import GROUP_PREV, GROUP_SEQ
from flowcatalyst.dispatch.store.contract import Cancel, Change, Filter, JobStore, Retry
from flowcatalyst.dispatch.store.platform_contract import EntryKind, UnknownEntryError
from tests.conformance.job_bench import BLOCK, IMMEDIATE, NEXT, PARKED, JobBench, names, take


def said(delivery: Delivery) -> str:
    """What a request would say now, as position/last delivered."""
    headers = headers_of(delivery)
    return f"{headers[GROUP_SEQ]}/{headers[GROUP_PREV]}"


def headers_of(delivery: Delivery) -> dict[str, str]:
    assert delivery.stamp is not None
    lines = delivery.stamp.lines(delivery, b"body", 1_700_000_000.0).split("\r\n")
    assert lines.pop() == ""
    return dict(line.split(": ", 1) for line in lines)


async def deliver(bench: JobBench, store: JobStore, *deliveries: Delivery) -> list[str]:
    """One after the other, as a router does; what the requests said. They are settled together, in that order."""
    requests = []
    for delivery in deliveries:
        requests.append(said(delivery))
        assert delivery.stamp is not None
        delivery.stamp.delivered(delivery)
    assert await bench.succeed(store, deliveries) == [Settled.OK] * len(deliveries)
    return requests


async def deliver_next(bench: JobBench, store: JobStore, count: int = 1) -> list[str]:
    """Take and deliver jobs one by one; each as name and what its request said."""
    requests = []
    for _ in range(count):
        (delivery,) = await take(store, 1)
        requests += [f"{delivery.pointer.id} {line}" for line in await deliver(bench, store, delivery)]
    return requests


async def fail_next(bench: JobBench, store: JobStore, delay_s: float) -> str:
    (delivery,) = await take(store, 1)
    request = f"{delivery.pointer.id} {said(delivery)}"
    assert await bench.fail(store, [delivery], delay_s) == [Settled.OK]
    return request


class PositionSuite:
    async def test_jobs_of_a_group_have_positions_in_the_order_of_their_delivery(self, bench: JobBench) -> None:
        store = await bench.platform()
        await bench.create(store, "a3", mode=BLOCK)
        await bench.create(store, "a1", "a2", mode=NEXT, sequence=1)
        await bench.create(store, "b1", mode=BLOCK)
        held = sorted(await take(store), key=lambda one: one.pointer.id)
        assert [(one.pointer.id, one.position) for one in held] == [("a1", 1), ("a2", 2), ("a3", 3), ("b1", 1)]
        assert await deliver(bench, store, *held) == ["1/0", "2/1", "3/2", "1/0"]
        await bench.create(store, "a4", mode=BLOCK)
        assert await deliver_next(bench, store) == ["a4 4/3"]

    async def test_positions_go_on_from_process_to_process(self, bench: JobBench) -> None:
        stores = [await bench.platform() for _ in range(3)]
        await bench.create(stores[0], *(f"a{n}" for n in range(1, 7)), mode=BLOCK)
        requests = []
        for store in (*stores, *stores):
            requests += await deliver_next(bench, store)
        assert requests == ["a1 1/0", "a2 2/1", "a3 3/2", "a4 4/3", "a5 5/4", "a6 6/5"]
        await bench.shut(stores[0])
        await bench.create(stores[1], "a7", mode=BLOCK)
        assert await deliver_next(bench, await bench.platform()) == ["a7 7/6"]

    async def test_a_retry_has_the_position_of_the_first_attempt(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        requests = [*await deliver_next(bench, store), await fail_next(bench, store, bench.delay_s)]
        assert [(await store.find(name)).position for name in ("a2", "a3")] == [2, None]
        await bench.pass_time(bench.delay_s)
        requests += [await fail_next(bench, other, PARKED)]
        await store.act("a2", Retry(), "ann")
        requests += await deliver_next(bench, other, 2)
        assert requests == ["a1 1/0", "a2 2/1", "a2 2/1", "a2 2/1", "a3 3/2"]

    async def test_a_job_that_is_told_to_wait_has_made_its_attempt(self, bench: JobBench) -> None:
        store = await bench.platform()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        (held,) = await take(store, 1)
        held.attempt = bench.attempt(counts=False)
        await store.queue.nack([held], bench.delay_s)
        assert (await store.find("a1")).position == 1
        await bench.pass_time(bench.delay_s)
        assert await deliver_next(bench, store, 2) == ["a1 1/0", "a2 2/1"]

    async def test_a_job_that_was_begun_and_skipped_leaves_a_hole_and_no_gap(self, bench: JobBench) -> None:
        store = await bench.platform()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        requests = [*await deliver_next(bench, store), await fail_next(bench, store, PARKED)]
        await store.act("a2", Cancel(), "ann")
        assert requests + await deliver_next(bench, store) == ["a1 1/0", "a2 2/1", "a3 3/1"]

    async def test_a_job_that_was_never_begun_has_no_position(self, bench: JobBench) -> None:
        store = await bench.platform()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        requests = await deliver_next(bench, store)
        await store.act("a2", Cancel(), "ann")
        assert (await store.find("a2")).position is None
        assert requests + await deliver_next(bench, store) == ["a1 1/0", "a3 2/1"]

    async def test_a_job_that_is_delivered_late_keeps_its_position_and_tells_what_came_before(
        self, bench: JobBench
    ) -> None:
        store = await bench.platform()
        await bench.create(store, "a1", "a2", "a3", "a4", mode=NEXT)
        requests = [*await deliver_next(bench, store), await fail_next(bench, store, bench.delay_s)]
        requests += await deliver_next(bench, store, 2)
        await bench.pass_time(bench.delay_s)
        requests += await deliver_next(bench, store)
        await bench.create(store, "a5", mode=NEXT)
        requests += await deliver_next(bench, store)
        assert requests == ["a1 1/0", "a2 2/1", "a3 3/1", "a4 4/3", "a2 2/4", "a5 5/2"]

    async def test_positions_of_what_was_not_begun_are_not_used_again(self, bench: JobBench) -> None:
        store = await bench.platform()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        first, *others = await take(store)
        assert await deliver(bench, store, first) == ["1/0"]
        await store.queue.nack(others, 0.0)
        assert (await store.find("a2")).position is None
        second, third = await take(store)
        assert second.position > others[1].position  # both were given before
        assert await deliver(bench, store, second, third) == [
            f"{second.position}/1",
            f"{second.position + 1}/{second.position}",
        ]

    async def test_a_retry_keeps_its_position_and_those_behind_it_get_later_ones(self, bench: JobBench) -> None:
        store = await bench.platform()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        first, second = await take(store)
        given = second.position
        await store.queue.nack([second], 0.0)
        await bench.fail(store, [first], 0.0)
        again, behind = await take(store)
        assert (again.position, behind.position > given) == (1, True)
        assert await deliver(bench, store, again, behind) == ["1/0", f"{behind.position}/1"]

    async def test_who_lost_a_job_changes_nothing_about_positions(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        (lost,) = await take(store, 1)
        assert lost.position == 1
        await bench.lose(store)
        (found,) = await take(other, 1)
        assert found.position == 2  # whether the first of them was used nobody can tell
        assert await bench.succeed(store, [lost]) == [Settled.GONE]
        await bench.fail(store, [lost], 0.0)
        assert await deliver(bench, other, found) == ["2/0"]
        await bench.succeed(store, [lost])
        assert await deliver_next(bench, other) == ["a2 3/2"]

    async def test_what_a_dead_router_had_gets_new_positions(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        held = await take(store)
        assert await deliver(bench, store, held[0]) == ["1/0"]
        await bench.crash(store)
        second, third = await take(other)
        assert second.position > held[2].position
        assert await deliver(bench, other, second, third) == [
            f"{second.position}/1",
            f"{third.position}/{second.position}",
        ]

    async def test_the_last_one_settled_is_the_one_delivered_last(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        await bench.create(store, "a1", "a2", mode=NEXT)
        assert await fail_next(bench, store, bench.delay_s) == "a1 1/0"
        (second,) = await take(store, 1)
        await bench.pass_time(bench.delay_s)
        (late,) = await take(other, 1)
        assert (said(second), said(late)) == ("2/0", "1/0")
        assert await deliver(bench, store, second) == ["2/0"]
        assert await deliver(bench, other, late) == ["1/0"]
        await bench.create(store, "a3", mode=NEXT)
        assert await deliver_next(bench, store) == ["a3 3/1"]

    async def test_what_is_ordered_with_nothing_has_no_position(self, bench: JobBench) -> None:
        store = await bench.platform()
        await bench.create(store, "a1", mode=BLOCK)
        await bench.create(store, "a2", mode=IMMEDIATE)
        await store.create([bench.job("x")])
        held = {one.pointer.id: one for one in await take(store)}
        assert {name: one.position for name, one in held.items()} == {"a1": 1, "a2": 0, "x": 0}
        assert (held["a2"].stamp, held["x"].stamp) == (None, None)
        await bench.fail(store, [held["a2"]], PARKED)
        assert (await store.find("a2")).position is None

    async def test_a_position_follows_the_mode_of_its_job(self, bench: JobBench) -> None:
        store = await bench.platform()
        await bench.create(store, "a1", mode=BLOCK)
        assert await fail_next(bench, store, PARKED) == "a1 1/0"
        await store.act("a1", Change(mode=IMMEDIATE), "ann")
        await store.act("a1", Retry(), "ann")
        (alone,) = await take(store)
        assert (alone.position, alone.stamp) == (0, None)
        await bench.fail(store, [alone], PARKED)
        await bench.create(store, "a2", mode=BLOCK)
        assert await deliver_next(bench, store) == ["a2 2/0"]
        await store.act("a1", Change(mode=BLOCK), "ann")
        await store.act("a1", Retry(), "ann")
        assert await deliver_next(bench, store) == ["a1 1/2"]

    async def test_a_job_of_a_subscription_is_signed_with_its_secrets(self, bench: JobBench) -> None:
        store = await bench.platform()
        asked: list[str] = []
        queue: Any = store.queue

        def secrets_of(subscription: str, wall: float) -> list[str]:
            asked.append(subscription)
            return ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]

        queue.secrets_of = secrets_of
        await store.create([bench.job("x", subscription="s"), bench.job("a1", "a", BLOCK, subscription="t")])
        await bench.create(store, "b1", mode=BLOCK)
        held = {one.pointer.id: one for one in await take(store)}
        assert sorted(name.lower() for name in headers_of(held["x"])) == sorted(
            [webhook.ID, webhook.TIMESTAMP, webhook.SIGNATURE]
        )
        ordered = headers_of(held["a1"])
        assert (ordered[GROUP_SEQ], ordered[GROUP_PREV], webhook.SIGNATURE in ordered) == ("1", "0", True)
        assert sorted(headers_of(held["b1"])) == sorted([GROUP_SEQ, GROUP_PREV])
        assert asked == ["s", "t"]

    async def test_positions_of_groups_in_which_nothing_happens_are_forgotten(self, bench: JobBench) -> None:
        store = await bench.platform()
        await bench.create(store, "a1", "b1", "b2", "c1", mode=BLOCK)
        held = await take(store)
        await deliver(bench, store, *[one for one in held if one.pointer.id != "b2"])
        await store.queue.nack([one for one in held if one.pointer.id == "b2"], PARKED)
        await bench.pass_time(bench.delay_s)
        before = bench.wall()
        await bench.pass_time(bench.delay_s)
        await bench.create(store, "c2", mode=BLOCK)
        assert await deliver_next(bench, store) == ["c2 2/1"]
        while await store.drop_finished(before, 2):
            pass
        await store.drop_finished(before, 2)
        await store.act("b2", Retry(), "ann")
        await bench.create(store, "a2", "c3", mode=BLOCK)
        again = {one.pointer.id: one for one in await take(store)}
        assert (said(again["a2"]), said(again["c3"])) == ("1/0", "3/2")
        assert again["b2"].position > 2
        assert said(again["b2"]).endswith("/1")

    # Behind

    async def test_a_job_may_stand_behind_all_that_its_group_has_waiting(self, bench: JobBench) -> None:
        store = await bench.platform()
        await bench.create(store, "a1", "b1", mode=BLOCK)
        await bench.create(store, "a2", mode=BLOCK, sequence=200)
        asked = [
            bench.job("a3", "a", BLOCK, sequence=5),
            bench.job("a4", "a", NEXT, sequence=1),
            bench.job("b2", "b", BLOCK, sequence=150),
            bench.job("c1", "c", BLOCK, sequence=5),
            bench.job("a9", "a", IMMEDIATE, sequence=5),
        ]
        created = await store.create(asked, behind=True)
        assert [one.state.job.sequence for one in created] == [200, 200, 150, 5, 5]
        assert [(await store.find(job.id)).job.sequence for job in asked] == [200, 200, 150, 5, 5]
        place = await store.place_of("a3")
        assert place is not None
        assert place.ahead == 2
        await bench.create(store, "a5", mode=BLOCK, sequence=200)
        seen = await bench.finish(store)
        assert [name for name in seen if name[0] == "a" and name != "a9"] == ["a1", "a2", "a3", "a4", "a5"]
        assert [name for name in seen if name[0] == "b"] == ["b1", "b2"]

    async def test_no_past_event_becomes_a_job_of_a_subscription_that_was_removed(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        await store.add(EntryKind.SUBSCRIPTION, "s", "{}")
        await store.create([bench.job("a1", "a", BLOCK, subscription="s")], behind=True)
        await other.remove(EntryKind.SUBSCRIPTION, "s")
        with pytest.raises(UnknownEntryError, match="the subscription s was removed"):
            await store.create(
                [bench.job("a2", "a", BLOCK), bench.job("a3", "a", BLOCK, subscription="s")], behind=True
            )
        assert [one.job.id for one in (await store.page(Filter(), 10)).items] == ["a1"]

    async def test_a_job_stands_behind_what_a_router_has_in_hand(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        await bench.create(store, "a1", "a2", mode=BLOCK, sequence=MAX_SEQUENCE)
        held = await take(store)
        (created,) = await other.create([bench.job("a3", "a", BLOCK)], behind=True)
        assert created.state.job.sequence == MAX_SEQUENCE
        await store.queue.nack(held, 0.0)
        assert await bench.finish(other) == ["a1", "a2", "a3"]

    async def test_a_job_whose_time_comes_later_has_its_place_from_the_beginning(self, bench: JobBench) -> None:
        store = await bench.platform()
        await bench.create(store, "a2", mode=BLOCK, sequence=200)
        later = bench.job("a3", "a", BLOCK, sequence=5, scheduled_for=bench.wall() + bench.delay_s)
        await store.create([later], behind=True)
        assert (await store.find("a3")).job.sequence == 200
        await bench.pass_time(bench.delay_s)
        await bench.create(store, "a1", mode=BLOCK, sequence=100)
        assert await bench.finish(store) == ["a1", "a2", "a3"]

    async def test_a_repeat_by_its_key_is_not_moved(self, bench: JobBench) -> None:
        store = await bench.platform()
        await store.create([bench.job("a1", "a", BLOCK, sequence=5, idempotency_key="k")])
        await bench.create(store, "a2", mode=BLOCK)
        (created,) = await store.create([bench.job("a3", "a", BLOCK, idempotency_key="k")], behind=True)
        assert (created.repeated, created.state.job.id, created.state.job.sequence) == (True, "a1", 5)
        assert names(await take(store)) == ["a1", "a2"]
