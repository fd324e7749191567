"""Rare things that must happen to events and subscriptions now and then, or the simulation is asleep."""

from collections.abc import Iterator, Sequence

from flowcatalyst.core.message import DispatchMode
from flowcatalyst.receiver import Verdict
from flowcatalyst.simulation.jobs.history import Event, Kind, Received
from flowcatalyst.simulation.jobs.story import Story
from tests.sim.jobs.plan import NACK_DELAY_S

COUNTED = ("an event that was known came again", "handled, and the answer lost")
TOLD = (
    "kept, but its sender was not told",
    "accepted while somebody changed a subscription",
    "an event comes for a subscription that is paused",
    "an event that nobody wants",
    *(f"paused with jobs in hand that are {mode}" for mode in DispatchMode),
    *(f"paused with jobs that wait and are {mode}" for mode in DispatchMode),
    "paused during an attempt",
    "paused while a group of it is held",
    "crash before a pause was told",
    "resumed with a backlog",
    "removed with unfinished jobs",
    "removed and made anew",
    *(f"edited: {name}" for name in ("event_types", "mode", "target_url")),
    "replayed behind others that wait",
    "a replay was asked for again",
    "signed with two secrets",
    "signed by who does not know the latest change",
    "the position of a failed job stays",
    "sent again with another position",
    "a hole in the positions of a group",
    *(f"a receiver sees: {verdict.value}" for verdict in Verdict if verdict is not Verdict.GAP),
)
ALL = (*COUNTED, *TOLD)


def happened(events: Sequence[Event], drawn: dict[str, int]) -> set[str]:
    """Names of the rare things that happened in a history."""
    return {name for name in COUNTED if drawn.get(name)} | set(_read(events))


def _read(events: Sequence[Event]) -> Iterator[str]:
    story = Story(NACK_DELAY_S)
    replays: set[str] = set()
    pausing: dict[str, str] = {}  # process -> subscription
    for event in events:
        match event.kind:
            case Kind.KEPT:
                yield from _kept(event, story)
            case Kind.ENTRY:
                yield from _changed(event, story)
            case Kind.PAUSE:
                pausing[event.process] = event.job
                yield from _paused(event, story)
            case Kind.PAUSE_TOLD:
                pausing.pop(event.process, None)
            case Kind.CRASHED if event.process in pausing:
                yield "crash before a pause was told"
            case Kind.RESUME if event.job in story.facts.paused:
                if sum(one.finished is None and one.job.subscription == event.job for one in story.jobs.values()) > 2:
                    yield "resumed with a backlog"
            case Kind.CREATED if (event.value.idempotency_key or "").startswith("replay:"):
                lane = story.groups.get(event.value.lane or "", ())
                if any(one.finished is None and one.in_lane_since is not None for one in lane):
                    yield "replayed behind others that wait"
            case Kind.REPLAY:
                if event.value.id in replays:
                    yield "a replay was asked for again"
                replays.add(event.value.id)
            case Kind.RECEIVED:
                yield from _received(event, event.value, story)
        story.read(event)
    if story.facts.kept.keys() - {event.job for event in events if event.kind is Kind.EVENT_TOLD}:
        yield "kept, but its sender was not told"


def _kept(event: Event, story: Story) -> Iterator[str]:
    facts = story.facts
    if any(len(facts.since(code, seen)) > 1 for code, seen in facts.seen_at[event.job].items()):
        yield "accepted while somebody changed a subscription"
    if any(job.subscription in facts.paused for job in event.value.jobs):
        yield "an event comes for a subscription that is paused"
    if not event.value.jobs:
        yield "an event that nobody wants"


def _changed(event: Event, story: Story) -> Iterator[str]:
    before, after = story.facts.now(event.job), event.value.document
    if after is None:
        if any(one.finished is None and one.job.subscription == event.job for one in story.jobs.values()):
            yield "removed with unfinished jobs"
    elif before is None:
        if story.facts.versions.get(event.job):
            yield "removed and made anew"
    else:
        for name in ("event_types", "mode", "target_url"):
            if getattr(before, name) != getattr(after, name):
                yield f"edited: {name}"


def _paused(event: Event, story: Story) -> Iterator[str]:
    for known in story.jobs.values():
        if known.finished is not None or known.job.subscription != event.job:
            continue
        if known.flights:
            yield "paused during an attempt"
        yield f"paused with jobs {'that wait and' if known.hold is None else 'in hand that'} are {known.mode}"
        if known.job.group in story.held:
            yield "paused while a group of it is held"


def _received(event: Event, received: Received, story: Story) -> Iterator[str]:
    facts, code = story.facts, received.subscription or ""
    yield f"a receiver sees: {received.verdict.value}"
    if len(received.signed_by) > 1:
        yield "signed with two secrets"
    if len(facts.since(code, facts.revision_seen(event.process, code))) > 1:
        yield "signed by who does not know the latest change"
    if received.group is None or received.seq is None:
        return
    if facts.stays.get(event.job) == received.seq:
        yield "the position of a failed job stays"
    places = facts.of_group(received.group)
    if any(job == event.job and seq != received.seq for seq, job in places.job_at.items()):
        yield "sent again with another position"
    if received.seq > places.begun_to + 1:
        yield "a hole in the positions of a group"
