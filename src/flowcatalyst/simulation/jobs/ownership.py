"""Rules about who has a job in hand, and what those may do who have not."""

from collections.abc import Iterator

from flowcatalyst.core.message import Settled
from flowcatalyst.simulation.jobs.history import Event, Kind, Settlement
from flowcatalyst.simulation.jobs.story import GRAIN_S, Story


def only_what_is_held_is_started(event: Event, story: Story) -> Iterator[str]:
    """An attempt begins only of a job that the process has, as long as its lease goes on."""
    known = story.jobs[event.job]
    if known.finished is not None:
        yield f"attempt although it is {known.finished}"
    elif known.hold is None or known.hold.process != event.process:
        yield f"attempt by {event.process}, which does not have it"
    elif known.hold.until <= event.at:
        yield f"attempt by {event.process}, whose lease ended at {known.hold.until:.3f}"


def one_attempt_per_handing_out(event: Event, story: Story) -> Iterator[str]:
    """Each attempt is told to the store before another one begins."""
    known = story.jobs[event.job]
    hold = known.hold
    if event.process in known.flights:
        yield "attempt while another one of it is in flight"
    elif hold is not None and hold.process == event.process and hold.answer is not None and not hold.is_of_before:
        yield "attempt although the one before it was not told to the store"


def one_process_has_a_job(event: Event, story: Story) -> Iterator[str]:
    """It is handed out only when nobody has it: settled, or its process is gone, or its lease is over."""
    known = story.jobs[event.job]
    if story.has_it(known, event.at):
        assert known.hold is not None
        yield f"handed to {event.process} while {known.hold.process} has it until {known.hold.until:.3f}"


def one_process_has_a_group(event: Event, story: Story) -> Iterator[str]:
    """What is ordered in a group is in one process's hands at a time."""
    known = story.jobs[event.job]
    if known.in_lane_since is None:
        return
    for other in story.in_lane_with(known):
        hold = other.hold
        if other is known or hold is None or hold.number == event.value.number:
            continue
        if story.has_it(other, event.at):
            yield f"handed to {event.process} while {hold.process} has {other.job.id} of the same group"


def stale_receipts_change_nothing(event: Event, story: Story) -> Iterator[str]:
    """Who no longer has a job is told so; the same request once more is not a change."""
    settlement: Settlement = event.value
    known = story.jobs[event.job]
    if settlement.result is not Settled.OK or known.finished is not None:
        return
    if known.hold is None or known.hold.process != event.process:
        yield f"{event.kind} for {event.process}, which no longer has it"
    elif event.kind is Kind.NACKED and settlement.outcome not in (
        (known.hold.answer, None) if known.hold.is_of_before else (known.hold.answer,)
    ):
        yield "nacked without the attempt that was made, or with another one"


def what_is_in_hand_is_not_changed(event: Event, story: Story) -> Iterator[str]:
    """Nobody changes a job that is finished, or that a process has."""
    known = story.jobs[event.job]
    if known.finished is not None:
        yield f"{event.kind} although it is {known.finished}"
    elif story.has_it(known, event.at):
        assert known.hold is not None
        yield f"{event.kind} while {known.hold.process} has it"
    elif event.kind is Kind.RETRIED and not (known.in_error or known.is_delayed):
        yield "retried although it neither failed nor was told to wait"


def what_can_be_done_is_done(event: Event, story: Story) -> Iterator[str]:
    """A person is refused only what cannot be done: the job is finished, in flight, or neither failed nor has to wait.

    In hand without being in flight only where a process does not answer.
    """
    known, refusal = story.jobs[event.job], event.value
    waits = known.in_error or known.not_before > event.at + GRAIN_S
    if known.finished is None and known.hold is None and (waits or refusal.wanted is not Kind.RETRIED):
        yield f"refused to have it {refusal.wanted} although nobody has it"
    elif refusal.in_flight and known.hold is not None and known.hold.answer is None and not known.flights:
        yield f"refused to have it {refusal.wanted} as if it were in flight"


def what_is_sent_is_what_it_says(event: Event, story: Story) -> Iterator[str]:
    """An attempt goes where the job says, also when a person changed that."""
    known = story.jobs[event.job]
    if event.value.target != known.target:
        yield f"sent to {event.value.target} instead of {known.target}"
