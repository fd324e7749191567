"""The catalog of a process whose store fails."""

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.dispatch.catalog import Catalog
from flowcatalyst.dispatch.catalog_entries import StoredSubscription
from flowcatalyst.dispatch.sealing import Sealer
from flowcatalyst.dispatch.store.platform_contract import EntryKind
from flowcatalyst.dispatch.store.sqlite import SqliteJobStore
from flowcatalyst.dispatch.subscription import EventTypeBinding

WANTED = StoredSubscription(code="s", target_url="http://localhost/", event_types=(EventTypeBinding("order.*"),))


class UnwillingStore(SqliteJobStore):
    """Removes nothing."""

    async def remove(self, kind: EntryKind, code: str) -> None:
        raise QueueUnavailableError("not now")


@asynccontextmanager
async def catalog_in(folder: Path) -> Any:
    clock = SystemClock()
    store = UnwillingStore(folder / "jobs.db", clock)

    async def pools_changed() -> None:
        """There are none."""

    await store.open()
    try:
        yield Catalog(store, Sealer(bytes(32)), clock, WarningLog(clock), pools_changed)
    finally:
        await store.close()


async def test_a_subscription_whose_removal_failed_still_gets_its_events(tmp_path: Path) -> None:
    async with catalog_in(tmp_path) as catalog:
        await catalog.add(EntryKind.SUBSCRIPTION, "s", WANTED)
        with pytest.raises(QueueUnavailableError):
            await catalog.remove(EntryKind.SUBSCRIPTION, "s")
        await catalog.refresh()
        assert catalog.subscription("s").document == WANTED
        assert len(catalog.matcher) == 1
