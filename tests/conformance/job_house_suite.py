"""The part of the suite of job stores about keeping house: expiry and retention."""

import asyncio

import pytest

from flowcatalyst.dispatch.job import Status
from flowcatalyst.dispatch.store.contract import Cancel, Filter, Retry, UnknownJobError
from tests.conformance.job_bench import BLOCK, NEXT, PARKED, JobBench, names, take


class JobHouseSuite:
    @pytest.mark.parametrize("receives", [False, True], ids=["nobody receives", "somebody receives"])
    async def test_whatever_waits_for_too_long_expires_and_its_group_goes_on(
        self, bench: JobBench, receives: bool
    ) -> None:
        store = await bench.store()
        over = bench.wall() + bench.delay_s
        await bench.create(store, "a1", "b1", "c1", mode=BLOCK, expires_at=over)
        await bench.create(store, "a2", "b2", "c2", mode=BLOCK)
        await bench.create(store, "d1", mode=BLOCK, expires_at=over, scheduled_for=over - 0.1)
        await bench.create(store, "e1", mode=NEXT, expires_at=over)
        held = {delivery.pointer.id: delivery for delivery in await take(store)}
        await store.queue.nack([held[name] for name in ("a2", "b2", "c2", "c1")], 0)
        await bench.fail(store, [held["a1"], held["e1"]], PARKED)
        await bench.fail(store, [held["b1"]], 1000)
        await bench.pass_time(bench.delay_s)
        if receives:
            assert sorted(names(await take(store))) == ["a2", "b2", "c2"]
        else:
            assert await store.expire(100) == 5
            assert await store.expire(100) == 0
        for name in ("a1", "b1", "c1", "d1", "e1"):
            state = await store.find(name)
            assert (state.status, state.next_attempt_at) == (Status.EXPIRED, None), name
            assert state.finished_at == pytest.approx(bench.wall(), abs=60)
        figures = await store.figures()
        assert (figures.waiting, figures.parked, figures.scheduled, figures.blocked) == (3, 0, 0, 0)
        assert await take(store) == [] if receives else sorted(await bench.finish(store)) == ["a2", "b2", "c2"]

    async def test_jobs_expire_in_parts(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, *(f"a{n}" for n in range(5)), expires_at=bench.wall() + bench.delay_s)
        assert await store.expire(2) == 0
        await bench.pass_time(bench.delay_s)
        assert [await store.expire(2) for _ in range(4)] == [2, 2, 1, 0]

    async def test_a_job_whose_time_is_over_is_never_handed_out(self, bench: JobBench) -> None:
        store = await bench.store()
        over = bench.wall() + bench.delay_s
        await store.create([bench.job(f"x{n}", expires_at=over) for n in range(600)])
        await store.create([bench.job(f"y{n}", "y", BLOCK, expires_at=over) for n in range(600)])
        await store.create([bench.job("y-last", "y", BLOCK), bench.job("z")])
        await bench.pass_time(bench.delay_s)
        seen: list[str] = []
        async with asyncio.timeout(60):
            while len(seen) < 2:
                batch = await store.queue.receive(100, 1.0)
                seen += names(batch)
                await bench.succeed(store, batch)
        assert sorted(seen) == ["y-last", "z"]
        assert await store.count(Filter(status=Status.EXPIRED), 2000) == 1200

    async def test_a_job_in_hand_when_its_time_is_over_ends_as_its_attempt_does(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "b1", "a2", mode=BLOCK, expires_at=bench.wall() + bench.delay_s)
        held = {delivery.pointer.id: delivery for delivery in await take(store, 3)}
        await store.queue.nack([held["a2"]], 0)
        await bench.pass_time(bench.delay_s)
        assert await store.expire(100) == 1
        assert (await store.find("a2")).status is Status.EXPIRED
        await bench.succeed(store, [held["a1"]])
        await bench.fail(store, [held["b1"]], 1000)
        assert await store.expire(100) == 1
        assert [(await store.find(name)).status for name in ("a1", "b1")] == ["COMPLETED", "EXPIRED"]
        assert len(await store.attempts_of("b1")) == 1

    async def test_a_waiting_receive_notices_that_what_blocked_a_group_expired(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", mode=BLOCK, expires_at=bench.wall() + bench.delay_s)
        await bench.create(store, "a2", mode=BLOCK)
        await bench.fail_first(store, "a1", PARKED)
        receiving = asyncio.ensure_future(store.queue.receive(5, 30))
        await bench.pass_time(bench.delay_s)
        await other.expire(10)
        assert names(await receiving) == ["a2"]

    # Retention

    async def test_finished_jobs_are_forgotten_in_parts_the_oldest_first(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, *(f"a{n}" for n in range(5)), metadata={"t": "1"}, idempotency_key=None)
        await bench.finish(store)
        await bench.pass_time(bench.delay_s)
        before = bench.wall()
        await bench.pass_time(bench.delay_s)
        await bench.create(store, "b1", "c1", "d1", metadata={"t": "1"})
        await store.act("b1", Cancel(), "ann")
        await bench.fail_first(store, "c1", PARKED)
        assert [await store.drop_finished(before, 2) for _ in range(4)] == [2, 2, 1, 0]
        assert [state.job.id for state in (await store.page(Filter(), 10)).items] == ["d1", "c1", "b1"]
        assert await store.count(Filter(metadata=(("t", "1"),)), 10) == 3
        with pytest.raises(UnknownJobError):
            await store.find("a0")
        await bench.pass_time(bench.delay_s)
        assert await store.drop_finished(bench.wall(), 100) == 1
        assert (await store.find("c1")).status is Status.ERROR  # however old: it is not finished
        await bench.audit(store)

    async def test_nothing_of_a_forgotten_job_is_left(self, bench: JobBench) -> None:
        store = await bench.store()
        job = bench.job("a1", idempotency_key="key", metadata={"t": "ü"})
        await store.create([job])
        await bench.fail_first(store, "a1", PARKED)
        await store.act("a1", Retry(), "ann")
        await bench.finish(store)
        await bench.pass_time(bench.delay_s)
        await store.drop_finished(bench.wall(), 10)
        await bench.audit(store)
        (created,) = await store.create([job])
        assert not created.repeated
        assert (await store.attempts_of("a1"), await store.history_of("a1")) == ([], [])
        assert await bench.finish(store) == ["a1"]

    async def test_somebody_keeps_house(self, bench: JobBench) -> None:
        stores = [await bench.store() for _ in range(2)]
        assert any([await store.lead() for store in stores])
