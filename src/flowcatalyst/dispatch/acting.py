"""What people do to jobs, also to those that a router has in hand: what waits there is recalled first."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.dispatch.job import JobState
from flowcatalyst.dispatch.store.contract import (
    Acted,
    Action,
    Filter,
    GroupState,
    InHandError,
    JobStateError,
    JobStore,
    Recall,
)

RECALL_S: Final = 2.0  # what a router that is alive takes to answer is a small part of it
AT_ONCE: Final = 20  # actions on jobs that came back


async def act(store: JobStore, job_id: str, action: Action, actor: str) -> JobState:
    """As `JobStore.act`. Raises `JobStateError` if an attempt of the job is in flight: nobody can take that back."""
    try:
        return await store.act(job_id, action, actor)
    except InHandError:
        pass
    async with recalled(store, await store.recall([job_id])) as answered:
        try:
            return await store.act(job_id, action, actor)
        except InHandError:
            raise JobStateError(_why_not(job_id, answered=answered)) from None


async def act_on_all(
    store: JobStore, which: Filter, action: Action, actor: str, limit: int, cursor: int | None
) -> Acted:
    """As `JobStore.act_on_all`; those are refused whose attempts are in flight."""
    acted = await store.act_on_all(which, action, actor, limit, cursor)
    if not acted.in_hand:
        return acted
    done = 0
    async with recalled(store, await store.recall(acted.in_hand)):
        for begin in range(0, len(acted.in_hand), AT_ONCE):
            done += await _act_on_each(store, acted.in_hand[begin : begin + AT_ONCE], action, actor)
    return replace(acted, done=acted.done + done, refused=acted.refused - done, in_hand=())


async def _act_on_each(store: JobStore, jobs: Sequence[str], action: Action, actor: str) -> int:
    results = await asyncio.gather(*(store.act(job, action, actor) for job in jobs), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, JobStateError):
            raise result
    return sum(isinstance(result, JobState) for result in results)


async def hold(store: JobStore, group: str, actor: str) -> GroupState:
    """Nothing of a group starts from when this returns until it is released; an attempt in flight ends as usual.

    Raises `JobStateError` if a router that has something of it in hand does not answer: the group is held all the same.
    """
    held = await store.hold(group, actor)
    recall = await store.recall(group=group)
    if not recall.lanes:
        return held
    async with recalled(store, recall) as answered:
        if not answered:
            raise JobStateError(
                f"group {group} is held, but a router that has jobs of it in hand did not answer within {RECALL_S:g} s "
                "and may still start them: hold it once more to be sure"
            )
    return await store.group(group)


@asynccontextmanager
async def recalled(store: JobStore, recall: Recall[Any]) -> AsyncIterator[bool]:
    """While what came back is handed out to nobody; whether all routers answered."""
    try:
        yield await store.returned(recall, RECALL_S)
    finally:
        with suppress(QueueUnavailableError):  # then it ends by itself, a few seconds later
            await store.end_recall(recall)


def _why_not(job_id: str, *, answered: bool) -> str:
    if answered:
        return f"job {job_id} is being delivered right now: ask again when its attempt has ended"
    return f"a router has job {job_id} in hand and did not answer within {RECALL_S:g} s: ask again"
