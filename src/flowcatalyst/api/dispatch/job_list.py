"""Looking at jobs: lists by filter, and one with all that is known of it."""

import asyncio
from dataclasses import replace
from typing import Annotated, Final

from litestar import get
from litestar.di import NamedDependency, Provide
from litestar.params import PathParameter, QueryParameter, SkipValidation

from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.dispatch.job_filter import JobFilter, filter_of, read_filter
from flowcatalyst.api.dispatch.job_views import JobPage, JobView, WholeJob
from flowcatalyst.api.dispatch.platform import as_shown, checked_id, in_hand, paused_of, store_of
from flowcatalyst.api.listing import items_that_fit
from flowcatalyst.core.message import MAX_NAME_CHARS
from flowcatalyst.dispatch.job import FINISHED, JobState, Status
from flowcatalyst.dispatch.store.contract import Filter
from flowcatalyst.dispatch.waiting import explain

MAX_LISTED: Final = 1000
MAX_CURSOR: Final = 2**53 - 1
MAX_READS: Final = 20  # of the store for one page: where what is in flight has to be looked for among what is leased
_FILTERED: Final = {"asked": Provide(read_filter, sync_to_thread=False)}
Asked = NamedDependency[SkipValidation[JobFilter]]
JobId = Annotated[str, PathParameter(max_length=MAX_NAME_CHARS, description="Id of the job")]


@get("/api/dispatch-jobs", tags=["Dispatch jobs"], summary="List jobs", dependencies=_FILTERED)
async def list_jobs(
    app: TheApp,
    asked: Asked,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="Largest number to return")] = 100,
    cursor: Annotated[int | None, QueryParameter(ge=1, le=MAX_CURSOR, description="`next` of the page before")] = None,
) -> JobPage:
    """Newest first. A page may have fewer than `limit` although there are more: then `next` leads on. It has at most
    about 1 MiB.
    """
    which = filter_of(asked)

    async def read(most: int, after: int | None) -> tuple[list[JobView], int | None]:
        states, following = await _page(app, which, most, after)
        return [JobView.of(state) for state in states], following

    items, following = await items_that_fit(read, limit, cursor)
    return JobPage(items, None if following is None else str(following))


async def _page(app: ServedRouter, which: Filter, limit: int, cursor: int | None) -> tuple[list[JobState], int | None]:
    """What is IN_PROGRESS is QUEUED for the store: there it is looked for, and left out where QUEUED is asked for."""
    store = store_of(app)
    stored = replace(which, status=Status.QUEUED) if which.status is Status.IN_PROGRESS else which
    items: list[JobState] = []
    for _ in range(MAX_READS):
        page = await store.page(stored, limit - len(items), cursor)
        shown = [as_shown(app, state) for state in page.items]
        items += [state for state in shown if which.status in (None, state.status)]
        cursor = page.cursor
        if cursor is None or len(items) >= limit:
            break
    return items, cursor


@get("/api/dispatch-jobs/{id:str}", tags=["Dispatch jobs"], summary="Look at a job")
async def get_job(
    app: TheApp,
    id: JobId,  # noqa: A002 - the name in the path
) -> WholeJob:
    """With every attempt at it, what people did to it, its place in its group, and what it waits for."""
    store = store_of(app)
    state = await store.find(checked_id(id))
    unfinished = state.status not in FINISHED
    lane = state.job.lane if unfinished else None
    attempts, history = await asyncio.gather(store.attempts_of(id), store.history_of(id))
    place = await store.place_of(id) if lane is not None else None
    group = await store.group(lane) if lane is not None else None
    if place is not None and place.head is not None:
        place = replace(place, head=as_shown(app, place.head))
    paused = paused_of(app, state, None if place is None else place.head)
    waiting = explain(state, place, group, in_hand(app, id), app.clock.wall(), paused)
    return WholeJob.of(as_shown(app, state), attempts, history, place, waiting)
