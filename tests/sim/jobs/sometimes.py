"""Rare things that must happen to jobs now and then, or the simulation is asleep."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from math import isinf

from flowcatalyst.core.message import DispatchMode, Outcome, Result, Settled
from flowcatalyst.simulation.jobs.history import Event, Kind
from flowcatalyst.simulation.jobs.store import StoreFaults
from flowcatalyst.simulation.jobs.story import Known, Story
from tests.sim.jobs.plan import ENDPOINT_TROUBLES, NACK_DELAY_S

# What is counted where it happens.
COUNTED = (
    *(field.name for field in fields(StoreFaults) if not field.name.endswith("_s")),
    *(f"endpoint: {kind}" for kind in ENDPOINT_TROUBLES),
    "database cannot be reached",
    "clock stepped ahead",
    "clock stepped back",
    "asked again with the same key",
    "acted on what was in hand",
    "refused: being delivered",
    "a hold reached what was in hand",
    "limits are divided anew",
    "a share ran out",
    "a renewal failed",
    "a process was taken for dead",
)
# What the history tells.
WAYS_ON = (Kind.RETRIED, Kind.CANCELLED, Kind.CHANGED, Kind.EXPIRED)
TOLD = (
    "crash while an attempt is in flight",
    "crash between a success and its ack",
    "crash between a failure and its nack",
    "crash during a stop",
    "stop during an attempt",
    "pause during an attempt",
    "taken over from a process that died",
    "taken over from a process that is paused",
    "taken over from a process that cannot reach the database",
    "two processes attempt a job at once, one of which lost it",
    "ack of a job that was taken over",
    "nack of a job that was taken over",
    "a process gets again what it lost",
    "delivered, lost, and acked without another attempt",
    "two processes at work on one store",
    "three processes at work on one store",
    "a lower sequence passes what waits",
    "a lower sequence comes too late",
    "a group has jobs of all modes",
    "passed by its group after a failure",
    "waits for a person after its last retry",
    "waits for a person at once",
    "patience costs no retry",
    "a group waits behind a failed job",
    *(f"a group goes on because the job it waited for was {way}" for way in WAYS_ON),
    "scheduled job comes in front of others",
    "expired while it waited for a retry",
    "held while jobs of the group are in hand",
    "held with jobs that wait",
    "left its group when its mode was changed",
    "came into its group when its mode was changed",
    "sent somewhere else after an edit",
    "refused: in hand",
    "refused: finished",
    "kept, but nobody was told",
    "job has an attempt of each kind",
)
ALL = (*COUNTED, *TOLD)


def happened(events: Sequence[Event], drawn: dict[str, int]) -> set[str]:
    """Names of the rare things that happened in a history."""
    return {name for name in COUNTED if drawn.get(name)} | set(_read(events))


def _read(events: Sequence[Event]) -> Iterator[str]:
    story, scene = Story(NACK_DELAY_S), _Scene()
    for event in events:
        known = story.jobs.get(event.job)
        if event.kind is Kind.CREATED:
            yield from scene.created(event, story)
        elif known is not None:
            yield from scene.of_a_job(event, known, story)
        elif event.kind is Kind.HELD:
            yield from scene.held(event, story)
        elif event.process:
            yield from scene.of_a_process(event, story)
        story.read(event)
    told = {event.job for event in events if event.kind is Kind.ANSWERED}
    if story.jobs.keys() - told:
        yield "kept, but nobody was told"


class _Scene:
    """What is going on besides what the story tells."""

    def __init__(self) -> None:
        self.up: set[str] = set()
        self.paused: set[str] = set()
        self.taken: dict[str, int] = {}  # job -> where in the history it was handed out last

    def of_a_process(self, event: Event, story: Story) -> Iterator[str]:
        mine = [one for one in story.jobs.values() if one.hold is not None and one.hold.process == event.process]
        in_flight = any(event.process in one.flights for one in story.jobs.values())
        answers = [one.hold.answer for one in mine if one.hold is not None and one.hold.answer is not None]
        match event.kind:
            case Kind.STARTED:
                self.up.add(event.process)
                if len(self.up) in (2, 3):
                    yield f"{'two' if len(self.up) == 2 else 'three'} processes at work on one store"
            case Kind.CRASHED:
                self.up.discard(event.process)
                if in_flight:
                    yield "crash while an attempt is in flight"
                if any(answer.result is Result.SUCCESS for answer in answers):
                    yield "crash between a success and its ack"
                if any(answer.counts for answer in answers):
                    yield "crash between a failure and its nack"
                if event.process in story.stopping:
                    yield "crash during a stop"
            case Kind.STOPPING if in_flight:
                yield "stop during an attempt"
            case Kind.STOPPED:
                self.up.discard(event.process)
            case Kind.PAUSED:
                self.paused.add(event.process)
                if in_flight:
                    yield "pause during an attempt"
            case Kind.RESUMED:
                self.paused.discard(event.process)

    def created(self, event: Event, story: Story) -> Iterator[str]:
        job = event.value
        others = [one for one in story.groups.get(job.group or "", ()) if one.finished is None]
        later = [one for one in others if one.in_lane_since is not None and one.job.sequence > job.sequence]
        if job.mode is not DispatchMode.IMMEDIATE and any(one.hold is not None for one in later):
            yield "a lower sequence comes too late"
        if len({job.mode, *(one.mode for one in others)}) == len(DispatchMode) and job.group is not None:
            yield "a group has jobs of all modes"

    def of_a_job(self, event: Event, known: Known, story: Story) -> Iterator[str]:
        match event.kind:
            case Kind.TAKEN:
                yield from self._taken(event, known, story)
            case Kind.ATTEMPT:
                if known.flights - {event.process} - story.gone:
                    yield "two processes attempt a job at once, one of which lost it"
                if event.value.target != known.job.target:
                    yield "sent somewhere else after an edit"
            case Kind.ACKED | Kind.NACKED if event.value.result is Settled.GONE:
                if known.hold is not None and known.hold.process != event.process:
                    yield f"{'ack' if event.kind is Kind.ACKED else 'nack'} of a job that was taken over"
            case Kind.ACKED:
                if known.finished is None and known.tried.get(event.process, 0) < self.taken[event.job]:
                    yield "delivered, lost, and acked without another attempt"
            case Kind.NACKED:
                yield from self._nacked(event.value.outcome, event.value.delay_s, known, story)
            case Kind.RETRIED | Kind.CANCELLED | Kind.EXPIRED | Kind.CHANGED:
                yield from self._acted(event, known, story)
            case Kind.REFUSED:
                yield "refused: finished" if known.finished is not None else "refused: in hand"
            case Kind.FINAL if len({(one.status, one.error) for one in event.value.attempts}) > 3:
                yield "job has an attempt of each kind"

    def _taken(self, event: Event, known: Known, story: Story) -> Iterator[str]:
        before = known.hold
        self.taken[event.job] = story.index
        if before is not None and before.process == event.process:
            yield "a process gets again what it lost"
        elif before is not None:
            if before.process in story.gone:
                yield "taken over from a process that died"
            elif before.process in self.paused:
                yield "taken over from a process that is paused"
            else:
                yield "taken over from a process that cannot reach the database"
        if known.in_lane_since is None:
            return
        for other in story.in_lane_with(known):
            if other.place > known.place and other.number < known.number and other.hold is None:
                yield "a lower sequence passes what waits"
                if known.job.scheduled_for is not None:
                    yield "scheduled job comes in front of others"

    def _nacked(self, outcome: Outcome | None, delay_s: float, known: Known, story: Story) -> Iterator[str]:
        if outcome is None or outcome.result is Result.SUCCESS:
            return
        others = [one for one in story.in_lane_with(known) if one.place > known.place]
        if not outcome.counts:
            yield "patience costs no retry"
        if isinf(delay_s):
            last = known.failures >= known.job.terms.max_retries
            yield "waits for a person after its last retry" if last else "waits for a person at once"
        if others and known.mode is DispatchMode.NEXT_ON_ERROR:
            yield "passed by its group after a failure"
        elif others and known.mode is DispatchMode.BLOCK_ON_ERROR:
            yield "a group waits behind a failed job"

    def _acted(self, event: Event, known: Known, story: Story) -> Iterator[str]:
        behind = [one for one in story.in_lane_with(known) if one.place > known.place]
        before = [one for one in story.in_lane_with(known) if one.place < known.place]
        if known.in_lane_since is not None and known.in_error and isinf(known.not_before) and behind and not before:
            yield f"a group goes on because the job it waited for was {event.kind}"
        if event.kind is Kind.EXPIRED:
            if known.in_error:
                yield "expired while it waited for a retry"
                if known.in_lane_since is not None and behind and not before:
                    yield f"a group goes on because the job it waited for was {event.kind}"
        elif event.kind is Kind.CHANGED and event.value.mode is not None:
            if known.in_lane_since is not None and event.value.mode is DispatchMode.IMMEDIATE:
                yield "left its group when its mode was changed"
            elif known.in_lane_since is None and event.value.mode is DispatchMode.BLOCK_ON_ERROR:
                yield "came into its group when its mode was changed"

    def held(self, event: Event, story: Story) -> Iterator[str]:
        jobs = [one for one in story.groups.get(event.job, ()) if one.in_lane_since is not None]
        if any(one.hold is not None for one in jobs):
            yield "held while jobs of the group are in hand"
        if any(one.hold is None for one in jobs):
            yield "held with jobs that wait"
