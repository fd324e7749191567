"""What may be changed about jobs that were made, checked as if it were new. Pure."""

import msgspec

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.headers import check_headers
from flowcatalyst.core.message import DispatchMode, check_target
from flowcatalyst.core.payload import JSON_TYPE, check_content_type, check_payload, given, payload_bytes
from flowcatalyst.dispatch.job import InvalidJobError, Job, TargetUrl
from flowcatalyst.dispatch.store.contract import Change


class JobChange(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """What to change about jobs; what is left out, or null, stays as it is."""

    mode: DispatchMode | None = None
    target_url: TargetUrl | None = None
    payload: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    content_type: str | None = None
    headers: dict[str, str] | None = None


def change_of(asked: JobChange, job: Job | None = None) -> Change:
    """The change that was asked for, of one job or of many. Raises `InvalidJobError` if none could be sent after it.

    A payload without a content type keeps that of its job; for many jobs it is JSON.
    """
    payload = given(asked.payload)
    if all(one is None for one in (asked.mode, asked.target_url, asked.content_type, asked.headers)) and not payload:
        raise InvalidJobError("nothing is to be changed: give mode, targetUrl, payload, contentType or headers")
    if job is not None and asked.mode not in (None, DispatchMode.IMMEDIATE) and job.group is None:
        raise InvalidJobError(f"mode {asked.mode} orders the jobs of a group, and the job has no messageGroup")
    content_type = asked.content_type or (JSON_TYPE if job is None else job.content_type) if payload else None
    try:
        if asked.target_url is not None:
            check_target(asked.target_url)
        if asked.headers is not None:
            check_headers(asked.headers)
        if asked.content_type is not None:
            check_content_type(asked.content_type)
            if not payload and (job is None or job.payload is None):
                raise InvalidJobError("contentType is there without a payload: give both")
        if payload:
            check_payload(payload, content_type)
    except InvalidMessageError as error:
        raise InvalidJobError(str(error).replace("mediationTarget", "targetUrl")) from None
    return Change(
        mode=asked.mode,
        target=asked.target_url,
        payload=payload_bytes(payload, content_type) if payload and content_type is not None else None,
        content_type=content_type or asked.content_type,
        headers=None if asked.headers is None else tuple(asked.headers.items()),
    )
