"""The conformance suite of job stores: what any of them does, whichever database is behind it.

The module of a database subclasses `JobStoreSuite` and gives it a `bench` fixture.
"""

import asyncio

import pytest

from flowcatalyst.core.message import Attempt, DispatchMode, ErrorKind, Outcome, Result, Settled
from flowcatalyst.dispatch.job import Kind, Status
from flowcatalyst.dispatch.store.contract import AttemptMade, Filter, JobStore, UnknownJobError
from tests.conformance.job_action_suite import JobActionSuite
from tests.conformance.job_bench import BLOCK, NEXT, PARKED, JobBench, names, take
from tests.conformance.job_group_suite import JobGroupSuite
from tests.conformance.job_house_suite import JobHouseSuite
from tests.conformance.job_listing_suite import JobListingSuite
from tests.conformance.job_recall_suite import JobRecallSuite
from tests.support.demands import SetDemand

OK, GONE = Settled.OK, Settled.GONE
EVERY = Filter()
OUTCOMES = [
    Outcome(Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, status=503, detail="HTTP 503", excerpt="größe 漢字 \n'\""),
    Outcome(Result.ERROR_PROCESS, ErrorKind.TIMEOUT, detail="no answer before the deadline"),
    Outcome(Result.ERROR_CONNECTION, ErrorKind.NETWORK_ERROR, detail="connection refused"),
    Outcome(Result.ERROR_PROCESS, ErrorKind.RATE_LIMITED, status=429, detail="HTTP 429", excerpt="slow down"),
    Outcome(Result.ERROR_PROCESS, ErrorKind.NOT_ACKED, status=200, detail="HTTP 200 with ack=false", excerpt="{}"),
    Outcome(Result.SUCCESS, status=204, detail="HTTP 204"),
]


class JobStoreSuite(JobActionSuite, JobGroupSuite, JobHouseSuite, JobListingSuite, JobRecallSuite):
    # Create and find

    async def test_a_job_is_found_as_it_was_made(self, bench: JobBench) -> None:
        store = await bench.store()
        job = bench.job(
            "größe 漢字",
            "grp \"odd' %",
            BLOCK,
            kind=Kind.EVENT,
            payload=b"\x00\xff",
            content_type="text/plain",
            headers=(("X-A", "1"), ("x-b", "ü")),
            sequence=7,
            expires_at=bench.wall() + 1000.5,
            scheduled_for=bench.wall() - 5.25,
            idempotency_key="key ü",
            metadata={"tenant": "acme", "": "ü"},
        )
        (created,) = await store.create([job])
        assert (created.state.job, created.state.status, created.repeated) == (job, Status.PENDING, False)
        found = await store.find(job.id)
        assert (found.job, found.status, found.attempts, found.failures) == (job, Status.PENDING, 0, 0)
        assert (found.next_attempt_at, found.finished_at, found.last_error) == (None, None, "")
        assert await (await bench.store()).find(job.id) == found

    async def test_a_job_without_a_payload_has_none(self, bench: JobBench) -> None:
        store = await bench.store()
        await store.create([bench.job("a", payload=None)])
        assert (await store.find("a")).job.payload is None

    async def test_a_job_that_nobody_made_is_unknown(self, bench: JobBench) -> None:
        store = await bench.store()
        for ask in (store.find, store.attempts_of, store.history_of, store.place_of):
            with pytest.raises(UnknownJobError):
                await ask("nobody")

    async def test_nothing_is_made_of_nothing(self, bench: JobBench) -> None:
        assert await (await bench.store()).create([]) == []

    async def test_the_same_idempotency_key_makes_one_job(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        first, again = await store.create([bench.job(name, idempotency_key="once") for name in "ab"])
        assert (first.repeated, again.repeated, again.state.job.id) == (False, True, "a")
        await bench.finish(store)
        (later,) = await other.create([bench.job("c", idempotency_key="once")])
        assert (later.repeated, later.state.job.id, later.state.status) == (True, "a", Status.COMPLETED)
        assert names(await take(other)) == []
        with pytest.raises(UnknownJobError):
            await store.find("c")

    async def test_two_processes_with_one_idempotency_key_make_one_job(self, bench: JobBench) -> None:
        stores = [await bench.store() for _ in range(3)]
        asked = [store.create([bench.job(f"{n}", idempotency_key="once")]) for n, store in enumerate(stores)]
        made = [created for (created,) in await asyncio.gather(*asked)]
        assert sorted(created.repeated for created in made) == [False, True, True]
        assert len({created.state.job.id for created in made}) == 1

    # Receive

    async def test_a_job_comes_as_it_was_made(self, bench: JobBench) -> None:
        store = await bench.store()
        job = bench.job("a", "g", NEXT, headers=(("X-A", "1"),), content_type="text/plain", payload=b"hello")
        await store.create([job, bench.job("b", payload=None)])
        first, second = sorted(await take(store), key=lambda delivery: delivery.pointer.id)
        pointer = first.pointer
        assert (pointer.id, pointer.mediation_target, pointer.pool_code) == ("a", job.target, job.pool)
        assert (pointer.message_group_id, pointer.dispatch_mode) == ("g", NEXT)
        assert (pointer.content_type, pointer.headers) == ("text/plain", {"X-A": "1"})
        assert (first.body, first.is_raw, first.terms) == (b"hello", True, job.terms)
        assert (first.failures, first.earlier) == (0, 0)
        assert not second.is_raw

    async def test_what_is_in_hand_is_queued_and_comes_to_nobody_else(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", "b1")
        assert sorted(names(await take(store))) == ["a1", "b1"]
        assert await take(other) == []
        assert (await other.find("a1")).status is Status.QUEUED

    async def test_jobs_come_for_pools_that_have_free_capacity(self, bench: JobBench) -> None:
        store = await bench.store()
        await store.create([bench.job(f"a{n}", pool="A") for n in range(5)])
        await store.create([bench.job(f"b{n}", pool="B") for n in range(5)])
        assert await store.queue.receive(100, 0, SetDemand(C=5)) == []
        got = names(await store.queue.receive(100, 0, SetDemand(A=2, B=0)))
        assert (len(got), {name[0] for name in got}) == (2, {"a"})
        assert {name[0] for name in names(await store.queue.receive(100, 0, SetDemand(others=9)))} == {"a", "b"}

    async def test_a_group_waits_for_the_pool_of_its_first_job(self, bench: JobBench) -> None:
        store = await bench.store()
        await store.create([bench.job("g1", "g", BLOCK, pool="A"), bench.job("g2", "g", BLOCK, pool="B")])
        assert await store.queue.receive(10, 0, SetDemand(B=5)) == []
        first = await store.queue.receive(10, 0, SetDemand(A=5, B=5))
        assert names(first) == ["g1"]
        await bench.succeed(store, first)
        assert names(await store.queue.receive(10, 0, SetDemand(A=5, B=5))) == ["g2"]

    async def test_a_waiting_receive_hears_of_a_job_of_another_process(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        receiving = asyncio.ensure_future(store.queue.receive(5, 30))
        await bench.create(other, "a1")
        assert names(await receiving) == ["a1"]

    # Modes and sequence

    @pytest.mark.parametrize("mode", [BLOCK, NEXT])
    async def test_jobs_of_a_group_come_in_order_one_process_at_a_time(
        self, bench: JobBench, mode: DispatchMode
    ) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", "a2", "a3", mode=mode)
        first = await take(store, 2)
        assert names(first) == ["a1", "a2"]
        assert await take(other) == []
        await bench.succeed(store, first[:1])
        assert await take(other) == []
        await bench.succeed(store, first[1:])
        assert names(await take(other)) == ["a3"]

    async def test_immediate_jobs_of_a_group_wait_for_nobody(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        await bench.create(store, "a2", "a3")
        assert names(await take(store, 1)) == ["a1"]
        assert sorted(names(await take(store))) == ["a2", "a3"]

    async def test_nothing_of_a_group_starts_behind_a_job_that_failed_and_blocks(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        await bench.fail_first(store, "a1", bench.delay_s)
        assert await take(store) == []
        assert (await store.find("a2")).status is Status.PENDING
        await bench.pass_time(bench.delay_s)
        assert await bench.finish(store) == ["a1", "a2", "a3"]

    async def test_the_next_job_starts_when_one_failed_that_lets_it(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", "a3", mode=NEXT)
        await bench.fail_first(store, "a1", bench.delay_s * 3)
        assert await bench.finish(store) == ["a2", "a3"]
        await bench.pass_time(bench.delay_s * 3)
        (again,) = await take(store)
        assert (again.pointer.id, again.failures, again.earlier) == ("a1", 1, 1)

    async def test_each_job_of_a_group_goes_by_its_own_mode(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=NEXT)
        await bench.create(store, "a2", mode=BLOCK)
        await bench.create(store, "a3", mode=NEXT)
        await bench.fail_first(store, "a1", PARKED)
        await bench.fail_first(store, "a2", PARKED)
        assert await take(store) == []
        assert [(await store.find(name)).status for name in ("a1", "a2", "a3")] == ["ERROR", "ERROR", "PENDING"]

    async def test_a_lower_sequence_comes_first(self, bench: JobBench) -> None:
        store = await bench.store()
        for name, sequence in (("a1", 5), ("a2", 99), ("a3", 1), ("a4", 5)):
            await bench.create(store, name, mode=BLOCK, sequence=sequence)
        assert await bench.finish(store) == ["a3", "a1", "a4", "a2"]

    async def test_a_lower_sequence_passes_what_blocks_its_group_but_not_what_is_in_hand(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        (held,) = await take(store, 1)
        await bench.create(store, "a0", mode=BLOCK, sequence=1)
        assert await take(store) == []
        await bench.fail(store, [held], PARKED)
        assert await bench.finish(store) == ["a0"]
        assert (await store.find("a1")).status is Status.ERROR

    async def test_a_scheduled_job_comes_when_its_time_has_come_and_holds_up_nobody_before(
        self, bench: JobBench
    ) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=BLOCK, sequence=1, scheduled_for=bench.wall() + bench.delay_s)
        await bench.create(store, "a2", mode=BLOCK)
        assert await bench.finish(store) == ["a2"]
        await bench.create(store, "a3", mode=BLOCK)
        await bench.pass_time(bench.delay_s)
        assert await bench.finish(store) == ["a1", "a3"]

    # Settle

    async def test_a_delivered_job_is_completed_with_its_attempt(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1")
        (delivery,) = await take(store)
        assert await bench.succeed(store, [delivery]) == [OK]
        assert await store.queue.ack([delivery]) == [OK]  # again: it is
        state = await store.find("a1")
        assert (state.status, state.attempts, state.failures) == (Status.COMPLETED, 1, 0)
        assert state.finished_at == pytest.approx(bench.wall(), abs=60)
        (made,) = await store.attempts_of("a1")
        assert (made.attempt, made.status, made.error, made.counts, made.duration_s) == (1, 200, "NONE", False, 0.5)

    async def test_a_failed_job_says_when_it_is_tried_again_and_what_happened(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        await bench.fail_first(store, "a1", bench.delay_s)
        state = await store.find("a1")
        assert (state.status, state.attempts, state.failures, state.last_error) == (Status.ERROR, 1, 1, "it broke")
        assert state.next_attempt_at == pytest.approx(bench.wall() + bench.delay_s, abs=60)
        await bench.pass_time(bench.delay_s)
        await bench.fail_first(store, "a1", PARKED)
        state = await store.find("a1")
        assert (state.status, state.attempts, state.failures, state.next_attempt_at) == (Status.ERROR, 2, 2, None)
        first, second = await store.attempts_of("a1")
        assert (first.attempt, second.attempt, second.status, second.excerpt) == (1, 2, 500, "oh")
        assert (second.counts, second.error, second.detail) == (True, "HTTP_ERROR", "it broke")

    async def test_each_attempt_is_kept_as_it_was_made(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        for number, outcome in enumerate(OUTCOMES):
            (delivery,) = await take(store)
            delivery.failures += outcome.counts
            delivery.attempt = Attempt(bench.wall() - number, number / 8, outcome)
            began_at, queue = delivery.attempt.began_at, store.queue
            done = queue.ack([delivery]) if outcome.result is Result.SUCCESS else queue.nack([delivery], 0)
            assert await done == [OK]
            *_, made = await store.attempts_of("a1")
            assert made == AttemptMade(
                attempt=number + 1,
                began_at=began_at,
                duration_s=number / 8,
                status=outcome.status,
                error=outcome.error,
                counts=outcome.counts,
                detail=outcome.detail,
                excerpt=outcome.excerpt,
            )
        state = await store.find("a1")
        assert (state.status, state.attempts, state.failures) == (Status.COMPLETED, len(OUTCOMES), 3)

    async def test_a_parked_job_never_comes_by_itself(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1")
        await bench.fail_first(store, "a1", PARKED)
        await bench.pass_time(bench.delay_s * 3)
        assert await take(store) == []
        assert await take(await bench.store()) == []

    async def test_a_refusal_that_asks_for_patience_is_no_error_and_uses_up_no_retry(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        (delivery,) = await take(store, 1)
        delivery.attempt = bench.attempt(counts=False)
        await store.queue.nack([delivery], bench.delay_s)
        state = await store.find("a1")
        assert (state.status, state.attempts, state.failures) == (Status.PENDING, 1, 0)
        assert state.next_attempt_at == pytest.approx(bench.wall() + bench.delay_s, abs=60)
        assert await take(store) == []
        await bench.pass_time(bench.delay_s)
        assert await bench.finish(store) == ["a1", "a2"]

    async def test_what_goes_back_untried_is_as_it_was(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        held = await take(store)
        await store.queue.nack(held[1:], 0)
        await store.queue.nack(held[:1], 0)
        state = await store.find("a1")
        assert (state.status, state.attempts, await store.attempts_of("a1")) == (Status.PENDING, 0, [])
        assert await bench.finish(store) == ["a1", "a2"]

    async def test_who_no_longer_holds_a_job_changes_nothing(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        (stale,) = await take(store)
        await store.queue.nack([stale], 0)
        (held,) = await take(other)
        assert await bench.succeed(store, [stale]) == [GONE]
        assert await bench.fail(store, [stale], PARKED) == [GONE]
        assert (await store.find("a1")).status is Status.QUEUED
        assert await store.attempts_of("a1") == []
        assert await bench.succeed(other, [held]) == [OK]

    # Processes

    async def test_what_a_process_had_in_hand_comes_again_after_its_crash(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        first = await take(store)
        await bench.succeed(store, first[:1])
        await bench.crash(store)
        assert (await other.find("a2")).status is Status.PENDING
        assert await bench.finish(other) == ["a2", "a3"]
        assert await bench.finish(await bench.store()) == []

    async def test_what_a_process_had_in_hand_comes_again_when_it_closes(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", "a2", mode=NEXT)
        await take(store)
        await bench.shut(store)
        assert await bench.finish(other) == ["a1", "a2"]

    async def test_order_failures_and_waits_outlive_every_process(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        await bench.create(store, "b1", "b2", mode=NEXT)
        held = {delivery.pointer.id: delivery for delivery in await take(store)}
        await store.queue.nack([held["a2"], held["b2"]], 0)
        await bench.fail(store, [held["a1"], held["b1"]], bench.delay_s * 3)
        await bench.shut(store)
        store = await bench.store()
        assert await bench.finish(store) == ["b2"]
        await bench.pass_time(bench.delay_s * 3)
        seen = await bench.finish(store)
        assert (sorted(seen), [name for name in seen if name[0] == "a"]) == (["a1", "a2", "b1"], ["a1", "a2"])

    async def test_reading_needs_no_router(self, bench: JobBench) -> None:
        """A store of which nobody receives serves those who look and act."""
        store: JobStore = await bench.store()
        await bench.create(store, "a1", "a2")
        page = await store.page(EVERY, 10)
        assert [state.job.id for state in page.items] == ["a2", "a1"]
        assert page.cursor is None
