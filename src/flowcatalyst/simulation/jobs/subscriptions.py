"""Rules about events and who gets them: each has all its jobs, once; a pause, a replay, a removal is what it says."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from flowcatalyst.core.message import DispatchMode
from flowcatalyst.dispatch.catalog_entries import StoredSubscription
from flowcatalyst.dispatch.job import Job
from flowcatalyst.simulation.jobs.facts import those, wants
from flowcatalyst.simulation.jobs.history import Event, KeptEvent, Kind, Replay, ToldEvent
from flowcatalyst.simulation.jobs.story import Known, Story
from flowcatalyst.simulation.rules.common import Violation

SEEN_WITHIN_S: Final = 1.0


def every_subscription_gets_its_job(event: Event, story: Story) -> Iterator[str]:
    """An event is kept with one job for each subscription that wants it.

    Which those are is what its process knew of the catalog when the event came, or what was changed since then.
    """
    kept: KeptEvent = event.value
    facts = story.facts
    seen = facts.seen_at[event.job]
    made = Counter(job.subscription for job in kept.jobs)
    for code in facts.versions:
        versions = facts.since(code, seen.get(code, 0))
        if made[code] > 1:
            yield f"{made[code]} jobs for {code}"
        if not made[code] and all(wants(one.document, kept.type) for one in versions):
            yield f"no job for {code}, which wants {kept.type}"
        if made[code] and not any(wants(one.document, kept.type) for one in versions):
            yield f"a job for {code}, which does not want {kept.type}"
        if made[code] and facts.now(code) is None:
            yield f"a job for {code}, which was removed"
    if kept.count != len(kept.jobs):
        yield f"is said to have {kept.count} jobs and has {len(kept.jobs)}"
    for job in kept.jobs:
        versions = facts.since(job.subscription or "", seen.get(job.subscription or "", 0))
        if not any(_is_of(job, kept.group, one) for one in those(versions, kept.type)):
            yield f"job {job.id} is not what {job.subscription} says: {job.mode} {job.group} {job.target}"


def _is_of(job: Job, group: str | None, one: StoredSubscription) -> bool:
    expected = (None, DispatchMode.IMMEDIATE) if group is None else (f"{one.code}:{group}", one.mode)
    return (job.group, job.mode) == expected and job.target == one.target_url


def one_event_per_key(event: Event, story: Story) -> Iterator[str]:
    key = event.value.key
    if key is not None and key in story.facts.keys:
        yield f"kept although {story.facts.keys[key]} has the same deduplication id"


def jobs_come_with_their_event(event: Event, story: Story) -> Iterator[str]:
    """No job is made of an event but when that is kept, or by a replay."""
    job: Job = event.value
    if job.subscription is None or (job.idempotency_key or "").startswith("replay:"):
        return
    kept = story.facts.kept.get(job.metadata["eventId"])
    if kept is None or job not in kept.jobs:
        yield f"a job of event {job.metadata['eventId']}, which was kept without it"


def who_is_told_has_his_event(event: Event, story: Story) -> Iterator[str]:
    told: ToldEvent = event.value
    kept = story.facts.kept.get(event.job)
    if kept is None:
        yield "somebody was told that it is kept, and it is not"
    elif told.jobs != len(kept.jobs):
        yield f"somebody was told of {told.jobs} jobs, and it has {len(kept.jobs)}"
    elif told.key is not None and story.facts.keys[told.key] != event.job:
        yield f"somebody was told of it, and {story.facts.keys[told.key]} came first"


def nothing_paused_is_handed_out(event: Event, story: Story) -> Iterator[str]:
    """Once somebody was told that a subscription is paused nothing of it is handed out."""
    code = story.jobs[event.job].job.subscription
    if code in story.facts.quiet:
        yield f"{event.kind} although somebody was told that {code} is paused"


def what_is_removed_is_over(event: Event, story: Story) -> Iterator[str]:
    """Who is told that a subscription is removed, and nothing of it in flight, has no unfinished job of it left."""
    if story.facts.now(event.job) is not None:
        return  # somebody made another one meanwhile
    left = [
        known.job.id for known in story.jobs.values() if known.finished is None and known.job.subscription == event.job
    ]
    if left:
        yield f"removed, and {', '.join(left)} are not finished"


def a_replay_stands_behind(event: Event, story: Story) -> Iterator[str]:
    """What is replayed stands behind all that its group has waiting."""
    job: Job = event.value
    if not (job.idempotency_key or "").startswith("replay:") or job.lane is None:
        return
    known = Known(job, len(story.jobs), job.mode, job.target, None)
    for other in story.in_lane_with(known):
        is_waiting = other.job.scheduled_for is None or other.job.scheduled_for <= event.wall
        if is_waiting and other.place > known.place:
            yield f"stands before {other.job.id}, which was there when it was replayed"


def a_replay_is_whole(event: Event, story: Story) -> Iterator[str]:
    """Who is told that a replay is done has a job for each event of its span that the subscription wants, of those that
    were there when he asked for it."""
    facts, asked = story.facts, event.value
    assert isinstance(asked, Replay)
    versions = facts.since(event.job, facts.seen_at[asked.id][event.job])
    replayed = {key.rpartition(":")[0] for key in story.keys if key.startswith("replay:")}  # whichever one of its code
    for name, kept in islice(facts.kept.items(), facts.kept_before[asked.id]):
        is_in_span = asked.span[0] <= kept.created_at < asked.span[1]
        key = f"replay:{asked.id}:{name}:{event.job}"
        if is_in_span and all(wants(one.document, kept.type) for one in versions) and key not in replayed:
            yield f"replay {asked.id} made no job of {name}"


def seen_in_time(events: Sequence[Event]) -> Iterator[Violation]:
    """For histories in which store and processes are well: all of them know a change within a second."""
    seen: dict[str, int] = {}  # by process that is up
    changes: list[tuple[float, int]] = []
    for event in events:
        if event.kind is Kind.FINAL:
            return
        while changes and event.at - changes[0][0] > SEEN_WITHIN_S:
            at, revision = changes.pop(0)
            for process, known in seen.items():
                if known < revision:
                    yield Violation(event.at, "", f"{process} does not know what was changed at {at:.3f}")
        match event.kind:
            case Kind.STARTED:
                seen[event.process] = changes[-1][1] if changes else sys.maxsize
            case Kind.STOPPING | Kind.CRASHED:
                seen.pop(event.process, None)
            case Kind.ENTRY:
                changes.append((event.at, event.value.revision))
                seen = {process: 0 if known == sys.maxsize else known for process, known in seen.items()}
            case Kind.SEEN if not event.job and event.process in seen:
                seen[event.process] = event.value


RULES = {
    "every subscription gets its job": (frozenset({Kind.KEPT}), every_subscription_gets_its_job),
    "one event per key": (frozenset({Kind.KEPT}), one_event_per_key),
    "jobs come with their event": (frozenset({Kind.CREATED}), jobs_come_with_their_event),
    "who is told has his event": (frozenset({Kind.EVENT_TOLD}), who_is_told_has_his_event),
    "nothing paused is handed out": (frozenset({Kind.TAKEN, Kind.ATTEMPT}), nothing_paused_is_handed_out),
    "what is removed is over": (frozenset({Kind.REMOVE_TOLD}), what_is_removed_is_over),
    "a replay stands behind": (frozenset({Kind.CREATED}), a_replay_stands_behind),
    "a replay is whole": (frozenset({Kind.REPLAY_TOLD}), a_replay_is_whole),
}
