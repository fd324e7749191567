"""Replaying: jobs are made again for past events that a subscription wants, behind what its groups hold now."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from flowcatalyst.core.clock import Clock
from flowcatalyst.dispatch.catalog import Kept
from flowcatalyst.dispatch.catalog_entries import StoredSubscription
from flowcatalyst.dispatch.intake import ITEM_BYTES, Turns, matched
from flowcatalyst.dispatch.job import Job
from flowcatalyst.dispatch.matcher import Matcher
from flowcatalyst.dispatch.store.platform_contract import EventFilter, PlatformStore
from flowcatalyst.dispatch.subscription import jobs_of

EVENTS_AT_ONCE: Final = 32  # and jobs of one transaction: 8 MiB at most
BREATH_S: Final = 0.005  # after each: others write too
MOST_S: Final = 20.0  # for one call; the next one goes on
MAX_ID_CHARS: Final = 64  # with the id of an event and a code, it is an idempotency key


@dataclass(slots=True, frozen=True)
class Replayed:
    """What a replay came to so far."""

    events: int  # that were looked at
    matched: int
    made: int
    repeated: int  # that a call with the same id made before
    cursor: int | None  # where the next call goes on; None: that was all


async def replay(
    store: PlatformStore,
    kept: Kept[StoredSubscription],
    replay_id: str,
    span: tuple[float, float],
    new_id: Callable[[], str],
    clock: Clock,
    *,
    dry_run: bool = False,
    cursor: int | None = None,
) -> Replayed:
    """Oldest first. To call it again with the same id makes nothing twice, unless the subscription was made anew.

    What the subscription says now is what counts: its filters, its target, its mode. Jobs start at once: a delay is for
    new events.
    """
    subscription = kept.document
    this_one = f"{subscription.code}:{kept.created_at!r}"  # there may have been another one of its code
    matcher, now_wanted = Matcher([subscription]), msgspec.structs.replace(subscription, delay_seconds=0.0)
    patterns = subscription.patterns
    only = patterns[0] if len(patterns) == 1 and "*" not in patterns[0] else None
    which = EventFilter(type=only, created_from=span[0], created_before=span[1])
    events = fitting = made = repeated = 0
    turns = Turns()
    give_up_at = clock.monotonic() + MOST_S
    while True:
        page = await store.events_in_order(which, EVENTS_AT_ONCE, cursor)
        jobs: list[Job] = []
        for event in (item.event for item in page.items):
            await turns.took(ITEM_BYTES + len(event.data) + len(event.data_base64 or ""))
            if await matched(matcher, event):
                (job,) = jobs_of(event, [now_wanted], new_id, clock.wall())
                jobs.append(replace(job, idempotency_key=f"replay:{replay_id}:{event.id}:{this_one}"))
        events, fitting = events + len(page.items), fitting + len(jobs)
        if jobs and not dry_run:
            created = await store.create(jobs, behind=True)
            again = sum(one.repeated for one in created)
            made, repeated = made + len(created) - again, repeated + again
        cursor = page.cursor
        if cursor is None or clock.monotonic() >= give_up_at:
            return Replayed(events, fitting, made, repeated, cursor)
        await asyncio.sleep(BREATH_S)
