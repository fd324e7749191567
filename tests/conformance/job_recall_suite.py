"""The part of the suite of job stores about recalls: what a router has in hand and did not start is asked back."""

import asyncio

import pytest

from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.dispatch import acting
from flowcatalyst.dispatch.job import Status
from flowcatalyst.dispatch.store.contract import RECALL_LOCK_S, Cancel, Change, Filter, InHandError, JobStore, Retry
from flowcatalyst.queues.recalls import RecallableQueue
from tests.conformance.job_bench import BLOCK, IMMEDIATE, NEXT, PARKED, JobBench, names, take
from tests.support.patience import PATIENCE_S


def queue_of(store: JobStore) -> RecallableQueue:
    assert isinstance(store.queue, RecallableQueue)
    return store.queue


async def answer(store: JobStore, in_hand: list[Delivery], *, in_flight: int = 0) -> list[str]:
    """As a router does that has these: the first so many are in flight. Returns the names of what was recalled."""
    queue = queue_of(store)
    leases = await queue.recalled(PATIENCE_S)
    assert leases
    recalled = [delivery for delivery in in_hand if queue.is_recalled(delivery)]
    waiting = [delivery for delivery in recalled if delivery not in in_hand[:in_flight]]
    assert await store.queue.nack(waiting, 0.0) == [Settled.OK] * len(waiting)
    await queue.returned(leases)
    return names(recalled)


class JobRecallSuite:
    async def test_what_was_recalled_comes_back_in_order_and_without_an_attempt(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        await bench.create(store, "b1", mode=BLOCK)
        held = await take(store)
        recall = await other.recall(["a2"])
        assert not await other.returned(recall, 0.0)
        assert await answer(store, held) == ["a1", "a2", "a3"]
        assert await other.returned(recall, PATIENCE_S)
        assert await take(store) == []  # until whoever asked has acted on it
        await other.end_recall(recall)
        again = await take(other)
        assert [(one.pointer.id, one.failures, one.earlier) for one in again] == [
            ("a1", 0, 0),
            ("a2", 0, 0),
            ("a3", 0, 0),
        ]
        assert await store.attempts_of("a1") == []
        await bench.audit(store)

    async def test_a_recall_that_nobody_ends_ends_by_itself(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        held = await take(store)
        await store.recall(["a1"])
        await answer(store, held)
        assert await take(store) == []
        await bench.pass_time(RECALL_LOCK_S + 0.1)
        assert await bench.finish(store) == ["a1"]

    async def test_what_is_in_flight_keeps_its_place_while_the_others_come_back(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        held = await take(store)
        recall = await other.recall(["a3"])
        await answer(store, held, in_flight=1)
        assert await other.returned(recall, PATIENCE_S)
        with pytest.raises(InHandError):
            await other.act("a1", Cancel(), "ann")
        await other.act("a2", Cancel(), "ann")
        await other.end_recall(recall)
        assert await take(other) == []  # a1 is before it
        assert await bench.succeed(store, held[:1]) == [Settled.OK]
        assert await bench.finish(other) == ["a3"]
        assert [(await store.find(name)).status.value for name in ("a1", "a2", "a3")] == [
            "COMPLETED",
            "CANCELLED",
            "COMPLETED",
        ]
        await bench.audit(store)

    @pytest.mark.parametrize("action", [Cancel(), Change(payload=b"new"), Change(mode=NEXT), Change(mode=IMMEDIATE)])
    async def test_people_act_on_what_a_router_has_in_hand(self, bench: JobBench, action: Cancel | Change) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        held = await take(store)
        acted = asyncio.create_task(acting.act(other, "a2", action, "ann"))
        await answer(store, held, in_flight=1)
        state = await acted
        assert await bench.succeed(store, held[:1]) == [Settled.OK]
        if isinstance(action, Cancel):
            assert state.status is Status.CANCELLED
            assert await bench.finish(other) == ["a3"]
        else:
            assert (state.status, state.job.payload) == (Status.PENDING, action.payload or b'{"n":1}')
            again = {one.pointer.id: one for one in await take(other)}
            assert sorted(again) == ["a2", "a3"]
            assert again["a2"].body == state.job.payload
            assert again["a2"].pointer.dispatch_mode is (action.mode or BLOCK)
        assert len(await store.history_of("a2")) == 1
        await bench.audit(store)

    async def test_what_is_in_flight_is_refused_in_one_sentence(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        held = await take(store)
        acted = asyncio.create_task(acting.act(other, "a1", Cancel(), "ann"))
        await answer(store, held, in_flight=1)
        with pytest.raises(Exception, match="job a1 is being delivered right now"):
            await acted
        assert await bench.succeed(store, held) == [Settled.OK]

    async def test_who_does_not_answer_is_named(self, bench: JobBench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(acting, "RECALL_S", 0.05)
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        held = await take(store)
        with pytest.raises(Exception, match="did not answer within"):
            await acting.act(other, "a1", Cancel(), "ann")
        with pytest.raises(Exception, match="group a is held, but a router"):
            await acting.hold(other, "a", "ann")
        assert (await store.group("a")).held_by == "ann"
        await store.queue.nack(held, 0)
        await bench.pass_time(RECALL_LOCK_S + 0.1)
        assert await take(store) == []

    async def test_a_hold_returns_when_nothing_of_the_group_can_start_any_more(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", mode=NEXT)
        await bench.fail_first(store, "a1", 0.0)  # it left its group
        await bench.create(store, "a2", "a3", mode=NEXT)
        await bench.create(store, "b1", mode=NEXT)
        held = await take(store)
        holding = asyncio.create_task(acting.hold(other, "a", "ann"))
        assert sorted(await answer(store, held)) == ["a1", "a2", "a3"]
        group = await holding
        assert (group.held_by, group.jobs) == ("ann", 2)
        assert await take(store) == []
        await store.release("a", "ann")
        assert sorted(await bench.finish(store)) == ["a1", "a2", "a3"]

    async def test_all_of_a_filter_are_reached_also_in_hand(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        await bench.create(store, "b1", "b2")
        held = sorted(await take(store), key=lambda one: one.pointer.id)
        which = Filter(status=Status.QUEUED)
        acting_on_all = asyncio.create_task(acting.act_on_all(other, which, Cancel(), "ann", 100, None))
        assert await answer(store, held, in_flight=1) == ["a1", "a2", "a3", "b1", "b2"]
        acted = await acting_on_all
        assert (acted.done, acted.refused, acted.cursor) == (4, 1, None)
        assert await bench.succeed(store, held[:1]) == [Settled.OK]
        assert await take(other) == []
        assert (await store.figures()).waiting == 0

    async def test_of_two_who_recall_the_same_none_lets_it_go_before_the_other_has_acted(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        held = await take(store)
        first, second = await store.recall(["a1"]), await store.recall(["a2"])
        await answer(store, held)
        await store.end_recall(first)
        assert await take(store) == []
        await store.end_recall(second)
        assert await bench.finish(store) == ["a1", "a2"]

    async def test_who_ends_a_recall_that_was_not_answered_answers_no_other_one(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        held = await take(store)
        first, second = await other.recall(["a1"]), await other.recall(["a2"])
        await other.end_recall(second)
        assert not await other.returned(first, 0.0)
        assert await answer(store, held) == ["a1", "a2"]
        assert await other.returned(first, PATIENCE_S)

    async def test_what_a_dead_router_had_is_there_for_who_recalls_it(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        await take(store)
        recall = await other.recall(["a2"])
        await bench.crash(store)
        assert await other.returned(recall, PATIENCE_S)
        await acting.act(other, "a2", Cancel(), "ann")
        await other.end_recall(recall)
        assert await bench.finish(other) == ["a1"]

    async def test_an_answer_about_an_older_lease_is_none(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        await take(store)
        await other.recall(["a1"])
        leases = await queue_of(store).recalled(PATIENCE_S)
        await bench.lose(store)
        await bench.pass_time(RECALL_LOCK_S + 0.1)
        held = await take(other)
        assert names(held) == ["a1"]
        recall = await other.recall(["a1"])
        await queue_of(store).returned(leases)
        assert not await other.returned(recall, 0.0)
        assert not queue_of(store).is_recalled(held[0])
        await answer(other, held)
        assert await other.returned(recall, PATIENCE_S)

    async def test_nothing_is_recalled_that_nobody_has(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        await bench.create(store, "b1", scheduled_for=bench.wall() + 1000)
        recall = await store.recall(["a1", "b1", "nobody"], group="a")
        assert recall.lanes == ()
        assert await store.returned(recall, 0.0)
        await store.end_recall(recall)
        assert await queue_of(store).recalled(0.0) == []
        assert await bench.finish(store) == ["a1"]

    async def test_a_job_that_was_told_to_wait_need_not_wait(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        (held,) = await take(store, 1)
        held.attempt = bench.attempt(counts=False)
        await store.queue.nack([held], 1000)
        assert (await store.find("a1")).status is Status.PENDING
        state = await store.act("a1", Retry(), "ann")
        assert (state.status, state.next_attempt_at, state.attempts) == (Status.PENDING, None, 1)
        assert await bench.finish(store) == ["a1", "a2"]

    async def test_a_parked_job_of_a_lane_in_hand_is_not_in_the_way(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", "a2", mode=NEXT)
        first, second = await take(store)
        await bench.fail(store, [first], PARKED)
        acted = asyncio.create_task(acting.act(other, "a2", Cancel(), "ann"))
        await answer(store, [second])
        assert (await acted).status is Status.CANCELLED
        await other.act("a1", Retry(), "ann")
        assert await bench.finish(other) == ["a1"]

    async def test_a_bulk_act_finds_jobs_whether_or_not_a_router_has_them_in_hand(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        await bench.create(store, "b1", mode=BLOCK)
        unfinished = Filter(status=Status.PENDING, as_stored=True)
        assert await store.count(unfinished, 10) == 3
        held = [one for one in await take(store) if one.pointer.id in ("a1", "a2")]
        assert await store.count(unfinished, 10) == 3
        acted = await store.act_on_all(unfinished, Change(target="http://127.0.0.1:9/new"), "ann", 10)
        assert (acted.done, acted.refused, sorted(acted.in_hand)) == (0, 3, ["a1", "a2", "b1"])
        assert await store.queue.nack(held, 0.0) == [Settled.OK, Settled.OK]
        acted = await store.act_on_all(unfinished, Change(target="http://127.0.0.1:9/new"), "ann", 10)
        assert (acted.done, acted.in_hand) == (2, ("b1",))
