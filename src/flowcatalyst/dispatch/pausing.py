"""Pausing, resuming and removing a subscription: its jobs stay where they are, in order, or are cancelled.

What is in a router's hands is recalled first. Whatever a process that died left undone is done by the next call, or by
housekeeping.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from flowcatalyst.dispatch import acting
from flowcatalyst.dispatch.job import Status
from flowcatalyst.dispatch.store.contract import Cancel, Filter, JobStateError
from flowcatalyst.dispatch.store.platform_contract import PauseStore, PlatformStore

LANES_AT_ONCE: Final = 200  # of one transaction
JOBS_AT_ONCE: Final = 200
BREATH_S: Final = 0.005  # after each: others write too
ROUNDS: Final = 3  # of cancelling: an attempt in flight may end meanwhile
ROUND_S: Final = 0.3


async def carry_out(store: PlatformStore, code: str) -> None:
    """What is said of a subscription that is paused: nothing of it starts from when this returns; attempts in flight
    end as usual.

    Raises `JobStateError` if a router that has something of it in hand does not answer: it is paused all the same.
    """
    await settle(store)
    recall = await store.recall(subscription=code)
    if not recall.lanes:
        return
    async with acting.recalled(store, recall) as answered:
        if not answered:
            raise JobStateError(
                f"subscription {code} is paused, but a router that has jobs of it in hand did not answer within "
                f"{acting.RECALL_S:g} s and may still start them: pause it once more to be sure"
            )


async def settle(store: PauseStore) -> None:
    """Lock or unlock what pauses have to do with, in parts."""
    while True:
        if not await store.settle_pauses(LANES_AT_ONCE):
            return
        await asyncio.sleep(BREATH_S)


@dataclass(slots=True, frozen=True)
class Cancelled:
    """What became of the unfinished jobs of a subscription."""

    done: int
    in_flight: int  # an attempt was under way to the end, or somebody acts on them: they are not cancelled


async def cancel_all(store: PlatformStore, code: str, actor: str) -> Cancelled:
    """Cancel all unfinished jobs of a subscription that was removed. Those of one that was made anew with its code
    meanwhile are not meant."""
    done = refused = 0
    for number in range(ROUNDS):
        if number:
            await asyncio.sleep(ROUND_S)
        refused = 0
        for status in (Status.PENDING, Status.ERROR):  # as they are stored, whoever has them in hand
            which, cursor = _left_by(code, status), None
            while True:
                acted = await acting.act_on_all(store, which, Cancel(), actor, JOBS_AT_ONCE, cursor)
                done, refused, cursor = done + acted.done, refused + acted.refused, acted.cursor
                if cursor is None:
                    break
                await asyncio.sleep(BREATH_S)
        if not refused and not await has_unfinished(store, code):
            break
        refused = max(refused, 1)  # one that was retried meanwhile may have been passed by
    return Cancelled(done, refused)


async def has_unfinished(store: PlatformStore, code: str) -> bool:
    """Whether one that was removed left jobs behind."""
    for status in (Status.PENDING, Status.ERROR):
        if await store.count(_left_by(code, status), 1):
            return True
    return False


def _left_by(code: str, status: Status) -> Filter:
    return Filter(subscription=code, removed=True, status=status, as_stored=True)
