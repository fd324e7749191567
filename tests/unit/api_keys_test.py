"""API keys of the platform: who is let in and for how long, and what other processes learn of it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from flowcatalyst.core.clock import IdSource
from flowcatalyst.core.credentials import Scope
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.dispatch import api_keys
from flowcatalyst.dispatch.api_keys import (
    KEPT_AFTER_END_S,
    MAX_AT_A_TIME,
    PREFIX,
    USE_PERIOD_S,
    ApiKeys,
    InvalidKeyError,
    KeyStateError,
)
from flowcatalyst.dispatch.store.platform_contract import Entry, EntryKind, UnknownEntryError
from flowcatalyst.dispatch.store.sqlite import SqliteJobStore
from tests.support.clocks import SetClock
from tests.support.patience import PATIENCE_S

DAY_S = 86_400.0
Process = Callable[[], Awaitable[tuple[ApiKeys, SqliteJobStore]]]


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def process(tmp_path: Path, clock: SetClock) -> AsyncIterator[Process]:
    """What another process on the same store knows, each time."""
    async with AsyncExitStack() as stack:

        async def start() -> tuple[ApiKeys, SqliteJobStore]:
            store = SqliteJobStore(tmp_path / "jobs.db", clock)
            await store.open()
            stack.push_async_callback(store.close)
            keys = ApiKeys(store, IdSource(clock), clock)
            await keys.ready()
            return keys, store

        yield start


@pytest.fixture
async def keys(process: Process) -> ApiKeys:
    return (await process())[0]


async def made(keys: ApiKeys, *scopes: Scope, expires_at: float | None = None) -> tuple[str, str]:
    """The id of a new key, and the key."""
    kept, key = await keys.create("shop", scopes or (Scope.PUBLISH,), expires_at, "ann")
    return kept.id, key


def let_in(keys: ApiKeys, key: str) -> bool:
    return keys.identify(key.encode()) is not None


async def test_a_new_key_is_let_in_at_once_with_its_scopes_and_no_other_is(keys: ApiKeys) -> None:
    key_id, key = await made(keys, Scope.READ, Scope.PUBLISH, Scope.READ)
    assert key.startswith(PREFIX)
    identity = keys.identify(key.encode())
    assert identity is not None
    assert identity.scopes == {Scope.PUBLISH, Scope.READ}
    assert (identity.name, identity.title) == (f"key shop ({key_id[-8:]})", "publish, read")
    for other in ("", key[:-1], key + "x", key.removeprefix(PREFIX), hashlib.sha256(key.encode()).hexdigest()):
        assert not let_in(keys, other)


async def test_the_store_holds_a_hash_and_not_the_key(process: Process) -> None:
    keys, store = await process()
    _, key = await made(keys)
    (entry,) = await store.entries(EntryKind.API_KEY)
    assert hashlib.sha256(key.encode()).hexdigest() in entry.document
    assert key.removeprefix(PREFIX) not in entry.document


@pytest.mark.parametrize("name", ["", " ", "x" * 101, "a\0b", "a\nb"])
async def test_a_name_that_cannot_be_shown_is_refused(keys: ApiKeys, name: str) -> None:
    with pytest.raises(InvalidKeyError, match="name has to have"):
        await keys.create(name, [Scope.READ], None, "ann")


async def test_a_key_needs_a_scope_and_an_end_in_the_future(keys: ApiKeys, clock: SetClock) -> None:
    with pytest.raises(InvalidKeyError, match="one or more of publish, read, operate, admin"):
        await keys.create("shop", [], None, "ann")
    with pytest.raises(InvalidKeyError, match="in the future"):
        await keys.create("shop", [Scope.READ], clock.wall(), "ann")


async def test_a_key_is_let_in_until_it_expires(keys: ApiKeys, clock: SetClock) -> None:
    _, key = await made(keys, expires_at=clock.wall() + 10)
    clock.now += 9.9
    assert let_in(keys, key)
    clock.now += 0.1
    assert not let_in(keys, key)


async def test_a_revoked_key_is_let_in_no_more_and_to_revoke_it_again_changes_nothing(
    keys: ApiKeys, clock: SetClock
) -> None:
    key_id, key = await made(keys)
    _, other = await made(keys)
    revoked_at = clock.wall()
    await keys.revoke(key_id)
    assert (let_in(keys, key), let_in(keys, other)) == (False, True)
    clock.now += 5
    assert (await keys.revoke(key_id)).key.revoked_at == revoked_at
    with pytest.raises(KeyStateError, match="is revoked or expired: make a new one"):
        await keys.rotate(key_id, DAY_S)


async def test_while_a_rotation_overlaps_both_keys_are_let_in(keys: ApiKeys, clock: SetClock) -> None:
    key_id, old = await made(keys, Scope.OPERATE)
    kept, new = await keys.rotate(key_id, 60.0)
    assert (kept.id, kept.key.scopes, kept.key.rotated_at) == (key_id, (Scope.OPERATE,), clock.wall())
    assert (let_in(keys, old), let_in(keys, new)) == (True, True)
    clock.now += 60
    assert (let_in(keys, old), let_in(keys, new)) == (False, True)


async def test_a_rotation_without_overlap_ends_all_keys_before(keys: ApiKeys) -> None:
    key_id, first = await made(keys)
    _, second = await keys.rotate(key_id, DAY_S)
    _, third = await keys.rotate(key_id, 0.0)
    assert [let_in(keys, key) for key in (first, second, third)] == [False, False, True]


async def test_a_later_rotation_ends_an_overlap_sooner_but_never_later(keys: ApiKeys, clock: SetClock) -> None:
    key_id, first = await made(keys)
    _, second = await keys.rotate(key_id, 100.0)
    _, third = await keys.rotate(key_id, 10.0)
    _, fourth = await keys.rotate(key_id, 1000.0)
    clock.now += 10
    assert [let_in(keys, key) for key in (first, second, third, fourth)] == [False, False, True, True]


async def test_of_one_key_only_so_many_are_let_in_at_a_time(keys: ApiKeys, clock: SetClock) -> None:
    key_id, _ = await made(keys)
    for _ in range(MAX_AT_A_TIME - 1):
        await keys.rotate(key_id, 60.0)
    with pytest.raises(KeyStateError, match="give overlapSeconds 0"):
        await keys.rotate(key_id, 60.0)
    clock.now += 60
    await keys.rotate(key_id, 60.0)


async def test_a_revoked_key_takes_those_before_it_along(keys: ApiKeys) -> None:
    key_id, old = await made(keys)
    _, new = await keys.rotate(key_id, DAY_S)
    await keys.revoke(key_id)
    assert not let_in(keys, old)
    assert not let_in(keys, new)


async def test_what_is_not_there_cannot_be_rotated_or_revoked(keys: ApiKeys) -> None:
    with pytest.raises(UnknownEntryError, match="there is no API key nope"):
        await keys.rotate("nope", 0.0)
    with pytest.raises(UnknownEntryError, match="there is no API key nope"):
        await keys.revoke("nope")


async def test_another_process_that_follows_sees_each_change(process: Process) -> None:
    (here, _), (there, _) = await process(), await process()
    following = asyncio.create_task(there.follow())
    try:
        async with asyncio.timeout(PATIENCE_S):
            key_id, key = await made(here)
            while not let_in(there, key):
                await asyncio.sleep(0.01)
            _, new = await here.rotate(key_id, 0.0)
            while let_in(there, key) or not let_in(there, new):
                await asyncio.sleep(0.01)
            await here.revoke(key_id)
            while let_in(there, new):
                await asyncio.sleep(0.01)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def test_two_processes_that_change_one_key_lose_neither_change(process: Process) -> None:
    (here, _), (there, _) = await process(), await process()
    key_id, key = await made(here)
    await there.revoke(key_id)
    with pytest.raises(KeyStateError, match="is revoked"):  # although it has not heard of it
        await here.rotate(key_id, DAY_S)
    assert not let_in(here, key)


async def test_a_key_that_was_revoked_here_does_not_come_back_by_what_was_read_before(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, store = await process()
    key_id, key = await made(keys)
    reading, go_on = asyncio.Event(), asyncio.Event()
    entries = store.entries

    async def slow_entries(kind: EntryKind) -> Sequence[Entry]:
        found = await entries(kind)
        reading.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(store, "entries", slow_entries)
    refreshing = asyncio.create_task(keys.refresh())
    await reading.wait()
    monkeypatch.setattr(store, "entries", entries)
    revoking = asyncio.create_task(keys.revoke(key_id))
    go_on.set()
    await asyncio.gather(refreshing, revoking)
    assert not let_in(keys, key)


async def test_the_last_use_is_written_quietly_and_at_most_once_a_minute(process: Process, clock: SetClock) -> None:
    keys, store = await process()
    other, _ = await process()
    key_id, key = await made(keys)
    revision = await store.revision()
    first_use = clock.wall()

    async def written() -> float | None:
        (kept,) = await other.listed()
        return kept.key.last_used_at

    await keys.write_uses()
    assert await written() is None
    assert let_in(keys, key)
    await keys.write_uses()
    assert await written() == first_use
    clock.now += USE_PERIOD_S / 2
    assert let_in(keys, key)
    await keys.write_uses()
    assert await written() == first_use
    assert (await keys.listed())[0].key.last_used_at == clock.wall()
    clock.now += USE_PERIOD_S / 2
    await keys.write_uses()
    assert await written() == clock.wall() - USE_PERIOD_S / 2
    assert await store.revision() == revision
    assert (await other.revoke(key_id)).key.last_used_at == clock.wall() - USE_PERIOD_S / 2


async def test_to_write_a_use_does_not_undo_what_another_process_changed(process: Process) -> None:
    (here, _), (there, _) = await process(), await process()
    key_id, key = await made(here)
    assert let_in(here, key)
    await there.revoke(key_id)
    await here.write_uses()
    await here.refresh()
    assert not let_in(here, key)


async def test_a_key_that_is_over_goes_long_after_its_end_when_another_is_made(keys: ApiKeys, clock: SetClock) -> None:
    key_id, key = await made(keys)
    await keys.revoke(key_id)
    clock.now += KEPT_AFTER_END_S
    second, _ = await made(keys)
    assert [kept.id for kept in await keys.listed()] == [key_id, second]
    clock.now += 1
    third, _ = await made(keys)
    assert [kept.id for kept in await keys.listed()] == [second, third]
    assert not let_in(keys, key)


async def test_there_is_a_bound_on_keys(keys: ApiKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_keys, "MAX_KEYS", 2)
    await made(keys)
    await made(keys)
    with pytest.raises(KeyStateError, match="there are 2 API keys, and there cannot be more"):
        await made(keys)


async def test_before_keys_could_be_read_nobody_is_told_that_one_is_wrong(tmp_path: Path, clock: SetClock) -> None:
    keys = ApiKeys(SqliteJobStore(tmp_path / "jobs.db", clock), IdSource(clock), clock)
    with pytest.raises(QueueUnavailableError, match="could not be read yet"):
        keys.identify(b"key")


async def test_keys_are_found_by_something_that_nobody_outside_can_compute(keys: ApiKeys) -> None:
    """How long a look into a table takes may tell what is in it."""
    _, key = await made(keys)
    digest = hashlib.sha256(key.encode())
    assert not any(digest.digest() in trace or trace in digest.digest() for trace in keys._found_by)
