"""/api/events: what happened, told once; who wants to know gets a job of it."""

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, get, post
from litestar.openapi import ResponseSpec
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.dispatch.event_bodies import BATCH, BATCH_BODY, EVENT_BODY, EVENTS, read_event, read_events
from flowcatalyst.api.dispatch.event_views import EventPage, EventView, WholeEvent
from flowcatalyst.api.dispatch.job_list import MAX_CURSOR, MAX_LISTED
from flowcatalyst.api.dispatch.job_views import JobView
from flowcatalyst.api.dispatch.platform import as_shown, platform_of
from flowcatalyst.api.listing import items_that_fit
from flowcatalyst.api.problems import Problem, ProblemError
from flowcatalyst.api.times import seconds_of
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.core.message import MAX_NAME_CHARS
from flowcatalyst.dispatch.event import MAX_EVENT_GROUP_CHARS, MAX_SOURCE_CHARS, Event, InvalidEventError
from flowcatalyst.dispatch.event_types import MAX_TYPE_CHARS
from flowcatalyst.dispatch.intake import ITEM_BYTES, Turns
from flowcatalyst.dispatch.store.contract import Filter
from flowcatalyst.dispatch.store.platform_contract import EventAccepted, EventFilter, PlatformStore, UnknownEventError

SHOWN_JOBS: Final = 100  # of one event
MAX_DEDUPLICATION_CHARS: Final = MAX_SOURCE_CHARS + 1 + MAX_NAME_CHARS  # of one that is a source and an id


class EventResult(msgspec.Struct, rename="camel", omit_defaults=True):
    """What became of one event of a batch: 201 kept, 200 it was there by its deduplication id, 400 and why not."""

    status: int
    event: EventView | None = None
    problem: Problem | None = None


class EventResults(msgspec.Struct, rename="camel"):
    """One result for each event, in the order of the request."""

    results: list[EventResult]


@post(
    EVENTS,
    tags=["Events"],
    summary="Send an event",
    operation_class=EVENT_BODY,
    response_description="The event and its jobs are kept",
    responses={HTTPStatus.OK: ResponseSpec(EventView, description="It was there already", generate_examples=False)},
)
async def send_event(request: Request[Any, Any, Any], app: TheApp) -> Response[EventView]:
    """It is durable, with a job for each subscription that wants it, when the answer comes; `jobs` says how many. If
    its deduplicationId is known nothing is kept: 200 has the first event. CloudEvents 1.0 are taken too, structured
    (`application/cloudevents+json`) and binary (`ce-` headers)."""
    intake = platform_of(app).intake
    event = intake.event_of(await read_event(request))
    (accepted,) = await intake.accept([event])
    _count(request, app, [accepted])
    return Response(EventView.of(accepted.kept), status_code=_status_of(accepted))


@post(BATCH, status_code=HTTPStatus.OK, tags=["Events"], summary="Send events", operation_class=BATCH_BODY)
async def send_events(request: Request[Any, Any, Any], app: TheApp) -> EventResults:
    """Each is judged on its own: good ones are kept although others are refused. All of them are durable when the
    answer comes, and within a group their jobs stand in their order. `application/cloudevents-batch+json` is taken
    too."""
    intake = platform_of(app).intake
    items: list[Event | ProblemError] = []
    turns = Turns()
    for asked in await read_events(request):
        if isinstance(asked, ProblemError):
            items.append(asked)
            continue
        try:
            items.append(intake.event_of(asked))
        except InvalidEventError as error:
            items.append(ProblemError(HTTPStatus.BAD_REQUEST, str(error)))
        await turns.took(ITEM_BYTES + len(asked.data) + len(asked.data_base64 or ""))
    accepted = await intake.accept([item for item in items if isinstance(item, Event)])
    _count(request, app, accepted)
    results = iter(accepted)
    return EventResults([_result_of(item, results) for item in items])


_Type = Annotated[
    str | None,
    QueryParameter(
        name="type",
        max_length=MAX_TYPE_CHARS,
        description="Only those of this type, which is no pattern",
        schema_extra={"pattern": r"^[^*]*$"},
    ),
]
_From = Annotated[
    str | None,
    QueryParameter(name="from", description="Only those that came then or later", schema_extra={"format": "date-time"}),
]
_Before = Annotated[
    str | None, QueryParameter(description="Only those that came before then", schema_extra={"format": "date-time"})
]


@get(EVENTS, tags=["Events"], summary="List events")
async def list_events(
    app: TheApp,
    type_: _Type = None,
    source: Annotated[
        str | None, QueryParameter(max_length=MAX_SOURCE_CHARS, description="Only those of this source")
    ] = None,
    subject: Annotated[
        str | None, QueryParameter(max_length=MAX_SOURCE_CHARS, description="Only those about this")
    ] = None,
    group: Annotated[
        str | None,
        QueryParameter(name="messageGroup", max_length=MAX_EVENT_GROUP_CHARS, description="Only those of this group"),
    ] = None,
    correlation_id: Annotated[
        str | None,
        QueryParameter(name="correlationId", max_length=MAX_NAME_CHARS, description="Only those that belong to this"),
    ] = None,
    deduplication_id: Annotated[
        str | None,
        QueryParameter(
            name="deduplicationId", max_length=MAX_DEDUPLICATION_CHARS, description="Only the one with this"
        ),
    ] = None,
    from_: _From = None,
    before: _Before = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="Largest number to return")] = 100,
    cursor: Annotated[int | None, QueryParameter(ge=1, le=MAX_CURSOR, description="`next` of the page before")] = None,
) -> EventPage:
    """Newest first, without their data. A page may have fewer than `limit` although there are more: then `next` leads
    on. It has at most about 1 MiB."""
    texts = {
        "type": type_,
        "source": source,
        "subject": subject,
        "messageGroup": group,
        "correlationId": correlation_id,
        "deduplicationId": deduplication_id,
    }
    for what, text in texts.items():
        if "\0" in (text or ""):
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"{what} has a NUL character, which no event has")
    if "*" in (type_ or ""):
        detail = f"type is {type_!r}, a pattern, which only subscriptions have: give the whole type of events"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    which = EventFilter(
        type_,
        source,
        subject,
        group,
        correlation_id,
        deduplication_id,
        seconds_of("from", from_),
        seconds_of("before", before),
    )
    return await _page(platform_of(app).store, which, limit, cursor)


async def _page(store: PlatformStore, which: EventFilter, limit: int, cursor: int | None) -> EventPage:
    async def read(most: int, after: int | None) -> tuple[list[EventView], int | None]:
        page = await store.events(which, most, after)
        return [EventView.of(one) for one in page.items], page.cursor

    items, following = await items_that_fit(read, limit, cursor)
    return EventPage(items, None if following is None else str(following))


@get("/api/events/{id:str}", tags=["Events"], summary="Look at an event")
async def get_event(
    app: TheApp,
    id: Annotated[str, PathParameter(max_length=MAX_NAME_CHARS, description="Our id of the event")],  # noqa: A002
) -> WholeEvent:
    """With its data and its jobs, those of replays too."""
    if "\0" in id:
        raise UnknownEventError("there is no event with a NUL character in its id")
    store = platform_of(app).store
    kept = await store.event(id)
    page = await store.page(Filter(metadata=(("eventId", id),)), SHOWN_JOBS)
    return WholeEvent.of(kept, [JobView.of(as_shown(app, state)) for state in page.items], page.cursor)


def _count(request: Request[Any, Any, Any], app: ServedRouter, accepted: Sequence[EventAccepted]) -> None:
    app.job_counts.created += sum(one.kept.jobs for one in accepted if not one.repeated)
    app.audit.add_up(actor_of(request), AuditAction.EVENT_PUBLISH, "events", len(accepted))


def _status_of(accepted: EventAccepted) -> HTTPStatus:
    return HTTPStatus.OK if accepted.repeated else HTTPStatus.CREATED


def _result_of(item: Event | ProblemError, accepted: Iterator[EventAccepted]) -> EventResult:
    if isinstance(item, ProblemError):
        return EventResult(HTTPStatus.BAD_REQUEST, problem=item.body())
    one = next(accepted)
    return EventResult(_status_of(one), event=EventView.of(one.kept))
