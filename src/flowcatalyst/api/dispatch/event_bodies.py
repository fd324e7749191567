"""Events in requests: as our own JSON, or as CloudEvents by their Content-Type or their `ce-` headers."""

from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request

from flowcatalyst.api.bodies import decode_json, require_json_type
from flowcatalyst.api.openapi import named_schema, schema_of, with_bodies
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.dispatch.cloudevents import (
    BATCH_TYPE,
    STRUCTURED_TYPE,
    Mode,
    from_batch,
    from_binary,
    from_structured,
    mode_of,
)
from flowcatalyst.dispatch.event import MAX_SOURCE_CHARS, InvalidEventError, NewEvent
from flowcatalyst.dispatch.event_types import MAX_TYPE_CHARS
from flowcatalyst.dispatch.intake import ITEM_BYTES, Turns

MAX_EVENTS: Final = 1000
EVENTS: Final = "/api/events"
BATCH: Final = "/api/events/batch"


class NewEvents(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Events to take in."""

    events: list[msgspec.Raw]


class NewEventsBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Events to take in."""

    events: list[NewEvent]


_new_event = msgspec.json.Decoder(NewEvent)
_new_events = msgspec.json.Decoder(NewEvents)

_CLOUD_EVENT: Final = named_schema(
    "CloudEvent",
    {
        "title": "CloudEvent",
        "type": "object",
        "description": "An event as CloudEvents 1.0 has it; attributes that are not named here are extensions",
        "required": ["specversion", "id", "source", "type"],
        "properties": {
            "specversion": {"const": "1.0"},
            "id": {"type": "string", "maxLength": 256},
            "source": {"type": "string", "maxLength": MAX_SOURCE_CHARS},
            "type": {"type": "string", "maxLength": MAX_TYPE_CHARS},
            "subject": {"type": "string", "maxLength": MAX_SOURCE_CHARS},
            "time": {"type": "string", "format": "date-time"},
            "datacontenttype": {"type": "string"},
            "data": {},
            "data_base64": {"type": "string"},
        },
        "additionalProperties": {"type": ["string", "integer", "boolean", "null"]},
    },
)
EVENT_BODY: Final = with_bodies(
    {"application/json": schema_of(NewEvent), STRUCTURED_TYPE: _CLOUD_EVENT},
    "The event; or a CloudEvent, structured by its Content-Type, or binary with `ce-` headers and its data as the body",
)
BATCH_BODY: Final = with_bodies(
    {
        "application/json": schema_of(NewEventsBody),
        BATCH_TYPE: {"type": "array", "items": _CLOUD_EVENT, "minItems": 1, "maxItems": MAX_EVENTS},
    },
    f"At most {MAX_EVENTS} events; or a batch of CloudEvents by its Content-Type",
)


async def read_event(request: Request[Any, Any, Any]) -> NewEvent:
    """The one event of a request. Raises `InvalidEventError`, or a problem."""
    body = await request.body()
    match mode_of(request.headers.get("content-type"), request.headers.keys()):
        case Mode.STRUCTURED:
            return from_structured(body)
        case Mode.BINARY:
            return from_binary(request.headers.multi_items(), body)
        case Mode.BATCHED:
            raise ProblemError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a batch of CloudEvents is for POST {BATCH}")
        case None:
            require_json_type(request, STRUCTURED_TYPE)
            return decode_json(body, _new_event)


async def read_events(request: Request[Any, Any, Any]) -> list[NewEvent | ProblemError]:
    """The events of a batch, or what is wrong with each. Raises `InvalidEventError`, or a problem, of the whole."""
    body = await request.body()
    match mode_of(request.headers.get("content-type"), request.headers.keys()):
        case Mode.BATCHED:
            events = [_or_problem(one) for one in from_batch(body)]
        case None:
            require_json_type(request, BATCH_TYPE)
            events, turns = [], Turns()
            for raw in decode_json(body, _new_events).events:
                events.append(_decoded(raw))
                await turns.took(ITEM_BYTES + len(raw))
        case _:
            raise ProblemError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a single CloudEvent is for POST {EVENTS}")
    if not 1 <= len(events) <= MAX_EVENTS:
        detail = f"a batch has to have 1 to {MAX_EVENTS} events, and this one has {len(events)}"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    return events


def _decoded(raw: msgspec.Raw) -> NewEvent | ProblemError:
    try:
        return decode_json(bytes(raw), _new_event, "it")
    except ProblemError as problem:
        return problem


def _or_problem(read: NewEvent | InvalidEventError) -> NewEvent | ProblemError:
    return read if isinstance(read, NewEvent) else ProblemError(HTTPStatus.BAD_REQUEST, str(read))
