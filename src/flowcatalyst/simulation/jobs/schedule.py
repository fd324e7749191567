"""Rules about time: scheduledFor, expiresAt, and the retry schedule of each job."""

from collections.abc import Iterator
from math import isinf

from flowcatalyst.simulation.jobs.history import Event, Kind
from flowcatalyst.simulation.jobs.story import GRAIN_S, Story


def waits_for_its_time(event: Event, story: Story) -> Iterator[str]:
    """Nothing is handed out before its scheduledFor, by any time that the wall clock ever showed."""
    due = story.jobs[event.job].job.scheduled_for
    if due is not None and max(story.latest_wall, event.wall) < due - GRAIN_S:
        yield f"handed out {due - event.wall:.3f} s before its time"


def nothing_after_its_end(event: Event, story: Story) -> Iterator[str]:
    """What is finished is handed out and tried no more."""
    known = story.jobs[event.job]
    if known.finished is not None:
        yield f"{event.kind} although it is {known.finished}"


def expires_in_time(event: Event, story: Story) -> Iterator[str]:
    """Nothing is handed out or started after its expiresAt, and nothing expires before."""
    end = story.jobs[event.job].job.expires_at
    if event.kind is Kind.EXPIRED:
        if end is None or max(story.latest_wall, event.wall) < end - GRAIN_S:
            yield "expired before its time"
    elif end is not None and event.wall >= end + GRAIN_S:
        yield f"{event.kind} {event.wall - end:.3f} s after it expired"


def waits_as_its_schedule_says(event: Event, story: Story) -> Iterator[str]:
    """After a failure it waits as long as its schedule says, or its endpoint asked; after the last one for a person."""
    known = story.jobs[event.job]
    if isinf(known.not_before):
        yield f"handed out after {known.failures} failures, although it waits for a person"
    elif event.at < known.not_before - GRAIN_S:
        yield f"handed out {known.not_before - event.at:.3f} s too early after {known.failures} failures"
