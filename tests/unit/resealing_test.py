"""After a change of the key all secrets are sealed with the new one, and whoever signs notices nothing of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.dispatch import resealing
from flowcatalyst.dispatch.catalog import Catalog
from flowcatalyst.dispatch.catalog_entries import StoredSubscription
from flowcatalyst.dispatch.resealing import Resealing
from flowcatalyst.dispatch.rotation import rotated, sealed
from flowcatalyst.dispatch.sealing import GivenKeys, KeyFile, Keys, NoKeys, Sealer
from flowcatalyst.dispatch.store.platform_contract import EntryKind
from flowcatalyst.dispatch.store.sqlite import SqliteJobStore
from flowcatalyst.dispatch.subscription import EventTypeBinding
from flowcatalyst.http.signing import new_secret

OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32


class Process:
    """One that has these keys."""

    def __init__(self, store: SqliteJobStore, keys: Keys) -> None:
        async def pools_changed() -> None:
            """There are none."""

        clock = SystemClock()
        self.clock, self.sealer = clock, Sealer(keys)
        self.catalog = Catalog(store, self.sealer, clock, WarningLog(clock), pools_changed)
        self.resealing = Resealing(store, self.catalog, self.sealer)

    async def subscribe(self, code: str) -> str:
        secret, wall = new_secret(), self.clock.wall()
        document = StoredSubscription(
            code=code,
            target_url="http://localhost/",
            event_types=(EventTypeBinding("order.*"),),
            secrets=(sealed(self.sealer, code, secret, wall),),
        )
        await self.catalog.add(EntryKind.SUBSCRIPTION, code, document)
        return secret

    async def rotate(self, code: str) -> str:
        secret, wall = new_secret(), self.clock.wall()
        new = sealed(self.sealer, code, secret, wall)
        await self.catalog.change_subscription(code, rotated(self.sealer, new, wall, 3600.0))
        return secret

    def secrets(self, code: str) -> Sequence[str]:
        return self.catalog.secrets_of(code, self.clock.wall())

    def keys_in_use(self) -> set[bytes]:
        kept = self.catalog.subscriptions.values()
        return {self.sealer.key_id_of(one.sealed) for subscription in kept for one in subscription.document.secrets}


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[SqliteJobStore]:
    store = SqliteJobStore(folder / "jobs.db", SystemClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteJobStore]:
    monkeypatch.setattr(resealing, "BREATH_S", 0.0)
    async with opened(tmp_path) as store:
        yield store


async def test_after_a_change_of_the_key_the_old_one_can_go(store: SqliteJobStore) -> None:
    before = Process(store, GivenKeys([OLD]))
    first = {code: await before.subscribe(code) for code in ("a", "b")}
    second = await before.rotate("b")
    changing = Process(store, GivenKeys([NEW, OLD]))
    await changing.resealing.look()
    after = Process(store, GivenKeys([NEW]))
    await after.catalog.ready()
    assert after.catalog.problem_with_keys() == ""
    assert (after.secrets("a"), after.secrets("b")) == ([first["a"]], [second, first["b"]])
    assert after.keys_in_use() == {after.sealer.newest_id()}


async def test_what_is_sealed_with_the_newest_key_is_left_alone(store: SqliteJobStore) -> None:
    process = Process(store, GivenKeys([NEW, OLD]))
    await process.subscribe("a")
    revision = await store.revision()
    for _ in range(3):
        await process.resealing.look()
    assert await store.revision() == revision


async def test_what_cannot_be_opened_stays_as_it_is_until_its_key_is_back(store: SqliteJobStore) -> None:
    secret = await Process(store, GivenKeys([OTHER])).subscribe("a")
    without = Process(store, GivenKeys([NEW, OLD]))
    await without.catalog.ready()
    revision = await store.revision()
    await without.resealing.look()
    await Process(store, NoKeys()).resealing.look()
    assert await store.revision() == revision
    back = Process(store, GivenKeys([NEW, OTHER]))
    await back.resealing.look()
    assert back.secrets("a") == [secret]
    assert back.keys_in_use() == {back.sealer.newest_id()}


async def test_a_platform_without_secrets_makes_no_key(store: SqliteJobStore, tmp_path: Path) -> None:
    await Process(store, KeyFile(tmp_path / "secret.key")).resealing.look()
    assert not (tmp_path / "secret.key").exists()


async def test_a_change_by_somebody_else_meanwhile_loses_neither(store: SqliteJobStore) -> None:
    first = await Process(store, GivenKeys([OLD])).subscribe("a")
    changing, other = (Process(store, GivenKeys([NEW, OLD])) for _ in range(2))
    await changing.catalog.ready()
    second = await other.rotate("a")
    await asyncio.gather(changing.resealing.look(), other.resealing.look())
    after = Process(store, GivenKeys([NEW]))
    await after.catalog.ready()
    assert after.secrets("a") == [second, first]
