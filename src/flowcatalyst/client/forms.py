"""The fields of what is published, for editors and type checkers. A plain dict will do as well."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, NotRequired, TypedDict


class Job(TypedDict):
    """A dispatch job, as docs/dispatch.md describes it."""

    targetUrl: str
    code: str
    kind: NotRequired[Literal["TASK", "EVENT"]]
    payload: NotRequired[Any]
    contentType: NotRequired[str | None]
    headers: NotRequired[dict[str, str]]
    messageGroup: NotRequired[str | None]
    sequence: NotRequired[int]
    mode: NotRequired[Literal["IMMEDIATE", "NEXT_ON_ERROR", "BLOCK_ON_ERROR"]]
    dispatchPoolCode: NotRequired[str]
    timeoutSeconds: NotRequired[float]
    maxRetries: NotRequired[int]
    retryDelaysSeconds: NotRequired[Sequence[float]]
    scheduledFor: NotRequired[datetime | str | None]
    expiresAt: NotRequired[datetime | str | None]
    idempotencyKey: NotRequired[str | None]
    metadata: NotRequired[dict[str, str]]


class Event(TypedDict):
    """Something that happened; subscriptions make jobs of it."""

    type: str
    source: str
    specVersion: NotRequired[Literal["1.0"]]
    id: NotRequired[str | None]
    subject: NotRequired[str | None]
    time: NotRequired[datetime | str | None]
    data: NotRequired[Any]
    dataBase64: NotRequired[str | None]
    dataContentType: NotRequired[str | None]
    messageGroup: NotRequired[str | None]
    deduplicationId: NotRequired[str | None]
    correlationId: NotRequired[str | None]
    causationId: NotRequired[str | None]
    extensions: NotRequired[dict[str, Any]]
