"""The part of the suite of platform stores about the catalog: entries, and who hears of their changes."""

import asyncio

import pytest

from flowcatalyst.dispatch.store.platform_contract import (
    CodeTakenError,
    EntryKind,
    PlatformStore,
    StaleEntryError,
    UnknownEntryError,
)
from tests.conformance.job_bench import JobBench
from tests.support.patience import PATIENCE_S

POOL, SUBSCRIPTION, API_KEY = EntryKind.POOL, EntryKind.SUBSCRIPTION, EntryKind.API_KEY


async def codes(store: PlatformStore, kind: EntryKind = POOL) -> list[tuple[str, str]]:
    return [(entry.code, entry.document) for entry in await store.entries(kind)]


class CatalogSuite:
    async def test_entries_of_a_kind_are_listed_by_code(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        assert await store.entries(POOL) == []
        added = [await store.add(POOL, code, '{"a": "ü\\u0000"}') for code in ("b", "ü \"%'", "a", "B")]
        await other.add(SUBSCRIPTION, "b", "{}")  # a code of another kind is another one
        assert await other.entries(POOL) == sorted(added, key=lambda entry: entry.code)
        assert await codes(store, SUBSCRIPTION) == [("b", "{}")]
        assert await codes(store, API_KEY) == []
        for entry in added:
            assert entry.created_at == entry.updated_at == pytest.approx(bench.wall(), abs=60)

    async def test_an_entry_has_the_revision_of_its_last_change(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        before = await store.revision()
        first = await store.add(POOL, "a", "1")
        second = await other.add(POOL, "b", "1")
        assert before < first.revision < second.revision == await store.revision()
        await bench.pass_time(bench.delay_s)
        changed = await other.change(POOL, "a", "2")
        assert (changed.document, changed.created_at) == ("2", first.created_at)
        assert changed.updated_at == pytest.approx(first.updated_at + bench.delay_s, abs=60)
        assert second.revision < changed.revision == await other.revision()
        assert await store.entries(POOL) == [changed, second]

    async def test_a_code_is_taken_once(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        entry = await store.add(POOL, "a", "1")
        with pytest.raises(CodeTakenError):
            await other.add(POOL, "a", "2")
        assert await store.entries(POOL) == [entry]
        assert await store.revision() == entry.revision

    async def test_of_two_who_add_one_code_at_once_one_does(self, bench: JobBench) -> None:
        stores = [await bench.platform() for _ in range(3)]
        asked = [store.add(POOL, "a", f"{n}") for n, store in enumerate(stores)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert sorted(isinstance(result, CodeTakenError) for result in results) == [False, True, True]
        assert len(await stores[0].entries(POOL)) == 1

    async def test_what_is_not_there_is_neither_changed_nor_removed(self, bench: JobBench) -> None:
        store = await bench.platform()
        await store.add(SUBSCRIPTION, "a", "1")
        before = await store.revision()
        with pytest.raises(UnknownEntryError):
            await store.change(POOL, "a", "2")
        with pytest.raises(UnknownEntryError):
            await store.change(POOL, "a", "2", revision=before)
        with pytest.raises(UnknownEntryError):
            await store.change(POOL, "a", "2", quiet=True)
        with pytest.raises(UnknownEntryError):
            await store.remove(POOL, "a")
        assert (await store.revision(), await codes(store)) == (before, [])

    async def test_who_changes_an_entry_that_somebody_else_changed_is_told(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        first = await store.add(POOL, "a", "1")
        second = await other.change(POOL, "a", "2", revision=first.revision)
        with pytest.raises(StaleEntryError):
            await store.change(POOL, "a", "3", revision=first.revision)
        assert await codes(store) == [("a", "2")]
        assert await store.revision() == second.revision
        third = await store.change(POOL, "a", "3", revision=second.revision)
        assert (third.document, third.revision > second.revision) == ("3", True)

    async def test_of_two_changes_of_one_revision_one_happens(self, bench: JobBench) -> None:
        stores = [await bench.platform() for _ in range(3)]
        first = await stores[0].add(POOL, "a", "")
        asked = [store.change(POOL, "a", f"{n}", revision=first.revision) for n, store in enumerate(stores)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert sorted(isinstance(result, StaleEntryError) for result in results) == [False, True, True]

    async def test_what_is_removed_is_gone_and_may_come_again(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        first = await store.add(POOL, "a", "1")
        await other.remove(POOL, "a")
        assert (await codes(store), await store.revision() > first.revision) == ([], True)
        with pytest.raises(UnknownEntryError):
            await store.remove(POOL, "a")
        again = await store.add(POOL, "a", "2")
        assert again.revision > first.revision + 1

    async def test_a_quiet_change_is_kept_and_nobody_looks(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        first = await store.add(API_KEY, "a", "1")
        quiet = await store.change(API_KEY, "a", "2", quiet=True)
        assert (quiet.document, quiet.revision, await other.revision()) == ("2", first.revision, first.revision)
        assert await codes(other, API_KEY) == [("a", "2")]
        await other.change(API_KEY, "a", "3", revision=first.revision)
        with pytest.raises(StaleEntryError):
            await store.change(API_KEY, "a", "4", revision=first.revision, quiet=True)

    # Changes

    async def test_a_change_is_heard_of_in_every_process(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        since = await store.revision()
        hearing = [asyncio.ensure_future(one.changed(since, PATIENCE_S)) for one in (store, other)]
        entry = await store.add(POOL, "a", "1")
        assert await asyncio.gather(*hearing) == [entry.revision] * 2
        hearing = [asyncio.ensure_future(one.changed(entry.revision, PATIENCE_S)) for one in (store, other)]
        await other.remove(POOL, "a")
        assert await asyncio.gather(*hearing) == [await store.revision()] * 2

    async def test_who_missed_a_change_hears_of_it_at_once(self, bench: JobBench) -> None:
        store, other = await bench.platform(), await bench.platform()
        since = await store.revision()
        entry = await other.add(POOL, "a", "1")
        assert await store.changed(since, PATIENCE_S) == entry.revision
        assert await store.changed(entry.revision + 7, PATIENCE_S) == entry.revision  # of a database that was restored

    async def test_nothing_to_hear_of_is_told_after_a_while(self, bench: JobBench) -> None:
        store = await bench.platform()
        entry = await store.add(POOL, "a", "1")
        assert await store.changed(entry.revision, 0.0) == entry.revision
        hearing = asyncio.ensure_future(store.changed(entry.revision, 0.05))
        await store.change(POOL, "a", "2", quiet=True)
        assert await hearing == entry.revision

    async def test_the_catalog_outlives_its_processes(self, bench: JobBench) -> None:
        store = await bench.platform()
        entry = await store.add(POOL, "a", "1")
        await bench.shut(store)
        again = await bench.platform()
        assert await again.entries(POOL) == [entry]
        assert await again.revision() == entry.revision
