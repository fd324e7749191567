"""Resealing: after a change of the key, secrets are sealed again with the newest one, so that the one before can go."""

import asyncio
from functools import partial
from typing import Final

import msgspec
import structlog

from flowcatalyst.dispatch.catalog import Catalog
from flowcatalyst.dispatch.catalog_entries import SealedSecret, StoredSubscription
from flowcatalyst.dispatch.sealing import Sealer, SealError
from flowcatalyst.dispatch.store.platform_contract import PlatformStore, StaleEntryError, UnknownEntryError

LOOKED_AT_ONCE: Final = 100  # subscriptions; then others on the loop have their turn
BREATH_S: Final = 0.05  # after each that was changed: whoever makes jobs waits for it

log = structlog.get_logger("flowcatalyst.resealing")


class Resealing:
    """Of all processes on one store the one that leads does it, with the keys that it has."""

    def __init__(self, store: PlatformStore, catalog: Catalog, sealer: Sealer) -> None:
        self._store = store
        self._catalog = catalog
        self._sealer = sealer

    async def look(self) -> None:
        """Seal again what is sealed with another key than the newest, as far as that other one is here too."""
        await self._catalog.ready()
        if not self._catalog.has_secrets():
            return
        try:
            newest = self._sealer.newest_id()
        except SealError:  # then there is nothing to seal with
            return
        stale: list[str] = []
        is_old = {newest: False}  # by key: it sealed before, and is here
        for number, (code, kept) in enumerate(list(self._catalog.subscriptions.items()), 1):
            if any(self._is_stale(one.sealed, is_old) for one in kept.document.secrets):
                stale.append(code)
            if number % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        if not stale or not await self._store.lead():
            return
        done = 0
        for code in stale:
            try:
                await self._catalog.change_subscription(code, partial(resealed, self._sealer, newest))
                done += 1
            except (UnknownEntryError, StaleEntryError):  # removed, or others change it: the next look sees to it
                pass
            await asyncio.sleep(BREATH_S)
        log.info("secrets_resealed", action="secrets_resealed", subscriptions=done, left=len(stale) - done)

    def _is_stale(self, sealed: str, is_old: dict[bytes, bool]) -> bool:
        try:
            key = self._sealer.key_id_of(sealed)
        except SealError:  # damaged
            return False
        if key not in is_old:
            is_old[key] = not self._sealer.problem_with([sealed])
        return is_old[key]


def resealed(sealer: Sealer, newest: bytes, before: StoredSubscription) -> StoredSubscription:
    """A subscription whose secrets are all sealed with the newest key, but for those that cannot be opened here; the
    same one if there is nothing to do."""

    def again(one: SealedSecret) -> SealedSecret:
        try:
            if sealer.key_id_of(one.sealed) == newest:
                return one
            text = sealer.seal(sealer.open(one.sealed, before.code), before.code)
        except SealError:  # its key is not here, or it is damaged: who needs it is told
            return one
        return msgspec.structs.replace(one, sealed=text)

    secrets = tuple(again(one) for one in before.secrets)
    if all(one is other for one, other in zip(secrets, before.secrets, strict=True)):
        return before
    return msgspec.structs.replace(before, secrets=secrets)
