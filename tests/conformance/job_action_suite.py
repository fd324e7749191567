"""The part of the suite of job stores about what people do to jobs."""

import pytest

from flowcatalyst.core.message import DispatchMode, Settled
from flowcatalyst.dispatch.job import Status
from flowcatalyst.dispatch.store.contract import (
    Cancel,
    Change,
    Filter,
    JobStateError,
    JobStore,
    Retry,
    UnknownJobError,
)
from tests.conformance.job_bench import BLOCK, IMMEDIATE, NEXT, PARKED, JobBench, names, take


async def statuses(store: JobStore, *job_names: str) -> list[str]:
    return [(await store.find(name)).status.value for name in job_names]


class JobActionSuite:
    async def test_a_job_in_error_is_tried_again_at_once_with_all_its_retries(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        for delay_s in (0.0, PARKED):
            await bench.fail_first(store, "a1", delay_s)
        state = await store.act("a1", Retry(), "ann")
        assert (state.status, state.failures, state.attempts, state.next_attempt_at) == (Status.PENDING, 0, 2, None)
        (again,) = await take(store, 1)
        assert (again.pointer.id, again.failures, again.earlier) == ("a1", 0, 2)
        await bench.succeed(store, [again])
        assert await bench.finish(store) == ["a2"]

    @pytest.mark.parametrize("mode", [IMMEDIATE, NEXT, BLOCK])
    async def test_a_job_that_waits_for_its_retry_need_not_wait(self, bench: JobBench, mode: DispatchMode) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=mode)
        await bench.fail_first(store, "a1", 1000)
        await store.act("a1", Retry(), "ann")
        assert names(await take(store)) == ["a1"]

    async def test_a_cancelled_job_is_never_tried_and_its_group_goes_on(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        await bench.fail_first(store, "a1", PARKED)
        assert (await store.act("a3", Cancel(), "ann")).status is Status.CANCELLED
        state = await store.act("a1", Cancel(), "ann")
        assert (state.status, state.next_attempt_at) == (Status.CANCELLED, None)
        assert state.finished_at == pytest.approx(bench.wall(), abs=60)
        assert await bench.finish(store) == ["a2"]

    async def test_a_scheduled_job_can_be_cancelled(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", scheduled_for=bench.wall() + bench.delay_s)
        await store.act("a1", Cancel(), "ann")
        await bench.pass_time(bench.delay_s)
        assert await take(store) == []

    @pytest.mark.parametrize("mode", [IMMEDIATE, NEXT])
    async def test_a_group_goes_on_when_the_job_that_blocks_it_gets_another_mode(
        self, bench: JobBench, mode: DispatchMode
    ) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        await bench.fail_first(store, "a1", bench.delay_s)
        state = await store.act("a1", Change(mode=mode), "ann")
        assert (state.status, state.job.mode) == (Status.ERROR, mode)
        assert await bench.finish(store) == ["a2"]
        await bench.pass_time(bench.delay_s)
        assert await bench.finish(store) == ["a1"]

    async def test_a_job_that_waits_takes_its_place_in_its_group_when_its_mode_says_so(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1")
        await bench.create(store, "a2", "a3", mode=BLOCK)
        await bench.create(store, "a4", mode=NEXT)
        await store.act("a1", Change(mode=BLOCK), "ann")
        await store.act("a2", Change(mode=NEXT), "ann")
        await store.act("a3", Change(mode=IMMEDIATE), "ann")
        seen = names(await take(store))
        assert [name for name in seen if name != "a3"] == ["a1", "a2", "a4"]
        assert "a3" in seen

    async def test_a_failed_job_blocks_its_group_from_when_its_mode_says_so(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=NEXT)
        await bench.fail_first(store, "a1", PARKED)
        await store.act("a1", Change(mode=BLOCK), "ann")
        assert await take(store) == []
        await store.act("a1", Retry(), "ann")
        assert await bench.finish(store) == ["a1", "a2"]

    async def test_a_job_that_joins_its_group_in_front_of_what_is_in_hand_is_not_in_hand_itself(
        self, bench: JobBench
    ) -> None:
        store = await bench.store()
        await bench.create(store, "a1")
        await bench.fail_first(store, "a1", PARKED)
        await bench.create(store, "a2", "a3", mode=BLOCK)
        (held,) = await take(store, 1)
        await store.act("a1", Change(mode=BLOCK), "ann")
        assert await statuses(store, "a1", "a2", "a3") == ["ERROR", "QUEUED", "PENDING"]
        assert await bench.succeed(store, [held]) == [Settled.OK]
        assert await take(store) == []
        await store.act("a1", Retry(), "ann")
        assert await bench.finish(store) == ["a1", "a3"]

    async def test_a_job_without_a_group_cannot_be_ordered(self, bench: JobBench) -> None:
        store = await bench.store()
        await store.create([bench.job("a1")])
        with pytest.raises(JobStateError, match="Group"):
            await store.act("a1", Change(mode=BLOCK), "ann")
        assert (await store.find("a1")).job.mode is IMMEDIATE
        assert await store.history_of("a1") == []

    async def test_what_is_sent_and_where_to_can_be_mended(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        await bench.fail_first(store, "a1", PARKED)
        change = Change(
            target="http://127.0.0.1:10/new", payload=b"<new/>", content_type="text/xml", headers=(("X-B", "2"),)
        )
        state = await store.act("a1", change, "ann")
        assert (state.status, state.job.target, state.job.payload) == (Status.ERROR, change.target, b"<new/>")
        assert state == await store.find("a1")
        assert await take(store) == []  # mending is not trying
        await store.act("a1", Retry(), "ann")
        (delivery,) = await take(store, 1)
        assert (delivery.body, delivery.pointer.mediation_target) == (b"<new/>", change.target)
        assert (delivery.pointer.content_type, delivery.pointer.headers) == ("text/xml", {"X-B": "2"})
        assert (await store.find("a2")).job.target != change.target

    async def test_a_change_of_nothing_leaves_a_job_as_it_is(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=NEXT)
        before = await store.find("a1")
        assert await store.act("a1", Change(), "ann") == before

    async def test_a_job_in_hand_is_not_acted_on(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        (held,) = await take(store)
        for action in (Retry(), Cancel(), Change(mode=NEXT), Change(payload=b"new")):
            with pytest.raises(JobStateError, match="a1"):
                await other.act("a1", action, "ann")
        assert await bench.succeed(store, [held]) == [Settled.OK]
        assert await store.history_of("a1") == []

    async def test_a_finished_job_is_not_acted_on(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1")
        await bench.finish(store)
        for action in (Retry(), Cancel(), Change(mode=NEXT), Change(payload=b"new")):
            with pytest.raises(JobStateError, match="COMPLETED"):
                await store.act("a1", action, "ann")

    async def test_only_a_job_in_error_can_be_tried_again(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1")
        with pytest.raises(JobStateError, match="PENDING"):
            await store.act("a1", Retry(), "ann")
        for action in (Retry(), Cancel(), Change()):
            with pytest.raises(UnknownJobError):
                await store.act("nobody", action, "ann")

    async def test_what_people_did_is_remembered_in_order(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        await bench.fail_first(store, "a1", PARKED)
        await store.act("a1", Change(mode=NEXT, payload=b"new"), "ann")
        await store.act("a1", Retry(), "bob")
        await store.act("a1", Cancel(), "cid")
        history = await store.history_of("a1")
        assert [(line.actor, line.action) for line in history] == [
            ("ann", "change mode to NEXT_ON_ERROR, payload"),
            ("bob", "retry"),
            ("cid", "cancel"),
        ]
        assert history[0].at == pytest.approx(bench.wall(), abs=60)

    async def test_a_router_that_lost_a_job_unnoticed_cannot_settle_what_was_changed_since(
        self, bench: JobBench
    ) -> None:
        """It was paused for longer than its lease, and what it sent is not what is to be sent now."""
        for change in (Change(mode=NEXT), Change(mode=IMMEDIATE), Change(payload=b"new")):
            store, other = await bench.store(), await bench.store()
            name = f"a{id(change)}"
            await bench.create(store, name, mode=BLOCK)
            (stale,) = await take(store)
            await bench.lose(store)
            await other.act(name, change, "ann")
            assert await bench.succeed(store, [stale]) == [Settled.GONE]
            assert await bench.fail(store, [stale], PARKED) == [Settled.GONE]
            assert await statuses(store, name) == ["PENDING"]
            assert await bench.finish(other) == [name]
            assert await statuses(store, name) == ["COMPLETED"]
            assert len(await store.attempts_of(name)) == 1

    # On all of a filter

    async def test_an_action_on_all_jobs_of_a_filter_is_done_in_parts(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, *(f"{group}1" for group in "abcde"), mode=BLOCK, code="broken")
        await bench.create(store, *(f"{group}2" for group in "abcde"), mode=BLOCK)
        for _ in range(5):
            await bench.fail(store, await take(store, 1), PARKED)
        assert await take(store) == []
        which, done, cursor, parts = Filter(status=Status.ERROR, code="broken"), 0, None, 0
        while parts == 0 or cursor is not None:
            acted = await store.act_on_all(which, Retry(), "ann", 2, cursor)
            assert acted.done + acted.refused <= 2
            done, cursor, parts = done + acted.done, acted.cursor, parts + 1
        assert (done, parts >= 3) == (5, True)
        assert [line.action for line in await store.history_of("c1")] == ["retry"]
        assert await store.history_of("c2") == []
        seen = await bench.finish(store)
        assert sorted(seen) == sorted(f"{group}{n}" for group in "abcde" for n in "12")

    async def test_an_action_on_all_leaves_those_it_cannot_be_done_to(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "b1", "c1", "d1")
        held = {delivery.pointer.id: delivery for delivery in await take(store)}
        await bench.succeed(store, [held["a1"]])
        await bench.fail(store, [held["b1"]], PARKED)
        await store.queue.nack([held["c1"]], 0)
        acted = await store.act_on_all(Filter(), Cancel(), "ann", 100)
        assert (acted.done, acted.refused, acted.cursor) == (2, 2, None)
        assert await statuses(store, "a1", "b1", "c1", "d1") == ["COMPLETED", "CANCELLED", "CANCELLED", "QUEUED"]
        assert await store.history_of("a1") == []

    async def test_a_change_of_all_jobs_of_a_group_unblocks_it(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        await bench.create(store, "b1", "b2", mode=BLOCK)
        for delivery in await take(store, 1), await take(store, 1):
            await bench.fail(store, delivery, PARKED)
        acted = await store.act_on_all(Filter(group="a"), Change(mode=NEXT), "ann", 100)
        assert (acted.done, acted.refused) == (3, 0)
        assert await bench.finish(store) == ["a2", "a3"]

    async def test_an_action_on_all_of_nothing_does_nothing(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1")
        acted = await store.act_on_all(Filter(code="other"), Cancel(), "ann", 100)
        assert (acted.done, acted.refused, acted.cursor) == (0, 0, None)
