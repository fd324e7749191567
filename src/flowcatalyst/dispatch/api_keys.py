"""API keys of the platform: what each may do, for how long, and when it was used last. All of them are in memory.

A key is 256 random bits that nobody can guess, so of each one its SHA-256 is kept (`core.credentials`). To look one up
takes as long whatever is wrong with it, and whoever measures it learns nothing of the digests that are kept: they are
found by an HMAC under a key of this process.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import structlog

from flowcatalyst.core.clock import Clock, IdSource
from flowcatalyst.core.credentials import Identity, Scope, new_key
from flowcatalyst.core.errors import FlowCatalystError, QueueUnavailableError, StorageError
from flowcatalyst.core.outage_log import OutageLog
from flowcatalyst.dispatch.store.platform_contract import (
    CatalogStore,
    Entry,
    EntryKind,
    StaleEntryError,
    UnknownEntryError,
)

PREFIX: Final = "fck_"  # tells people, and those who look for leaked secrets, what it is
MAX_KEYS: Final = 1000
MAX_NAME_CHARS: Final = 100
MAX_AT_A_TIME: Final = 5  # of one entry that is rotated
DEFAULT_OVERLAP_S: Final = 86_400.0
MAX_OVERLAP_S: Final = 30 * 86_400.0
KEPT_AFTER_END_S: Final = 90 * 86_400.0
FOLLOW_S: Final = 5.0  # how long the store is asked to wait for a change
RETRY_S: Final = 0.5
USE_LOOK_S: Final = 5.0
USE_PERIOD_S: Final = 60.0  # the use of a key is written no more often
TRIES: Final = 5

log = structlog.get_logger("flowcatalyst.platform")


class InvalidKeyError(FlowCatalystError):
    """An API key cannot be made as it was asked for."""


class KeyStateError(FlowCatalystError):
    """What was asked for cannot be done to an API key as it is now."""


class PreviousKey(msgspec.Struct, frozen=True, rename="camel"):
    """One that was rotated, and until when it is let in."""

    digest: str
    until: float


class StoredKey(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An API key as the catalog has it. Its code is the id."""

    name: str
    digest: str  # hex of a SHA-256
    scopes: tuple[Scope, ...]
    created_at: float
    created_by: str
    rotated_at: float | None = None
    expires_at: float | None = None
    last_used_at: float | None = None
    revoked_at: float | None = None
    previous: tuple[PreviousKey, ...] = ()

    def ended_at(self) -> float | None:
        """When it was let in for the last time, or will be; None: that is not known."""
        ends = [end for end in (self.revoked_at, self.expires_at) if end is not None]
        return min(ends, default=None)

    def is_valid(self, wall: float) -> bool:
        return (end := self.ended_at()) is None or wall < end


@dataclass(slots=True, frozen=True)
class KeptKey:
    """An entry of the catalog."""

    id: str
    key: StoredKey
    revision: int

    @property
    def identity(self) -> Identity:
        """By its name and the end of its id: a name may be given twice."""
        return Identity(f"key {self.key.name} ({self.id[-8:]})", None, frozenset(self.key.scopes))


_document: Final = msgspec.json.Decoder(StoredKey)


class ApiKeys:
    """All of them. A change is seen here when it returns, and in other processes when they look at the catalog."""

    def __init__(self, store: CatalogStore, ids: IdSource, clock: Clock) -> None:
        self._store = store
        self._ids = ids
        self._clock = clock
        self._key_of_process = secrets.token_bytes(32)
        self._kept: dict[str, KeptKey] = {}
        self._found_by: dict[bytes, tuple[str, float | None]] = {}  # trace -> id, and until when if it was rotated
        self._seen: int | None = None  # the revision of the catalog that all of this is of, at least
        self._used: dict[str, float] = {}  # id -> the latest use that was not written
        self._written_at: dict[str, float] = {}  # id -> when a use was written last, monotonic
        self._one_at_a_time = asyncio.Lock()  # a change of ours, or reading those of others

    # Who is let in

    def identify(self, key: bytes) -> Identity | None:
        """Whose key this is; None if it is nobody's, or is over. Raises `QueueUnavailableError` if none are known yet,
        so that nobody is told that a good key is wrong."""
        if self._seen is None:
            raise QueueUnavailableError("the API keys could not be read yet: ask again when the database answers")
        wall = self._clock.wall()
        found = self._found_by.get(self._trace(hashlib.sha256(key).hexdigest()))
        if found is None:
            return None
        key_id, until = found
        kept = self._kept[key_id]
        if not kept.key.is_valid(wall) or (until is not None and wall >= until):
            return None
        self._used[key_id] = wall
        return kept.identity

    # What there is

    async def ready(self) -> None:
        """Return when all are known that there were at the start. Raises `QueueUnavailableError`."""
        if self._seen is None:
            await self.refresh()

    async def listed(self) -> list[KeptKey]:
        """All of them, by id, which is by age. A use that was not written yet shows if it was here."""
        await self.refresh()
        return [self._with_use(self._kept[key_id]) for key_id in sorted(self._kept)]

    async def follow(self) -> None:
        """See what other processes change, for ever."""
        outage = OutageLog(self._clock, log, "api_keys_not_followed", "api_keys_followed_again")
        while True:
            try:
                await self.ready()
                if await self._store.changed(self._seen or 0, FOLLOW_S) != self._seen:
                    await self.refresh()
                outage.succeeded()
            except (QueueUnavailableError, StorageError) as error:
                outage.failed(error)
                await asyncio.sleep(RETRY_S)

    async def refresh(self) -> None:
        """See what there is now."""
        async with self._one_at_a_time:
            await self._read()

    async def _read(self) -> None:
        revision = await self._store.revision()
        entries = await self._store.entries(EntryKind.API_KEY)
        self._kept = {entry.code: _of(entry) for entry in entries}
        self._found_by.clear()
        for kept in self._kept.values():
            self._learn(kept)
        self._seen = revision
        self._written_at = {key_id: at for key_id, at in self._written_at.items() if key_id in self._kept}

    def _learn(self, kept: KeptKey) -> None:
        self._kept[kept.id] = kept
        for one in kept.key.previous:
            self._found_by[self._trace(one.digest)] = (kept.id, one.until)
        self._found_by[self._trace(kept.key.digest)] = (kept.id, None)

    def _forget(self, kept: KeptKey) -> None:
        del self._kept[kept.id]
        for one in (kept.key.digest, *(one.digest for one in kept.key.previous)):
            self._found_by.pop(self._trace(one), None)

    def _trace(self, digest: str) -> bytes:
        return hmac.digest(self._key_of_process, digest.encode(), "sha256")

    # Changes. Each is durable, and seen here, when it returns.

    async def create(
        self, name: str, scopes: Sequence[Scope], expires_at: float | None, by: str
    ) -> tuple[KeptKey, str]:
        """The new entry and the key, which nobody can tell again. Raises `InvalidKeyError` or `KeyStateError`."""
        wall = self._clock.wall()
        if not name.strip() or len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise InvalidKeyError(f"name has to have 1 to {MAX_NAME_CHARS} characters that can be printed")
        if not scopes:
            raise InvalidKeyError(f"scopes has to have one or more of {', '.join(Scope)}")
        if expires_at is not None and expires_at <= wall:
            raise InvalidKeyError("expiresAt has to be in the future")
        key, stored = _new_key()
        document = StoredKey(
            name=name,
            digest=stored,
            scopes=tuple(scope for scope in Scope if scope in scopes),
            created_at=wall,
            created_by=by,
            expires_at=expires_at,
        )
        async with self._one_at_a_time:
            await self._read()
            await self._make_room(wall)
            entry = await self._store.add(EntryKind.API_KEY, self._ids.new_id(), _encoded(document))
            self._learn(_of(entry))
        return self._kept[entry.code], key

    async def rotate(self, key_id: str, overlap_s: float) -> tuple[KeptKey, str]:
        """The entry and its new key; those before are let in for so long. Raises `UnknownEntryError` or
        `KeyStateError`."""
        key, stored = _new_key()
        wall = self._clock.wall()

        def edit(before: StoredKey) -> StoredKey:
            if not before.is_valid(wall):
                raise KeyStateError(f"API key {key_id} is revoked or expired: make a new one")
            until = wall + overlap_s
            all_before = [PreviousKey(before.digest, until), *before.previous]
            previous = [PreviousKey(one.digest, min(one.until, until)) for one in all_before if one.until > wall]
            if overlap_s > 0 and len(previous) >= MAX_AT_A_TIME:
                raise KeyStateError(
                    f"API key {key_id} was rotated so often that {len(previous)} keys are let in: wait until one of "
                    "them is over, or give overlapSeconds 0 so that only the new one is"
                )
            return msgspec.structs.replace(
                before, digest=stored, rotated_at=wall, previous=tuple(previous) if overlap_s > 0 else ()
            )

        return await self._edit(key_id, edit), key

    async def revoke(self, key_id: str) -> KeptKey:
        """It is let in no more; its entry stays for a while, so that it can be told when. Raises
        `UnknownEntryError`."""
        wall = self._clock.wall()
        return await self._edit(
            key_id,
            lambda before: (
                before
                if before.revoked_at is not None
                else msgspec.structs.replace(before, revoked_at=wall, previous=())
            ),
        )

    async def _edit(self, key_id: str, edit: Callable[[StoredKey], StoredKey]) -> KeptKey:
        for _ in range(TRIES):
            async with self._one_at_a_time:
                await self._read()  # others may have written a use, which changes no revision
                if (kept := self._kept.get(key_id)) is None:
                    break
                after = edit(self._with_use(kept).key)
                try:
                    entry = await self._store.change(EntryKind.API_KEY, key_id, _encoded(after), kept.revision)
                except StaleEntryError:
                    continue
                except UnknownEntryError:
                    break
                self._forget(kept)
                self._learn(_of(entry))
                return self._kept[key_id]
        else:
            raise KeyStateError(f"others change API key {key_id} all the time: ask again")
        raise UnknownEntryError(f"there is no API key {key_id}: GET /api/api-keys lists them")

    async def _make_room(self, wall: float) -> None:
        """Forget those that have been over for long."""
        for kept in list(self._kept.values()):
            end = kept.key.ended_at()
            if end is not None and end + KEPT_AFTER_END_S < wall:
                with suppress(UnknownEntryError):  # another process was faster
                    await self._store.remove(EntryKind.API_KEY, kept.id)
                self._forget(kept)
        if len(self._kept) >= MAX_KEYS:
            raise KeyStateError(
                f"there are {MAX_KEYS} API keys, and there cannot be more: those that were revoked or expired go after "
                f"{KEPT_AFTER_END_S / 86_400:g} days"
            )

    # When they were used

    async def note_uses(self) -> None:
        """Write down when keys were used, for ever."""
        outage = OutageLog(self._clock, log, "key_uses_not_written", "key_uses_written_again")
        while True:
            await asyncio.sleep(USE_LOOK_S)
            try:
                await self.write_uses()
                outage.succeeded()
            except (QueueUnavailableError, StorageError) as error:
                outage.failed(error)

    async def write_uses(self) -> None:
        """Those that are due. Nobody waits for it, and nobody is told: it is no change of the catalog."""
        now = self._clock.monotonic()
        for key_id, at in list(self._used.items()):
            written_at = self._written_at.get(key_id)
            if written_at is not None and now - written_at < USE_PERIOD_S:
                continue
            async with self._one_at_a_time:
                if (kept := self._kept.get(key_id)) is not None:
                    used = msgspec.structs.replace(kept.key, last_used_at=at)
                    # If it was changed meanwhile: to write it as it was would undo that.
                    with suppress(StaleEntryError, UnknownEntryError):
                        await self._store.change(EntryKind.API_KEY, key_id, _encoded(used), kept.revision, quiet=True)
                        self._kept[key_id] = replace(kept, key=used)
                self._written_at[key_id] = now
                if self._used[key_id] == at:
                    del self._used[key_id]

    def _with_use(self, kept: KeptKey) -> KeptKey:
        at = max(kept.key.last_used_at or 0.0, self._used.get(kept.id, 0.0))
        return replace(kept, key=msgspec.structs.replace(kept.key, last_used_at=at)) if at else kept


def _new_key() -> tuple[str, str]:
    """A key, and what is kept of it."""
    key = PREFIX + new_key()
    return key, hashlib.sha256(key.encode()).hexdigest()


def _of(entry: Entry) -> KeptKey:
    return KeptKey(entry.code, _document.decode(entry.document), entry.revision)


def _encoded(document: StoredKey) -> str:
    return msgspec.json.encode(document).decode()
