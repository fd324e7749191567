"""Metrics for Prometheus: read from the plain counters when somebody asks, so the hot path pays nothing."""

import asyncio
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from flowcatalyst import __version__
from flowcatalyst.app import App
from flowcatalyst.errors import FlowCatalystError
from flowcatalyst.message import Result
from flowcatalyst.observe.stats import DURATION_BUCKETS_S, PoolStats
from flowcatalyst.operations.health import Level, assess
from flowcatalyst.queues.contract import Depth, Queue
from flowcatalyst.routing.breaker import BreakerState
from flowcatalyst.routing.pool import Pool

DEPTH_LIMIT_S: Final = 2.0

_BREAKER_LEVELS: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}

_POOL_GAUGES: Final[list[tuple[str, str, Callable[[Pool], float]]]] = [
    ("queued", "Messages that wait in the pool", lambda pool: pool.buffered),
    ("in_flight", "Attempts under way", lambda pool: pool.in_flight),
    ("groups", "Message groups in the pool", lambda pool: pool.group_count),
    ("held_groups", "Message groups that wait for a retry", lambda pool: pool.held_count),
    ("concurrency", "Most attempts at once", lambda pool: pool.limits.concurrency),
    ("capacity", "Most messages in the pool", lambda pool: pool.limits.effective_capacity),
]

_POOL_COUNTERS: Final[list[tuple[str, str, Callable[[PoolStats], float]]]] = [
    ("delivered", "Messages delivered", lambda stats: stats.delivered),
    ("dead_lettered", "Messages that became dead letters", lambda stats: stats.dead_lettered),
    ("given_back", "Messages given back to their queue", lambda stats: stats.given_back),
    ("retried", "Attempts followed by another one inside the router", lambda stats: stats.retried),
    ("rate_limit_waits", "Waits for the rate limit", lambda stats: stats.rate_limit_waits),
]


@dataclass(slots=True, frozen=True)
class StoredFigures:
    """What has to be read from files, before metrics are collected."""

    dead_letters: int = 0
    depths: dict[str, Depth] = field(default_factory=dict)


class Metrics:
    """The metrics of one router and its process, on a registry of their own."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._collector = RouterCollector(app)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)

    async def render(self) -> str:
        """All metrics in Prometheus text format."""
        dead_letters = await self._app.dead_letters.count()
        depths = {name: await _depth_of(queue) for name, queue in self._app.queues_to_show().items()}
        known = {name: depth for name, depth in depths.items() if depth is not None}
        self._collector.stored = StoredFigures(dead_letters, known)
        return generate_latest(self._registry).decode()


async def _depth_of(queue: Queue) -> Depth | None:
    """None if the queue does not tell in time: the other metrics do not wait for it."""
    try:
        async with asyncio.timeout(DEPTH_LIMIT_S):
            return await queue.depth()
    except (TimeoutError, FlowCatalystError):
        return None


class RouterCollector(Collector):
    """Turns the router's counters into metrics."""

    def __init__(self, app: App) -> None:
        self.stored = StoredFigures()
        self._app = app

    def collect(self) -> Iterator[Metric]:
        pools = list(self._app.router.pools.values())
        yield from _pool_gauges(pools)
        yield from _pool_counters(pools)
        yield _attempts(pools)
        yield _durations(pools)
        yield self._breakers()
        yield self._queues()
        yield self._queue_calls()
        yield _gauge("tracker_size", "Messages the router owns", len(self._app.tracker))
        yield _gauge("dead_letters", "Dead letters kept", self.stored.dead_letters)
        yield _gauge("warnings", "Different warnings of the last hours", len(self._app.warnings.list()))
        yield from self._state()
        build = GaugeMetricFamily("flowcatalyst_build_info", "Always 1", labels=["version", "python"])
        build.add_metric([__version__, platform.python_version()], 1)
        yield build

    def _state(self) -> Iterator[Metric]:
        """Whether the router works, and whether somebody should look."""
        app = self._app
        yield _gauge("primary", "1 if this router is at work, 0 if it is a standby", app.at_work)
        yield _gauge("health", "0: healthy, 1: warning, 2: degraded", list(Level).index(assess(app)[0]))
        family = GaugeMetricFamily("flowcatalyst_open_warnings", "Not acknowledged", labels=["severity"])
        for severity, count in app.warnings.open_by_severity().items():
            family.add_metric([severity], count)
        yield family
        age = GaugeMetricFamily(
            "flowcatalyst_config_sync_age_seconds", "Since all sources of the configuration answered", labels=[]
        )
        if app.sync is not None and app.sync.last_success_at is not None:
            age.add_metric([], app.clock.wall() - app.sync.last_success_at)
        yield age

    def _breakers(self) -> Metric:
        text = "0: closed, 1: half open, 2: open"
        family = GaugeMetricFamily("flowcatalyst_circuit_breaker_state", text, labels=["endpoint"])
        for endpoint, breaker in self._app.breakers.items():
            family.add_metric([endpoint], _BREAKER_LEVELS[breaker.state])
        return family

    def _queues(self) -> Metric:
        family = GaugeMetricFamily("flowcatalyst_queue_messages", "Messages in the queue", labels=["queue", "state"])
        for name, depth in self.stored.depths.items():
            family.add_metric([name, "waiting"], depth.waiting)
            family.add_metric([name, "leased"], depth.leased)
            family.add_metric([name, "delayed"], depth.delayed)
        return family

    def _queue_calls(self) -> Metric:
        text = "Requests to the queue's broker by kind, where some cost money"
        family = CounterMetricFamily("flowcatalyst_queue_calls", text, labels=["queue", "call"])
        for name, queue in self._app.engine.queues.items():
            for call, count in queue.calls.items():
                family.add_metric([name, call], count)
        return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"flowcatalyst_{name}", text, value=value)


def _pool_gauges(pools: Iterable[Pool]) -> Iterator[Metric]:
    for name, text, value_of in _POOL_GAUGES:
        family = GaugeMetricFamily(f"flowcatalyst_pool_{name}", text, labels=["pool"])
        for pool in pools:
            family.add_metric([pool.code], value_of(pool))
        yield family


def _pool_counters(pools: Iterable[Pool]) -> Iterator[Metric]:
    for name, text, value_of in _POOL_COUNTERS:
        family = CounterMetricFamily(f"flowcatalyst_pool_{name}", text, labels=["pool"])
        for pool in pools:
            family.add_metric([pool.code], value_of(pool.stats))
        yield family


def _attempts(pools: Iterable[Pool]) -> Metric:
    text = "Attempts by what they meant"
    family = CounterMetricFamily("flowcatalyst_pool_attempts", text, labels=["pool", "result"])
    for pool in pools:
        for result in Result:
            family.add_metric([pool.code, result], pool.stats.attempts[result])
    return family


def _durations(pools: Iterable[Pool]) -> Metric:
    text = "How long attempts took"
    family = HistogramMetricFamily("flowcatalyst_attempt_duration_seconds", text, labels=["pool"])
    bounds = [*map(str, DURATION_BUCKETS_S), "+Inf"]
    for pool in pools:
        counts = accumulate(pool.stats.duration_counts)  # a bucket counts all that took at most so long
        buckets = list(zip(bounds, counts, strict=True))
        family.add_metric([pool.code], buckets, pool.stats.duration_sum_s)
    return family
