"""Events as the API shows them."""

from datetime import datetime
from typing import Any

import msgspec

from flowcatalyst.api.dispatch.job_views import SHOWN_CHARS, JobView
from flowcatalyst.api.secrets import mask_body
from flowcatalyst.dispatch.event import Event
from flowcatalyst.dispatch.job import as_time
from flowcatalyst.dispatch.store.platform_contract import EventKept


class EventView(msgspec.Struct, rename="camel"):
    """An event that was accepted, without its data. `jobs` were made of it then; replays come on top."""

    id: str
    type: str
    source: str
    sender_id: str | None
    subject: str | None
    time: datetime
    data_bytes: int
    data_content_type: str | None
    message_group: str | None
    deduplication_id: str | None
    correlation_id: str | None
    causation_id: str | None
    extensions: dict[str, str | int | bool]
    spec_version: str
    jobs: int
    created_at: datetime | None

    @classmethod
    def of(cls, kept: EventKept) -> "EventView":
        event = kept.event
        return cls(
            id=event.id,
            type=event.type,
            source=event.source,
            sender_id=event.sender_id,
            subject=event.subject,
            time=event.time,
            data_bytes=_size_of(event),
            data_content_type=event.data_content_type,
            message_group=event.message_group,
            deduplication_id=event.deduplication_id,
            correlation_id=event.correlation_id,
            causation_id=event.causation_id,
            extensions=event.extensions,
            spec_version=event.spec_version,
            jobs=kept.jobs,
            created_at=as_time(kept.created_at),
        )


class EventPage(msgspec.Struct, rename="camel"):
    """Events, newest first. `next` is the cursor of the next page; null if there is none."""

    items: list[EventView]
    next: str | None


class WholeEvent(msgspec.Struct, rename="camel"):
    """An event with its data and its jobs, the newest of them first.

    `data` is JSON, or the text if it is more than 65,536 characters, cut there; what may be a secret is masked. If
    there are more jobs, `nextJobs` is the cursor for `GET /api/dispatch-jobs?metadata=eventId:ID`.
    """

    event: EventView
    data: Any
    data_base64: str | None = msgspec.field(name="dataBase64")
    jobs: list[JobView]
    next_jobs: str | None

    @classmethod
    def of(cls, kept: EventKept, jobs: list[JobView], next_jobs: int | None) -> "WholeEvent":
        event = kept.event
        return cls(
            event=EventView.of(kept),
            data=_shown(event),
            data_base64=None if event.data_base64 is None else event.data_base64[:SHOWN_CHARS],
            jobs=jobs,
            next_jobs=None if next_jobs is None else str(next_jobs),
        )


def _size_of(event: Event) -> int:
    return len(event.data) if event.data_base64 is None else len(event.data_bytes())


def _shown(event: Event) -> Any:
    if not event.data:
        return None
    text = mask_body(bytes(event.data).decode())
    return msgspec.Raw(text.encode()) if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS]
