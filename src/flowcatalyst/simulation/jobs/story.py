"""Story: what is true of every job and process after each event, by the promises alone.

It knows what the documents say of modes, leases and retries, and nothing of lanes, tables and receipts.
"""

from dataclasses import dataclass, field
from math import inf

from flowcatalyst.core.message import DispatchMode, Outcome, Result, Settled
from flowcatalyst.dispatch.job import Job, Status
from flowcatalyst.simulation.jobs.facts import Facts
from flowcatalyst.simulation.jobs.flights import Flights
from flowcatalyst.simulation.jobs.history import Event, Kind, Lease, Settlement

GRAIN_S = 1e-6  # times are sums of floats


@dataclass(slots=True, eq=False)
class Hold:
    """A process has a job. `number` is that of the handing-out, `index` the place of that in the history."""

    process: str
    number: int
    until: float
    index: int
    wall: float
    taken: int = 0  # place of the latest handing-out, where `index` is that of one before it that goes on
    answer: Outcome | None = None
    answered_at: float = 0.0
    is_of_before: bool = False  # that attempt began before `taken`: its process may have settled it as what it had then

    @property
    def delivered(self) -> bool:
        return self.answer is not None and self.answer.result is Result.SUCCESS


@dataclass(slots=True, eq=False)
class Known:
    """A job, and what became of it so far."""

    job: Job
    number: int  # in the order in which they were made
    mode: DispatchMode
    target: str
    in_lane_since: int | None  # place in the history; None: it is ordered with nothing (any more)
    finished: Status | None = None
    hold: Hold | None = None  # by the store; the process may not know that it is over
    in_memory: dict[str, Hold] = field(default_factory=dict)  # by process that has not let go of it, rightly or not
    tried: dict[str, int] = field(default_factory=dict)  # by process: where in the history its latest answer is
    in_error: bool = False
    is_delayed: bool = False  # it was given back for a while
    failures: int = 0  # that count, since a person said that it is to be tried again
    not_before: float = 0.0  # inf: it waits for a person
    settled: list[Outcome] = field(default_factory=list)  # of its attempts, in the order in which the store knows them
    flights: set[str] = field(default_factory=set)  # processes with an attempt of it in flight
    delivered_by: set[str] = field(default_factory=set)  # processes that got a 2xx for it
    sent_to: dict[str, str] = field(default_factory=dict)  # by process: the target of its latest attempt
    delivered_to: dict[str, str] = field(default_factory=dict)  # the same of its latest 2xx
    began: dict[str, int] = field(default_factory=dict)  # by process: where in the history its latest attempt is
    requests: int = 0  # attempts that were begun
    sent_in_order: dict[str, bool] = field(default_factory=dict)  # by process: whether it was in order when handed out
    void: set[str] = field(default_factory=set)  # of the flights: those that began before somebody changed it

    @property
    def place(self) -> tuple[int, int]:
        return self.job.sequence, self.number


class Story:
    """Read event by event."""

    def __init__(self, nack_delay_s: float) -> None:
        self.jobs: dict[str, Known] = {}
        self.groups: dict[str, list[Known]] = {}
        self.keys: dict[str, str] = {}  # idempotency key -> job
        self.gone: set[str] = set()  # processes that are no longer believed to live
        self.stopping: set[str] = set()
        self.held: dict[str, int] = {}  # groups that somebody holds, and since when
        self.quiet: set[str] = set()  # of these, groups of which somebody was told so
        self.facts = Facts()
        self.flights = Flights()
        self.latest_wall = 0.0
        self.index = 0
        self._nack_delay_s = nack_delay_s

    def has_it(self, known: Known, at: float) -> bool:
        """Whether some process rightly has the job in hand."""
        return known.hold is not None and known.hold.process not in self.gone and known.hold.until > at + GRAIN_S

    def read(self, event: Event) -> None:
        stepped_s = event.value if event.kind is Kind.STEPPED else 0.0
        self.latest_wall = max(self.latest_wall, event.wall, event.wall - stepped_s)  # before it was set back, too
        known = self.jobs.get(event.job)
        match event.kind:
            case Kind.CREATED:
                self._created(event.value)
            case Kind.TAKEN if known is not None:
                self._taken(known, event)
            case Kind.EXTENDED if known is not None and known.hold is not None:
                if known.hold.process == event.process:
                    known.hold.until = max(known.hold.until, event.value)
            case Kind.ATTEMPT if known is not None:
                known.flights.add(event.process)
                known.requests += 1
                known.sent_to[event.process] = event.value.target
                known.began[event.process] = self.index
                if (mine := known.in_memory.get(event.process)) is not None and mine.is_of_before:
                    mine.answer, mine.is_of_before = None, False
            case Kind.ANSWER if known is not None:
                self._answer(known, event)
            case Kind.CUT_OFF if known is not None:
                known.flights.discard(event.process)
                known.void.discard(event.process)
            case Kind.ACKED if known is not None:
                if known.finished is None:
                    self.facts.settled(event, known.job.group or "")
                self._acked(known, event.process, event.value)
            case Kind.NACKED if known is not None:
                if known.finished is None and known.hold is not None:
                    self.facts.settled(event, known.job.group or "")
                self._nacked(known, event.process, event.value)
            case Kind.RETRIED if known is not None:
                known.failures, known.not_before, known.in_error, known.is_delayed = 0, 0.0, False, False
            case Kind.CANCELLED if known is not None:
                self._finish(known, Status.CANCELLED)
            case Kind.EXPIRED if known is not None:
                self._finish(known, Status.EXPIRED)
            case Kind.CHANGED if known is not None:
                known.target, known.hold = event.value.target or known.target, None
                known.void |= known.flights  # who had it has no claim to it any more
                known.in_memory.clear()
                self._change_mode(known, event.value.mode or known.mode)
            case Kind.HELD:
                self.held.setdefault(event.job, self.index)
            case Kind.HOLD_TOLD if self.held.get(event.job, inf) <= event.value:
                self.quiet.add(event.job)
            case Kind.RELEASED:
                self.held.pop(event.job, None)
                self.quiet.discard(event.job)
            case Kind.STOPPING:
                self.stopping.add(event.process)
            case Kind.SIGNED_OFF | Kind.CRASHED | Kind.STOPPED:
                self.gone.add(event.process)
            case Kind.RECEIVED if known is not None and event.value.seq is not None and known.in_lane_since is not None:
                places = self.facts.of_group(known.job.group or "")
                places.begun_to = max(places.begun_to, event.value.seq)
        self.facts.read(event)
        self.flights.read(event)
        self.index += 1

    def lane_of(self, known: Known) -> str:
        """What is handed out with others of its group, or alone."""
        return f"group {known.job.group}" if known.in_lane_since is not None else known.job.id

    def _created(self, job: Job) -> None:
        since = None if job.mode is DispatchMode.IMMEDIATE else self.index
        known = self.jobs[job.id] = Known(job, len(self.jobs), job.mode, job.target, since)
        if job.group is not None:
            self.groups.setdefault(job.group, []).append(known)
        if job.idempotency_key is not None:
            self.keys[job.idempotency_key] = job.id

    def _taken(self, known: Known, event: Event) -> None:
        lease: Lease = event.value
        known.sent_in_order[event.process] = known.mode is not DispatchMode.IMMEDIATE
        if known.job.group is not None and known.mode is not DispatchMode.IMMEDIATE:
            self.facts.taken(event, self.lane_of(known), known.job.group)
        before = known.in_memory.get(event.process)
        if known.in_lane_since is not None:  # whoever had others of its group has them no longer
            for other in self.in_lane_with(known):
                if other is not known and other.hold is not None and other.hold.number != lease.number:
                    other.hold = None
        hold = Hold(event.process, lease.number, lease.until, self.index, event.wall, self.index)
        known.hold = known.in_memory[event.process] = hold
        if before is not None and (before.answer is None or before.delivered):
            # It still has it in hand, and only gets a new lease.
            hold.index, hold.wall, hold.answer, hold.answered_at = (
                before.index,
                before.wall,
                before.answer,
                before.answered_at,
            )

    def in_lane_with(self, known: Known) -> list[Known]:
        """The jobs of its group that are ordered with it."""
        others = self.groups.get(known.job.group or "", [])
        return [one for one in others if one.in_lane_since is not None and one.finished is None]

    def _answer(self, known: Known, event: Event) -> None:
        outcome: Outcome = event.value
        if known.job.group is not None:
            has_it = known.hold is not None and known.hold.process == event.process
            lease = known.hold.number if known.hold is not None and has_it else 0
            self.facts.answered(event, lease, self.lane_of(known), known.job.group)
        known.flights.discard(event.process)
        known.tried[event.process] = self.index
        if outcome.result is Result.SUCCESS:
            known.delivered_by.add(event.process)
            known.delivered_to[event.process] = known.sent_to[event.process]
        if event.process in known.void:
            known.void.discard(event.process)
            return
        hold = known.in_memory.get(event.process)
        if hold is not None:
            hold.answer, hold.answered_at = outcome, event.at
            hold.is_of_before = known.began[event.process] < hold.taken

    def _acked(self, known: Known, process: str, settlement: Settlement) -> None:
        if settlement.result is Settled.OK and known.finished is None:
            if settlement.outcome is not None:
                known.settled.append(settlement.outcome)
            self._finish(known, Status.COMPLETED)

    def _nacked(self, known: Known, process: str, settlement: Settlement) -> None:
        hold = known.hold
        if settlement.result is not Settled.OK or hold is None or known.finished is not None:
            return
        known.in_memory.pop(process, None)
        known.hold, known.is_delayed = None, settlement.delay_s > 0
        outcome = settlement.outcome if hold.is_of_before else hold.answer
        if outcome is None:
            return
        known.settled.append(outcome)
        if outcome.result is Result.SUCCESS:
            return  # its ack did not get through
        if outcome.counts:
            known.failures += 1
            known.in_error = True
        known.not_before = hold.answered_at + self._delay_s(known, outcome)
        if known.mode is DispatchMode.NEXT_ON_ERROR:
            known.in_lane_since = None

    def _delay_s(self, known: Known, outcome: Outcome) -> float:
        """How long it has to wait after a failure: by its own schedule, or as long as its endpoint asked for."""
        asked_s = outcome.delay_s or 0.0
        if not outcome.counts:
            return asked_s or self._nack_delay_s
        delays, failures = known.job.terms.delays_s, known.failures
        hopeless = outcome.result is Result.ERROR_CONFIG and not outcome.retryable
        if hopeless or failures > known.job.terms.max_retries:
            return inf
        return max(asked_s, delays[min(failures, len(delays)) - 1])

    def _finish(self, known: Known, status: Status) -> None:
        known.finished, known.hold, known.in_lane_since = status, None, None

    def _change_mode(self, known: Known, mode: DispatchMode) -> None:
        """One that failed, or waits, and may be passed by the others stays beside them."""
        if mode is known.mode:
            return
        known.mode, was_in_lane = mode, known.in_lane_since
        waits = mode is DispatchMode.NEXT_ON_ERROR and (known.in_error or known.is_delayed)
        known.in_lane_since = None if mode is DispatchMode.IMMEDIATE or waits else was_in_lane or self.index
