"""Rules about the order of a group, each job by its own mode."""

from collections.abc import Iterator

from flowcatalyst.core.message import DispatchMode
from flowcatalyst.simulation.jobs.history import Event
from flowcatalyst.simulation.jobs.story import Story


def order_of_a_group(event: Event, story: Story) -> Iterator[str]:
    """No attempt begins while an earlier job of the group is owed.

    Earlier is what has a lower sequence, or was made before. It is owed from when its time came: BLOCK_ON_ERROR until
    it is finished, NEXT_ON_ERROR until it was tried. What came while the later one was in hand does not count.
    """
    known = story.jobs[event.job]
    hold = known.hold
    if known.in_lane_since is None or hold is None or hold.process != event.process:
        return
    for other in story.in_lane_with(known):
        if other.place >= known.place or (other.in_lane_since or 0) > hold.index:
            continue
        if other.job.scheduled_for is not None and other.job.scheduled_for > hold.wall:
            continue
        if other.mode is DispatchMode.NEXT_ON_ERROR and other.tried.get(event.process, -1) > hold.index:
            continue  # since this one is in hand; only the store does not know, or not any more
        theirs = other.hold
        if theirs is not None and theirs.process == event.process not in other.flights:
            passes = other.mode is DispatchMode.NEXT_ON_ERROR and theirs.answer is not None
            if event.process in other.delivered_by or passes:
                continue
        yield f"attempt although {other.job.id}, which comes before it, is not finished"


def nothing_of_a_held_group_starts(event: Event, story: Story) -> Iterator[str]:
    """Once somebody was told that a group is held no attempt of it begins, whoever had it in hand before."""
    known = story.jobs[event.job]
    if known.job.group in story.quiet and known.mode is not DispatchMode.IMMEDIATE:
        yield f"attempt although somebody was told that group {known.job.group} is held"


def nothing_of_a_held_group(event: Event, story: Story) -> Iterator[str]:
    """Nothing of a group that somebody holds is handed out, but for what is ordered with nothing."""
    known = story.jobs[event.job]
    if known.job.group in story.held and known.mode is not DispatchMode.IMMEDIATE:
        yield f"handed out although group {known.job.group} is held"
