"""What is done to a subscription: pause and resume it, give it another secret, try it, and send past events again."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, post

from flowcatalyst.api.bodies import read_json, read_optional_json
from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.dispatch.job_list import MAX_CURSOR
from flowcatalyst.api.dispatch.job_views import JobView
from flowcatalyst.api.dispatch.platform import as_shown, platform_of
from flowcatalyst.api.dispatch.subscription_views import Secret, SubscriptionView, SubscriptionWithSecret
from flowcatalyst.api.dispatch.subscriptions import SUBSCRIPTIONS, Code, shown
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.dispatch import subscribing
from flowcatalyst.dispatch.event import NewEvent
from flowcatalyst.dispatch.event_types import MAX_TYPE_CHARS, sample_type
from flowcatalyst.dispatch.job import InvalidJobError, as_seconds, check_text
from flowcatalyst.dispatch.replaying import MAX_ID_CHARS, replay
from flowcatalyst.dispatch.rotation import DEFAULT_OVERLAP_S, MAX_OVERLAP_S, rotated, sealed
from flowcatalyst.dispatch.store.contract import JobStateError
from flowcatalyst.dispatch.subscription import jobs_of
from flowcatalyst.http.signing import new_secret

SAMPLE_SOURCE: Final = "flowcatalyst"
SAMPLE_DATA: Final = msgspec.Raw(b'{"test":true}')


class Rotation(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """For how long the secrets before sign beside the new one, which is made unless it is given."""

    overlap_seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_OVERLAP_S)] = DEFAULT_OVERLAP_S
    secret: Secret | None = None


class Sample(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A sample event. Without a type it is one that the subscription wants; without data `{"test": true}`."""

    type: Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_TYPE_CHARS})] | None = None
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class Replay(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Which past events: those that came from a time on and before another; without that, until now.

    With an `id` the call can be repeated, and makes nothing twice; without it one is made. `cursor` is `next` of the
    call before.
    """

    from_: datetime = msgspec.field(name="from")
    to: datetime | None = None
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARS)] | None = None
    dry_run: bool = False
    cursor: Annotated[str, msgspec.Meta(pattern="^[0-9]{1,15}$")] | None = None


class ReplayResult(msgspec.Struct, rename="camel"):
    """What a replay came to: the events of the span that were looked at, those of them that the subscription wants, the
    jobs that were made, and those that a call with this id had made before.

    A replay of very many ends after some seconds with a `next`: call again with the same `id` and `to`, and that as
    `cursor`.
    """

    id: str
    events: int
    matched: int
    made: int
    repeated: int
    to: datetime
    next: str | None


_rotation = msgspec.json.Decoder(Rotation)
_sample = msgspec.json.Decoder(Sample)
_replay = msgspec.json.Decoder(Replay)


@post(
    f"{SUBSCRIPTIONS}/{{code:str}}/pause",
    status_code=HTTPStatus.OK,
    tags=["Subscriptions"],
    summary="Pause a subscription",
)
async def pause_subscription(request: Request[Any, Any, Any], app: TheApp, code: Code) -> SubscriptionView:
    """Nothing of it starts from the answer on until it is resumed; attempts in flight end as usual. Events go on
    becoming jobs of it, which wait in order."""
    platform, actor = platform_of(app), actor_of(request)
    try:
        await subscribing.pause(platform, code)
    except JobStateError:  # it is paused all the same
        app.audit.record(actor, AuditAction.SUBSCRIPTION_PAUSE, f"subscription {code}", "a router did not answer")
        raise
    app.audit.record(actor, AuditAction.SUBSCRIPTION_PAUSE, f"subscription {code}")
    return shown(app, code)


@post(
    f"{SUBSCRIPTIONS}/{{code:str}}/resume",
    status_code=HTTPStatus.OK,
    tags=["Subscriptions"],
    summary="Resume a subscription",
)
async def resume_subscription(request: Request[Any, Any, Any], app: TheApp, code: Code) -> SubscriptionView:
    """What waited goes on, in order."""
    await subscribing.resume(platform_of(app), code)
    app.audit.record(actor_of(request), AuditAction.SUBSCRIPTION_RESUME, f"subscription {code}")
    return shown(app, code)


@post(
    f"{SUBSCRIPTIONS}/{{code:str}}/rotate-secret",
    status_code=HTTPStatus.OK,
    tags=["Subscriptions"],
    summary="Give a subscription another secret",
    operation_class=with_json_body(Rotation, "For how long the one before signs too", required=False),
    response_description="The subscription, with its new secret this once",
)
async def rotate_secret(request: Request[Any, Any, Any], app: TheApp, code: Code) -> SubscriptionWithSecret:
    """While they overlap each webhook has a signature of each secret, so that a receiver may know either. Attempts are
    signed anew: a job that was made before has the secrets of the time when it is sent."""
    platform, asked = platform_of(app), await read_optional_json(request, _rotation) or Rotation()
    await platform.catalog.ready()
    platform.catalog.subscription(code)
    secret, wall = asked.secret or new_secret(), app.clock.wall()
    new = sealed(platform.sealer, code, secret, wall)
    edit = rotated(platform.sealer, new, wall, asked.overlap_seconds)
    await platform.catalog.change_subscription(code, edit)
    detail = f"the one before signs for {asked.overlap_seconds:g} s more"
    app.audit.record(actor_of(request), AuditAction.SUBSCRIPTION_SECRET, f"subscription {code}", detail)
    kept = platform.catalog.subscription(code)
    return SubscriptionWithSecret.with_secret(platform.catalog, kept, wall, app.config.pools, secret)


@post(
    f"{SUBSCRIPTIONS}/{{code:str}}/test",
    status_code=HTTPStatus.CREATED,
    tags=["Subscriptions"],
    summary="Send a sample to a subscription",
    operation_class=with_json_body(Sample, "The sample, if not the usual one", required=False),
    response_description="The job that sends it",
)
async def send_sample(request: Request[Any, Any, Any], app: TheApp, code: Code) -> JobView:
    """As a real job: signed, through its pool, to its target. It is ordered with nothing, and no filter is asked. The
    event is in no list and becomes a job of no other subscription. While the subscription is paused it waits too."""
    platform, asked = platform_of(app), await read_optional_json(request, _sample) or Sample()
    await platform.catalog.ready()
    subscription = platform.catalog.subscription(code).document
    sample = NewEvent(
        type=asked.type or sample_type(subscription.patterns[0]), source=SAMPLE_SOURCE, data=asked.data or SAMPLE_DATA
    )
    event = platform.intake.event_of(sample)
    at_once = msgspec.structs.replace(subscription, delay_seconds=0.0)
    (created,) = await platform.store.create(jobs_of(event, [at_once], app.ids.new_id, app.clock.wall()))
    app.job_counts.created += 1
    app.audit.record(actor_of(request), AuditAction.SUBSCRIPTION_TEST, f"subscription {code}", event.type, 1)
    return JobView.of(as_shown(app, created.state))


@post(
    f"{SUBSCRIPTIONS}/{{code:str}}/replay",
    status_code=HTTPStatus.OK,
    tags=["Subscriptions"],
    summary="Send past events again",
    operation_class=with_json_body(Replay, "Which events"),
)
async def replay_events(request: Request[Any, Any, Any], app: TheApp, code: Code) -> ReplayResult:
    """Makes jobs of the events of a span, oldest first, as the subscription is now, behind what its groups hold now. A
    dry run says how many they would be."""
    platform, asked = platform_of(app), await read_json(request, _replay)
    await platform.catalog.ready()
    kept = platform.catalog.subscription(code)
    span = _span(app, asked)
    replay_id = asked.id or app.ids.new_id()
    try:
        check_text("id", replay_id)
    except InvalidJobError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
    cursor = None if asked.cursor is None else min(int(asked.cursor), MAX_CURSOR)
    done = await replay(
        platform.store,
        kept,
        replay_id,
        span,
        app.ids.new_id,
        app.clock,
        dry_run=asked.dry_run,
        cursor=cursor,
    )
    app.job_counts.created += done.made
    if not asked.dry_run:
        detail = f"replay {replay_id}: {done.matched} of {done.events} events"
        app.audit.record(actor_of(request), AuditAction.SUBSCRIPTION_REPLAY, f"subscription {code}", detail, done.made)
    return ReplayResult(
        id=replay_id,
        events=done.events,
        matched=done.matched,
        made=done.made,
        repeated=done.repeated,
        to=datetime.fromtimestamp(span[1], asked.from_.tzinfo),
        next=None if done.cursor is None else str(done.cursor),
    )


def _span(app: ServedRouter, asked: Replay) -> tuple[float, float]:
    begin, end = as_seconds(asked.from_) or 0.0, as_seconds(asked.to)
    end = app.clock.wall() if end is None else end
    if begin >= end:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "from is not before to: there is nothing between them")
    return begin, end
