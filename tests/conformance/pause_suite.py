"""The part of the suite of platform stores about pauses: the jobs of a paused subscription wait, in order, whatever
happens to them meanwhile. What a group may be called is nobody's business here: some jobs of no subscription share one
with those of a subscription."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Delivery, DispatchMode, Settled
from flowcatalyst.dispatch.job import Status
from flowcatalyst.dispatch.pausing import Cancelled, cancel_all
from flowcatalyst.dispatch.store.contract import (
    RECALL_LOCK_S,
    Acted,
    Action,
    Cancel,
    Change,
    Filter,
    JobStateError,
    JobStore,
    Retry,
)
from flowcatalyst.dispatch.store.platform_contract import CodeTakenError, EntryKind, PlatformStore
from tests.conformance.job_bench import BLOCK, IMMEDIATE, NEXT, PARKED, JobBench, names, take
from tests.conformance.job_recall_suite import answer, queue_of


async def settle(store: PlatformStore, limit: int = 100) -> None:
    while settled := await store.settle_pauses(limit):
        assert settled <= limit


async def pause(store: PlatformStore, subscription: str = "s") -> None:
    await store.set_paused(subscription, paused=True)
    await settle(store)


async def resume(store: PlatformStore, subscription: str = "s") -> None:
    await store.set_paused(subscription, paused=False)
    await settle(store)


async def create(
    bench: JobBench,
    store: JobStore,
    *names: str,
    mode: DispatchMode = BLOCK,
    subscription: str | None = "s",
    **more: Any,
) -> None:
    await bench.create(store, *names, mode=mode, subscription=subscription, **more)


class PauseSuite:
    async def test_a_pause_does_not_end_because_a_queue_is_told_to_hurry(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1", "a2")
        await pause(store)
        assert not await store.queue.hurry(Delivery("", None, "", "a"))
        assert await take(store) == []

    @pytest.mark.parametrize("mode", [IMMEDIATE, NEXT, BLOCK])
    async def test_jobs_of_a_paused_subscription_wait_and_go_on_in_order(
        self, bench: JobBench, mode: DispatchMode
    ) -> None:
        store, other = await bench.platform(), await bench.platform()
        await create(bench, store, "a1", "a2", "a3", mode=mode)
        await create(bench, store, "b1", mode=mode, subscription="t")
        await create(bench, store, "c1", mode=mode, subscription=None)
        await pause(store)
        assert sorted(await bench.finish(other)) == ["b1", "c1"]
        assert (await store.find("a1")).status is Status.PENDING
        await resume(other)
        assert await bench.finish(store) == ["a1", "a2", "a3"]
        assert await store.settle_pauses(10) == 0
        await bench.audit(store)

    @pytest.mark.parametrize("mode", [IMMEDIATE, NEXT, BLOCK])
    async def test_a_job_that_comes_while_its_subscription_is_paused_waits(
        self, bench: JobBench, mode: DispatchMode
    ) -> None:
        store, other = await bench.platform(), await bench.platform()
        await store.add(EntryKind.SUBSCRIPTION, "s", "{}")
        await store.set_paused("s", paused=True)
        await create(bench, other, "a1", mode=mode)
        await other.accept([(bench.event("e"), [bench.job("a2", "a", mode, subscription="s")])])
        assert await take(store) == []
        await settle(store)
        await create(bench, other, "a3", mode=mode)
        assert await take(other) == []
        await resume(store)
        assert await bench.finish(other) == ["a1", "a2", "a3"]
        await create(bench, store, "a4", mode=mode)
        assert await bench.finish(other) == ["a4"]

    @pytest.mark.parametrize("mode", [IMMEDIATE, NEXT, BLOCK])
    async def test_a_job_whose_time_comes_during_a_pause_waits(self, bench: JobBench, mode: DispatchMode) -> None:
        store = await bench.platform()
        await create(bench, store, "a1", mode=mode, scheduled_for=bench.wall() + bench.delay_s)
        await pause(store)
        await bench.pass_time(bench.delay_s)
        assert await take(store) == []
        await resume(store)
        assert await bench.finish(store) == ["a1"]

    @pytest.mark.parametrize("mode", [NEXT, BLOCK])
    async def test_a_retry_whose_time_comes_during_a_pause_waits(self, bench: JobBench, mode: DispatchMode) -> None:
        store = await bench.platform()
        await create(bench, store, "a1", "a2", mode=mode)
        await bench.fail_first(store, "a1", bench.delay_s)
        await pause(store)
        await bench.pass_time(bench.delay_s)
        assert await take(store) == []
        await resume(store)
        assert sorted(await bench.finish(store)) == ["a1", "a2"]

    async def test_a_resume_does_not_shorten_the_wait_before_a_retry(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1", "a2")
        await bench.fail_first(store, "a1", bench.delay_s)
        await create(bench, store, "b1", mode=NEXT)
        await bench.fail_first(store, "b1", bench.delay_s)
        await pause(store)
        await resume(store)
        assert await take(store) == []
        await bench.pass_time(bench.delay_s)
        assert sorted(await bench.finish(store)) == ["a1", "a2", "b1"]

    @pytest.mark.parametrize("delay_s", [0.0, 10.0])
    @pytest.mark.parametrize("mode", [IMMEDIATE, NEXT, BLOCK])
    async def test_what_fails_during_a_pause_waits_for_its_end(
        self, bench: JobBench, mode: DispatchMode, delay_s: float
    ) -> None:
        store = await bench.platform()
        await create(bench, store, "a1", "a2", mode=mode)
        held = await take(store, 1)
        await pause(store)
        await bench.fail(store, held, delay_s)
        await bench.pass_time(delay_s)
        assert await take(store) == []
        await resume(store)
        assert sorted(await bench.finish(store)) == ["a1", "a2"]
        await bench.audit(store)

    async def test_what_comes_back_or_is_delivered_during_a_pause_frees_nothing(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1", "a2", "a3")
        await create(bench, store, "b1", mode=IMMEDIATE)
        held = {one.pointer.id: one for one in await take(store)}
        await pause(store)
        assert await store.queue.nack([held[name] for name in ("a3", "a2", "b1")], 0.0) == [Settled.OK] * 3
        assert await bench.succeed(store, [held["a1"]]) == [Settled.OK]
        assert await take(store) == []
        assert (await store.find("a1")).status is Status.COMPLETED
        await resume(store)
        assert sorted(await bench.finish(store)) == ["a2", "a3", "b1"]

    @pytest.mark.parametrize("dies", [False, True], ids=["loses its lease", "dies"])
    async def test_what_a_router_had_that_is_gone_waits_too(self, bench: JobBench, dies: bool) -> None:
        store, other = await bench.platform(), await bench.platform()
        await create(bench, store, "a1", "a2")
        await create(bench, store, "b1", mode=IMMEDIATE)
        assert len(await take(store)) == 3
        await pause(other)
        await (bench.crash(store) if dies else bench.lose(store))
        assert await take(other) == []
        await resume(other)
        assert sorted(await bench.finish(other)) == ["a1", "a2", "b1"]

    async def test_what_a_router_has_in_hand_of_a_subscription_is_recalled(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        await create(bench, store, "a1", "a2")
        await create(bench, store, "b1", mode=IMMEDIATE)
        await create(bench, store, "c1", subscription="t")
        held = await take(store)
        await pause(other)
        recall = await other.recall(subscription="s")
        assert sorted(await answer(store, held)) == ["a1", "a2", "b1"]
        assert await other.returned(recall, 0.0)
        await other.end_recall(recall)
        assert await take(other) == []
        await bench.pass_time(RECALL_LOCK_S + 0.1)
        assert await take(other) == []
        await resume(other)
        assert sorted(await bench.finish(other)) == ["a1", "a2", "b1"]
        assert await queue_of(store).recalled(0.0) == []

    async def test_a_pause_during_a_recall_outlasts_it(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1")
        held = await take(store)
        recall = await store.recall(["a1"])
        await answer(store, held)
        await pause(store)
        await store.end_recall(recall)
        assert await take(store) == []
        again = await store.recall(["a1"])
        await resume(store)
        await store.end_recall(again)
        assert await bench.finish(store) == ["a1"]

    async def test_nothing_is_recalled_of_a_subscription_that_nobody_has(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1")
        assert (await store.recall(subscription="s")).lanes == ()
        assert (await store.recall(subscription="nobody")).lanes == ()

    # Groups

    async def test_a_paused_job_stops_what_is_behind_it(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1")
        await create(bench, store, "a2", subscription=None)
        await pause(store)
        assert await take(store) == []
        await store.act("a1", Cancel(), "ann")
        assert await bench.finish(store) == ["a2"]
        await bench.audit(store)

    async def test_a_group_stops_before_a_paused_job_when_what_was_before_it_ends(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1", "b1", subscription=None)
        for name in ("a1", "b1"):
            await bench.fail_first(store, name, PARKED)
        await create(bench, store, "a2", "b2")
        await pause(store)
        await store.act("a1", Cancel(), "ann")
        await store.act("b1", Change(mode=NEXT), "ann")
        assert await take(store) == []
        await resume(store)
        assert sorted(await bench.finish(store)) == ["a2", "b2"]

    async def test_a_job_that_goes_before_a_paused_one_is_delivered(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a2")
        await pause(store)
        await create(bench, store, "a1", subscription=None, sequence=1)
        held = await take(store, 1)
        assert names(held) == ["a1"]
        await bench.succeed(store, held)
        assert await take(store) == []

    async def test_a_group_that_is_held_and_paused_needs_both_to_end(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1", "b1")
        for group in "ab":
            await store.hold(group, "ann")
        await pause(store)
        await store.release("a", "ann")
        assert await take(store) == []
        await resume(store)
        assert await bench.finish(store) == ["a1"]
        await store.release("b", "ann")
        assert await bench.finish(store) == ["b1"]

    @pytest.mark.parametrize("action", [Retry(), Change(mode=IMMEDIATE), Change(mode=NEXT), Change(payload=b"new")])
    @pytest.mark.parametrize("mode", [NEXT, BLOCK])
    async def test_what_is_done_to_a_paused_job_does_not_start_it(
        self, bench: JobBench, mode: DispatchMode, action: Action
    ) -> None:
        store = await bench.platform()
        await create(bench, store, "a1", mode=mode)
        await bench.fail_first(store, "a1", 0.0)
        await pause(store)
        await store.act("a1", action, "ann")
        await create(bench, store, "a2", mode=mode)
        assert await take(store) == []
        await store.act("a2", Change(mode=IMMEDIATE if mode is BLOCK else BLOCK), "ann")
        assert await take(store) == []
        await resume(store)
        assert sorted(await bench.finish(store)) == ["a1", "a2"]
        await bench.audit(store)

    async def test_paused_jobs_can_be_cancelled_and_expire(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1", "a2", "b1")
        await create(bench, store, "c1", mode=IMMEDIATE)
        await create(bench, store, "d1", expires_at=bench.wall() + bench.delay_s)
        await create(bench, store, "d2", subscription="t")
        await pause(store)
        await bench.pass_time(bench.delay_s)
        assert await store.expire(10) == 1
        assert await bench.finish(store) == ["d2"]
        acted = await store.act_on_all(Filter(subscription="s", status=Status.PENDING), Cancel(), "ann", 10)
        assert (acted.done, acted.refused) == (4, 0)
        await resume(store)
        assert await take(store) == []
        await bench.audit(store)

    # Parts, processes and second thoughts

    async def test_another_process_goes_on_with_a_pause_that_stopped_half_way(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        expected = [f"{group}{n}" for group in "abcde" for n in range(2)]
        await create(bench, store, *expected)
        await create(bench, store, "f0", "f1", mode=IMMEDIATE)
        await store.set_paused("s", paused=True)
        assert 0 < await store.settle_pauses(2) <= 2
        await bench.crash(store)
        await settle(other, 2)
        assert await take(other) == []
        await other.set_paused("s", paused=False)
        assert 0 < await other.settle_pauses(3) <= 3
        third = await bench.platform()
        await settle(third, 2)
        seen = await bench.finish(third)
        assert sorted(seen) == [*expected, "f0", "f1"]
        assert [name for name in seen if name[0] == "c"] == ["c0", "c1"]
        await bench.audit(other)

    async def test_a_pause_outlives_its_process(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1")
        await pause(store)
        await bench.shut(store)
        again = await bench.platform()
        await create(bench, again, "a2", "b1")
        assert await again.settle_pauses(10) == 0
        assert await take(again) == []
        await resume(again)
        assert sorted(await bench.finish(again)) == ["a1", "a2", "b1"]

    async def test_the_last_word_counts(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        await create(bench, store, "a1", "b1", "c1")
        await store.set_paused("s", paused=True)
        await store.settle_pauses(2)
        await other.set_paused("s", paused=False)
        await other.settle_pauses(1)
        await store.set_paused("s", paused=True)
        await store.set_paused("s", paused=True)
        await settle(other, 1)
        assert await take(store) == []
        await other.set_paused("s", paused=False)
        await other.set_paused("s", paused=False)
        await settle(store, 1)
        assert sorted(await bench.finish(store)) == ["a1", "b1", "c1"]

    async def test_what_is_retried_while_all_of_a_subscription_is_cancelled_is_cancelled_too(
        self, bench: JobBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = await bench.platform()
        await create(bench, store, "a1")
        await bench.fail_first(store, "a1", bench.delay_s)
        act_on_all = store.act_on_all

        async def while_somebody_retries(which: Filter, *args: Any) -> Acted:
            acted = await act_on_all(which, *args)
            if which.status is Status.PENDING:
                with suppress(JobStateError):
                    await store.act("a1", Retry(), "somebody")
            return acted

        monkeypatch.setattr(store, "act_on_all", while_somebody_retries)
        assert await cancel_all(store, "s", "me") == Cancelled(done=1, in_flight=0)
        assert (await store.find("a1")).status is Status.CANCELLED

    async def test_what_the_catalog_says_of_a_pause_and_what_the_store_does_are_one_unit_of_work(
        self, bench: JobBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, other = await bench.platform(), await bench.platform()
        entry = await store.add(EntryKind.SUBSCRIPTION, "s", "{}")
        await create(bench, store, "a1")

        async def dies(*args: Any, **options: Any) -> None:
            raise QueueUnavailableError("its process died")

        monkeypatch.setattr(store, "set_paused", dies)
        paused = await store.change(EntryKind.SUBSCRIPTION, "s", "{}", entry.revision, paused=True)
        await settle(other)
        assert await take(other) == []
        await store.change(EntryKind.SUBSCRIPTION, "s", "{}", paused.revision, paused=False)
        await settle(other)
        assert await bench.finish(other) == ["a1"]

    async def test_a_removal_that_still_runs_cancels_no_job_of_a_subscription_made_anew(
        self, bench: JobBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, other = await bench.platform(), await bench.platform()
        await store.add(EntryKind.SUBSCRIPTION, "s", "{}")
        await create(bench, store, "a1")
        assert await bench.finish(store) == ["a1"]
        await store.remove(EntryKind.SUBSCRIPTION, "s")
        act_on_all = store.act_on_all

        async def while_somebody_makes_it_anew(which: Filter, *args: Any) -> Acted:
            if which.status is Status.PENDING:
                await other.add(EntryKind.SUBSCRIPTION, "s", "{}")
                await create(bench, other, "a2")
            return await act_on_all(which, *args)

        monkeypatch.setattr(store, "act_on_all", while_somebody_makes_it_anew)
        assert await cancel_all(store, "s", "me") == Cancelled(done=0, in_flight=0)
        assert (await other.find("a2")).status is Status.PENDING

    async def test_a_new_subscription_is_not_paused_by_what_one_of_its_code_left(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        await store.add(EntryKind.SUBSCRIPTION, "s", "{}")
        await pause(store)
        with pytest.raises(CodeTakenError):
            await other.add(EntryKind.SUBSCRIPTION, "s", "{}")
        await create(bench, store, "a1")
        assert await bench.finish(other) == []
        await store.remove(EntryKind.SUBSCRIPTION, "s")
        await other.add(EntryKind.SUBSCRIPTION, "s", "{}")
        await settle(other)
        await create(bench, store, "a2")
        assert await bench.finish(store) == ["a1", "a2"]

    async def test_to_resume_what_was_never_paused_does_nothing(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1")
        await resume(store)
        assert await bench.finish(store) == ["a1"]

    async def test_subscriptions_are_paused_one_by_one(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1")
        await create(bench, store, "b1", subscription="t")
        await store.set_paused("s", paused=True)
        await store.set_paused("t", paused=True)
        await settle(store, 1)
        assert await take(store) == []
        await resume(store, "t")
        assert await bench.finish(store) == ["b1"]
        await resume(store, "s")
        assert await bench.finish(store) == ["a1"]

    async def test_a_waiting_receive_hears_of_a_resume_in_another_process(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        await create(bench, store, "a1")
        await pause(store)
        receiving = asyncio.ensure_future(store.queue.receive(5, 30))
        await resume(other)
        assert names(await receiving) == ["a1"]

    # Jobs of a subscription

    async def test_jobs_are_found_by_their_subscription(self, bench: JobBench) -> None:
        store = await bench.platform()
        await create(bench, store, "a1", "a2", "b1")
        await create(bench, store, "c1", mode=IMMEDIATE)
        await create(bench, store, "d1", subscription="t")
        await create(bench, store, "e1", subscription=None)
        (held,) = await take(store, 1)
        await bench.succeed(store, [held])
        assert (await store.find("a2")).job.subscription == "s"
        for which, expected in (
            (Filter(subscription="s"), ["c1", "b1", "a2", "a1"]),
            (Filter(subscription="s", status=Status.PENDING), ["c1", "b1", "a2"]),
            (Filter(subscription="s", status=Status.COMPLETED), ["a1"]),
            (Filter(subscription="s", group="a"), ["a2", "a1"]),
            (Filter(subscription="s", mode=IMMEDIATE), ["c1"]),
            (Filter(subscription="t"), ["d1"]),
            (Filter(subscription="nobody"), []),
        ):
            found: list[str] = []
            cursor = None
            while True:
                page = await store.page(which, 2, cursor)
                found += [state.job.id for state in page.items]
                if (cursor := page.cursor) is None:
                    break
            assert found == expected, which
            assert await store.count(which, 10) == len(expected)
        acted = await store.act_on_all(Filter(subscription="s", status=Status.PENDING), Cancel(), "ann", 10)
        assert acted.done == 3
        assert sorted(await bench.finish(store)) == ["d1", "e1"]
