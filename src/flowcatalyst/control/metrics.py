"""Metrics for Prometheus: read from the plain counters when somebody asks, so the hot path pays nothing.

A router may have ten thousand pools, and anybody may ask. So the text is made at most once a second, whoever asks, and
in slices, between which the router goes on. No label has a value that a message can choose: an endpoint is shown by its
origin, and the breakers, which are bounded, bound the origins.
"""

import asyncio
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from flowcatalyst import __version__
from flowcatalyst.control.health import Level, assess
from flowcatalyst.control.job_metrics import event_lines, job_lines
from flowcatalyst.control.metric_text import buckets, gauge, head, labels, sample
from flowcatalyst.control.view import RouterView
from flowcatalyst.core.logs import dropped_lines
from flowcatalyst.core.message import Result
from flowcatalyst.core.targets import origin_of
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.dispatch.store.contract import Figures
from flowcatalyst.queues.contract import Depth
from flowcatalyst.router.breaker import BreakerState
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.router import MISSING, UNKNOWN
from flowcatalyst.router.stats import DURATION_BUCKETS_S, LAG_BUCKETS_S, PoolStats
from flowcatalyst.router.top_groups import GroupFigures

KEEP_S: Final = 1.0
NO_ORIGIN: Final = "none"
SLICE: Final = 200  # pieces of text made without a pause: about a millisecond

_BREAKER_LEVELS: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}

_POOL_GAUGES: Final[list[tuple[str, str, Callable[[Pool], float]]]] = [
    ("queued", "Messages that wait in the pool", lambda pool: pool.buffered),
    ("in_flight", "Attempts in flight", lambda pool: pool.in_flight),
    ("groups", "Message groups in the pool", lambda pool: pool.group_count),
    ("held_groups", "Message groups that wait for a retry", lambda pool: pool.held_count),
    ("concurrency", "Most attempts at once", lambda pool: pool.limits.concurrency),
    ("capacity", "Most messages in the pool", lambda pool: pool.limits.effective_capacity),
]

_POOL_COUNTERS: Final[list[tuple[str, str, Callable[[PoolStats], float]]]] = [
    ("delivered", "Messages delivered", lambda stats: stats.delivered),
    ("dead_lettered", "Messages that became dead letters", lambda stats: stats.dead_lettered),
    ("nacked", "Messages nacked to their queue", lambda stats: stats.nacked),
    ("retried", "Attempts followed by another one inside the router", lambda stats: stats.retried),
    ("rate_limit_waits", "Waits for the rate limit", lambda stats: stats.rate_limit_waits),
]


@dataclass(slots=True, frozen=True)
class StoredFigures:
    """What has to be read from files and brokers, or takes several turns, before the text is made."""

    dead_letters: int = 0
    depths: dict[str, Depth] = field(default_factory=dict)
    jobs: Figures | None = None
    groups: GroupFigures = field(default_factory=GroupFigures)


class Metrics:
    """The metrics of one router and its process."""

    def __init__(self, app: RouterView) -> None:
        self._app = app
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        self._tasks = Tasks()
        self._rendering: asyncio.Task[None] | None = None
        self._began_at = 0.0
        self._text = b""

    async def render(self) -> bytes:
        """All metrics in Prometheus text format, at most a second old."""
        now = self._app.clock.monotonic()
        if self._rendering is None or (self._rendering.done() and now - self._began_at >= KEEP_S):
            self._began_at = now
            self._rendering = self._tasks.spawn(self._render(), "render metrics")
        await asyncio.shield(self._rendering)  # others may wait for it too
        return self._text

    async def _render(self) -> None:
        app = self._app
        queues = app.queues_to_show()
        readings = await asyncio.gather(*(app.depths.of(queue) for queue in queues.values()))
        depths = {name: one.depth for name, one in zip(queues, readings, strict=True) if one.depth is not None}
        jobs = None if app.job_watch is None else await app.job_watch.figures_now()
        stored = StoredFigures(await app.dead_letters.count(), depths, jobs, await app.group_watch.figures())
        slices: list[bytes] = []
        pieces: list[str] = []
        for piece in lines(app, stored):
            pieces.append(piece)
            if len(pieces) >= SLICE:
                slices.append("".join(pieces).encode())
                pieces = []
                await asyncio.sleep(0)
        self._text = b"".join([*slices, "".join(pieces).encode(), generate_latest(self._process)])


def lines(app: RouterView, stored: StoredFigures) -> Iterator[str]:
    """The text, a few lines at a time. An empty piece only gives others a chance."""
    pools = list(app.router.pools.values())
    yield from _pool_figures(pools)
    yield from _group_figures(pools, stored.groups)
    yield head("pool_attempts_total", "counter", "Attempts by result")
    for pool in pools:
        for result in Result:
            yield sample("pool_attempts_total", {"pool": pool.code, "result": result}, pool.stats.attempts[result])
    yield from _durations(pools)
    yield from _lags(pools)
    yield head("default_pool_messages_total", "counter", "Messages routed to the default pool without naming it")
    for reason in (UNKNOWN, MISSING):
        yield sample("default_pool_messages_total", {"pool_code": reason}, app.router.defaulted[reason])
    yield from _breakers(app)
    yield from _queues(app, stored)
    yield gauge("tracker_size", "Messages the router owns", len(app.tracker))
    yield gauge("dead_letters", "Dead letters", stored.dead_letters)
    yield head("dead_letters_dropped_total", "counter", "Dead letters that were too old (age) or too many (count)")
    for bound, dropped in app.dead_letters.dropped.items():
        yield sample("dead_letters_dropped_total", {"bound": bound}, dropped)
    yield gauge("warnings", "Different warnings of the last hours", len(app.warnings.recent()))
    if app.jobs is not None:
        if app.platform is not None:
            yield from event_lines(app.platform.intake.counts)
        yield from job_lines(app.job_counts, stored.jobs, app.clock.wall())
    yield head("log_lines_dropped_total", "counter", "Log lines dropped because they were not read in time")
    yield sample("log_lines_dropped_total", {}, dropped_lines())
    yield from _state(app)
    yield head("build_info", "gauge", "Always 1")
    yield sample("build_info", {"version": __version__, "python": platform.python_version()}, 1)


def _pool_figures(pools: Iterable[Pool]) -> Iterator[str]:
    labelled: list[tuple[Pool, str]] = []
    for pool in pools:
        labelled.append((pool, labels({"pool": pool.code})))
        yield ""
    for name, text, value_of in _POOL_GAUGES:
        yield head(f"pool_{name}", "gauge", text)
        for pool, label in labelled:
            yield f"flowcatalyst_pool_{name}{label} {value_of(pool)}\n"
    for name, text, count_of in _POOL_COUNTERS:
        yield head(f"pool_{name}_total", "counter", text)
        for pool, label in labelled:
            yield f"flowcatalyst_pool_{name}_total{label} {count_of(pool.stats)}\n"


def _durations(pools: Iterable[Pool]) -> Iterator[str]:
    yield head("attempt_duration_seconds", "histogram", "How long attempts took")
    for pool in pools:
        inner, stats = labels({"pool": pool.code})[1:-1], pool.stats
        yield buckets(
            "flowcatalyst_attempt_duration_seconds",
            inner,
            DURATION_BUCKETS_S,
            stats.duration_counts,
            stats.duration_sum_s,
        )


def _lags(pools: Iterable[Pool]) -> Iterator[str]:
    text = "From when messages were published, or dispatch jobs due, to when they were delivered"
    yield head("delivery_lag_seconds", "histogram", text)
    for pool in pools:
        inner, stats = labels({"pool": pool.code})[1:-1], pool.stats
        yield buckets("flowcatalyst_delivery_lag_seconds", inner, LAG_BUCKETS_S, stats.lag_counts, stats.lag_sum_s)


def _group_figures(pools: Iterable[Pool], groups: GroupFigures) -> Iterator[str]:
    """No group is named here: there are as many names as messages choose."""
    oldest = "How long the message has waited that waits longest of those next in their groups; 0: none waits"
    yield head("pool_oldest_waiting_seconds", "gauge", oldest)
    for pool in pools:
        yield sample("pool_oldest_waiting_seconds", {"pool": pool.code}, groups.waiting_s.get(pool.code, 0.0))
    text = "Message groups that wait for a message which was tried and is neither delivered nor a dead letter"
    yield head("pool_blocked_groups", "gauge", text)
    for pool in pools:
        yield sample("pool_blocked_groups", {"pool": pool.code}, groups.blocked.get(pool.code, 0))
    yield head(
        "pool_longest_blocked_seconds", "gauge", "Since when the longest blocked of them waits; 0: there is none"
    )
    for pool in pools:
        yield sample("pool_longest_blocked_seconds", {"pool": pool.code}, groups.blocked_s.get(pool.code, 0.0))


def _breakers(app: RouterView) -> Iterator[str]:
    worst: dict[str, int] = {}
    counts: Counter[BreakerState] = Counter()
    for endpoint, breaker in app.breakers.items():
        counts[breaker.state] += 1
        origin = origin_of(endpoint)
        if origin == endpoint:  # one that cannot be called: it is all there is, and its path may be a secret
            origin = NO_ORIGIN
        worst[origin] = max(worst.get(origin, 0), _BREAKER_LEVELS[breaker.state])
        yield ""
    text = "The worst of an origin's circuit breakers, of which each path has one. 0: closed, 1: half open, 2: open"
    yield head("circuit_breaker_state", "gauge", text)
    for origin, level in worst.items():
        yield sample("circuit_breaker_state", {"origin": origin}, level)
    yield head("circuit_breakers", "gauge", "Circuit breakers by state")
    for state in BreakerState:
        yield sample("circuit_breakers", {"state": state}, counts[state])


def _queues(app: RouterView, stored: StoredFigures) -> Iterator[str]:
    yield head("queue_messages", "gauge", "Messages in the queue")
    for name, depth in stored.depths.items():
        for state, count in (("waiting", depth.waiting), ("leased", depth.leased), ("delayed", depth.delayed)):
            yield sample("queue_messages", {"queue": name, "state": state}, count)
    wall = app.clock.wall()
    yield head("queue_oldest_message_seconds", "gauge", "Age of the oldest message; none if it is empty or cannot tell")
    for name, depth in stored.depths.items():
        if depth.oldest_at is not None:
            yield sample("queue_oldest_message_seconds", {"queue": name}, max(0.0, wall - depth.oldest_at))
    queues = dict(app.engine.queues)
    yield head("queue_calls_total", "counter", "Requests to the queue's broker by kind, where some cost money")
    for name, queue in queues.items():
        for call, count in list(queue.calls.items()):
            yield sample("queue_calls_total", {"queue": name, "call": call}, count)
    text = "Copies of messages the router had, removed from their queue without an attempt"
    yield head("duplicates_dropped_total", "counter", text)
    for name in queues:
        yield sample("duplicates_dropped_total", {"queue": name}, app.tracker.dropped[name])


def _state(app: RouterView) -> Iterator[str]:
    """Whether the router works, and whether somebody should look."""
    yield gauge("primary", "1 if this router is at work, 0 if it is a standby", int(app.at_work))
    yield gauge("health", "0: healthy, 1: warning, 2: degraded", list(Level).index(assess(app)[0]))
    yield head("open_warnings", "gauge", "Warnings that are not acknowledged")
    for severity, count in app.warnings.open_by_severity().items():
        yield sample("open_warnings", {"severity": severity}, count)
    yield head("config_sync_age_seconds", "gauge", "Since all sources of the configuration answered")
    if app.sync is not None and app.sync.last_success_at is not None:
        yield sample("config_sync_age_seconds", {}, app.clock.wall() - app.sync.last_success_at)
