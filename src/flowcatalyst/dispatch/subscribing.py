"""What is done to subscriptions, each in an order in which a process may die half-way: the next call, or housekeeping,
goes on with it.

That one is paused is said in the catalog and kept in the store in one unit of work, so that they never disagree; what
follows from it for the lanes is carried out afterwards, as often as somebody asks.
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
    """Raises `CodeTakenError`, `TooManySubscriptionsError` or `UnfinishedJobsError`."""
    code, catalog = document.code, platform.catalog
    await catalog.ready()
    if code not in catalog.subscriptions and await pausing.has_unfinished(platform.store, code):
        raise UnfinishedJobsError(
            f"there are unfinished jobs of a subscription {code} that was deleted: DELETE it once more"
        )
    await catalog.add(EntryKind.SUBSCRIPTION, code, document)
    await _carry_out(platform, document)


async def save(platform: Platform, code: str, edit: Edit) -> tuple[StoredSubscription, StoredSubscription]:
    """Put what `edit` makes of a subscription in its place; both. Raises `UnknownEntryError`, or what `edit` does."""
    before, after = await platform.catalog.change_subscription(code, edit)
    await _carry_out(platform, after)
    return before, after


async def pause(platform: Platform, code: str) -> None:
    """As `pausing.carry_out`. Raises `UnknownEntryError` too."""
    await save(platform, code, partial(_with_status, SubscriptionStatus.PAUSED))


async def resume(platform: Platform, code: str) -> None:
    """What waited goes on, in order. Raises `UnknownEntryError`."""
    await save(platform, code, partial(_with_status, SubscriptionStatus.ACTIVE))


async def remove(platform: Platform, code: str, actor: str) -> Cancelled:
    """It gets no events any more, and its unfinished jobs are cancelled. Raises `UnknownEntryError`."""
    catalog = platform.catalog
    await catalog.ready()
    if code not in catalog.subscriptions:
        await catalog.refresh()  # others may have made it just now
    if code in catalog.subscriptions:
        with suppress(UnknownEntryError):  # somebody else came first
            await catalog.remove(EntryKind.SUBSCRIPTION, code)
    elif "\0" in code or not await pausing.has_unfinished(platform.store, code):  # else an earlier call came so far
        catalog.subscription(code)  # raises: there is none
    with suppress(JobStateError):  # what a router does not return is in flight, as far as can be known
        await pausing.carry_out(platform.store, code)
    cancelled = await pausing.cancel_all(platform.store, code, actor)
    if not cancelled.in_flight:
        await platform.store.forget_pause(code)  # there is nothing left to be paused
        await pausing.settle(platform.store)
    return cancelled


async def _carry_out(platform: Platform, document: StoredSubscription) -> None:
    if document.status is SubscriptionStatus.PAUSED:
        await pausing.carry_out(platform.store, document.code)
    else:
        await pausing.settle(platform.store)


def _with_status(status: SubscriptionStatus, before: StoredSubscription) -> StoredSubscription:
    return msgspec.structs.replace(before, status=status)
