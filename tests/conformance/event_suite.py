"""The part of the suite of platform stores about events: each is kept with its jobs, once, and found again."""

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from flowcatalyst.dispatch.event import Event
from flowcatalyst.dispatch.job import Status
from flowcatalyst.dispatch.store.contract import Filter, UnknownJobError
from flowcatalyst.dispatch.store.platform_contract import (
    EntryKind,
    EventAccepted,
    EventFilter,
    EventKept,
    PlatformStore,
    UnknownEventError,
)
from tests.conformance.job_bench import BLOCK, JobBench, names, take

SUBSCRIPTION = EntryKind.SUBSCRIPTION
EVERY = EventFilter()


async def accept(store: PlatformStore, *events: Event) -> list[EventAccepted]:
    """Events that nobody wants."""
    return await store.accept([(event, ()) for event in events])


async def listed(
    store: PlatformStore, limit: int = 100, which: EventFilter = EVERY, *, in_order: bool = False
) -> list[str]:
    """The ids of all events of a filter, page by page."""
    found: list[EventKept] = []
    cursor = None
    look = store.events_in_order if in_order else store.events
    while True:
        page = await look(which, limit, cursor)
        assert len(page.items) <= limit
        found += page.items
        if page.cursor is None:
            return [kept.event.id for kept in found]
        cursor = page.cursor


class EventSuite:
    # Keep and find

    async def test_an_event_is_found_as_it_came(self, bench: JobBench) -> None:
        store = await bench.platform()
        event = bench.event(
            "größe 漢字",
            type="order.created",
            source="https://shop.example/größe",
            sender_id='it\'s "7" %',
            subject="order:ü",
            data=msgspec.Raw(b'{ "a" : 1.50,\n "b": "\\u0000 \\u00e4" }'),
            data_content_type="application/json; charset=utf-8",
            message_group="grp \"odd' %",
            deduplication_id="shop 7",
            correlation_id="c",
            causation_id="z",
            extensions={"sequence": "3", "big": (1 << 53) - 1, "flag": True, "text": "ü"},
        )
        (accepted,) = await accept(store, event)
        assert (accepted.kept.event, accepted.kept.jobs, accepted.repeated) == (event, 0, False)
        assert accepted.kept.created_at == pytest.approx(bench.wall(), abs=60)
        assert await store.event(event.id) == accepted.kept
        assert await (await bench.platform()).event(event.id) == accepted.kept

    @pytest.mark.parametrize("more", [{"data": msgspec.Raw(b"")}, {"data": msgspec.Raw(b""), "data_base64": "AP8="}])
    async def test_an_event_without_data_or_with_bytes_stays_that(self, bench: JobBench, more: dict[str, Any]) -> None:
        store = await bench.platform()
        event = bench.event("e", **more)
        await accept(store, event)
        assert (await store.event("e")).event == event

    async def test_an_event_that_nobody_sent_is_unknown(self, bench: JobBench) -> None:
        store = await bench.platform()
        with pytest.raises(UnknownEventError):
            await store.event("nobody")

    async def test_nothing_is_kept_of_nothing(self, bench: JobBench) -> None:
        assert await (await bench.platform()).accept([]) == []

    # With its jobs

    async def test_an_event_makes_its_jobs_and_tells_how_many(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        for code in "st":
            await store.add(SUBSCRIPTION, code, "{}")
        jobs = [bench.job(f"{code}1", f"{code}:g", BLOCK, subscription=code) for code in "st"]
        first, second = await store.accept([(bench.event("e1"), jobs), (bench.event("e2"), [bench.job("free")])])
        assert (first.kept.jobs, second.kept.jobs) == (2, 1)
        assert (await other.event("e1")).jobs == 2
        found = await other.find("s1")
        assert (found.job, found.status) == (jobs[0], Status.PENDING)
        assert sorted(names(await take(other))) == ["free", "s1", "t1"]
        await bench.audit(store)

    async def test_jobs_of_a_group_stand_in_the_order_in_which_their_events_came(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        await store.add(SUBSCRIPTION, "s", "{}")

        def of(name: str, **more: Any) -> tuple[Event, list[Any]]:
            return bench.event(f"e {name}"), [bench.job(name, "s:g", BLOCK, subscription="s", **more)]

        await store.accept([of("a"), of("b"), of("c")])
        await other.accept([of("d"), of("early", sequence=1), of("e")])
        await store.accept([of("f")])
        assert await bench.finish(store) == ["early", "a", "b", "c", "d", "e", "f"]

    async def test_thousands_of_jobs_of_a_call_keep_what_they_share_and_what_is_their_own(
        self, bench: JobBench
    ) -> None:
        store = await bench.platform()
        envelope, data, own = b'{"data":1}', b"1", [b"x" * size for size in range(3)]
        alike = [bench.job(f"a{n}", payload=envelope, metadata={"eventId": "e1"}) for n in range(1200)]
        mixed = [bench.job(f"m{n}", payload=envelope if n % 2 else data, sequence=n) for n in range(1200)]
        alone = [bench.job(f"o{n}", payload=payload) for n, payload in enumerate(own)]
        sent = {"e1": alike, "e2": mixed, "e3": alone, "e4": []}
        accepted = await store.accept([(bench.event(name), jobs) for name, jobs in sent.items()])
        assert [one.kept.jobs for one in accepted] == [1200, 1200, 3, 0]
        for job in (alike[0], alike[-1], *mixed[:3], *mixed[-2:], *alone):
            assert (await store.find(job.id)).job == job
        again = [bench.job(f"b{n}", payload=envelope) for n in range(1200)]
        await store.accept([(bench.event("e5"), again)])
        assert (await store.find(again[-1].id)).job == again[-1]
        assert await store.count(Filter(metadata=(("eventId", "e1"),)), 5000) == 1200

    async def test_a_waiting_receive_hears_of_an_event_of_another_process(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        receiving = asyncio.ensure_future(store.queue.receive(5, 30))
        await other.accept([(bench.event("e"), [bench.job("a")])])
        assert names(await receiving) == ["a"]

    async def test_a_job_whose_time_has_not_come_waits_for_it(self, bench: JobBench) -> None:
        store = await bench.platform()
        later = bench.job("a", scheduled_for=bench.wall() + bench.delay_s)
        (accepted,) = await store.accept([(bench.event("e"), [later])])
        assert accepted.kept.jobs == 1
        assert await take(store) == []
        await bench.pass_time(bench.delay_s)
        assert await bench.finish(store) == ["a"]

    async def test_all_events_of_a_call_are_kept_with_all_their_jobs_or_none_is(self, bench: JobBench) -> None:
        store = await bench.platform()
        await store.create([bench.job("taken", scheduled_for=bench.wall() + 1000)])
        with suppress(Exception):
            await store.accept(
                [
                    (bench.event("e1", deduplication_id="d1"), [bench.job("new")]),
                    (bench.event("e2"), [bench.job("taken")]),  # there is a job with this id
                ]
            )
        assert await listed(store) == []
        with pytest.raises(UnknownJobError):
            await store.find("new")
        assert await take(store) == []
        (accepted,) = await accept(store, bench.event("e1", deduplication_id="d1"))
        assert not accepted.repeated
        await bench.audit(store)

    async def test_a_job_of_a_subscription_that_was_removed_is_not_made(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        for code in "st":
            await store.add(SUBSCRIPTION, code, "{}")
        await store.add(EntryKind.POOL, "x", "{}")  # of another kind: no subscription
        await other.remove(SUBSCRIPTION, "s")
        jobs = [bench.job(f"{code}1", f"{code}:g", BLOCK, subscription=code) for code in "stx"]
        (accepted,) = await store.accept([(bench.event("e"), jobs)])
        assert (accepted.kept.jobs, (await store.event("e")).jobs) == (1, 1)
        assert await bench.finish(store) == ["t1"]
        for gone in ("s1", "x1"):
            with pytest.raises(UnknownJobError):
                await store.find(gone)
        await bench.audit(store)

    # Once

    async def test_a_repeat_is_the_first_event_and_makes_no_jobs(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        (first,) = await store.accept([(bench.event("e1", deduplication_id="d", subject="1"), [bench.job("a")])])
        again = await other.accept(
            [
                (bench.event("e2", deduplication_id="d", subject="2"), [bench.job("b"), bench.job("c")]),
                (bench.event("e3"), [bench.job("x")]),
            ]
        )
        assert [(one.kept.event.id, one.kept.jobs, one.repeated) for one in again] == [
            ("e1", 1, True),
            ("e3", 1, False),
        ]
        assert again[0].kept == first.kept
        assert sorted(await bench.finish(store)) == ["a", "x"]
        assert await listed(store) == ["e3", "e1"]
        for gone in ("b", "c"):
            with pytest.raises(UnknownJobError):
                await store.find(gone)

    async def test_the_second_of_two_in_a_call_is_a_repeat(self, bench: JobBench) -> None:
        store = await bench.platform()
        accepted = await store.accept(
            [(bench.event(f"e{n}", deduplication_id=key), [bench.job(f"j{n}")]) for n, key in enumerate("dxd")]
        )
        assert [(one.kept.event.id, one.kept.jobs, one.repeated) for one in accepted] == [
            ("e0", 1, False),
            ("e1", 1, False),
            ("e0", 1, True),
        ]
        assert sorted(await bench.finish(store)) == ["j0", "j1"]

    async def test_events_without_a_deduplication_id_are_never_repeats(self, bench: JobBench) -> None:
        store = await bench.platform()
        accepted = await accept(store, *(bench.event(f"e{n}") for n in range(3)))
        assert [one.repeated for one in accepted] == [False] * 3

    async def test_two_processes_with_one_deduplication_id_keep_one_event(self, bench: JobBench) -> None:
        stores = [await bench.platform() for _ in range(3)]
        asked = [
            store.accept([(bench.event(f"e{n}", deduplication_id="once"), [bench.job(f"j{n}")])])
            for n, store in enumerate(stores)
        ]
        accepted = [one for (one,) in await asyncio.gather(*asked)]
        assert sorted(one.repeated for one in accepted) == [False, True, True]
        assert len({one.kept.event.id for one in accepted}) == 1
        assert len(await bench.finish(stores[0])) == 1

    # Lists

    async def test_events_are_listed_the_newest_first_and_for_a_replay_the_oldest(self, bench: JobBench) -> None:
        store = await bench.platform()
        await accept(store, *(bench.event(f"e{n}") for n in range(5)))
        await accept(store, bench.event("e5"))
        every = [f"e{n}" for n in range(6)]
        for limit in (1, 2, 6, 100):
            assert await listed(store, limit) == every[::-1]
            assert await listed(store, limit, in_order=True) == every
        assert await listed(store, which=EventFilter(type="nothing")) == []
        assert await listed(await bench.platform(), which=EventFilter(type="nothing"), in_order=True) == []

    async def test_events_are_filtered_by_all_that_is_asked_for(self, bench: JobBench) -> None:
        store = await bench.platform()
        kinds: dict[str, dict[str, Any]] = {
            "type": {"type": "order.paid"},
            "source": {"source": "web"},
            "subject": {"subject": "order:1"},
            "group": {"message_group": "g ü"},
            "correlation": {"correlation_id": "c"},
            "deduplication": {"deduplication_id": "d"},
        }
        for name, more in kinds.items():
            await accept(
                store, bench.event(name, **more), bench.event(f"{name} 2", **(more | {"deduplication_id": None}))
            )
        await accept(store, bench.event("plain"), bench.event("both", type="order.paid", source="web"))
        for which, found in (
            (EventFilter(type="order.paid"), ["both", "type 2", "type"]),
            (EventFilter(source="web"), ["both", "source 2", "source"]),
            (EventFilter(subject="order:1"), ["subject 2", "subject"]),
            (EventFilter(group="g ü"), ["group 2", "group"]),
            (EventFilter(correlation_id="c"), ["correlation 2", "correlation"]),
            (EventFilter(deduplication_id="d"), ["deduplication"]),
            (EventFilter(type="order.paid", source="web"), ["both"]),
            (EventFilter(type="order.paid", subject="order:1"), []),
            (EventFilter(type="order.created", source="shop", correlation_id="c"), ["correlation 2", "correlation"]),
        ):
            for limit in (1, 100):
                assert await listed(store, limit, which) == found, which
                assert await listed(store, limit, which, in_order=True) == found[::-1], which

    async def test_events_are_filtered_by_when_they_came(self, bench: JobBench) -> None:
        store = await bench.platform()
        times = []
        for n in range(4):
            times.append(bench.wall())
            await accept(store, bench.event(f"e{n}", message_group="g"), bench.event(f"f{n}"))
            await bench.pass_time(bench.delay_s)
        for group, prefixes in ((None, "fe"), ("g", "e")):

            def found(*numbers: int, of: str = prefixes) -> list[str]:
                return [f"{prefix}{number}" for number in numbers for prefix in of]

            between = EventFilter(created_from=times[1], created_before=times[3], group=group)
            assert await listed(store, 1, between) == found(2, 1)
            assert await listed(store, 1, between, in_order=True) == found(2, 1)[::-1]
            assert await listed(store, 1, EventFilter(created_from=times[3], group=group)) == found(3)
            assert await listed(store, 1, EventFilter(created_before=times[1], group=group)) == found(0)
            assert await listed(store, 1, EventFilter(created_from=bench.wall(), group=group)) == []

    # Drop

    async def test_old_events_are_forgotten_in_parts_and_their_jobs_stay(self, bench: JobBench) -> None:
        store = await bench.platform()
        for n in range(5):
            event = bench.event(f"e{n}", deduplication_id=f"d{n}", message_group="g")
            await store.accept([(event, [bench.job(f"j{n}", metadata={"eventId": f"e{n}"})])])
        await bench.pass_time(bench.delay_s)
        before = bench.wall()
        await accept(store, bench.event("new", deduplication_id="new"))
        assert [await store.drop_events(before, 2) for _ in range(4)] == [2, 2, 1, 0]
        assert await listed(store) == ["new"]
        assert await listed(store, which=EventFilter(group="g")) == []
        with pytest.raises(UnknownEventError):
            await store.event("e0")
        assert await store.count(Filter(metadata=(("eventId", "e0"),)), 10) == 1
        again, still = await accept(
            store, bench.event("again", deduplication_id="d0"), bench.event("x", deduplication_id="new")
        )
        assert (again.repeated, still.repeated, still.kept.event.id) == (False, True, "new")
        assert len(await bench.finish(store)) == 5
