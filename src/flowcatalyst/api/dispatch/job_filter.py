"""Which jobs are meant: the filters of lists and of bulk actions, checked before a database sees them."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from litestar.params import QueryParameter

from flowcatalyst.api.problems import ProblemError
from flowcatalyst.api.times import time_of
from flowcatalyst.core.message import MAX_NAME_CHARS, MAX_TARGET_CHARS, DispatchMode
from flowcatalyst.dispatch.job import MAX_METADATA_CHARS, InvalidJobError, Kind, Status, as_seconds, check_text
from flowcatalyst.dispatch.store.contract import Filter

MAX_PAIRS: Final = 10  # of metadata
Text = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]


class JobFilter(
    msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True, omit_defaults=True, frozen=True
):
    """Which jobs; what is left out means any. All that is there has to hold.

    `targetUrl` is the beginning of a target, without a query. `parked`: in ERROR and waiting for a person.
    """

    status: Status | None = None
    mode: DispatchMode | None = None
    kind: Kind | None = None
    code: Text | None = None
    message_group: Text | None = None
    dispatch_pool_code: Text | None = None
    subscription: Text | None = None
    target_url: Annotated[str, msgspec.Meta(max_length=MAX_TARGET_CHARS)] | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    metadata: dict[str, str] = {}
    parked: bool | None = None


EVERYTHING: Final = JobFilter()


def filter_of(asked: JobFilter) -> Filter:
    """As a store takes it; a problem if no job could ever match, or it would give secrets away."""
    texts = {
        "code": asked.code,
        "messageGroup": asked.message_group,
        "dispatchPoolCode": asked.dispatch_pool_code,
        "subscription": asked.subscription,
        "targetUrl": asked.target_url,
        "metadata": "".join((*asked.metadata, *asked.metadata.values())),
    }
    try:
        for what, text in texts.items():
            check_text(what, text or "")
    except InvalidJobError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
    if "?" in (asked.target_url or ""):  # or whoever may look could guess what is masked, letter by letter
        raise ProblemError(HTTPStatus.BAD_REQUEST, "targetUrl has to end before the query of a target, which is masked")
    if len(asked.metadata) > MAX_PAIRS:
        detail = f"metadata has {len(asked.metadata)} pairs, more than the {MAX_PAIRS} a filter may have"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    if len(texts["metadata"] or "") > MAX_METADATA_CHARS:
        detail = f"metadata has more than the {MAX_METADATA_CHARS} characters that a job may have"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    return Filter(
        status=asked.status,
        mode=asked.mode,
        group=asked.message_group,
        code=asked.code,
        kind=asked.kind,
        pool=asked.dispatch_pool_code,
        subscription=asked.subscription,
        target=asked.target_url,
        created_from=as_seconds(asked.created_from),
        created_before=as_seconds(asked.created_before),
        metadata=tuple(asked.metadata.items()),
        parked=asked.parked,
    )


def pairs_of(given: list[str]) -> dict[str, str]:
    """Metadata as a query has it: `KEY:VALUE` each, split at the first colon."""
    pairs: dict[str, str] = {}
    for one in given:
        key, colon, value = one.partition(":")
        if not colon:
            raise ProblemError(
                HTTPStatus.BAD_REQUEST, f"metadata has to be KEY:VALUE, as tenant:acme, not {one[:60]!r}"
            )
        if pairs.setdefault(key, value) != value:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"metadata has {key[:60]!r} twice, and no job has two values")
    return pairs


_From = Annotated[
    str | None,
    QueryParameter(
        name="createdFrom", description="Only those made then or later", schema_extra={"format": "date-time"}
    ),
]
_Before = Annotated[
    str | None,
    QueryParameter(
        name="createdBefore", description="Only those made before then", schema_extra={"format": "date-time"}
    ),
]


def read_filter(
    status: Annotated[Status | None, QueryParameter(description="Only those in this status")] = None,
    mode: Annotated[DispatchMode | None, QueryParameter(description="Only those of this mode")] = None,
    kind: Annotated[Kind | None, QueryParameter(description="Only those of this kind")] = None,
    code: Annotated[
        str | None, QueryParameter(max_length=MAX_NAME_CHARS, description="Only those of this code")
    ] = None,
    message_group: Annotated[
        str | None,
        QueryParameter(name="messageGroup", max_length=MAX_NAME_CHARS, description="Only those of this group"),
    ] = None,
    pool: Annotated[
        str | None,
        QueryParameter(name="dispatchPoolCode", max_length=MAX_NAME_CHARS, description="Only those for this pool"),
    ] = None,
    subscription: Annotated[
        str | None, QueryParameter(max_length=MAX_NAME_CHARS, description="Only those made for this subscription")
    ] = None,
    target: Annotated[
        str | None,
        QueryParameter(
            name="targetUrl", max_length=MAX_TARGET_CHARS, description="Only those whose target begins like this"
        ),
    ] = None,
    created_from: _From = None,
    created_before: _Before = None,
    metadata: Annotated[
        list[str] | None,
        QueryParameter(
            max_items=MAX_PAIRS,
            description="`KEY:VALUE`, as `tenant:acme`: only those with this in their metadata; may be repeated",
        ),
    ] = None,
    parked: Annotated[
        bool | None, QueryParameter(description="Only those that wait for a person, or only the others")
    ] = None,
) -> JobFilter:
    """The filter in the query parameters."""
    return JobFilter(
        status=status,
        mode=mode,
        kind=kind,
        code=code,
        message_group=message_group,
        dispatch_pool_code=pool,
        subscription=subscription,
        target_url=target,
        created_from=time_of("createdFrom", created_from),
        created_before=time_of("createdBefore", created_before),
        metadata=pairs_of(metadata or []),
        parked=parked,
    )
