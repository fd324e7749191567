"""Report: what a simulated run comes to, in numbers. Pure: the same run gives the same report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from flowcatalyst.core.message import Outcome, Result
from flowcatalyst.core.targets import endpoint_of
from flowcatalyst.simulation.blocked_groups import BlockedGroup, BlockedGroups
from flowcatalyst.simulation.history import Event, Facts, Kind
from flowcatalyst.simulation.run_scenario import LOOK_EVERY_S, Run
from flowcatalyst.simulation.scenario import Scenario

MOST_BUCKETS: Final = 18
_BUCKET_SIZES_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_DAY_S: Final = 86_400


@dataclass(slots=True, frozen=True)
class Lag:
    """Seconds from publishing to success."""

    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float


@dataclass(slots=True)
class Bucket:
    """One stretch of time. The lag is that of the messages delivered in it."""

    start_s: float
    published: int = 0
    delivered: int = 0
    dead_lettered: int = 0
    attempts: int = 0
    failed_attempts: int = 0
    backlog: int = 0  # at its end: published and not yet gone from the queue
    in_router: int = 0  # of these, in the router's hands
    backlog_peak: int = 0
    lag: Lag | None = None


@dataclass(slots=True)
class PoolReport:
    code: str
    attempts: int = 0
    delivered: int = 0
    dead_lettered: int = 0
    permit_waits: int = 0  # times that a message could have started but for the rate limit
    permit_wait_s: float = 0.0  # about how long such waits lasted in all


@dataclass(slots=True)
class EndpointReport:
    name: str
    attempts: int = 0
    failures: dict[str, int] = field(default_factory=dict)  # by what happened, such as "HTTP 500"
    breaker_openings: int = 0


@dataclass(slots=True, frozen=True)
class Recovery:
    """How long it took after the last outage or restart until the backlog was normal again."""

    after: str  # what ended, in words
    trouble_ended_s: float
    normal_backlog: int  # the largest before the first trouble, but at least the slots of all pools
    seconds: float | None  # None: it never was


@dataclass(slots=True)
class Report:
    seed: int
    virtual_s: float
    duration_s: float
    drained: bool
    published: int = 0
    delivered: int = 0
    delivered_again: int = 0  # successes of messages that had one before
    dead_lettered: int = 0
    left: int = 0
    attempts: int = 0
    failed_attempts: int = 0
    receives: int = 0
    most_receives: int = 0  # of one message
    nacked: int = 0
    lag: Lag | None = None
    peak_backlog: int = 0
    peak_backlog_at_s: float = 0.0
    peak_gone_at_s: float | None = None  # when it was down to the slots of all pools again, if it was
    empty_at_s: float | None = None  # when the last message left the queue, if it did
    recovery: Recovery | None = None
    bucket_s: float = 0.0
    buckets: list[Bucket] = field(default_factory=list)
    pools: list[PoolReport] = field(default_factory=list)
    endpoints: list[EndpointReport] = field(default_factory=list)
    blocked_groups: list[BlockedGroup] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    violations: list[str] | None = None  # None: not checked
    answer: list[str] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class _Trouble:
    begin: float
    end: float
    ending: str


def make_report(run: Run) -> Report:
    """Everything but the answer in sentences and the violations."""
    report = Report(run.seed, round(run.ended_at, 3), run.scenario.duration, run.drained, errors=run.errors)
    _Tally(run, report).count()
    return report


class _Tally:
    """Goes through the events once and fills a report."""

    def __init__(self, run: Run, report: Report) -> None:
        self._run = run
        self._report = report
        self._facts: dict[str, Facts] = {}
        self._published_at: dict[str, float] = {}
        self._delivered: set[str] = set()
        self._receives: Counter[str] = Counter()
        self._in_router: set[str] = set()
        self._backlog = 0
        self._slots = sum(pool.concurrency for pool in run.scenario.pools)
        self._bucket_s = bucket_size(run.ended_at)
        count = max(1, ceil((run.ended_at - 2 * LOOK_EVERY_S) / self._bucket_s))  # no bucket for the last look alone
        self._buckets = [Bucket(n * self._bucket_s) for n in range(count)]
        self._filled_to = 0  # buckets before this one have their backlog
        self._lags: list[list[float]] = [[] for _ in self._buckets]
        self._pools = {pool.code: PoolReport(pool.code) for pool in run.scenario.pools}
        self._endpoints = {
            endpoint_of(f"http://{one.name}/"): EndpointReport(one.name) for one in run.scenario.endpoints
        }
        self._blocked = BlockedGroups(run.scenario)
        self._recovery = _RecoveryWatch(run.scenario, run.ended_at)

    def count(self) -> None:
        for event in self._run.events[: self._run.events_to_end]:
            self._recovery.before(event.at, self._backlog)
            self._count(event, self._buckets[self._number_of(event.at)])
            self._blocked.note(event)
        self._recovery.before(self._run.ended_at, self._backlog)
        self._fill_backlog(len(self._buckets))
        report, observed = self._report, self._run.observed
        for bucket, lags in zip(self._buckets, self._lags, strict=True):
            bucket.lag = lag_of(lags)
            for what in ("published", "delivered", "dead_lettered", "attempts", "failed_attempts"):
                setattr(report, what, getattr(report, what) + getattr(bucket, what))
        report.left = self._backlog
        report.most_receives = max(self._receives.values(), default=0)
        report.lag = lag_of([lag for lags in self._lags for lag in lags])
        report.empty_at_s = None if self._backlog else report.empty_at_s
        report.recovery = self._recovery.result()
        report.bucket_s, report.buckets = self._bucket_s, self._buckets
        report.blocked_groups = self._blocked.longest(self._run.ended_at)
        for code, pool in self._pools.items():
            pool.permit_waits, pool.permit_wait_s = observed.permit_waits[code], observed.permit_wait_s[code]
        for url, endpoint in self._endpoints.items():
            endpoint.breaker_openings = observed.breaker_openings[url]
        report.pools, report.endpoints = list(self._pools.values()), list(self._endpoints.values())

    def _number_of(self, at: float) -> int:
        number = min(int(at / self._bucket_s), len(self._buckets) - 1)
        self._fill_backlog(number)
        return number

    def _fill_backlog(self, number: int) -> None:
        """Time has come to this bucket: those before it end with the backlog there is now."""
        while self._filled_to < number:
            bucket = self._buckets[self._filled_to]
            bucket.backlog, bucket.in_router = self._backlog, len(self._in_router)
            bucket.backlog_peak = max(bucket.backlog_peak, self._backlog)
            self._filled_to += 1

    def _count(self, event: Event, bucket: Bucket) -> None:
        name, report = event.message, self._report
        match event.kind:
            case Kind.PUBLISHED:
                self._facts[name] = event.value
                self._published_at[name] = event.at
                bucket.published += 1
                self._backlog += 1
                bucket.backlog_peak = max(bucket.backlog_peak, self._backlog)
                if self._backlog > report.peak_backlog:
                    report.peak_backlog, report.peak_backlog_at_s = self._backlog, round(event.at, 3)
                    report.peak_gone_at_s = None
            case Kind.RECEIVED:
                report.receives += 1
                self._receives[name] += 1
                self._in_router.add(name)
            case Kind.ATTEMPT:
                bucket.attempts += 1
                self._pool(event.pool).attempts += 1
                self._endpoint_of(name).attempts += 1
            case Kind.ANSWER:
                self._answer(event, bucket)
            case Kind.DEAD_LETTERED:
                bucket.dead_lettered += 1
                self._pool(self._facts[name].pool).dead_lettered += 1
            case Kind.NACK:
                report.nacked += 1
            case Kind.NACKED:
                self._in_router.discard(name)
            case Kind.REMOVED:
                self._in_router.discard(name)
                self._backlog -= 1
                if self._backlog <= self._slots and report.peak_gone_at_s is None:
                    report.peak_gone_at_s = round(event.at, 3)
                if not self._backlog:
                    report.empty_at_s = round(event.at, 3)
            case Kind.CRASHED | Kind.STOPPED:
                self._in_router.clear()

    def _answer(self, event: Event, bucket: Bucket) -> None:
        name, outcome = event.message, event.value
        if outcome.result is not Result.SUCCESS:
            bucket.failed_attempts += 1
            failures = self._endpoint_of(name).failures
            what = failure_in_words(outcome)
            failures[what] = failures.get(what, 0) + 1
        elif name in self._delivered:
            self._report.delivered_again += 1
        else:
            self._delivered.add(name)
            bucket.delivered += 1
            self._pool(event.pool).delivered += 1
            self._lags[self._number_of(event.at)].append(event.at - self._published_at[name])

    def _pool(self, code: str) -> PoolReport:
        return self._pools.setdefault(code, PoolReport(code))

    def _endpoint_of(self, name: str) -> EndpointReport:
        return self._endpoints[endpoint_of(self._facts[name].target)]


class _RecoveryWatch:
    """Finds out when the backlog was normal again after the last outage or restart."""

    def __init__(self, scenario: Scenario, ended_at: float) -> None:
        outages = [
            _Trouble(outage.begin, outage.end, f"{endpoint.name} came back")
            for endpoint in scenario.endpoints
            for outage in endpoint.outages
        ]
        back = "the router was started again"
        restarts = [_Trouble(one.at, one.at + one.down_for, back) for one in scenario.restarts]
        troubles = [one for one in outages + restarts if one.begin < ended_at]
        self._first_begin = min((one.begin for one in troubles), default=0.0)
        self._last = max(troubles, key=lambda one: one.end, default=None)
        self._normal = sum(pool.concurrency for pool in scenario.pools)
        self._recovered_at: float | None = None

    def before(self, at: float, backlog: int) -> None:
        """The backlog as it was until `at`."""
        if self._last is None or self._recovered_at is not None:
            return
        if at <= self._first_begin:
            self._normal = max(self._normal, backlog)
        elif at >= self._last.end and backlog <= self._normal:
            self._recovered_at = at

    def result(self) -> Recovery | None:
        if self._last is None:
            return None
        took_s = None if self._recovered_at is None else round(self._recovered_at - self._last.end, 3)
        return Recovery(self._last.ending, self._last.end, self._normal, took_s)


def bucket_size(total_s: float) -> float:
    """A size that people count in, for at most `MOST_BUCKETS` of them."""
    wanted = total_s / MOST_BUCKETS
    return next((float(size) for size in _BUCKET_SIZES_S if size >= wanted), float(ceil(wanted / _DAY_S) * _DAY_S))


def lag_of(lags: Sequence[float]) -> Lag | None:
    if not lags:
        return None
    ordered = sorted(lags)
    p50, p95, p99 = (ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.95, 0.99))
    return Lag(round(p50, 3), round(p95, 3), round(p99, 3), round(ordered[-1], 3))


def failure_in_words(outcome: Outcome) -> str:
    return outcome.detail.partition(": ")[2] or outcome.detail
