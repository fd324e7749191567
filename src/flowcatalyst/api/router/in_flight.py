"""/monitoring/in-flight-messages: every message the router owns, what each one waits for, and where others are."""

from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from flowcatalyst.api.bodies import read_json
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.listing import Offset, page_from
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.control.waits import pool_code_of, wait_of
from flowcatalyst.core.message import MAX_NAME_CHARS, Delivery, DispatchMode
from flowcatalyst.router.explain import Wait

MAX_LISTED: Final = 1000
MAX_CHECKED: Final = 10_000


class WaitView(msgspec.Struct, rename="camel"):
    """What a message waits for, behind which other one, and for how long at least; null: not known."""

    what: str
    behind: str | None
    until_in_ms: int | None


class InFlightMessage(msgspec.Struct, rename="camel"):
    """A message between the moment the router took it and the moment its queue confirmed the end."""

    id: str
    broker_id: str
    queue: str
    pool: str
    group: str | None
    mode: DispatchMode
    attempts: int
    failures: int
    receive_count: int
    elapsed_ms: int
    waiting: WaitView


_Id = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]


class IdsToCheck(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Ids of messages, as their senders know them."""

    ids: Annotated[list[_Id], msgspec.Meta(min_length=1, max_length=MAX_CHECKED)]


class Whereabouts(StrEnum):
    """What this router knows of a message."""

    IN_FLIGHT = "IN_FLIGHT"  # an attempt runs
    WAITING = "WAITING"  # it is here; `waiting` says what for
    NACKED = "NACKED"  # it failed here and was nacked; its queue will show it again
    DEAD_LETTER = "DEAD_LETTER"  # it will not be delivered unless somebody replays it
    DELIVERED = "DELIVERED"  # lately: it is among the last ones that are remembered
    UNKNOWN = "UNKNOWN"  # never seen, delivered longer ago, or still in its queue


class CheckedId(msgspec.Struct, rename="camel"):
    """What is known of one message."""

    id: str
    state: Whereabouts
    in_flight: bool  # the router has it now: IN_FLIGHT or WAITING
    pool: str | None
    failures: int | None  # failed attempts so far, as far as known here
    waiting: WaitView | None
    dead_letter: int | None  # its number


_ids_decoder = msgspec.json.Decoder(IdsToCheck)


@get("/monitoring/in-flight-messages", tags=["Monitoring"], summary="Messages in the router")
async def get_in_flight_messages(
    request: Request[Any, Any, Any],
    app: TheApp,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="Largest number to return")] = 100,
    message_id: Annotated[
        str | None, QueryParameter(name="id", description="Only the message with this id or broker id")
    ] = None,
    pool: Annotated[str | None, QueryParameter(description="Only messages in this pool")] = None,
    group: Annotated[str | None, QueryParameter(description="Only messages of this group")] = None,
    offset: Offset = 0,
) -> Response[list[InFlightMessage]]:
    """Those longest in the router first, each with what it waits for, behind whom, and until when. If there are more
    than `limit`, or than about 1 MiB of them, the Link header leads to them.
    """
    found = [
        delivery
        for delivery in app.tracker
        if (message_id is None or message_id in (delivery.pointer.id, delivery.broker_id))
        and (group is None or delivery.group == group)
        and (pool is None or pool_code_of(delivery) == pool)
    ]
    found.sort(key=lambda delivery: delivery.arrived_at)
    now = app.clock.monotonic()
    views = (_view(app, delivery, now) for delivery in found[offset : offset + limit])
    return page_from(request, views, offset, more=len(found) > offset + limit)


@post(
    "/monitoring/in-flight-messages/check",
    tags=["Monitoring"],
    summary="Is it safe to send these again?",
    operation_class=with_json_body(IdsToCheck, "Ids of messages"),
    status_code=HTTPStatus.OK,
)
async def check_in_flight(request: Request[Any, Any, Any], app: TheApp) -> list[CheckedId]:
    """For each id what the router knows of a message with it. One that it has (IN_FLIGHT, WAITING) is dropped as a
    duplicate if it came again to the same queue for the same target and group. One that was NACKED comes again by
    itself. A DEAD_LETTER does not: replay it. One that was DELIVERED lately need not be sent. UNKNOWN was never seen,
    was delivered longer ago, or still waits in its queue: `GET /monitoring/explain/{id}` looks there too.
    """
    asked = await read_json(request, _ids_decoder)
    wanted = set(asked.ids)
    letters = await app.dead_letters.numbers_of(wanted)
    nacked = app.engine.failures.find(wanted)
    now = app.clock.monotonic()
    return [_checked(app, one, letters.get(one), nacked.get(one), now) for one in asked.ids]


def _checked(app: ServedRouter, message_id: str, letter: int | None, nacked: int | None, now: float) -> CheckedId:
    owned = app.tracker.get(message_id)
    if owned is not None:
        wait = wait_of(app, owned)
        state = Whereabouts.IN_FLIGHT if wait.under_way else Whereabouts.WAITING
        waiting = _wait_view(wait, now)
        return CheckedId(message_id, state, True, pool_code_of(owned), owned.failures, waiting, None)
    if letter is not None:
        return CheckedId(message_id, Whereabouts.DEAD_LETTER, False, None, None, None, letter)
    state = Whereabouts.UNKNOWN if nacked is None else Whereabouts.NACKED
    if nacked is None and app.engine.delivered.find(message_id) is not None:
        state = Whereabouts.DELIVERED
    return CheckedId(message_id, state, False, None, nacked, None, None)


def _view(app: ServedRouter, delivery: Delivery, now: float) -> InFlightMessage:
    pointer = delivery.pointer
    wait = wait_of(app, delivery)
    return InFlightMessage(
        id=pointer.id,
        broker_id=delivery.broker_id,
        queue=delivery.source.name,
        pool=pool_code_of(delivery),
        group=delivery.group if delivery.ordered else None,
        mode=pointer.dispatch_mode or DispatchMode.BLOCK_ON_ERROR,
        attempts=delivery.tries,
        failures=delivery.failures,
        receive_count=delivery.receive_count,
        elapsed_ms=_milliseconds(now - delivery.arrived_at),
        waiting=_wait_view(wait, now),
    )


def _wait_view(wait: Wait, now: float) -> WaitView:
    return WaitView(wait.what, wait.behind, None if wait.until is None else _milliseconds(wait.until - now))


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))
