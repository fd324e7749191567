"""The rules of a job store in their simplest form: a list of jobs that is looked through each time."""

from dataclasses import dataclass, field
from math import inf

from flowcatalyst.core.message import DispatchMode
from flowcatalyst.dispatch.job import FINISHED, Job, Status
from flowcatalyst.dispatch.store.contract import GROUP_SIZES, Action, Cancel, Change, Figures, Retry
from tests.conformance.job_bench import BLOCK, IMMEDIATE, NEXT


@dataclass(eq=False)
class ModelJob:
    """One job and all that is known of it."""

    job: Job
    number: int
    mode: DispatchMode
    entered: bool
    status: Status = Status.PENDING
    aside: bool = False  # it left its group when it failed
    visible_at: float = 0.0
    next_attempt_at: float | None = None
    failed_at: float | None = None
    attempts: int = 0
    failures: int = 0
    history: list[str] = field(default_factory=list)
    changes: int = 0  # of what people did to it

    @property
    def name(self) -> str:
        return self.job.id

    @property
    def lane(self) -> tuple[str, str]:
        in_order = self.mode is not IMMEDIATE and not self.aside
        return ("group", self.job.group or "") if in_order else ("own", self.name)

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    @property
    def is_parked(self) -> bool:
        return self.status is Status.ERROR and self.next_attempt_at is None


@dataclass(eq=False)
class Lease:
    """Jobs of one lane in the hands of one router."""

    lane: tuple[str, str]
    until: float
    unsettled: set[str]


class JobModel:
    """What a store has to show."""

    def __init__(self) -> None:
        self.jobs: dict[str, ModelJob] = {}
        self.held: dict[str, float] = {}
        self.leases: list[Lease] = []

    # What happens

    def create(self, job: Job, now: float) -> None:
        enters = job.scheduled_for is None or job.scheduled_for <= now
        self.jobs[job.id] = ModelJob(job, len(self.jobs), job.mode, enters)

    def time_has_passed(self, now: float) -> int:
        """What follows from the time alone; how many jobs expired."""
        self.leases = [lease for lease in self.leases if lease.until > now]
        over = [one for one in self.unfinished() if one.job.expires_at is not None and one.job.expires_at <= now]
        over = [one for one in over if not self.in_hand(one.name)]
        for one in over:
            one.status, one.next_attempt_at = Status.EXPIRED, None
        for one in self.unfinished():
            one.entered = one.entered or (one.job.scheduled_for or 0.0) <= now
        return len(over)

    def startable(self, now: float) -> dict[tuple[str, str], list[str]]:
        """By lane: what could be handed out of it at once, in order."""
        found = {}
        for lane, jobs in self._lanes().items():
            is_held = jobs[0].mode is not IMMEDIATE and jobs[0].job.group in self.held
            if is_held or any(lease.lane == lane for lease in self.leases):
                continue
            waits = next((place for place, one in enumerate(jobs) if one.visible_at > now), len(jobs))
            if waits:
                found[lane] = [one.name for one in jobs[:waits]]
        return found

    def lease(self, lane: tuple[str, str], names: list[str], until: float) -> Lease:
        lease = Lease(lane, until, set(names))
        self.leases.append(lease)
        return lease

    def complete(self, name: str) -> None:
        one = self.jobs[name]
        one.status, one.next_attempt_at, one.attempts = Status.COMPLETED, None, one.attempts + 1
        self._settled(name)

    def nack(self, name: str, now: float, delay_s: float, *, tried: bool, counts: bool, unlock: bool) -> None:
        one = self.jobs[name]
        one.attempts += tried
        one.visible_at = now + delay_s if delay_s > 0 else 0.0
        if counts:
            one.failures += 1
            one.status = Status.ERROR
            one.failed_at = now if one.failed_at is None else one.failed_at
        if delay_s == inf:
            one.next_attempt_at = None
        elif delay_s > 0 or counts:
            one.next_attempt_at = now + delay_s
        self._settled(name)
        one.aside = one.aside or (unlock and one.mode is not IMMEDIATE)

    def _settled(self, name: str) -> None:
        for lease in self.leases:
            lease.unsettled.discard(name)
        self.leases = [lease for lease in self.leases if lease.unsettled]

    def can(self, name: str, action: Action, now: float) -> bool:
        one = self.jobs[name]
        waits = one.status is Status.ERROR or one.visible_at > now
        if one.is_finished or self.in_hand(name) or (isinstance(action, Retry) and not waits):
            return False
        needs_group = isinstance(action, Change) and action.mode in (NEXT, BLOCK)
        return not (needs_group and one.job.group is None)

    def act(self, name: str, action: Action, now: float) -> None:
        one = self.jobs[name]
        one.changes += 1
        match action:
            case Cancel():
                one.status, one.next_attempt_at = Status.CANCELLED, None
            case Retry():
                one.status, one.failures, one.next_attempt_at = Status.PENDING, 0, None
                one.visible_at, one.failed_at = 0.0, None
            case Change(mode=mode):
                if mode is not None and mode is not one.mode:
                    waits = one.status is Status.ERROR or one.visible_at > 0
                    one.mode, one.aside = mode, mode is NEXT and waits

    # What is to be seen

    def unfinished(self) -> list[ModelJob]:
        return [one for one in self.jobs.values() if not one.is_finished]

    def in_hand(self, name: str) -> bool:
        return any(name in lease.unsettled for lease in self.leases)

    def status(self, name: str) -> Status:
        return Status.QUEUED if self.in_hand(name) else self.jobs[name].status

    def group(self, name: str) -> list[ModelJob]:
        """Its jobs in order."""
        return self._lanes().get(("group", name), [])

    def _lanes(self) -> dict[tuple[str, str], list[ModelJob]]:
        lanes: dict[tuple[str, str], list[ModelJob]] = {}
        for one in sorted(self.unfinished(), key=lambda one: (one.job.sequence, one.number)):
            if one.entered:
                lanes.setdefault(one.lane, []).append(one)
        return lanes

    def blocked_since(self, name: str) -> float | None:
        jobs = self.group(name)
        return jobs[0].failed_at if jobs else None

    def figures(self, now: float) -> Figures:
        unfinished = self.unfinished()
        scheduled = sum(not one.entered for one in unfinished)
        parked = sum(one.is_parked for one in unfinished)
        groups = {name: len(jobs) for (kind, name), jobs in self._lanes().items() if kind == "group"}
        heads = [self.jobs[names[0]].job for names in self.startable(now).values()]
        heads = [job for job in heads if job.expires_at is None or job.expires_at > now]  # nobody ended it yet
        return Figures(
            waiting=len(unfinished) - scheduled - parked,
            scheduled=scheduled,
            parked=parked,
            groups=len(groups),
            blocked=sum(self.blocked_since(name) is not None for name in groups),
            jobs_in_groups={bound: sum(size <= bound for size in groups.values()) for bound in GROUP_SIZES},
            oldest_waiting_at=min((job.created_at for job in heads), default=None),
        )
