"""Catalog: what it knows is what the store has, own changes at once and those of others soon; secrets stay secret."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from flowcatalyst.core.errors import NotSignedError, QueueUnavailableError
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningFilter, WarningLog
from flowcatalyst.dispatch import catalog as catalog_module
from flowcatalyst.dispatch.catalog import FRESH_S, LOOK_AGAIN_S, Catalog, TooManySubscriptionsError
from flowcatalyst.dispatch.catalog_entries import DispatchPool, StoredSubscription
from flowcatalyst.dispatch.rotation import TooManySecretsError, rotated, sealed
from flowcatalyst.dispatch.sealing import Sealer
from flowcatalyst.dispatch.store.platform_contract import (
    CodeTakenError,
    Entry,
    EntryKind,
    StaleEntryError,
    UnknownEntryError,
)
from flowcatalyst.dispatch.subscription import EventTypeBinding
from flowcatalyst.http.signing import new_secret
from tests.support.clocks import SetClock

KEY = b"k" * 32
SECRET = new_secret()


class Store:
    """A store that several catalogs share, as processes do."""

    def __init__(self) -> None:
        self.kept: dict[tuple[EntryKind, str], Entry] = {}
        self.now = 0
        self.away = False
        self.read = 0  # how often all entries were
        self.asked = 0  # how often its revision was
        self._told = asyncio.Condition()

    async def revision(self) -> int:
        if self.away:
            raise QueueUnavailableError("away")
        self.asked += 1
        await asyncio.sleep(0)
        return self.now

    async def entries(self, kind: EntryKind) -> list[Entry]:
        self.read += 1
        return [entry for (one, _), entry in sorted(self.kept.items()) if one is kind]

    async def add(self, kind: EntryKind, code: str, document: str, *, paused: bool = False) -> Entry:
        if (kind, code) in self.kept:
            raise CodeTakenError
        return await self._keep(Entry(kind, code, document, 0, 1.0, 1.0))

    async def change(
        self,
        kind: EntryKind,
        code: str,
        document: str,
        revision: int | None = None,
        *,
        quiet: bool = False,
        paused: bool | None = None,
    ) -> Entry:
        if (found := self.kept.get((kind, code))) is None:
            raise UnknownEntryError
        if revision not in (None, found.revision):
            raise StaleEntryError
        return await self._keep(replace(found, document=document))

    async def remove(self, kind: EntryKind, code: str) -> None:
        if self.kept.pop((kind, code), None) is None:
            raise UnknownEntryError
        await self._tell()

    async def changed(self, since: int, wait_s: float) -> int:
        async with self._told:
            await self._told.wait_for(lambda: self.now != since)
        return self.now

    async def _keep(self, entry: Entry) -> Entry:
        entry = replace(entry, revision=self.now + 1)
        self.kept[entry.kind, entry.code] = entry
        await self._tell()
        return entry

    async def _tell(self) -> None:
        self.now += 1
        async with self._told:
            self._told.notify_all()


class Process:
    """One that has a catalog."""

    def __init__(self, store: Store, key: bytes = KEY) -> None:
        self.clock = SetClock()
        self.warnings = WarningLog(self.clock)
        self.sealer = Sealer(key)
        self.pools_told = 0
        self.catalog = Catalog(store, self.sealer, self.clock, self.warnings, self._tell)

    async def _tell(self) -> None:
        self.pools_told += 1

    def subscription(self, code: str = "orders", **more: Any) -> StoredSubscription:
        fields: dict[str, Any] = {
            "code": code,
            "target_url": "https://shop.example/",
            "event_types": (EventTypeBinding("order.*"),),
            "secrets": (sealed(self.sealer, code, SECRET, self.clock.wall()),),
        }
        return StoredSubscription(**fields | more)

    async def subscribe(self, code: str = "orders", **more: Any) -> None:
        await self.catalog.add(EntryKind.SUBSCRIPTION, code, self.subscription(code, **more))

    def secrets(self, code: str = "orders") -> Sequence[str]:
        return self.catalog.secrets_of(code, self.clock.wall())


@pytest.fixture
def store() -> Store:
    return Store()


async def test_what_was_there_is_known_and_own_changes_are_at_once(store: Store) -> None:
    await Process(store).subscribe("old")
    process = Process(store)
    await process.subscribe("new")
    assert list(process.catalog.subscriptions) == ["old", "new"]
    before, after = await process.catalog.change_subscription(
        "new", lambda one: msgspec.structs.replace(one, name="New")
    )
    assert (before.name, after.name, process.catalog.subscription("new").document.name) == (None, "New", "New")
    await process.catalog.remove(EntryKind.SUBSCRIPTION, "old")
    assert len(process.catalog.matcher) == 1
    with pytest.raises(UnknownEntryError, match="there is no subscription old"):
        process.catalog.subscription("old")


async def test_own_changes_do_not_read_everything_again(store: Store) -> None:
    process = Process(store)
    await process.catalog.ready()
    before = store.read
    for number in range(10):
        await process.subscribe(f"s{number}")
    await process.catalog.refresh()
    assert store.read == before


async def test_changes_of_other_processes_are_followed(store: Store) -> None:
    one, other, tasks = Process(store), Process(store), Tasks()
    tasks.spawn(other.catalog.follow())
    await one.subscribe()
    await one.catalog.add(EntryKind.POOL, "P", DispatchPool(code="P", concurrency=3))
    async with asyncio.timeout(10):
        while not (other.catalog.subscriptions and other.catalog.pools):
            await asyncio.sleep(0)
        assert (other.secrets(), other.pools_told) == ([SECRET], 1)
        await one.catalog.remove(EntryKind.SUBSCRIPTION, "orders")
        while other.catalog.subscriptions:
            await asyncio.sleep(0)
    await tasks.cancel()


async def test_who_stood_still_asks_the_store_before_it_says_what_there_is(store: Store) -> None:
    """It was stopped while others went on: what waits for an answer is older than what it knows."""
    one, other = Process(store), Process(store)
    await other.catalog.ready()
    await one.subscribe()
    other.clock.now += 2 * FRESH_S
    await other.catalog.fresh()
    assert list(other.catalog.subscriptions) == ["orders"]
    other.clock.now += 2 * FRESH_S
    store.away = True
    with pytest.raises(QueueUnavailableError):
        await other.catalog.fresh()


async def test_knowledge_that_is_fresh_enough_costs_the_store_nothing(store: Store) -> None:
    process = Process(store)
    await process.catalog.ready()
    process.clock.now += FRESH_S / 2
    before = store.asked
    await asyncio.gather(*(process.catalog.fresh() for _ in range(10)))
    assert store.asked == before
    process.clock.now += FRESH_S
    await asyncio.gather(*(process.catalog.fresh() for _ in range(10)))
    assert store.asked == before + 1


async def test_a_change_beside_that_of_another_process_loses_neither(store: Store) -> None:
    one, other = Process(store), Process(store)
    await one.subscribe()
    await other.catalog.ready()
    await one.catalog.change_subscription("orders", lambda found: msgspec.structs.replace(found, name="A"))
    await other.catalog.change_subscription("orders", lambda found: msgspec.structs.replace(found, sequence=5))
    assert (other.catalog.subscription("orders").document.name, store.now) == ("A", 3)


async def test_of_a_store_that_is_away_nothing_is_made_up(store: Store) -> None:
    await Process(store).subscribe()
    process = Process(store)
    store.away = True
    with pytest.raises(QueueUnavailableError):
        await process.catalog.ready()
    with pytest.raises(NotSignedError, match="not known here yet"):
        process.secrets()
    store.away = False
    await process.catalog.ready()
    assert process.secrets() == [SECRET]


async def test_what_a_newer_version_wrote_is_read_as_far_as_it_is_known(store: Store) -> None:
    process = Process(store)
    document = msgspec.to_builtins(process.subscription()) | {"newField": 1}
    await store.add(EntryKind.SUBSCRIPTION, "orders", msgspec.json.encode(document).decode())
    await process.catalog.ready()
    assert list(process.catalog.subscriptions) == ["orders"]


async def test_an_entry_that_cannot_be_read_is_told_of_and_the_one_before_stays(store: Store) -> None:
    process = Process(store)
    await process.subscribe()
    await store.change(EntryKind.SUBSCRIPTION, "orders", "{}")
    await process.catalog.refresh()
    assert process.catalog.subscription("orders").document.code == "orders"
    (told,) = process.warnings.recent(WarningFilter(code=WarningCode.CONFIG_REJECTED))
    assert "subscription orders cannot be read" in told.message


async def test_without_the_key_nothing_is_signed_and_with_it_again_all_is(store: Store) -> None:
    await Process(store).subscribe()
    process = Process(store, b"x" * 32)
    await process.catalog.ready()
    with pytest.raises(NotSignedError, match="another key") as raised:
        process.secrets()
    assert SECRET not in str(raised.value)
    assert "another key" in process.catalog.problem_with_secrets("orders")
    process.catalog._sealer = Sealer(KEY)
    process.clock.now += LOOK_AGAIN_S
    assert process.secrets() == [SECRET]
    assert process.catalog.problem_with_secrets("orders") == ""


async def test_secrets_sign_until_their_time_is_over(store: Store) -> None:
    process = Process(store)
    await process.subscribe()
    second = new_secret()
    new = sealed(process.sealer, "orders", second, process.clock.wall())
    await process.catalog.change_subscription("orders", rotated(process.sealer, new, process.clock.wall(), 60.0))
    assert process.secrets() == [second, SECRET]
    process.clock.now += 60
    assert process.secrets() == [second]
    assert SECRET not in str(store.kept) + repr(process.catalog.subscription("orders"))


async def test_a_rotation_drops_what_cannot_be_opened_and_has_its_bounds(store: Store) -> None:
    await Process(store).subscribe()
    process = Process(store, b"x" * 32)
    for number in range(5):
        new = sealed(process.sealer, "orders", new_secret(), 0.0)
        await process.catalog.change_subscription("orders", rotated(process.sealer, new, process.clock.wall(), 60.0))
        assert len(process.secrets()) == number + 1
    new = sealed(process.sealer, "orders", new_secret(), 0.0)
    with pytest.raises(TooManySecretsError, match="5 secrets"):
        await process.catalog.change_subscription("orders", rotated(process.sealer, new, process.clock.wall(), 60.0))


async def test_beyond_the_limit_no_subscription_is_added_and_others_can_be_changed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "MAX_SUBSCRIPTIONS", 2)
    one = Process(store)
    await one.subscribe("a")
    await one.subscribe("b")
    with pytest.raises(TooManySubscriptionsError, match="there are 2 subscriptions, and 2 are allowed: delete one"):
        await one.subscribe("c")
    with pytest.raises(CodeTakenError):
        await one.subscribe("a")
    await one.catalog.change_subscription("a", lambda before: msgspec.structs.replace(before, name="changed"))
    await one.catalog.add(EntryKind.POOL, "p", DispatchPool(code="p", concurrency=1))
    await one.catalog.remove(EntryKind.SUBSCRIPTION, "b")
    await one.subscribe("c")
    assert sorted(one.catalog.subscriptions) == ["a", "c"]
