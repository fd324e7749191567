"""Acting on all jobs of a filter, with a dry run that says how many they are."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, post

from flowcatalyst.api.bodies import read_json
from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.dispatch.job_actions import checked_change
from flowcatalyst.api.dispatch.job_filter import EVERYTHING, JobFilter, filter_of
from flowcatalyst.api.dispatch.platform import store_of
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.dispatch import acting
from flowcatalyst.dispatch.change import JobChange
from flowcatalyst.dispatch.job import Status
from flowcatalyst.dispatch.store.contract import Action, Cancel, Filter, Retry, in_words

PART: Final = 200  # jobs of one transaction
PAUSE_S: Final = 0.01  # after each: others write too
MOST_COUNTED: Final = 1_000_000

# Which jobs an action can be done to, as far as their status decides. What is being delivered is refused.
_RETRIED: Final = (Status.ERROR,)
_UNFINISHED: Final = (Status.PENDING, Status.ERROR, Status.QUEUED)
# In this order: a job whose attempt fails meanwhile goes from one to the other.
_STORED: Final = (Status.PENDING, Status.ERROR)


class BulkAction(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Which jobs, and whether only to say how many they are. A filter that is empty, or not there, needs `all`."""

    filter: JobFilter = EVERYTHING
    all: bool = False
    dry_run: bool = False


class BulkChange(BulkAction, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Which jobs, and what to change about them."""

    change: JobChange


class BulkResult(msgspec.Struct, rename="camel", omit_defaults=True):
    """`matched` of a dry run: how many jobs there are, up to 1,000,000. Else how many it was `done` to, and how many
    `refused` because they were being delivered just then, or were not in a state for it."""

    matched: int | None = None
    done: int | None = None
    refused: int | None = None


_action = msgspec.json.Decoder(BulkAction)
_change = msgspec.json.Decoder(BulkChange)


@post(
    "/api/dispatch-jobs/retry",
    status_code=HTTPStatus.OK,
    tags=["Dispatch jobs"],
    summary="Try jobs again",
    operation_class=with_json_body(BulkAction, "Which jobs"),
)
async def retry_jobs(request: Request[Any, Any, Any], app: TheApp) -> BulkResult:
    """All of a filter that are in ERROR, at once and with all their retries."""
    asked = await read_json(request, _action)
    return await _act(request, app, asked, Retry(), _RETRIED, AuditAction.JOB_RETRY, "")


@post(
    "/api/dispatch-jobs/cancel",
    status_code=HTTPStatus.OK,
    tags=["Dispatch jobs"],
    summary="Cancel jobs",
    operation_class=with_json_body(BulkAction, "Which jobs"),
)
async def cancel_jobs(request: Request[Any, Any, Any], app: TheApp) -> BulkResult:
    """All unfinished ones of a filter: they are never tried (again), and their groups go on."""
    asked = await read_json(request, _action)
    return await _act(request, app, asked, Cancel(), _UNFINISHED, AuditAction.JOB_CANCEL, "")


@post(
    "/api/dispatch-jobs/change",
    status_code=HTTPStatus.OK,
    tags=["Dispatch jobs"],
    summary="Change jobs",
    operation_class=with_json_body(BulkChange, "Which jobs, and what to change about them"),
)
async def change_jobs(request: Request[Any, Any, Any], app: TheApp) -> BulkResult:
    """All unfinished ones of a filter, as a change of one. A payload without a content type is JSON."""
    asked = await read_json(request, _change)
    change = checked_change(app, asked.change)
    return await _act(request, app, asked, change, _UNFINISHED, AuditAction.JOB_CHANGE, in_words(change))


async def _act(
    request: Request[Any, Any, Any],
    app: ServedRouter,
    asked: BulkAction,
    action: Action,
    possible: Sequence[Status],
    noted: AuditAction,
    detail: str,
) -> BulkResult:
    """In parts, so that whoever delivers waits for one of them at most. One status after the other: so it costs nothing
    that most jobs are finished."""
    store, actor, which = store_of(app), actor_of(request), filter_of(asked.filter)
    if which == Filter() and not asked.all:
        raise ProblemError(HTTPStatus.BAD_REQUEST, 'the filter is empty: to act on all jobs say {"all": true}')
    if which.status is not None and which.status not in possible:
        names = " or ".join(possible)
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"this is not for jobs that are {which.status}, only {names}")
    # By what is stored: routers take jobs and return them while one status after the other is looked at.
    parts = [replace(which, status=one, as_stored=True) for one in _STORED if one in possible]
    parts = parts if which.status is None else [which]
    if asked.dry_run:
        return BulkResult(matched=min(MOST_COUNTED, sum([await store.count(one, MOST_COUNTED) for one in parts])))
    done, refused, ended = 0, 0, False
    try:
        for part in parts:
            cursor: int | None = None
            while True:
                acted = await acting.act_on_all(store, part, action, actor.who, PART, cursor)
                done, refused, cursor = done + acted.done, refused + acted.refused, acted.cursor
                if cursor is None:
                    break
                await asyncio.sleep(PAUSE_S)
        ended = True
    finally:
        app.job_counts.cancelled += done if isinstance(action, Cancel) else 0
        what = [detail, "" if ended else "stopped by an error", f"{refused} refused" if refused else ""]
        app.audit.record(actor, noted, f"jobs with {in_query(asked)}", ", ".join(filter(None, what)), done)
    return BulkResult(done=done, refused=refused)


def in_query(asked: BulkAction) -> str:
    """A filter in few words, for the audit trail."""
    given = msgspec.to_builtins(asked.filter)
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "any status"
