"""What is done to subscriptions, each in an order in which a process may die half-way: the next call, or housekeeping,
goes on with it.

The catalog changes the status of a subscription and what the store holds back of it in one unit of work. What is there
is locked or unlocked after that, in parts.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import msgspec

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.dispatch import pausing
from flowcatalyst.dispatch.catalog_entries import StoredSubscription
from flowcatalyst.dispatch.pausing import Cancelled
from flowcatalyst.dispatch.platform import Platform
from flowcatalyst.dispatch.store.contract import JobStateError
from flowcatalyst.dispatch.store.platform_contract import EntryKind, UnknownEntryError
from flowcatalyst.dispatch.subscription import SubscriptionStatus

Edit: TypeAlias = Callable[[StoredSubscription], StoredSubscription]


class UnfinishedJobsError(FlowCatalystError):
    """There are jobs of a subscription that was removed: a new one of its code would get them."""


async def add(platform: Platform, document: StoredSubscription) -> None:
    """Raises `CodeTakenError`, or `UnfinishedJobsError`."""
    code, catalog = document.code, platform.catalog
    await catalog.ready()
    if code not in catalog.subscriptions and await pausing.has_unfinished(platform.store, code):
        raise UnfinishedJobsError(
            f"there are unfinished jobs of a subscription {code} that was deleted: DELETE it once more"
        )
    await catalog.add(EntryKind.SUBSCRIPTION, code, document)
    if document.status is SubscriptionStatus.PAUSED:
        await pausing.hold_back(platform.store, code)


async def save(platform: Platform, code: str, edit: Edit) -> tuple[StoredSubscription, StoredSubscription]:
    """Put what `edit` makes of a subscription in its place; both. Raises `UnknownEntryError`, or what `edit` does."""
    before, after = await platform.catalog.change_subscription(code, edit)
    if after.status is not before.status:
        paused = after.status is SubscriptionStatus.PAUSED
        await (pausing.hold_back(platform.store, code) if paused else pausing.settle(platform.store))
    return before, after


async def pause(platform: Platform, code: str) -> None:
    """Nothing of it starts from when this returns. Raises `UnknownEntryError`, or as `pausing.hold_back` does."""
    await platform.catalog.change_subscription(code, partial(_with_status, SubscriptionStatus.PAUSED))
    await pausing.hold_back(platform.store, code)


async def resume(platform: Platform, code: str) -> None:
    """What waited goes on, in order. Raises `UnknownEntryError`."""
    await platform.catalog.change_subscription(code, partial(_with_status, SubscriptionStatus.ACTIVE))
    await pausing.settle(platform.store)


async def remove(platform: Platform, code: str, actor: str) -> Cancelled:
    """It gets no events any more, and its unfinished jobs are cancelled. Raises `UnknownEntryError`."""
    await platform.catalog.ready()
    known = code in platform.catalog.subscriptions
    if not known and ("\0" in code or not await pausing.has_unfinished(platform.store, code)):
        platform.catalog.subscription(code)  # raises: there is none
    try:
        await platform.catalog.change_subscription(code, partial(_with_status, SubscriptionStatus.PAUSED))
    except UnknownEntryError:  # an earlier call came further, or somebody else is at it
        await platform.store.set_paused(code, paused=True)
    with suppress(JobStateError):  # what a router does not return is in flight, as far as can be known
        await pausing.hold_back(platform.store, code)
    with suppress(UnknownEntryError):
        await platform.catalog.remove(EntryKind.SUBSCRIPTION, code)
    cancelled = await pausing.cancel_all(platform.store, code, actor)
    await platform.catalog.refresh()
    if not cancelled.in_flight and code not in platform.catalog.subscriptions:  # another one of its code may be paused
        await platform.store.set_paused(code, paused=False)  # there is nothing left to be so
        await pausing.settle(platform.store)
    return cancelled


def _with_status(status: SubscriptionStatus, before: StoredSubscription) -> StoredSubscription:
    return msgspec.structs.replace(before, status=status)
