"""/api/subscriptions: who wants to know what, and how they are told."""

from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, delete, get, patch, post, put
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.api.callable_targets import check_may_be_called
from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.dispatch.platform import platform_of
from flowcatalyst.api.dispatch.subscription_bodies import read_edit, read_new
from flowcatalyst.api.dispatch.subscription_views import (
    NewSubscription,
    SubscriptionChange,
    SubscriptionPage,
    SubscriptionView,
    SubscriptionWithSecret,
    unmasked,
)
from flowcatalyst.api.listing import behind, items_that_fit
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.dispatch import subscribing
from flowcatalyst.dispatch.catalog_entries import StoredSubscription, plain_fields
from flowcatalyst.dispatch.rotation import sealed
from flowcatalyst.dispatch.store.contract import JobStateError
from flowcatalyst.dispatch.subscribing import Edit, UnfinishedJobsError
from flowcatalyst.dispatch.subscription import (
    MAX_CODE_CHARS,
    InvalidSubscriptionError,
    Subscription,
    SubscriptionStatus,
    check_subscription,
)
from flowcatalyst.http.signing import new_secret

SUBSCRIPTIONS: Final = "/api/subscriptions"
MAX_LISTED: Final = 1000
Code = Annotated[str, PathParameter(max_length=MAX_CODE_CHARS, description="Code of the subscription")]

_new = msgspec.json.Decoder(NewSubscription)
_whole = msgspec.json.Decoder(Subscription)
_change = msgspec.json.Decoder(SubscriptionChange)


class DeletedSubscription(msgspec.Struct, rename="camel"):
    """A subscription that is gone, and how many of its unfinished jobs were cancelled. Those `inFlight` were being
    delivered just then; should that fail they wait for ever: DELETE once more to cancel them."""

    code: str
    cancelled: int
    in_flight: int


@post(
    SUBSCRIPTIONS,
    tags=["Subscriptions"],
    summary="Make a subscription",
    operation_class=with_json_body(NewSubscription, "The subscription"),
    response_description="The subscription, with its secret this once",
)
async def create_subscription(request: Request[Any, Any, Any], app: TheApp) -> SubscriptionWithSecret:
    """From the answer on each event that it wants becomes a job of it, in other processes within a second."""
    platform, actor, asked = platform_of(app), actor_of(request), await read_new(request, _new)
    check(app, asked)
    await platform.catalog.ready()
    wall = app.clock.wall()
    secret = new_secret() if asked.secret is None else asked.secret
    document = StoredSubscription(**plain_fields(asked), secrets=(sealed(platform.sealer, asked.code, secret, wall),))
    try:
        await subscribing.add(platform, document)
    except UnfinishedJobsError as error:
        raise ProblemError(HTTPStatus.CONFLICT, str(error)) from None
    app.audit.record(actor, AuditAction.SUBSCRIPTION_CREATE, f"subscription {asked.code}", in_words(document))
    kept = platform.catalog.subscription(asked.code)
    return SubscriptionWithSecret.with_secret(platform.catalog, kept, wall, app.config.pools, secret)


@get(SUBSCRIPTIONS, tags=["Subscriptions"], summary="List subscriptions")
async def list_subscriptions(
    app: TheApp,
    status: Annotated[SubscriptionStatus | None, QueryParameter(description="Only those in this status")] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="Largest number to return")] = 100,
    cursor: Annotated[
        str | None, QueryParameter(max_length=MAX_CODE_CHARS, description="`next` of the page before")
    ] = None,
) -> SubscriptionPage:
    """By code, at most about 1 MiB of them: then `next` leads on, although there are fewer than `limit`. No secrets:
    they are shown only when they are made."""
    catalog, wall = platform_of(app).catalog, app.clock.wall()
    await catalog.ready()
    known = catalog.subscriptions
    if cursor is not None and cursor not in known and not any(code > cursor for code in known):
        detail = f"cursor is {cursor[:100]!r}, which is `next` of no page: no subscription comes after it"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    codes = [code for code in sorted(known) if status in (None, known[code].document.status)]

    async def read(most: int, after: str | None) -> tuple[list[SubscriptionView], str | None]:
        shown, following = behind(codes, most, after)
        return [SubscriptionView.of(catalog, known[code], wall, app.config.pools) for code in shown], following

    return SubscriptionPage(*await items_that_fit(read, limit, cursor))


@get(f"{SUBSCRIPTIONS}/{{code:str}}", tags=["Subscriptions"], summary="Look at a subscription")
async def get_subscription(app: TheApp, code: Code) -> SubscriptionView:
    """Without its secret."""
    await platform_of(app).catalog.ready()
    return shown(app, code)


@put(
    f"{SUBSCRIPTIONS}/{{code:str}}",
    tags=["Subscriptions"],
    summary="Replace a subscription",
    operation_class=with_json_body(Subscription, "All of it but the secret"),
)
async def replace_subscription(request: Request[Any, Any, Any], app: TheApp, code: Code) -> SubscriptionView:
    """What is left out is as for a new one. Its code and its secrets stay. Jobs that were made stay as they are. The
    fields of an answer that only tell something, such as `revision`, are passed over."""
    asked = await read_edit(request, _whole, code, with_code=True)

    def edit(before: StoredSubscription) -> StoredSubscription:
        return msgspec.structs.replace(before, **plain_fields(asked) | unmasked(asked, before))

    return await _save(request, app, code, edit)


@patch(
    f"{SUBSCRIPTIONS}/{{code:str}}",
    tags=["Subscriptions"],
    summary="Change a subscription",
    operation_class=with_json_body(SubscriptionChange, "What to change"),
)
async def change_subscription(request: Request[Any, Any, Any], app: TheApp, code: Code) -> SubscriptionView:
    """What is left out stays as it is. Jobs that were made stay as they are. The fields of an answer that only tell
    something, such as `revision`, are passed over."""
    asked = await read_edit(request, _change, code, with_code=False)
    given = {name: value for name, value in msgspec.structs.asdict(asked).items() if value is not msgspec.UNSET}

    def edit(before: StoredSubscription) -> StoredSubscription:
        after = msgspec.structs.replace(before, **given)
        return msgspec.structs.replace(after, **unmasked(after, before))

    return await _save(request, app, code, edit)


@delete(
    f"{SUBSCRIPTIONS}/{{code:str}}",
    status_code=HTTPStatus.OK,
    tags=["Subscriptions"],
    summary="Delete a subscription",
)
async def delete_subscription(request: Request[Any, Any, Any], app: TheApp, code: Code) -> DeletedSubscription:
    """It gets no events any more, and its unfinished jobs are cancelled. A DELETE that did not come to its end can be
    repeated."""
    platform, actor = platform_of(app), actor_of(request)
    cancelled = await subscribing.remove(platform, code, actor.who)
    app.job_counts.cancelled += cancelled.done
    detail = f"{cancelled.in_flight} jobs in flight" if cancelled.in_flight else ""
    app.audit.record(actor, AuditAction.SUBSCRIPTION_DELETE, f"subscription {code}", detail, cancelled.done)
    return DeletedSubscription(code, cancelled.done, cancelled.in_flight)


async def _save(request: Request[Any, Any, Any], app: ServedRouter, code: str, edit: Edit) -> SubscriptionView:
    """Put what `edit` makes of a subscription in its place, if it can be."""

    def checked(before: StoredSubscription) -> StoredSubscription:
        after = edit(before)
        check(app, after)
        return after

    try:
        before, after = await subscribing.save(platform_of(app), code, checked)
    except JobStateError:  # it is changed and paused all the same
        detail = "status, a router did not answer"
        app.audit.record(actor_of(request), AuditAction.SUBSCRIPTION_CHANGE, f"subscription {code}", detail)
        raise
    detail = ", ".join(name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name))
    app.audit.record(actor_of(request), AuditAction.SUBSCRIPTION_CHANGE, f"subscription {code}", detail or "no change")
    return shown(app, code)


def check(app: ServedRouter, asked: Subscription) -> None:
    """Refuse one whose jobs could never be sent."""
    try:
        check_subscription(asked)
    except InvalidSubscriptionError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
    check_may_be_called(app, "targetUrl", asked.target_url)


def shown(app: ServedRouter, code: str) -> SubscriptionView:
    """Raises `UnknownEntryError`."""
    catalog = platform_of(app).catalog
    return SubscriptionView.of(catalog, catalog.subscription(code), app.clock.wall(), app.config.pools)


def in_words(subscription: Subscription) -> str:
    """For the audit trail. No target: its query may hold secrets."""
    return f"{', '.join(subscription.patterns)} in mode {subscription.mode}, {subscription.status}"
