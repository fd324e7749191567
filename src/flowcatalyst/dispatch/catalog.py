"""Catalog: subscriptions and pools in memory, as the store has them, and the secrets that webhooks are signed with.

A change that is made here is seen at once. Those of other processes are followed: the store tells when there are any.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import FlowCatalystError, NotSignedError, QueueUnavailableError, StorageError
from flowcatalyst.core.message import Severity
from flowcatalyst.core.outage_log import OutageLog
from flowcatalyst.core.warnings import WarningCode, WarningSink
from flowcatalyst.dispatch.catalog_entries import DispatchPool, StoredPool, StoredSubscription
from flowcatalyst.dispatch.filters import InvalidFilterError
from flowcatalyst.dispatch.matcher import Matcher
from flowcatalyst.dispatch.sealing import Sealer, SealError
from flowcatalyst.dispatch.store.platform_contract import (
    CatalogStore,
    CodeTakenError,
    Entry,
    EntryKind,
    StaleEntryError,
    UnknownEntryError,
)
from flowcatalyst.dispatch.subscription import SubscriptionStatus

FOLLOW_S: Final = 5.0  # how long the store is asked to wait for a change
FRESH_S: Final = 1.0  # what others changed longer ago is known before an event is matched
RETRY_S: Final = 0.5
READ_AT_ONCE: Final = 100  # entries; then others on the loop have their turn
MAX_SUBSCRIPTIONS: Final = 10_000  # an event that all of them want is one transaction with as many jobs
TRIES: Final = 5  # of a change that others make at the same time
LOOK_AGAIN_S: Final = 5.0  # after secrets could not be opened: somebody may have put the key back
SOURCE: Final = "catalog"  # of our warnings

log = structlog.get_logger("flowcatalyst.catalog")

Document = TypeVar("Document", bound=msgspec.Struct)


class TooManySubscriptionsError(FlowCatalystError):
    """There are as many subscriptions as there may be."""


@dataclass(slots=True, frozen=True)
class Kept(Generic[Document]):
    """One entry of the catalog, read."""

    document: Document
    revision: int
    created_at: float
    updated_at: float


@dataclass(slots=True, frozen=True)
class _Opened:
    """The secrets of a subscription as this process can use them."""

    secrets: tuple[tuple[str, float | None], ...]  # each with the time until which it signs
    problem: str = ""  # why one of them, or all, cannot be opened here
    look_again_at: float = 0.0  # wall; with a problem


class Catalog:
    """All subscriptions and pools. `ready` has to have returned before anybody is told what there is."""

    def __init__(
        self,
        store: CatalogStore,
        sealer: Sealer,
        clock: Clock,
        warnings: WarningSink,
        pools_changed: Callable[[], Awaitable[None]],
    ) -> None:
        self.matcher = Matcher()
        self.subscriptions: dict[str, Kept[StoredSubscription]] = {}
        self.pools: dict[str, Kept[DispatchPool]] = {}
        self._store = store
        self._sealer = sealer
        self._clock = clock
        self._warnings = warnings
        self._pools_changed = pools_changed
        self._seen: int | None = None  # the revision that all of this is of, at least
        self._known_at = -inf  # monotonic: all that was changed before then is seen
        self._opened: dict[str, _Opened] = {}
        self._one_at_a_time = asyncio.Lock()  # a change of ours, or reading those of others

    async def ready(self) -> None:
        """Return when all is known that there was at the start. Raises `QueueUnavailableError`."""
        if self._seen is None:
            await self.refresh()

    async def fresh(self) -> None:
        """Return when all is known that there was `FRESH_S` ago, whatever became of `follow`: a process may have stood
        still, and what it is asked next is older than it thinks. Raises `QueueUnavailableError`."""
        if self._seen is None or self._clock.monotonic() - self._known_at > FRESH_S:
            await self.refresh(FRESH_S)

    async def follow(self) -> None:
        """See what other processes change, for ever."""
        outage = OutageLog(self._clock, log, "catalog_not_followed", "catalog_followed_again")
        while True:
            try:
                await self.refresh()
                outage.succeeded()
                await self._store.changed(self._seen or 0, FOLLOW_S)
            except (QueueUnavailableError, StorageError) as error:
                outage.failed(error)
                await asyncio.sleep(RETRY_S)

    async def refresh(self, age_s: float = 0.0) -> None:
        """See what there is now, or was so long ago: somebody else may have looked meanwhile."""
        async with self._one_at_a_time:
            asked_at = self._clock.monotonic()
            if asked_at - self._known_at < age_s:
                return
            revision = await self._store.revision()
            if revision == self._seen:
                self._known_at = asked_at
                return
            pools = self.pools.copy()
            for kind, known in (
                (EntryKind.SUBSCRIPTION, _revisions(self.subscriptions)),
                (EntryKind.POOL, _revisions(self.pools)),
            ):
                entries = await self._store.entries(kind)
                for code in known.keys() - {entry.code for entry in entries}:
                    self._forget(kind, code)
                news = [entry for entry in entries if known.get(entry.code) != entry.revision]
                for number, entry in enumerate(news, 1):
                    self._read(entry)
                    if number % READ_AT_ONCE == 0:
                        await asyncio.sleep(0)
            self._seen, self._known_at = revision, asked_at
        if pools != self.pools:
            await self._pools_changed()

    # Changes. Each is durable, and seen here, when it returns.

    async def add(self, kind: EntryKind, code: str, document: msgspec.Struct) -> None:
        """Raises `CodeTakenError`, or `TooManySubscriptionsError`."""
        await self.ready()
        async with self._one_at_a_time:
            is_another = kind is EntryKind.SUBSCRIPTION and code not in self.subscriptions
            if is_another and len(self.subscriptions) >= MAX_SUBSCRIPTIONS:
                most = f"there are {len(self.subscriptions)} subscriptions, and {MAX_SUBSCRIPTIONS} are allowed"
                raise TooManySubscriptionsError(f"{most}: delete one that nobody needs")
            try:
                paused = _is_paused(document) is True
                self._made_here(await self._store.add(kind, code, _encoded(document), paused=paused))
            except CodeTakenError:
                raise CodeTakenError(f"there is a {_NAMES[kind]} {code} already") from None
        await self._tell(kind)

    async def change_subscription(
        self, code: str, edit: Callable[[StoredSubscription], StoredSubscription]
    ) -> tuple[StoredSubscription, StoredSubscription]:
        """What `edit` makes of the present one is put in its place; both are returned.

        It is called again if somebody else changed it meanwhile. Raises `UnknownEntryError`.
        """
        return await self._change(EntryKind.SUBSCRIPTION, self.subscriptions, code, edit)

    async def change_pool(
        self, code: str, edit: Callable[[DispatchPool], DispatchPool]
    ) -> tuple[DispatchPool, DispatchPool]:
        """The same for a pool."""
        return await self._change(EntryKind.POOL, self.pools, code, edit)

    async def _change(
        self,
        kind: EntryKind,
        known: dict[str, Kept[Document]],
        code: str,
        edit: Callable[[Document], Document],
    ) -> tuple[Document, Document]:
        await self.ready()
        for _ in range(TRIES):
            async with self._one_at_a_time:
                kept = _found(kind, known, code)
                after = edit(kept.document)
                try:
                    changed = await self._store.change(
                        kind, code, _encoded(after), kept.revision, paused=_is_paused(after)
                    )
                    self._made_here(changed)
                except (StaleEntryError, UnknownEntryError):
                    pass
                else:
                    break
            await self.refresh()
        else:
            raise StaleEntryError(f"others change the {_NAMES[kind]} {code} all the time: ask again")
        await self._tell(kind)
        return kept.document, after

    async def remove(self, kind: EntryKind, code: str) -> None:
        """Raises `UnknownEntryError`."""
        await self.ready()
        async with self._one_at_a_time:
            try:
                await self._store.remove(kind, code)
            except UnknownEntryError:
                self._forget(kind, code)
                raise _unknown(kind, code) from None
            self._forget(kind, code)
        await self._tell(kind)

    def subscription(self, code: str) -> Kept[StoredSubscription]:
        """Raises `UnknownEntryError`."""
        return _found(EntryKind.SUBSCRIPTION, self.subscriptions, code)

    def pool(self, code: str) -> Kept[DispatchPool]:
        """Raises `UnknownEntryError`."""
        return _found(EntryKind.POOL, self.pools, code)

    # Secrets

    def secrets_of(self, code: str, wall: float) -> Sequence[str]:
        """What the webhooks of a subscription are signed with at a time, the newest first.

        Raises `NotSignedError` where that is not known: what has to be signed is never sent without.
        """
        if (opened := self._opened.get(code)) is None or (opened.problem and wall >= opened.look_again_at):
            opened = self._open(code, wall)
        secrets = [secret for secret, until in opened.secrets if until is None or wall < until]
        if not secrets:
            why = opened.problem or "it has no secret that signs now: rotate its secret"
            raise NotSignedError(f"webhooks of subscription {code} cannot be signed: {why}")
        return secrets

    def has_secrets(self) -> bool:
        """Whether some subscription has one, which somebody sealed."""
        return any(kept.document.secrets for kept in self.subscriptions.values())

    def problem_with_keys(self) -> str:
        """Why secrets of some subscriptions cannot be opened here; empty if they can."""
        wall = self._clock.wall()
        return self._sealer.problem_with(
            one.sealed for kept in self.subscriptions.values() for one in kept.document.signing(wall)
        )

    def problem_with_secrets(self, code: str) -> str:
        """Why the webhooks of a subscription cannot be signed now; empty if they can."""
        try:
            self.secrets_of(code, self._clock.wall())
        except NotSignedError as error:
            return str(error)
        return ""

    def _open(self, code: str, wall: float) -> _Opened:
        if (kept := self.subscriptions.get(code)) is None:  # made elsewhere a moment ago, or removed
            return _Opened((), "it is not known here yet")
        secrets: list[tuple[str, float | None]] = []
        problem = ""
        for one in kept.document.signing(wall):
            try:
                secrets.append((self._sealer.open(one.sealed, code), one.until))
            except SealError as error:
                problem = problem or str(error)
        opened = self._opened[code] = _Opened(tuple(secrets), problem, wall + LOOK_AGAIN_S)
        return opened

    # In memory

    def _made_here(self, entry: Entry) -> None:
        self._read(entry)
        if self._seen is not None and entry.revision == self._seen + 1:  # else others changed something too
            self._seen = entry.revision

    def _read(self, entry: Entry) -> None:
        """Take an entry into memory. One that cannot be read leaves the one before in force."""
        try:
            if entry.kind is EntryKind.SUBSCRIPTION:
                document = msgspec.json.decode(entry.document, type=StoredSubscription)
                self.matcher.replace(document)
                self._opened.pop(entry.code, None)
                self.subscriptions[entry.code] = _kept(document, entry)
            elif entry.kind is EntryKind.POOL:
                pool = msgspec.json.decode(entry.document, type=StoredPool)
                pool.limits()
                self.pools[entry.code] = _kept(pool, entry)
        except (msgspec.MsgspecError, InvalidFilterError, ValueError) as error:
            text = f"the {_NAMES[entry.kind]} {entry.code} cannot be read ({error}): save it again with this version"
            log.error("catalog_entry_unreadable", action="catalog_entry_unreadable", text=text)
            self._warnings.add(WarningCode.CONFIG_REJECTED, Severity.ERROR, text, SOURCE)

    def _forget(self, kind: EntryKind, code: str) -> None:
        if kind is EntryKind.POOL:
            self.pools.pop(code, None)
        elif kind is EntryKind.SUBSCRIPTION:
            self.subscriptions.pop(code, None)
            self.matcher.remove(code)
            self._opened.pop(code, None)

    async def _tell(self, kind: EntryKind) -> None:
        if kind is EntryKind.POOL:
            await self._pools_changed()


_NAMES: Final = {EntryKind.SUBSCRIPTION: "subscription", EntryKind.POOL: "dispatch pool", EntryKind.API_KEY: "API key"}


def _kept(document: Document, entry: Entry) -> Kept[Document]:
    return Kept(document, entry.revision, entry.created_at, entry.updated_at)


def _revisions(known: dict[str, Kept[Document]]) -> dict[str, int]:
    return {code: kept.revision for code, kept in known.items()}


def _found(kind: EntryKind, known: dict[str, Kept[Document]], code: str) -> Kept[Document]:
    if (kept := known.get(code)) is None:
        raise _unknown(kind, code)
    return kept


def _is_paused(document: msgspec.Struct) -> bool | None:
    """None: that is no question of it."""
    if not isinstance(document, StoredSubscription):
        return None
    return document.status is SubscriptionStatus.PAUSED


def _encoded(document: msgspec.Struct) -> str:
    return msgspec.json.encode(document).decode()


def _unknown(kind: EntryKind, code: str) -> UnknownEntryError:
    return UnknownEntryError(f"there is no {_NAMES[kind]} {code}")
