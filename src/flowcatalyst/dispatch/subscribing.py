"""What is done to subscriptions, each in an order in which a process may die half-way: the next call, or housekeeping,
goes on with it.

What the catalog says is ACTIVE has to be so in the store: it says so last when one is resumed, and PAUSED first.
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
        await pausing.pause(platform.store, code)


async def save(platform: Platform, code: str, edit: Edit) -> tuple[StoredSubscription, StoredSubscription]:
    """Put what `edit` makes of a subscription in its place; both. Raises `UnknownEntryError`, or what `edit` does."""
    await platform.catalog.ready()
    now = platform.catalog.subscription(code).document
    if edit(now).status is SubscriptionStatus.ACTIVE and now.status is SubscriptionStatus.PAUSED:
        await pausing.resume(platform.store, code)
    before, after = await platform.catalog.change_subscription(code, edit)
    if after.status is SubscriptionStatus.PAUSED and before.status is SubscriptionStatus.ACTIVE:
        await pausing.pause(platform.store, code)
    return before, after


async def pause(platform: Platform, code: str) -> None:
    """As `pausing.pause`. Raises `UnknownEntryError` too."""
    await platform.catalog.change_subscription(code, partial(_with_status, SubscriptionStatus.PAUSED))
    await pausing.pause(platform.store, code)


async def resume(platform: Platform, code: str) -> None:
    """What waited goes on, in order. Raises `UnknownEntryError`."""
    await platform.catalog.ready()
    platform.catalog.subscription(code)
    await pausing.resume(platform.store, code)
    await platform.catalog.change_subscription(code, partial(_with_status, SubscriptionStatus.ACTIVE))


async def remove(platform: Platform, code: str, actor: str) -> Cancelled:
    """It gets no events any more, and its unfinished jobs are cancelled. Raises `UnknownEntryError`."""
    await platform.catalog.ready()
    known = code in platform.catalog.subscriptions
    if not known and ("\0" in code or not await pausing.has_unfinished(platform.store, code)):
        platform.catalog.subscription(code)  # raises: there is none
    with suppress(JobStateError):  # what a router does not return is in flight, as far as can be known
        await pausing.pause(platform.store, code)
    with suppress(UnknownEntryError):  # an earlier call came so far
        await platform.catalog.remove(EntryKind.SUBSCRIPTION, code)
    cancelled = await pausing.cancel_all(platform.store, code, actor)
    if not cancelled.in_flight:
        await pausing.resume(platform.store, code)  # there is nothing left to be paused
    return cancelled


def _with_status(status: SubscriptionStatus, before: StoredSubscription) -> StoredSubscription:
    return msgspec.structs.replace(before, status=status)
