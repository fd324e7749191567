"""The part of the suite of job stores about looking: filters, pages, counts and places."""

import random
from dataclasses import replace
from typing import Any

import pytest

from flowcatalyst.dispatch.job import JobState, Kind, Status
from flowcatalyst.dispatch.store.contract import Action, Cancel, Filter, JobStore, Retry
from tests.conformance.job_bench import BLOCK, IMMEDIATE, NEXT, PARKED, JobBench, take


async def listed(store: JobStore, which: Filter, limit: int = 100) -> list[str]:
    """The names of all jobs of a filter, page by page."""
    found: list[str] = []
    cursor = None
    while True:
        page = await store.page(which, limit, cursor)
        assert len(page.items) <= limit
        found += [state.job.id for state in page.items]
        if page.cursor is None:
            assert len(found) == len(set(found))
            return found
        cursor = page.cursor


class JobListingSuite:
    @pytest.mark.parametrize("limit", [1, 2, 3, 100])
    async def test_pages_have_every_job_once_the_newest_first(self, bench: JobBench, limit: int) -> None:
        store = await bench.store()
        for batch in (["a1", "b1"], ["c1"], ["a2", "b2", "c2", "d2"]):
            await bench.create(store, *batch)
        assert await listed(store, Filter(), limit) == ["d2", "c2", "b2", "a2", "c1", "b1", "a1"]

    async def test_jobs_that_come_meanwhile_change_no_later_page(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", "a3")
        first = await store.page(Filter(), 2)
        await bench.create(store, "a4")
        second = await store.page(Filter(), 2, first.cursor)
        assert [state.job.id for state in (*first.items, *second.items)] == ["a3", "a2", "a1"]

    async def test_an_empty_store_has_an_empty_page(self, bench: JobBench) -> None:
        store = await bench.store()
        assert await listed(store, Filter()) == []
        assert await store.count(Filter(), 10) == 0

    @pytest.mark.parametrize(
        ("which", "expected"),
        [
            (Filter(group="g"), ["order", "next"]),
            (Filter(group="G"), []),
            (Filter(code="ship"), ["next", "plain"]),
            (Filter(kind=Kind.EVENT), ["order"]),
            (Filter(mode=IMMEDIATE), ["plain"]),
            (Filter(pool="P"), ["next"]),
            (Filter(target="https://shop.example/"), ["order", "next"]),
            (Filter(target="https://shop.example/hook/1"), ["next"]),
            (Filter(target="%"), []),
            (Filter(metadata=(("tenant", "acme"),)), ["order", "next"]),
            (Filter(metadata=(("tenant", "acme"), ("tier", "1"))), ["order"]),
            (Filter(metadata=(("tenant", "1"),)), []),
            (Filter(metadata=(("tenant", "acme"),), code="ship"), ["next"]),
            (Filter(group="g", mode=BLOCK, status=Status.PENDING), ["order"]),
            (Filter(status=Status.IN_PROGRESS), []),
        ],
        ids=str,
    )
    async def test_a_filter_finds_what_all_its_fields_ask_for(
        self, bench: JobBench, which: Filter, expected: list[str]
    ) -> None:
        store = await bench.store()
        shop: dict[str, Any] = {"metadata": {"tenant": "acme"}, "target": "https://shop.example/hook/1"}
        await store.create(
            [
                bench.job("plain", code="ship"),
                bench.job("next", "g", NEXT, code="ship", pool="P", **shop),
                bench.job(
                    "order",
                    "g",
                    BLOCK,
                    kind=Kind.EVENT,
                    target="https://shop.example/hook",
                    metadata={"tenant": "acme", "tier": "1"},
                ),
            ]
        )
        assert await listed(store, which) == expected
        assert await listed(store, which, 1) == expected
        assert await store.count(which, 10) == len(expected)

    async def test_jobs_are_found_by_their_status(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        await bench.create(store, "b1", "c1", "d1", "e1", "f1")
        await store.act("f1", Cancel(), "ann")
        held = {delivery.pointer.id: delivery for delivery in await take(store)}
        await store.queue.nack([held["a2"]], 0)
        await bench.fail(store, [held["a1"]], PARKED)
        await bench.fail(store, [held["b1"]], 1000)
        await bench.succeed(store, [held["c1"]])
        await store.queue.nack([held["d1"]], 0)
        found = {status.value: await listed(store, Filter(status=status)) for status in Status}
        assert found == {
            "PENDING": ["d1", "a2"],
            "QUEUED": ["e1"],
            "IN_PROGRESS": [],
            "COMPLETED": ["c1"],
            "ERROR": ["b1", "a1"],
            "CANCELLED": ["f1"],
            "EXPIRED": [],
        }
        assert await listed(store, Filter(parked=True)) == ["a1"]
        assert await listed(store, Filter(parked=False, status=Status.ERROR)) == ["b1"]
        assert await listed(store, Filter(status=Status.PENDING, mode=BLOCK)) == ["a2"]
        for status in Status:
            assert await store.count(Filter(status=status), 10) == len(found[status.value])

    async def test_jobs_are_found_by_when_they_were_made(self, bench: JobBench) -> None:
        store = await bench.store()
        began = bench.wall()
        # Clocks of two processes differ a little: those of one time need not come in the order in which they were made.
        for name, at in (("a1", 10.0), ("a2", 20.0), ("a3", 19.0), ("a4", 30.0)):
            await store.create([bench.job(name, created_at=began + at)])
        assert set(await listed(store, Filter(created_from=began + 19.5))) == {"a2", "a4"}
        for limit in (1, 100):
            which = Filter(created_from=began + 19.0, created_before=began + 30.0)
            assert set(await listed(store, which, limit)) == {"a2", "a3"}
            assert set(await listed(store, Filter(created_before=began + 20.0), limit)) == {"a1", "a3"}
            assert await listed(store, replace(which, code="other"), limit) == []
        assert await store.count(Filter(created_from=began + 19.5), 10) == 2

    async def test_a_count_ends_at_the_most_that_was_asked_for(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, *(f"a{n}" for n in range(20)))
        assert [await store.count(Filter(), most) for most in (1, 19, 20, 21)] == [1, 19, 20, 20]

    async def test_any_filter_finds_what_a_look_at_every_job_finds(self, bench: JobBench) -> None:
        store, luck = await bench.store(), random.Random(7)
        began = bench.wall()
        for number in range(60):
            job = bench.job(
                f"j{number}",
                luck.choice([None, "g", "h"]),
                code=luck.choice("xy"),
                kind=luck.choice(list(Kind)),
                pool=luck.choice("PQ"),
                target=luck.choice(["http://a/1", "http://a/2", "http://b/1"]),
                metadata=luck.choice([{}, {"t": "1"}, {"t": "1", "u": "2"}, {"t": "2"}]),
                created_at=began + number,
            )
            await store.create([job if job.group is None else replace(job, mode=luck.choice([IMMEDIATE, NEXT, BLOCK]))])
        for _ in range(3):
            for delivery in await take(store, 20):
                await luck.choice([_done, _fail, _park, _keep])(bench, store, delivery)
        for _ in range(10):
            error = await store.page(Filter(status=Status.ERROR), 100)
            action: Action = Retry() if luck.random() < 0.5 else Cancel()
            await store.act(luck.choice(error.items).job.id, action, "ann")
        every = [await store.find(name) for name in await listed(store, Filter())]
        assert len(every) == 60
        for _ in range(150):
            which = _any_filter(luck, began)
            expected = [state.job.id for state in every if _fits(state, which)]
            assert await listed(store, which, luck.choice([2, 7, 100])) == expected, which
            assert await store.count(which, 100) == len(expected), which

    # Places

    async def test_a_job_knows_its_place_and_what_it_waits_for(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        await bench.create(store, "a0", mode=BLOCK, sequence=1)
        place = await store.place_of("a3")
        assert place is not None
        assert place.head is not None
        assert (place.ahead, place.head.job.id, place.head.status) == (3, "a0", Status.PENDING)
        await bench.fail_first(store, "a0", PARKED)
        place = await store.place_of("a1")
        assert place is not None
        assert place.head is not None
        assert (place.ahead, place.head.job.id, place.head.status) == (1, "a0", Status.ERROR)
        first = await store.place_of("a0")
        assert first is not None
        assert (first.ahead, first.head) == (0, None)

    async def test_what_is_ordered_with_nothing_has_no_place(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1")
        await bench.create(store, "b1", mode=NEXT)
        await bench.create(store, "c1", mode=BLOCK, scheduled_for=bench.wall() + 1000)
        await bench.create(store, "d1", mode=BLOCK)
        await store.act("d1", Cancel(), "ann")
        held = {delivery.pointer.id: delivery for delivery in await take(store)}
        await bench.fail(store, [held["b1"]], PARKED)
        assert [await store.place_of(name) for name in ("a1", "b1", "c1", "d1")] == [None] * 4


async def _done(bench: JobBench, store: JobStore, delivery: Any) -> None:
    await bench.succeed(store, [delivery])


async def _fail(bench: JobBench, store: JobStore, delivery: Any) -> None:
    await bench.fail(store, [delivery], 1000)


async def _park(bench: JobBench, store: JobStore, delivery: Any) -> None:
    await bench.fail(store, [delivery], PARKED)


async def _keep(bench: JobBench, store: JobStore, delivery: Any) -> None:
    """A router has it in hand."""


def _any_filter(luck: random.Random, began: float) -> Filter:
    fields: dict[str, list[Any]] = {
        "status": list(Status),
        "mode": [IMMEDIATE, NEXT, BLOCK],
        "group": ["g", "h", "i"],
        "code": ["x", "y", "z"],
        "kind": list(Kind),
        "pool": ["P", "Q"],
        "target": ["http://a", "http://a/2", ""],
        "created_from": [began + 10, began + 40],
        "created_before": [began + 20, began + 50],
        "metadata": [(("t", "1"),), (("t", "1"), ("u", "2")), (("u", "1"),)],
        "parked": [True, False],
    }
    chosen = luck.sample(sorted(fields), luck.choice([1, 1, 2, 2, 3]))
    return Filter(**{name: luck.choice(fields[name]) for name in chosen})


def _fits(state: JobState, which: Filter) -> bool:
    job = state.job
    is_parked = state.status is Status.ERROR and state.next_attempt_at is None
    return (
        which.status in (None, state.status)
        and which.mode in (None, job.mode)
        and which.group in (None, job.group)
        and which.code in (None, job.code)
        and which.kind in (None, job.kind)
        and which.pool in (None, job.pool)
        and job.target.startswith(which.target or "")
        and (which.created_from is None or job.created_at >= which.created_from)
        and (which.created_before is None or job.created_at < which.created_before)
        and all(job.metadata.get(name) == value for name, value in which.metadata)
        and which.parked in (None, is_parked)
    )
