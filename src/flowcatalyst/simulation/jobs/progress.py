"""The rule about progress: what could start does, within a second."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isinf

from flowcatalyst.core.message import DispatchMode
from flowcatalyst.simulation.jobs.history import Event, Kind
from flowcatalyst.simulation.jobs.story import GRAIN_S, Known, Story
from flowcatalyst.simulation.rules.common import Violation

LIMIT_S = 1.0


@dataclass(slots=True)
class _Slots:
    """What the processes have free."""

    concurrency: dict[str, dict[str, int]] = field(default_factory=dict)  # by process that is up, and pool
    flights: dict[tuple[str, str], str] = field(default_factory=dict)  # (process, job) -> pool
    used: Counter[tuple[str, str]] = field(default_factory=Counter)  # (process, pool)

    def read(self, event: Event) -> None:
        flight = (event.process, event.job)
        match event.kind:
            case Kind.STARTED:
                self.concurrency[event.process] = event.value
            case Kind.STOPPING:
                self.concurrency.pop(event.process, None)
            case Kind.ATTEMPT:
                self.flights[flight] = event.value.pool
                self.used[event.process, event.value.pool] += 1
            case Kind.ANSWER | Kind.CUT_OFF if flight in self.flights:
                self.used[event.process, self.flights.pop(flight)] -= 1

    def free(self, known: Known) -> bool:
        """Whether whoever has it, or anybody if nobody has, could start it."""
        pool = known.job.pool
        processes = [known.hold.process] if known.hold is not None else list(self.concurrency)
        return any(self.used[one, pool] < self.concurrency.get(one, {}).get(pool, 0) for one in processes)


def progress(events: Sequence[Event], nack_delay_s: float) -> Iterator[Violation]:
    """For histories in which store and processes are well: a job that could start, while a slot is free, does."""
    story, slots = Story(nack_delay_s), _Slots()
    could_since: dict[str, float] = {}  # jobs that could have started since then
    for number, event in enumerate(events):
        if event.kind is Kind.FINAL:
            return
        story.read(event)
        slots.read(event)
        if number + 1 == len(events) or events[number + 1].at <= event.at:
            continue
        until = events[number + 1].at
        for name, known in story.jobs.items():
            since = None if known.finished else _could_start_at(known, story, slots, event)
            if since is None:
                could_since.pop(name, None)
                continue
            began = could_since.setdefault(name, since)
            if until - began > LIMIT_S + GRAIN_S:
                yield Violation(until, name, f"could start since {began:.3f} and does not")
                could_since[name] = until


def _could_start_at(known: Known, story: Story, slots: _Slots, event: Event) -> float | None:
    """From when on nothing stands in its way; None: something else has to happen first."""
    job = known.job
    if isinf(known.not_before) or known.flights or (known.hold is not None and known.hold.answer is not None):
        return None
    if job.subscription in story.facts.paused or job.subscription in story.facts.going_on:
        return None
    if known.mode is not DispatchMode.IMMEDIATE and (job.group in story.held or not _is_its_turn(known, story)):
        return None
    if not slots.free(known):
        return None
    due = 0.0 if job.scheduled_for is None else event.at + job.scheduled_for - event.wall
    if job.expires_at is not None and event.at + job.expires_at - event.wall <= max(event.at, due) + LIMIT_S:
        return None
    return max(event.at, known.not_before, due)


def _is_its_turn(known: Known, story: Story) -> bool:
    """Nothing of its group is under way, and nothing that is ordered with it stands or is locked before it."""
    for other in story.groups.get(known.job.group or "", ()):
        if other is known or other.finished is not None or other.mode is DispatchMode.IMMEDIATE:
            continue
        if other.flights:
            return False
        if known.in_lane_since is None or other.in_lane_since is None:
            continue
        if other.place < known.place or (other.hold is not None and known.hold is None):
            return False
    return True
