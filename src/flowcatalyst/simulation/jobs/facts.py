"""Facts: what is true of events, subscriptions and places in groups after each event of a history, by the promises."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from flowcatalyst.core.message import Outcome, Result, Settled
from flowcatalyst.dispatch.catalog_entries import StoredSubscription
from flowcatalyst.simulation.jobs.history import Event, KeptEvent, Kind, Received, Version

GONE = Version(0, None)


class Heard(NamedTuple):
    """What a process knows as delivered last of a group, and where in the history it heard that."""

    position: int
    at: int


@dataclass(slots=True)
class Places:
    """What is known of the positions of one group."""

    job_at: dict[int, str] = field(default_factory=dict)  # position -> job
    begun_to: int = 0  # the highest one of a first attempt in order
    acked: int = 0  # of the job that the store knew as delivered last
    delivered: set[int] = field(default_factory=set)  # of all that were answered with success


@dataclass(slots=True)
class Facts:
    """Read event by event, beside the story of the jobs."""

    versions: dict[str, list[Version]] = field(default_factory=dict)  # of each subscription, oldest first
    seen: dict[str, int] = field(default_factory=dict)  # process -> revision of the catalog that it knows at least
    seen_one: dict[tuple[str, str], int] = field(default_factory=dict)  # and of a subscription that it changed itself
    intakes: dict[str, tuple[str, int]] = field(default_factory=dict)  # event -> process, its place in the history
    seen_at: dict[str, dict[str, int]] = field(default_factory=dict)  # event or replay -> code -> revision
    kept_before: dict[str, int] = field(default_factory=dict)  # replay -> how many events there were when it began
    kept: dict[str, KeptEvent] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)  # deduplication id -> event
    paused: dict[str, int] = field(default_factory=dict)  # subscriptions, and since when
    going_on: set[str] = field(default_factory=set)  # subscriptions that are being resumed
    quiet: set[str] = field(default_factory=set)  # paused, and somebody was told so
    places: dict[str, Places] = field(default_factory=dict)  # by group
    last_seq: dict[tuple[str, str], int] = field(default_factory=dict)  # (process, job) -> position of its last request
    stays: dict[str, int] = field(default_factory=dict)  # job -> position, once an attempt of it failed
    prev: dict[tuple[str, int, str], Heard] = field(default_factory=dict)  # (process, lease, lane) -> delivered before
    own: dict[tuple[str, str], Heard] = field(default_factory=dict)  # (process, group) -> what it delivered last
    told: dict[tuple[str, str], Heard] = field(default_factory=dict)  # and what its store said last of it
    revision: int = 0  # of the catalog
    index: int = 0

    def revision_seen(self, process: str, code: str) -> int:
        return max(self.seen.get(process, 0), self.seen_one.get((process, code), 0))

    def since(self, code: str, revision: int) -> list[Version]:
        """All that a subscription was from a revision on, to now."""
        versions = self.versions.get(code, [])
        before = [one for one in versions if one.revision <= revision]
        return [before[-1] if before else GONE, *versions[len(before) :]]

    def now(self, code: str) -> StoredSubscription | None:
        versions = self.versions.get(code)
        return versions[-1].document if versions else None

    def of_group(self, group: str) -> Places:
        return self.places.setdefault(group, Places())

    def read(self, event: Event) -> None:
        match event.kind:
            case Kind.STARTED:  # what there was before is known before the first event is taken in
                self.seen[event.process] = self.revision
            case Kind.ENTRY:
                self.revision = event.value.revision
                self.versions.setdefault(event.job, []).append(event.value)
                if event.value.document is None:
                    self.paused.pop(event.job, None)
                    self.quiet.discard(event.job)
            case Kind.SEEN if event.job:
                self.seen_one[event.process, event.job] = event.value
            case Kind.SEEN:
                self.seen[event.process] = max(event.value, self.seen.get(event.process, 0))
            case Kind.INTAKE:
                self.seen_at[event.job] = self._all_seen(event.process)
            case Kind.REPLAY:
                self.seen_at.setdefault(event.value.id, {event.job: self.revision_seen(event.process, event.job)})
                self.kept_before.setdefault(event.value.id, len(self.kept))
            case Kind.KEPT:
                self.kept[event.job] = event.value
                if event.value.key is not None:
                    self.keys.setdefault(event.value.key, event.job)
            case Kind.PAUSE:
                self.paused.setdefault(event.job, self.index)
                self.going_on.discard(event.job)
            case Kind.PAUSE_TOLD if self.paused.get(event.job, inf) <= event.value:
                self.quiet.add(event.job)
            case Kind.RESUME:
                if self.paused.pop(event.job, None) is not None:
                    self.going_on.add(event.job)
                self.quiet.discard(event.job)
            case Kind.RESUME_TOLD:
                self.going_on.discard(event.job)
            case Kind.RECEIVED:
                self._received(event, event.value)
        self.index += 1

    def _all_seen(self, process: str) -> dict[str, int]:
        return {code: self.revision_seen(process, code) for code in self.versions}

    def _received(self, event: Event, received: Received) -> None:
        if received.group is None or received.seq is None:
            self.last_seq.pop((event.process, event.job), None)
            return
        self.of_group(received.group).job_at.setdefault(received.seq, event.job)
        self.last_seq[event.process, event.job] = received.seq

    def taken(self, event: Event, lane: str, group: str) -> None:
        """A job of a lane was handed out: those of one lease know what was delivered before."""
        heard = self.told[event.process, group] = Heard(self.of_group(group).acked, self.index)
        self.prev.setdefault((event.process, event.value.number, lane), heard)

    def answered(self, event: Event, lease: int, lane: str, group: str) -> None:
        seq = self.last_seq.get((event.process, event.job))
        outcome: Outcome = event.value
        if seq is None or outcome.result is not Result.SUCCESS:
            return
        self.of_group(group).delivered.add(seq)
        self.prev[event.process, lease, lane] = self.own[event.process, group] = Heard(seq, self.index)

    def settled(self, event: Event, group: str) -> None:
        """An attempt was written down: with a success the place of the group, else that of the job."""
        seq = self.last_seq.get((event.process, event.job))
        if seq is None or event.value.result is not Settled.OK:
            return
        if event.kind is Kind.ACKED:
            self.of_group(group).acked = seq
        elif event.value.outcome is not None:
            self.stays.setdefault(event.job, seq)


def wants(document: StoredSubscription | None, event_type: str) -> bool:
    """What the documents say of patterns, without the index of the real matcher."""
    return document is not None and any(
        _fits(pattern.split("."), event_type.split(".")) for pattern in document.patterns
    )


def _fits(pattern: Sequence[str], segments: Sequence[str]) -> bool:
    if pattern and pattern[-1] == "**":
        return len(segments) >= len(pattern) and _fits(pattern[:-1], segments[: len(pattern) - 1])
    return len(pattern) == len(segments) and all(_alike(pair) for pair in zip(pattern, segments, strict=True))


def _alike(pair: tuple[str, str]) -> bool:
    return pair[0] in ("*", pair[1])


def those(versions: Sequence[Version], event_type: str) -> Iterator[StoredSubscription]:
    """Those of a subscription's versions that want events of a type."""
    return (one.document for one in versions if one.document is not None and wants(one.document, event_type))
